"""Fused weights in place of their factors: the same numbers, never stale, never in a checkpoint, never dearer."""

from collections import Counter
from copy import deepcopy
from functools import cache

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import (
    BACKBONES,
    BY_GROUP,
    HEADS,
    LAYERS,
    MAMBA,
    PACKED,
    PAD,
    carrying_far,
    difference,
    make_backbone,
    make_mixed,
    tokens,
)
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, DynamicCache

import recurformer
from recurformer.model import cpp_step, few_rows, native
from recurformer.model.attention import RecurFormerAttention
from recurformer.model.convert import convert
from recurformer.model.fused import Folding, savings

SCATTERED = [[0, 5], [0, 4], [1, 2, 3, 4]]  # under GQA: value heads that are no neighbours
CASES = [
    (backbone, heads, rank)
    for backbone, heads in [
        ("llama_mha", "mixed"),
        ("llama_gqa_tied", "beta_one"),
        *(("qwen2_gqa", h) for h in ("ragged", "scattered")),
    ]
    for rank in (3, 50)  # with 50 the step sizes are folded in every layer
]
needs_kernels = pytest.mark.skipif(native.refuses() is not None, reason="needs the C++ kernels")
every_case = pytest.mark.parametrize(("backbone", "heads", "rank"), CASES)


def make(backbone="llama_gqa_tied", heads="mixed", rank=50):
    torch.manual_seed(0)
    chosen = SCATTERED if heads == "scattered" else HEADS[heads]
    return carrying_far(convert(make_backbone(backbone), chosen, **MAMBA | {"dt_rank": rank}))


@cache
def shared(backbone, heads, rank, dtype):
    return make(backbone, heads, rank).to(dtype).requires_grad_(False)


@torch.no_grad()
def run_everything(model):
    """Logits of left-padded rows: at once, in pieces, and token by token behind them."""
    ids = torch.cat([tokens(2, 14), tokens(1, 14, seed=1)])
    mask = torch.ones_like(ids)
    ids[1, :4], mask[1, :4] = PAD, 0
    results, cache, seen = [model(ids, attention_mask=mask).logits[mask.bool()]], DynamicCache(config=model.config), 0
    for size in (5, 4, 2, 1, 1, 1):
        seen += size
        piece = ids[:, seen - size : seen]
        logits = model(piece, attention_mask=mask[:, :seen], past_key_values=cache, use_cache=True).logits
        results.append(logits[mask[:, seen - size : seen].bool()])
    return results


EXACT = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])


@every_case
@EXACT
def test_folded_equals_unfolded(backbone, heads, rank, dtype, tolerance):
    model = shared(backbone, heads, rank, dtype)
    expected = run_everything(model)
    with recurformer.folded(model):
        results = run_everything(model)
        for layer in (module for module in model.modules() if hasattr(module, "folding")):
            assert (layer.folding.fused.selection is not None) == (rank == 50)
    assert difference(torch.cat(results), torch.cat(expected)) < tolerance


@pytest.mark.parametrize("mixer", ["retention", "window_state"])
@pytest.mark.parametrize(
    ("backbone", "heads"), [("llama_mha", "mixed"), ("qwen2_gqa", "ragged"), ("qwen3", "beta_one")]
)
@EXACT
def test_folded_readouts_equal_unfolded_ones(backbone, heads, mixer, dtype, tolerance):
    model = make_mixed(mixer, backbone, heads).to(dtype)
    expected, done = run_everything(model), []
    with recurformer.folded(model):
        results = run_everything(model)
        for layer in (module for module in model.modules() if isinstance(module, RecurFormerAttention)):
            outputs, read = layer.mixer.readout.weight.shape
            done.append(layer.folding.fused.output is not None)
            assert done[-1] == (48 * read < outputs * read + 48 * outputs)
    assert any(done)
    assert difference(torch.cat(results), torch.cat(expected)) < tolerance


@pytest.mark.parametrize("backbone", ["llama_mha", "qwen2_gqa"])
def test_bfloat16_stays_as_near_to_float32(backbone):
    exact, model = make(backbone), make(backbone).to(torch.bfloat16)
    ids = tokens(2, 30)
    with torch.no_grad():
        expected, unfolded = exact(ids).logits, model(ids).logits
        with recurformer.folded(model):
            result = model(ids).logits
    assert result.dtype == torch.bfloat16
    assert difference(result, expected) < 1.5 * difference(unfolded, expected) < 0.2


def scale_in_place(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)
    return model


def load(model):
    model.load_state_dict({name: tensor * 0.9 for name, tensor in model.state_dict().items()}, assign=True)
    return model


def there_and_back(model):
    return model.to(torch.bfloat16).to(torch.float32)


def train_fused(model):
    """Fused optimizers do not raise the version counter of what they change."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    ids = tokens(1, 6)
    model.train()(ids, labels=ids).loss.backward()
    optimizer.step()
    return model.eval()


CHANGES = [scale_in_place, load, there_and_back, train_fused]


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_a_changed_weight_is_seen(change):
    model, ids = make(), tokens(2, 9)
    with recurformer.folded(model):
        before = model(ids).logits
        with torch.enable_grad():
            change(model)
        after = model(ids).logits
    assert difference(after, before) > 1e-4
    assert difference(after, model(ids).logits) < 1e-5


def test_gradients_are_those_of_the_factors():
    model, ids = make(), tokens(2, 9)
    gradients = []
    for _ in range(2):
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
        with recurformer.folded(model):
            model.zero_grad()
            model(ids, labels=ids).loss.backward()
            for name, parameter in model.named_parameters():
                assert torch.equal(parameter.grad, gradients[-1][name])


def test_the_end_forgets_and_nothing_is_saved(tmp_path):
    model, ids = make(), tokens(1, 6)
    names = list(model.state_dict())
    with torch.no_grad(), recurformer.folded(model):
        model(ids)
        with recurformer.folded(model):  # inside another it changes nothing
            model(ids)
        assert model.model.layers[0].self_attn.folding.fused is not None
        assert list(model.state_dict()) == names
        model.save_pretrained(tmp_path)
    assert model.model.layers[0].self_attn.folding is None
    assert set(load_file(tmp_path / "model.safetensors")) == set(names) - {"lm_head.weight"}
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path).eval()(ids).logits, model(ids).logits)


def test_layers_that_are_not_what_they_seem_are_refused():
    model = make()
    model.model.layers[0].self_attn.o_proj = nn.Sequential(model.model.layers[0].self_attn.o_proj)
    with pytest.raises(ValueError, match="o_proj of layer 0 is a Sequential"), recurformer.folded(model):
        pass
    model = make().to("meta")
    with pytest.raises(ValueError, match="o_proj of layer 0 has no weights here"), recurformer.folded(model):
        pass
    stock = make_backbone("llama_mha")
    with recurformer.folded(stock):  # nothing to fold
        stock(tokens(1, 3))


@pytest.mark.parametrize("rank", [3, 50])
@pytest.mark.parametrize("backbone", ["llama_mha", "qwen2_gqa"])
@torch.no_grad()
def test_the_count_is_what_torch_counts(backbone, rank):
    model = make(backbone, "mixed", rank).requires_grad_(False)
    for layer in (model.model.layers[0].self_attn, model.model.layers[2].self_attn):
        x = torch.randn(1, 2, 48)  # a single token is read by kernels that torch does not count
        position = model.model.rotary_emb(x, torch.arange(2).unsqueeze(0))
        flops = []
        for layer.folding in (None, Folding()):
            layer(x, position)
            with FlopCounterMode(display=False) as counter:
                layer(x, position)
            flops.append(counter.get_total_flops())
        layer.folding = None
        saved = sum(max(0, each) for each in savings(layer))
        assert flops[0] - flops[1] == 2 * 2 * saved  # two tokens, and a multiply-add is two of them


@torch.no_grad()
def test_a_copy_of_a_folded_model_is_not_folded_and_its_own():
    model, ids = make(), tokens(2, 9)
    with recurformer.folded(model):
        expected = model(ids).logits
        copy = deepcopy(model)
    layers = [module for module in copy.modules() if isinstance(module, RecurFormerAttention)]
    assert layers and all(layer.folding is None for layer in layers)
    assert difference(copy(ids).logits, expected) < 1e-4
    for parameter in copy.parameters():
        parameter.zero_()
    with recurformer.folded(model):
        assert torch.equal(model(ids).logits, expected)


@pytest.fixture
def called(monkeypatch):
    """How often each kernel is called."""
    call, counts = native.call, Counter()
    monkeypatch.setattr(native, "call", lambda name, *given: counts.update([name]) or call(name, *given))
    return counts


ORIGINALS = [name for name in BACKBONES if name != "llama_mha"]


@needs_kernels
@pytest.mark.parametrize("backbone", ORIGINALS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_an_originals_single_tokens_go_through_the_kernels(backbone, dtype, called):
    model = make_backbone(backbone, hidden_act="gelu_pytorch_tanh" if backbone == "qwen3" else "silu").to(dtype)
    for name, parameter in model.named_parameters():  # norms that scale, or the weights' part in them would not show
        if "norm" in name:
            parameter.add_(torch.randn_like(parameter) / 4)
    stock = [type(module) for module in model.modules()]
    exact, unfolded = (run_everything(twin) for twin in (deepcopy(model).double(), model))
    assert not called
    with recurformer.folded(model):
        converted = convert(model, HEADS["mixed"], **MAMBA)
        results = run_everything(deepcopy(model))
        linear = sum(isinstance(module, nn.Linear) for module in model.modules())
    gated = 0 if backbone == "phi3" else LAYERS  # its gate and up are one product
    norms = sum(kind.__name__.endswith("RMSNorm") for kind in stock)
    if backbone == "gemma3_text":  # it normalises the heads of queries and keys after it has turned them
        norms -= 2 * LAYERS
    elif backbone not in {"granite", "phi3"}:  # what follows the attention is one call, the norm included
        norms -= LAYERS
    assert called == Counter(products=3 * (linear - 3 * gated), rms_norm=3 * norms, gated_products=3 * gated)
    assert [type(module) for module in model.modules()] == stock
    assert not any(type(module).__name__.startswith("FewRows") for module in converted.modules())
    far, before = (max(map(difference, (x.double() for x in either), exact)) for either in (results, unfolded))
    assert far < (1e-5 if dtype == torch.float32 else 2 * before)


@needs_kernels
@torch.no_grad()
def test_weights_that_the_kernels_cannot_read_go_through_torch():
    model, ids = make_backbone("qwen2_gqa"), tokens(1, 1)
    expected = model(ids).logits
    layer = model.model.layers[0]
    for part in (layer.mlp.up_proj, layer.self_attn.k_proj, layer.input_layernorm):
        wide = torch.stack([part.weight, part.weight], -1)
        part.weight = nn.Parameter(wide[..., 0])  # with gaps
    with recurformer.folded(model):
        assert difference(model(ids).logits, expected) < 1e-5
        for weight in (torch.ones(7, 47), torch.ones(7, 49)):
            with pytest.raises(RuntimeError, match="the rows have 48 features"):
                few_rows.products(torch.ones(1, 1, 48), [(weight, None)])


WINDOWS_ALONE = [
    (mixer, backbone, heads)
    for mixer in ("window", BY_GROUP, PACKED)
    for backbone, heads in [
        ("llama_gqa_tied", "beta_one"),
        ("qwen3", "beta_one"),
    ]
]


@needs_kernels
@pytest.mark.parametrize(("mixer", "backbone", "heads"), WINDOWS_ALONE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_a_layer_of_windows_alone_is_one_call_that_gives_the_same(mixer, backbone, heads, dtype, called):
    """As the kernels of its parts, bit for bit; those are compared with torch above and in test_window_step.py."""
    model, ids = make_mixed(mixer, backbone, heads).to(dtype), tokens(2, 40)

    def read(inputs):
        cache = DynamicCache(config=model.config)
        logits = [model(inputs[:, :3], past_key_values=cache).logits]
        places = ({} if step % 2 else {"position_ids": torch.tensor([[step], [step]])} for step in range(3, 40))
        logits += [
            model(inputs[:, step : step + 1], past_key_values=cache, **place).logits
            for step, place in enumerate(places, 3)
        ]
        return torch.cat(logits, 1), cache

    with recurformer.folded(model):
        result, cache = read(ids)
        assert 0 <= called["layer_step"] - 37 * LAYERS <= 2 * LAYERS  # the latter found no slot
        for layer in model.model.layers:
            layer.self_attn.steps = None
        before = called["layer_step"]
        parts, expected = read(ids)
        assert called["layer_step"] == before
    assert torch.equal(result, parts)
    for layer, other in zip(cache.layers, expected.layers, strict=True):
        for kind in ("conv_states", "recurrent_states"):
            assert all(torch.equal(x, getattr(other, kind)[index]) for index, x in getattr(layer, kind, {}).items())
    assert cache.get_seq_length() == 40


# of the layers of an original, or of a converted model: those in one call, and the windows' calls of the others
KEEPING_ALL = [
    *(("original", name, "", 3, 0) for name in ("llama_mha", "llama_gqa_tied", "qwen2_gqa", "mistral_gqa", "qwen3")),
    ("original", "smollm3", "", 3, 0),  # one layer without positions
    ("original", "gemma", "", 3, 0),
    ("original", "gemma3_text", "", 0, 0),  # other parts
    *((mixer, "qwen2_gqa", "attention_free_first", 3, 0) for mixer in ("window", PACKED)),
    *((mixer, "qwen2_gqa", "ragged", 0, 6) for mixer in ("window", PACKED)),  # both kinds of heads read a KV head
    *((f"mamba {rank}", "qwen2_gqa", heads, 3, 0) for rank in (3, 50) for heads in ("ragged", "scattered", "mixed")),
    ("mamba 50", "qwen2_gqa", "attention_free_first", 3, 0),
    *((f"mamba {rank}", "qwen3", "beta_one", 3, 0) for rank in (3, 50)),
    ("mamba 3", "smollm3", "mixed", 3, 0),
    *((mixer, "smollm3", "beta_one", 3, 0) for mixer in ("window", PACKED)),
    ("retention", "gemma3_text", "mixed", 0, 0),  # another scaling
]


def read_and_turn(model, crops):
    """Logits of tokens: more than there is room for at first, then some at once, after a cut, and of several rows."""
    ids, cache, logits = tokens(1, 52), DynamicCache(config=model.config), []

    def read(*pieces, rows=1):
        for start, stop in pieces:
            given = ids[:, start:stop].expand(rows, -1)
            logits.append(model(given, past_key_values=cache).logits.double().flatten(0, 1))

    read((0, 3), *((step, step + 1) for step in range(3, 40)), (40, 44), (44, 45))
    if crops:
        cache.crop(-2)
    read((46, 47), (47, 48))
    cache.batch_repeat_interleave(2)
    read((48, 49), (49, 50), rows=2)
    return torch.cat(logits), cache


@needs_kernels
@pytest.mark.parametrize(("mixer", "backbone", "heads", "layers", "parts"), KEEPING_ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_heads_that_keep_all_tokens_step_by_the_kernel(mixer, backbone, heads, layers, parts, dtype, called):
    if mixer.startswith("mamba"):
        model = make(backbone, heads, int(mixer.split()[1])).requires_grad_(False).to(dtype)
    else:
        model = (make_backbone(backbone) if mixer == "original" else make_mixed(mixer, backbone, heads)).to(dtype)
    crops = mixer == "original" and backbone != "gemma3_text"
    (exact, _), (unfolded, _) = (read_and_turn(twin, crops) for twin in (deepcopy(model).double(), model))
    called.clear()
    with recurformer.folded(model):
        result, cache = read_and_turn(model, crops)
    grown = called["layer_step"] + called["window_step"] - 42 * (layers + parts)  # calls that found no slot
    assert called["layer_step"] >= 42 * layers and called["window_step"] >= 42 * parts and 0 <= grown <= 6
    far, before = difference(result, exact), difference(unfolded, exact)
    assert far < (1e-5 if dtype == torch.float32 else 2 * before)
    following = model(tokens(2, 1), past_key_values=deepcopy(cache)).logits  # unfolded, with the same cache
    assert difference(following, model(tokens(2, 1), past_key_values=cache).logits) == 0
    assert cache.get_seq_length() == (48 if crops else 50)


@needs_kernels
@pytest.mark.parametrize("mixer", ["original", "window", "mamba"])
@torch.no_grad()
def test_a_key_in_a_wrong_place_would_show(mixer, monkeypatch):
    heads = "attention_free_first"
    model = make_backbone("qwen2_gqa") if mixer == "original" else make_mixed(mixer, "qwen2_gqa", heads)
    with recurformer.folded(model):
        right, _ = read_and_turn(model, crops=False)
        monkeypatch.setattr(cpp_step, "ENDLESS", 20)
        wrong, _ = read_and_turn(model, crops=False)
    assert torch.equal(wrong[:20], right[:20])
    assert not torch.allclose(wrong, right, atol=1e-2)  # it may read rows that nobody has written


@needs_kernels
@pytest.mark.parametrize("change", [*CHANGES, "other part", "bias", "hook", "padding"])
@pytest.mark.parametrize("mixer", ["original", "window", "mamba"])
@torch.no_grad()
def test_a_changed_layer_of_one_call_is_seen(mixer, change):
    name, ids = "llama_gqa_tied", tokens(1, 9)
    model = make_backbone(name) if mixer == "original" else make_mixed(mixer, name, "beta_one")
    attention = model.model.layers[1].self_attn

    def read():
        cache = DynamicCache(config=model.config)
        model(ids[:, :5], past_key_values=cache)
        mask = torch.tensor([[1, 1, 1, 1, 1, 0, 1]]) if change == "padding" else None
        model(ids[:, 5:6], past_key_values=cache, attention_mask=None if mask is None else mask[:, :6])
        return model(ids[:, 6:7], past_key_values=cache, attention_mask=mask).logits

    seen = []
    with recurformer.folded(model):
        before = read()
        if change == "other part":
            name = "v_proj" if mixer == "mamba" else "o_proj"  # the former's o_proj is multiplied by the readout
            attention.add_module(name, nn.Sequential(deepcopy(getattr(attention, name)), nn.Tanh()))
        elif change == "bias":
            attention.o_proj.bias = nn.Parameter(torch.ones(48))
        elif change == "hook":
            attention.register_forward_hook(lambda *given: seen.append(len(given)))
        elif change != "padding":
            with torch.enable_grad():
                change(model)
        after = read()
        assert len(seen) == (3 if change == "hook" else 0)
        copy = deepcopy(model)
    assert difference(after, read()) < 1e-5 and difference(copy(ids).logits, model(ids).logits) < 1e-5
    assert all(module.steps is None for one in (copy, model) for module in one.modules() if hasattr(module, "steps"))
    if change == "hook":
        assert difference(before, after) < 1e-5
    elif change != "padding":
        assert difference(after, before) > 1e-4


def decode(model, ids):
    """Logits of a prompt's first three tokens at once and of each other token."""
    cache = DynamicCache(config=model.config)
    pieces = [ids[:, :3], *ids[:, 3:].split(1, 1)]
    return torch.cat([model(piece, past_key_values=cache).logits for piece in pieces], 1)


def gaps(block):
    """Its readout, as the step of a layer cannot read it."""
    block.out_proj.weight = nn.Parameter(block.out_proj.weight.t().contiguous().t())


def another_convolution(block):
    """Another module, whose weight is another one before the next token."""
    block.conv1d = deepcopy(block.conv1d)
    yield
    block.conv1d.weight = nn.Parameter(3 * block.conv1d.weight)


@pytest.mark.parametrize("change", [gaps, another_convolution])
@torch.no_grad()
def test_a_changed_part_of_a_block_is_seen(change):
    torch.manual_seed(0)
    backbone = make_backbone("llama_gqa_tied")
    model = carrying_far(convert(backbone, [[0], [1], [2]], **MAMBA | {"dt_rank": 3}))  # its readouts are not folded
    ids = tokens(1, 12)
    with recurformer.folded(model):
        decode(model, ids)
        for _ in change(model.model.layers[0].self_attn.mamba) or ():
            decode(model, ids)
        result = decode(model, ids)
    assert difference(result, decode(model, ids)) < 1e-5


@pytest.mark.parametrize("part", ["in_proj", "out_proj", "x_proj"])
@torch.no_grad()
def test_a_block_whose_part_was_wrapped_meanwhile_is_refused(part):
    model, ids = make(rank=3), tokens(1, 5)
    block = model.model.layers[0].self_attn.mamba
    with recurformer.folded(model):
        decode(model, ids)
        setattr(block, part, nn.Sequential(getattr(block, part)))
        with pytest.raises(ValueError, match=f"{part} of layer 0 is a Sequential, not an ordinary layer"):
            decode(model, ids)


@pytest.mark.parametrize("mixer", ["original", "mamba"])
@torch.no_grad()
def test_what_a_prefill_prepared_is_not_the_models(mixer):
    """A prefill reads by copies of the modules, and its last chunk may have a single token."""
    model, ids = make_backbone("llama_gqa_tied") if mixer == "original" else make(), tokens(1, 12)
    with recurformer.folded(model):
        recurformer.prefill(model, ids[:, :6], chunk=5)
        before = decode(model, ids)
        load(model)
        after = decode(model, ids)
    assert difference(after, decode(model, ids)) < 1e-5 < difference(after, before)


@pytest.mark.parametrize("mixer", ["original", "mamba"])
@torch.no_grad()
def test_chunks_of_one_token_before_padding(mixer):
    model, ids = make_backbone("llama_gqa_tied") if mixer == "original" else make(), tokens(2, 10)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    expected = recurformer.prefill(model, ids, 1, mask).logits[0]
    with recurformer.folded(model):
        assert difference(recurformer.prefill(model, ids, 1, mask).logits[0], expected) < 1e-5
