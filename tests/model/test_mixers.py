"""Every mixer in a model: each way to run the same tokens gives the same answer, saved or not, trained or not."""

from functools import cache
from itertools import cycle

import pytest
import torch
from safetensors.torch import load_file
from test_checkpoint import run_elsewhere
from test_decode_graph import decode, expected_logits, make_graph, only_torch_steps, prompts
from test_generate import (
    LENGTH,
    check_chunked_forward,
    check_continuation,
    check_greedy,
    check_left_padding,
    check_same,
    generate,
)
from tiny_models import HEADS, MAMBA, PAD, PAIRS, difference, make_backbone, tokens, without_zeros
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, DynamicCache

import recurformer
from recurformer.measure.cache import cache_bytes
from recurformer.model import modeling
from recurformer.model.config import RecurFormerLlamaConfig
from recurformer.model.convert import convert
from recurformer.model.export import save_with_code
from recurformer.model.mixers import MIXERS
from recurformer.train.optimiser import parameter_groups
from recurformer.train.trainer import train

OTHERS = [name for name in MIXERS if name != "mamba"]
CASES = [
    (mixer, backbone, heads)
    for mixer in MIXERS
    for backbone in ("llama_mha", "qwen2_gqa")
    for heads in ("mixed", "beta_one", "ragged")
]
READING = ["window", "linear", "retention", "window_state"]
FAMILY_CASES = [(mixer, *pair) for mixer, pair in zip(cycle(READING), PAIRS, strict=False)]
CASES += FAMILY_CASES
every_case = pytest.mark.parametrize(("mixer", "backbone", "heads"), CASES)
every_mixer = pytest.mark.parametrize("mixer", MIXERS)
every_other = pytest.mark.parametrize("mixer", OTHERS)
WINDOW = {"window_tokens": 5, "sink_tokens": 2}  # shorter than the inputs


def make(mixer, backbone="qwen2_gqa", heads="mixed", **sizes):
    torch.manual_seed(0)
    return without_zeros(convert(make_backbone(backbone), HEADS[heads], mixer, **MAMBA | WINDOW | sizes))


@cache
def shared(mixer, backbone, heads):
    return make(mixer, backbone, heads).requires_grad_(False)


@every_case
def test_step_by_step_equals_at_once(mixer, backbone, heads):
    check_greedy(shared(mixer, backbone, heads))


@every_case
def test_any_chunking_equals_a_full_forward(mixer, backbone, heads):
    for cuts in ((1,), (5,), (4, 8, 12), tuple(range(1, LENGTH))):
        check_chunked_forward(shared(mixer, backbone, heads), cuts)


@every_case
def test_left_padding_changes_nothing(mixer, backbone, heads):
    check_left_padding(shared(mixer, backbone, heads))
    check_left_padding(shared(mixer, backbone, heads), prefill_chunk_size=3)


@every_case
def test_a_returned_cache_is_continued_by_several_tokens(mixer, backbone, heads):
    check_continuation(shared(mixer, backbone, heads), 4)


@every_case
def test_static_caches_and_beams(mixer, backbone, heads):
    model, ids = shared(mixer, backbone, heads), tokens(2, LENGTH)
    check_same(generate(model, ids, cache_implementation="static", disable_compile=True), generate(model, ids))
    beams = {"num_beams": 3, "max_new_tokens": 5, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    assert torch.equal(model.generate(ids, **beams), model.generate(ids, use_cache=False, **beams))


@pytest.mark.parametrize("mixer", [name for name in MIXERS if name != "zero"])
def test_the_checks_see_a_dropped_padding_mask(mixer, monkeypatch):
    monkeypatch.setattr(modeling, "recurrent_mask", lambda attention_mask, length, cache: None)
    with pytest.raises(AssertionError):
        check_left_padding(shared(mixer, "qwen2_gqa", "mixed"))


@pytest.mark.parametrize("mixer", [name for name in MIXERS if name != "zero"])
def test_the_checks_see_a_forgotten_state(mixer):
    model, ids = shared(mixer, "qwen2_gqa", "mixed"), tokens(2, LENGTH)
    cache = model(ids[:, :8], use_cache=True).past_key_values
    for layer in cache.layers:
        for states in (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {})):
            for state in states.values():
                if state is not None:
                    state.zero_()
    assert difference(model(ids[:, 8:], past_key_values=cache).logits, model(ids).logits[:, 8:]) > 1e-2


@every_case
def test_padding_behind_a_row_is_not_seen(mixer, backbone, heads):
    model, ids = shared(mixer, backbone, heads), tokens(1, LENGTH)
    behind = torch.cat([ids, torch.full((1, 4), PAD)], 1)
    mask = torch.arange(LENGTH + 4).unsqueeze(0) < LENGTH
    assert difference(model(behind, attention_mask=mask.long()).logits[:, :LENGTH], model(ids).logits) < 1e-5


@every_mixer
def test_permuting_the_batch_permutes_the_logits(mixer):
    model, ids, order = shared(mixer, "qwen2_gqa", "ragged"), tokens(4, LENGTH), torch.tensor([2, 0, 3, 1])
    assert difference(model(ids[order]).logits, model(ids).logits[order]) < 1e-5


@every_mixer
def test_a_reset_cache_has_forgotten(mixer):
    model, ids = shared(mixer, "qwen2_gqa", "mixed"), tokens(2, LENGTH)
    cache = model(tokens(2, 7, seed=5), use_cache=True).past_key_values
    cache.reset()
    assert difference(model(ids, past_key_values=cache).logits, model(ids).logits) < 1e-5


@every_mixer
@pytest.mark.parametrize("backbone", ["llama_mha", "qwen2_gqa"])
def test_the_state_has_one_size(mixer, backbone):
    model, sizes = shared(mixer, backbone, "beta_one"), []
    for length in (20, 40):
        frame = cache_bytes(model(tokens(2, length), use_cache=True).past_key_values)
        sizes.append(frame[frame.kind.isin(["conv_state", "recurrent_state"])].bytes.sum())
    assert sizes[0] == sizes[1]
    kv_heads, rows, layers = {"llama_mha": 6, "qwen2_gqa": 2}[backbone], 2, 3
    numbers = {  # of four bytes, in one layer and for one row
        "mamba": 96 * 4 + 96 * 4,
        "mamba_open": 96 * 4 + 96 * 4,
        "window": (2 + 5) * 2 * kv_heads * 8 + 2,  # and the tokens seen, in eight bytes
        "linear": kv_heads * 8 * 9,
        "gated": 6 * 8 * 8,
        "retention": kv_heads * 2 * 8 * 9,  # at two rates
        "window_state": (2 + 5) * 2 * kv_heads * 8 + 1 + kv_heads * 8 * 9,  # and the tokens seen, in four bytes
        "mean": 5 * (kv_heads * 8 + 1),
        "zero": 0,
    }
    assert sizes[0] == 4 * numbers[mixer] * rows * layers


def test_a_wide_window_is_the_original():
    cases = {"llama_mha": HEADS, "qwen2_gqa": HEADS, **{backbone: [heads] for backbone, heads in PAIRS}}
    for backbone, sets in cases.items():
        base = make_backbone(backbone)
        for heads in sets:
            for sinks in (0, 3):
                model = convert(base, HEADS[heads], "window", window_tokens=LENGTH, sink_tokens=sinks)
                ids = tokens(2, LENGTH)
                assert difference(model(ids).logits, base(ids).logits) < 1e-5
                narrow = convert(base, HEADS[heads], "window", window_tokens=4, sink_tokens=sinks)
                assert difference(narrow(ids).logits[:, :4], base(ids).logits[:, :4]) < 1e-5
                assert difference(narrow(ids).logits, base(ids).logits) > 1e-3


@pytest.mark.parametrize("backbone", ["llama_mha", "qwen2_gqa"])
def test_zero_is_the_original_without_those_columns(backbone):
    base, ids = make_backbone(backbone), tokens(2, LENGTH)
    model = convert(base, HEADS["mixed"], "zero")
    for layer, replaced in zip(base.model.layers, HEADS["mixed"], strict=True):
        for head in replaced:
            layer.self_attn.o_proj.weight.data[:, head * 8 : head * 8 + 8] = 0
    assert difference(model(ids).logits, base(ids).logits) < 1e-5


@every_case
def test_shapes_on_meta_are_those_of_a_real_conversion(mixer, backbone, heads):
    with torch.device("meta"):
        model = convert(type(make_backbone(backbone))(make_backbone(backbone).config), HEADS[heads], mixer, **MAMBA)
    real = shared(mixer, backbone, heads).state_dict()
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == {n: t.shape for n, t in real.items()}
    cache = DynamicCache(config=model.config)
    model(torch.zeros(1, 200, dtype=torch.long, device="meta"), past_key_values=cache, use_cache=True)
    assert cache.get_seq_length() == 200


@pytest.mark.slow
def test_checkpoints_open_in_a_fresh_process_with_and_without_the_package(tmp_path):
    ids, greedy = tokens(2, 9), {"max_new_tokens": 5, "do_sample": False}
    for mixers, prelude, arguments in (
        (OTHERS, "import recurformer", ""),
        (["gated"], "sys.modules['recurformer'] = None", "trust_remote_code=True"),  # whose code imports all others
    ):
        directories = [tmp_path / f"{mixer}{arguments}" for mixer in mixers]
        for mixer, directory in zip(mixers, directories, strict=True):
            save_with_code(shared(mixer, "qwen2_gqa", "ragged"), directory)
            torch.save(ids, directory / "ids.pt")
        results = run_elsewhere(directories, tmp_path, prelude, arguments)
        for mixer, (_, logits, generated) in zip(mixers, results, strict=True):
            model = shared(mixer, "qwen2_gqa", "ragged")
            assert torch.equal(logits, model(ids).logits)
            assert torch.equal(generated, model.generate(ids, attention_mask=torch.ones_like(ids), **greedy))


@every_mixer
def test_saving_and_loading_keeps_everything(mixer, tmp_path):
    model = shared(mixer, "llama_mha", "mixed")
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert loaded.config.mixer == mixer and loaded.config.window_tokens == 5 and loaded.config.sink_tokens == 2
    assert torch.equal(loaded(tokens(2, 9)).logits, model(tokens(2, 9)).logits)
    own = {name for name in load_file(tmp_path / "model.safetensors") if f".{mixer}." in name}
    assert bool(own) == (mixer not in {"window", "linear", "mean", "zero"})


def test_a_config_without_the_keys_is_of_mamba(tmp_path):
    written = make("mamba").config.to_dict()
    for key in ("mixer", "window_tokens", "sink_tokens"):
        del written[key]
    config = type(make("mamba").config)(**written)
    assert (config.mixer, config.window_tokens, config.sink_tokens) == ("mamba", 64, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"mixer": "hyena"},
            f"mixer='hyena' is unknown; there are {', '.join(MIXERS)}",
        ),
        ({"window_tokens": 0}, "window_tokens=0 must be a whole number of at least 1"),
        ({"sink_tokens": -1}, "sink_tokens=-1 must be a whole number of at least 0"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(changes, message):
    for refuse in (
        lambda: RecurFormerLlamaConfig(**changes),
        lambda: convert(make_backbone("llama_mha"), HEADS["mixed"], **changes),
    ):
        with pytest.raises(ValueError, match=f"{message}$") as error:
            refuse()
        assert "\n" not in str(error.value)


@every_other
@torch.no_grad()
def test_folding_passes_by_other_mixers(mixer):
    model, ids = make(mixer), tokens(2, 9)
    with recurformer.folded(model):
        assert torch.equal(model(ids).logits, shared(mixer, "qwen2_gqa", "mixed")(ids).logits)


@every_other
@pytest.mark.parametrize("heads", ["ragged", "beta_one"])
def test_a_replayed_graph_decodes(mixer, heads, monkeypatch):
    only_torch_steps(monkeypatch)
    model = shared(mixer, "qwen2_gqa", heads)
    with make_graph(model)[0] as graph:
        for seed, padded in ((0, False), (1, True)):
            ids, mask = prompts(seed, padded)
            assert difference(decode(graph, ids, mask), expected_logits(model, ids, mask)) < 1e-4
        assert graph.capture.replayed


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_other
def test_a_cuda_graph_decodes(mixer):
    model = make(mixer, heads="ragged").requires_grad_(False).cuda()
    with recurformer.DecodeGraph(model, rows=2, max_length=16) as graph:
        for seed, padded in ((0, False), (1, True)):
            ids, mask = (x.cuda() for x in prompts(seed, padded))
            assert difference(decode(graph, ids, mask), expected_logits(model, ids, mask)) < 1e-4
        assert graph.replay is not None


@pytest.mark.parametrize("mixer", [name for name in MIXERS if name != "zero"])
@pytest.mark.parametrize("heads", ["beta_one", "ragged"])
def test_every_parameter_gets_a_gradient(mixer, heads):
    model, ids = make(mixer, heads=heads).train(), tokens(2, 40)
    model(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.any(), name


@every_mixer
def test_gradients_pass_through_a_cache(mixer):
    model, ids = make(mixer).train(), tokens(1, LENGTH)
    gradients = []
    for cuts in ((LENGTH,), (6, 1, LENGTH - 7)):
        x = model.model.embed_tokens(ids).detach().requires_grad_()
        cache = DynamicCache(config=model.config)
        for piece in x.split(cuts, 1):
            last = model(inputs_embeds=piece, past_key_values=cache, use_cache=True).logits[:, -1]
        gradients.append(torch.autograd.grad(last.square().sum(), x)[0])
    assert difference(*gradients) < 1e-4


@every_mixer
def test_bfloat16_stays_near_float32(mixer):
    model, ids = make(mixer, heads="ragged"), tokens(2, 30)
    expected = model(ids).logits
    model = model.to(torch.bfloat16)
    result = model(ids, use_cache=True)
    assert result.logits.dtype == torch.bfloat16 and difference(result.logits, expected) < 0.15
    for layer in result.past_key_values.layers:
        state = getattr(layer, "recurrent_states", {0: None})[0]
        assert state is None or state.dtype == (torch.long if mixer == "window" else torch.float32)


@pytest.mark.parametrize("mixer", ["mean", "gated", "retention", pytest.param("window", marks=pytest.mark.slow)])
def test_forward_and_backward_compile_in_one_graph(mixer):
    torch.compiler.reset()
    base = make_backbone("qwen2_gqa", num_hidden_layers=1)
    model, ids = convert(base, [[1, 3, 4, 5]], mixer, **MAMBA | WINDOW).train(), tokens(2, 12)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    result = compiled(ids, labels=ids, use_cache=False)
    assert difference(result.logits, model(ids, use_cache=False).logits) < 1e-5
    result.loss.backward()


class Repetitions(torch.utils.data.Dataset):
    """Rows of one repeated token."""

    def __getitem__(self, index):
        ids = torch.full((12,), 2 + index % 8)
        return {"input_ids": ids, "labels": ids}


@every_mixer
def test_the_trainer_trains_it_and_its_checkpoint_loads(mixer, tmp_path):
    model = make(mixer, heads="ragged")
    before = F.cross_entropy(model(tokens(1, 12)).logits[0], tokens(1, 12)[0])
    settings = {"steps": 2, "batch_size": 2, "learning_rate": 1e-3, "log_every": 1, "save_every": 1}
    rows = train(model, Repetitions(), output_dir=tmp_path, **settings)
    assert rows.loss.notna().all() and rows.step.tolist() == [1, 2]
    assert F.cross_entropy(model(tokens(1, 12)).logits[0], tokens(1, 12)[0]) != before
    model.save_pretrained(tmp_path / "trained")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "trained")
    assert torch.equal(loaded(tokens(2, 9)).logits, model.eval()(tokens(2, 9)).logits)


def test_new_parameters_learn_at_the_rate_of_mixers():
    model = make("gated")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    rates = {names[id(p)]: group["lr"] for group in parameter_groups(model, 1.0, 2.0, 0.1) for p in group["params"]}
    new = {name for name, rate in rates.items() if rate == 2.0}
    prefixes = [f"model.layers.{layer}.self_attn.gated." for layer in (0, 2)]
    assert new == {prefix + name for prefix in prefixes for name in ("A_log", "D", "dt_proj.weight", "dt_proj.bias")}
    assert {rate for name, rate in rates.items() if name not in new} == {1.0}


def test_conversion_starts_each_mixer_by_its_own_rules():
    """The library skips modules without parameters of their own, and leaves their linear layers at its own start."""
    original, ids = make_backbone("qwen2_gqa"), tokens(2, 20)
    window, both, retention = (
        convert(original, HEADS["mixed"], mixer=name, window_tokens=5, sink_tokens=2)
        for name in ("window", "window_state", "retention")
    )
    with torch.no_grad():
        torch.testing.assert_close(both(ids).logits, window(ids).logits)
    gate = retention.model.layers[0].self_attn.mixer.gate
    assert not gate.weight.any() and (gate.bias > 0).all()
