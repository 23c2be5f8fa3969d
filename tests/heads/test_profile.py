"""Recency ratios against whole attention matrices, RA-I, and profiles on disk."""

import pyarrow.parquet as pq
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from recurformer import HeadProfile, convert, profile_heads, select_heads
from recurformer.data.datasets import pad_batch
from recurformer.heads import attention, profile
from recurformer.heads.profile import profile_windows
from recurformer.model import prefill
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
    padded = pad_batch([{"input_ids": sample} for sample in samples], 7, side)
    together = profile_heads(model, **padded, window=WINDOW, batch_size=3)
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
    for window, one in zip(windows, profile_windows(model, input_ids, windows), strict=True):
        assert one.window == window
        torch.testing.assert_close(one.rr, profile_heads(model, input_ids, window).rr, atol=1e-6, rtol=0)


def test_batches_change_nothing():
    model, input_ids = backbone(), random_ids(7)
    alone = profile_heads(model, input_ids, window=WINDOW, batch_size=1)
    steps = []
    together = profile_heads(model, input_ids, window=WINDOW, progress=lambda done, samples: steps.append(done))
    assert steps == [5, 7]  # 1,024 tokens of 200 each
    torch.testing.assert_close(together.rr, alone.rr, atol=1e-6, rtol=0)


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


@torch.no_grad()
def layer_inputs(length: int = 150, dtype: torch.dtype = torch.float32, sink: float = 0.0, mask=None):
    """One layer's queries, keys and values; `sink`: how strongly all queries look at the first token."""
    generator = torch.Generator().manual_seed(4)
    query, key, value = (
        torch.randn(2, length, heads, 16, generator=generator, dtype=torch.float64).transpose(1, 2)
        for heads in (6, 3, 3)
    )
    query[..., 0], key[..., 0], key[:, :, 0, 0] = 1.0, 0.0, 4 * sink
    tokens = torch.ones(2, length, dtype=torch.bool)
    tokens[1, 100:] = False
    states = (query.to(dtype), key.to(dtype), value.to(dtype))
    return attention.LayerInputs(0, torch.arange(6), torch.arange(2), tokens, *states, mask, 0.25)


def direct_recency(inputs: attention.LayerInputs, window: int, exclude_first: bool):
    """Output and ratios from the whole matrix in float64."""
    query, key, value = inputs.query.double(), inputs.key.double(), inputs.value.double()
    groups = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(groups, 1).transpose(-1, -2) * inputs.scaling
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    visible = visible if inputs.mask is None else visible & inputs.mask
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    output = (weights @ value.repeat_interleave(groups, 1)).transpose(1, 2)
    return output, direct_ratio(weights * inputs.tokens[:, None, :, None], window, exclude_first)


def sliding_mask(length: int = 150) -> torch.Tensor:
    positions = torch.arange(length)
    return (positions[:, None] - positions[None, :] < 70)[None, None]


@pytest.mark.parametrize(
    ("way", "exclude_first", "sink"),
    [
        ("kernel", True, 16.0),
        ("kernel", False, 16.0),
        ("kernel", True, 0.0),
        ("without a kernel", True, 16.0),
        ("without a kernel", False, 0.0),
        ("sliding window", True, 8.0),
        ("sliding window", False, 8.0),
    ],
)
def test_the_band_gives_the_ratios_of_the_whole_matrix(way, exclude_first, sink, monkeypatch):
    """Also in heads that leave the other tokens a fifty-thousandth of their attention."""
    inputs = layer_inputs(sink=sink, mask=sliding_mask() if way == "sliding window" else None)
    if way == "without a kernel":
        monkeypatch.setattr(prefill, "refuses", lambda *given: "no kernel")
    for window in (0, 20, 63, 64, 149):
        output, recent, total = profile.attend_and_sum(inputs, window, exclude_first)
        expected_output, expected = direct_recency(inputs, window, exclude_first)
        torch.testing.assert_close(output.double(), expected_output, atol=1e-5, rtol=0)
        torch.testing.assert_close(recent.sum(-1) / total, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_precisions(dtype):
    inputs = layer_inputs(dtype=dtype, sink=2.0)
    output, recent, total = profile.attend_and_sum(inputs, 20, True)
    expected_output, expected = direct_recency(inputs, 20, True)
    assert output.dtype == dtype
    tolerance = 1e-12 if dtype == torch.float64 else 1e-4  # the scores are wide: only the model's own inputs are coarse
    torch.testing.assert_close(recent.sum(-1) / total, expected, atol=tolerance, rtol=0)
    torch.testing.assert_close(output.double(), expected_output, atol=max(tolerance, 0.03), rtol=0)


def test_scores_are_computed_for_a_few_heads_at_a_time(monkeypatch):
    inputs = layer_inputs()
    _, whole, _ = profile.attend_and_sum(inputs, 20, True)
    monkeypatch.setattr(profile, "SCORES", 1)
    _, sliced, _ = profile.attend_and_sum(inputs, 20, True)
    torch.testing.assert_close(sliced, whole, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kv_heads", [6, 3])
@pytest.mark.parametrize("kernel", [prefill.flash_kernel, prefill.efficient_kernel])
def test_gpu_kernels_are_called_with_the_arguments_that_they_have(kernel, kv_heads):
    """On the meta device, which checks signatures and shapes, not values."""
    query, key = torch.empty(2, 6, 10, 64, device="meta"), torch.empty(2, kv_heads, 10, 64, device="meta")
    output, logsumexp = kernel(query, key, key, 0.1, True)
    assert output.shape == query.shape and logsumexp.shape == query.shape[:-1]


def some_profile(**changes) -> HeadProfile:
    rr = torch.rand(5, 2, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    settings = {"window": 9, "threshold": 0.5, "exclude_first": True, "kv_heads": 2, "tokens": 64, **changes}
    return HeadProfile(rr, **settings)


def test_ra_i_counts_samples_above_the_threshold():
    profile = some_profile()
    assert torch.equal(profile.ra_i, (profile.rr > 0.5).sum(0))
    assert int(profile.with_threshold(0.0).ra_i.min()) == 5 and int(profile.with_threshold(1.0).ra_i.max()) == 0
    rr = torch.tensor([[[0.5, 0.51]]])
    assert HeadProfile(rr, 1, 0.5, True, 2, 4).ra_i.tolist() == [[0, 1]]  # exceeds, not reaches


def test_save_and_load(tmp_path):
    profile = some_profile(model="tiny")
    profile.rr[:, 1, 2] = float("nan")
    path = tmp_path / "new folder" / "profile.parquet"
    profile.save(path)
    loaded = HeadProfile.load(path)
    assert torch.equal(loaded.rr.nan_to_num(-1), profile.rr.nan_to_num(-1))
    for name in ("window", "threshold", "exclude_first", "kv_heads", "tokens", "model"):
        assert getattr(loaded, name) == getattr(profile, name)
    frame = pq.read_table(path).to_pandas()
    assert list(frame.columns) == ["model", "threshold", "sample", "layer", "head", "rr"]
    assert len(frame) == profile.rr.numel() and set(frame.model) == {"tiny"} and set(frame.threshold) == {0.5}
    row = frame[(frame["sample"] == 4) & (frame.layer == 1) & (frame["head"] == 3)]
    assert row.rr.item() == profile.rr[4, 1, 3].item()
    assert [file.name for file in path.parent.iterdir()] == ["profile.parquet"]  # nothing unfinished is left


def test_unreadable_profiles_are_refused(tmp_path):
    whole, damaged, other = (tmp_path / f"{name}.parquet" for name in ("whole", "damaged", "other"))
    some_profile().save(whole)
    damaged.write_bytes(whole.read_bytes()[:200])
    pq.write_table(pq.read_table(whole).replace_schema_metadata(None), other)
    short = tmp_path / "short.parquet"
    pq.write_table(pq.read_table(whole).slice(1), short)
    for path in (damaged, other, short, tmp_path / "absent.parquet"):
        with pytest.raises(ValueError, match=f"{path.name}: not a head profile") as error:
            HeadProfile.load(path)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"is a \.parquet file"):
        some_profile().save(tmp_path / "profile.csv")
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(ValueError, match="cannot be written"):
        some_profile().save(blocker / "profile.parquet")


def test_impossible_profiles_are_refused():
    with pytest.raises(ValueError, match="kv_heads=3 must divide the 4 heads"):
        some_profile(kv_heads=3)
    with pytest.raises(ValueError, match="got shape"):
        HeadProfile(torch.zeros(0, 2, 4), 1, 0.5, True, 2, 4)
