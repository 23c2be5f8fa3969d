"""Recency ratios against the full eager attention matrix, under padding, on converted models, and on disk."""

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from recurformer import HeadProfile, convert, profile_heads, select_heads
from recurformer.heads import attention
from recurformer.heads.profile import profile_windows
from recurformer.model.layout import sliding_layers
from tests.model.tiny_models import PAIRS, make_backbone, tokens

LAYERS, HEADS, TOKENS, WINDOW = 3, 4, 200, 20  # more tokens than one block of query rows
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "vocab_size": 64,
    "initializer_range": 0.4,  # attention far from uniform
}
BACKBONES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=HEADS)),
    "llama_gqa": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=2)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, num_key_value_heads=2)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=None)),
    "mistral_sliding": lambda: MistralForCausalLM(MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=70)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(n_embd=32, n_layer=LAYERS, n_head=HEADS, n_positions=256, vocab_size=64, initializer_range=0.4)
    ),
}
REPLACED = [[], [0, 3], [0, 1, 2, 3]]  # a whole layer and, under grouped queries, half of two groups


def backbone(name: str = "llama_gqa"):
    torch.manual_seed(0)
    return BACKBONES[name]().eval()


def random_ids(samples: int, tokens: int = TOKENS) -> torch.Tensor:
    return torch.randint(0, 64, (samples, tokens), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def eager_attentions(model, input_ids, **kwargs) -> dict[int, torch.Tensor]:
    """The full attention matrices (B, H, L, L) of every attending layer, from transformers' eager attention."""
    kept: dict[int, torch.Tensor] = {}
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    handles = [
        module.register_forward_hook(lambda module, args, output: kept.__setitem__(module.layer_idx, output[1]))
        for name, module in model.named_modules()
        if name.endswith(("self_attn", ".attn"))
    ]
    model(input_ids, use_cache=False, **kwargs)
    for handle in handles:
        handle.remove()
    model.set_attn_implementation(implementation)
    return {layer: weights.double() for layer, weights in kept.items() if weights is not None}


def direct_ratio(weights: torch.Tensor, window: int, exclude_first: bool) -> torch.Tensor:
    """Equation 1 written down: (B, H, L, L) -> (B, H)."""
    positions = torch.arange(weights.shape[-1])
    near = (positions[:, None] - positions[None, :]).abs() <= window
    kept = torch.ones_like(weights)
    kept[..., 0] = 0.0 if exclude_first else 1.0
    return (weights * near * kept).sum((-1, -2)) / (weights * kept).sum((-1, -2))


@pytest.mark.parametrize(
    ("name", "exclude_first"), [*((name, True) for name in BACKBONES), ("llama_gqa", False), ("mistral_sliding", False)]
)
def test_ratios_equal_those_of_the_full_attention_matrix(name, exclude_first):
    model, input_ids = backbone(name), random_ids(3)
    profile = profile_heads(model, input_ids, window=WINDOW, exclude_first=exclude_first, batch_size=2)
    weights = eager_attentions(model, input_ids)
    expected = torch.stack([direct_ratio(weights[layer], WINDOW, exclude_first) for layer in range(LAYERS)], 1)
    assert profile.rr.dtype == torch.float64 and profile.rr.shape == (3, LAYERS, HEADS)
    assert expected.max() - expected.min() > 0.05  # the comparison has power: heads and samples differ
    torch.testing.assert_close(profile.rr, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", dict(PAIRS))
def test_every_family_is_profiled_without_its_sliding_layers(name, capfd, tmp_path):
    model, ids = make_backbone(name), tokens(3, 20)
    profile = profile_heads(model, ids, window=4)
    weights, sliding = eager_attentions(model, ids), sliding_layers(model.config)
    expected = torch.stack([direct_ratio(weights[layer], 4, True) for layer in range(3)], 1)
    expected[:, sliding] = float("nan")
    torch.testing.assert_close(profile.rr, expected, atol=1e-6, rtol=0, equal_nan=True)
    said = "1 of 3 layers attend through a sliding window and stay as they are"
    assert (said in capfd.readouterr().err) == bool(sliding)
    profile.save(tmp_path / "profile.parquet")
    loaded = HeadProfile.load(tmp_path / "profile.parquet")
    assert loaded.sliding == tuple(sliding)
    heads = select_heads(loaded, 0.5)
    assert sum(map(len, heads)) == 3 * (3 - len(sliding)) and not any(heads[layer] for layer in sliding)
    assert profile_heads(convert(model, heads), ids, window=4).rr[:, :, 0].isnan().any()


@pytest.mark.parametrize(
    ("side", "name"),
    [("left", "gpt2"), ("right", "llama_gqa")],  # gpt2 has absolute positions: they are counted from the first token
)
def test_padding_changes_nothing(side, name):
    model, samples = backbone(name), [random_ids(1, length)[0] for length in (200, 137, 150)]
    padded, mask = pad(samples, side)
    together = profile_heads(model, padded, window=WINDOW, attention_mask=mask, batch_size=3)
    for index, sample in enumerate(samples):
        alone = profile_heads(model, sample[None], window=WINDOW)
        torch.testing.assert_close(together.rr[index], alone.rr[0], atol=1e-6, rtol=0)
    assert together.tokens == 200


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ratios_on_a_gpu(dtype):
    model, input_ids = backbone().to(dtype), random_ids(2)
    expected = profile_heads(model, input_ids, window=WINDOW).rr
    found = profile_heads(model.cuda(), input_ids, window=WINDOW).rr
    torch.testing.assert_close(found, expected, atol=1e-5 if dtype == torch.float32 else 0.05, rtol=0)


def test_several_windows_in_one_pass():
    model, input_ids = backbone(), random_ids(2)
    windows = [5, 40, 20]
    for window, profile in zip(windows, profile_windows(model, input_ids, windows), strict=True):
        assert profile.window == window
        torch.testing.assert_close(profile.rr, profile_heads(model, input_ids, window).rr, atol=1e-6, rtol=0)


def test_batches_change_nothing():
    model, input_ids = backbone(), random_ids(7)
    alone = profile_heads(model, input_ids, window=WINDOW, batch_size=1)
    steps = []
    together = profile_heads(model, input_ids, window=WINDOW, progress=lambda done, samples: steps.append(done))
    assert steps == [5, 7]  # 1,024 tokens of 200 each
    torch.testing.assert_close(together.rr, alone.rr, atol=1e-6, rtol=0)


def pad(samples: list[torch.Tensor], side: str) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, samples))
    ids, mask = torch.full((len(samples), longest), 7), torch.zeros(len(samples), longest, dtype=torch.long)
    for row, sample in enumerate(samples):
        place = slice(longest - len(sample), None) if side == "left" else slice(0, len(sample))
        ids[row, place], mask[row, place] = sample, 1
    return ids, mask


def test_replaced_heads_are_nan_and_the_others_at_their_own_place():
    base = backbone()
    model = convert(base, REPLACED, d_state=4, dt_rank=4).eval()
    input_ids = random_ids(2)
    profile = profile_heads(model, input_ids, window=WINDOW)
    gone = torch.zeros(LAYERS, HEADS, dtype=torch.bool)
    for layer, heads in enumerate(REPLACED):
        gone[layer, heads] = True
    assert torch.equal(profile.rr.isnan(), gone.expand(2, -1, -1))
    # Layer 0 has lost nothing and reads the same input; layer 1 reads layer 0's output: both equal the base's heads.
    original = profile_heads(base, input_ids, window=WINDOW)
    torch.testing.assert_close(profile.rr[:, 0], original.rr[:, 0], atol=1e-6, rtol=0)
    torch.testing.assert_close(profile.rr[:, 1, 1:3], original.rr[:, 1, 1:3], atol=1e-6, rtol=0)
    assert (original.rr[:, 1, 1] - original.rr[:, 1, 2]).abs().max() > 1e-3  # a swap would show


def test_model_is_left_as_it_was():
    model = backbone()
    model.train()
    before = model.config._attn_implementation
    profile_heads(model, random_ids(1), window=WINDOW)
    assert model.training and model.config._attn_implementation == before

    def broken(module, args, kwargs):
        raise RuntimeError("broken")

    model.model.layers[1].register_forward_pre_hook(broken, with_kwargs=True)
    with pytest.raises(RuntimeError, match="broken"):
        profile_heads(model, random_ids(1), window=WINDOW)
    assert model.training and model.config._attn_implementation == before


def test_no_whole_attention_matrix_is_made():
    """Blocks of rows only: the largest tensor that an observer ever sees has at most `ROWS` queries."""
    shapes = []
    attention.watch_attention(backbone(), random_ids(1), lambda block: shapes.append(block.weights.shape))
    assert max(shape[2] for shape in shapes) == attention.ROWS < TOKENS
    assert sum(shape[2] for shape in shapes) == LAYERS * TOKENS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 200}, "window=200 must be at least 0 and below 200"),
        ({"threshold": 1.5}, "threshold=1.5 must lie in"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"input_ids": torch.empty(0, 10, dtype=torch.long)}, r"got shape \(0, 10\)"),
        ({"attention_mask": torch.ones(1, 10)}, r"attention_mask has shape \(1, 10\)"),
        ({"attention_mask": torch.zeros(2, TOKENS)}, "sample 0: the tokens must be one unbroken run"),
        ({"attention_mask": ((torch.arange(TOKENS) - 55).abs() > 5).expand(2, -1)}, "one unbroken run"),
        (
            {"attention_mask": (torch.arange(TOKENS) >= 190).long().expand(2, -1)},
            "window=20 must be at least 0 and below 10, the tokens of the shortest",
        ),
        ({"input_ids": torch.zeros(1, 1, dtype=torch.long), "window": 0}, "use exclude_first=False"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, message):
    arguments = {"input_ids": random_ids(2), "window": WINDOW, **arguments}
    with pytest.raises(ValueError, match=message) as error:
        profile_heads(backbone(), **arguments)
    assert "\n" not in str(error.value)
