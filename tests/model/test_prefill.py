"""A prefill in chunks against one forward pass: logits, cache, what follows it, and memory beyond the cache."""

import pytest
import torch
from tiny_models import MATRIX, PAIRS, difference, make_backbone, make_converted, shared_converted, tokens
from transformers import DynamicCache, Gemma2Config, Gemma2ForCausalLM, MistralConfig, MistralForCausalLM

from recurformer.evict import evicting, make_cache
from recurformer.heads.profile import profile_heads
from recurformer.measure.cache import cache_bytes, cache_tensors
from recurformer.measure.device import PeakMemory
from recurformer.measure.prefills import PREFILLS
from recurformer.model.prefill import prefill, read_chunk

BACKBONES = sorted({backbone for backbone, _ in MATRIX})
CASES = [*MATRIX, *((backbone, None) for backbone in BACKBONES)]
LENGTH = 21
CHUNKS = (1, 5, 20, 100)


@torch.no_grad()
def one_shot(model, ids):
    return read_chunk(model, ids, DynamicCache(config=model.config))


def assert_same(found, expected, tolerance):
    assert difference(found.logits, expected.logits) < tolerance
    ours, theirs = (list(cache_tensors(output.past_key_values)) for output in (found, expected))
    assert [(layer, kind, tensor.shape) for layer, kind, tensor in ours] == [
        (layer, kind, tensor.shape) for layer, kind, tensor in theirs
    ]
    for (layer, kind, tensor), (*_, other) in zip(ours, theirs, strict=True):
        assert difference(tensor, other) < tolerance, (layer, kind)


def make(backbone, heads):
    """A model with these replaced heads; the backbone itself where there are none."""
    return make_converted(backbone, heads) if heads else make_backbone(backbone)


@pytest.mark.parametrize(("backbone", "heads"), dict.fromkeys(CASES))
def test_chunks_of_any_size_give_the_logits_and_the_cache_of_one_pass(backbone, heads):
    model, ids = make(backbone, heads).double(), tokens(2, LENGTH)
    expected = one_shot(model, ids)
    for chunk in CHUNKS:
        assert_same(prefill(model, ids, chunk), expected, 1e-10)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_lower_precisions(dtype, tolerance):
    model, ids = make_converted("qwen2_gqa", "ragged").to(dtype), tokens(1, LENGTH)
    assert difference(prefill(model, ids, 5).logits, one_shot(model, ids).logits) < tolerance


@torch.no_grad()
def test_generation_goes_on_from_the_cache_as_from_any_other():
    model, ids = shared_converted("qwen2_gqa", "mixed"), tokens(1, LENGTH)
    expected = model.generate(ids, do_sample=False, max_new_tokens=8)
    first = prefill(model, ids, 8)
    start = torch.cat([ids, first.logits.argmax(-1)], 1)
    found = model.generate(start, past_key_values=first.past_key_values, do_sample=False, max_new_tokens=7)
    assert found.tolist() == expected.tolist()


def test_a_cropped_and_reordered_cache_is_not_written_into_its_former_room():
    model, ids = make_backbone("llama_mha"), tokens(2, LENGTH)
    cache = prefill(model, ids, 8).past_key_values
    cache.reorder_cache(torch.tensor([1, 0]))
    cache.crop(-3)
    with torch.no_grad():
        found = read_chunk(model, ids.flip(0)[:, -3:], cache)
    assert difference(found.logits, one_shot(model, ids.flip(0)).logits) < 1e-4


@pytest.mark.parametrize("call", ["prefill", "profile_heads", "evicting"])
@torch.no_grad()
def test_other_callers_of_the_model_notice_nothing(call):
    """The other one comes while the first is in the middle of the model, as another thread does."""
    model, ids = make_converted("qwen2_gqa", "mixed"), tokens(2, LENGTH)
    mask = torch.ones_like(ids)
    mask[0, :9] = 0
    expected, found = model(ids, attention_mask=mask).logits, []

    def other(*_):
        if not found:
            found.append(None)  # for its own passes call this too
            found.append(model(ids, attention_mask=mask).logits)

    reads = {
        "prefill": lambda: prefill(model, ids, 8),
        "profile_heads": lambda: profile_heads(model, ids, 2),
        "evicting": lambda: evicting(model)(ids, past_key_values=make_cache(model, "h2o", 1.0)),
    }
    with model.model.layers[1].register_forward_hook(other):
        reads[call]()
    for logits in (found[1], model(ids, attention_mask=mask).logits):
        assert torch.equal(logits, expected)


def test_the_models_own_attention_is_back_afterwards_and_bad_requests_are_refused():
    model = make_backbone("llama_mha")
    before = model.config._attn_implementation
    for ids, chunk in ((tokens(1, 5), 0), (tokens(1, 0), 4)):
        with pytest.raises(ValueError, match="at least one token and a chunk of at least 1"):
            prefill(model, ids, chunk)
    sizes = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 8}
    bounded = Gemma2ForCausalLM(Gemma2Config(**sizes, num_attention_heads=2, num_key_value_heads=2))
    with pytest.raises(ValueError, match="Gemma2Attention attends with softcap, which no prefill in chunks knows"):
        prefill(bounded.eval(), tokens(1, 20), 4)
    assert (model.config._attn_implementation, bounded.config._attn_implementation) == (before, "eager")


@pytest.mark.parametrize("window", [2, 8, 100])
def test_a_sliding_window_of_every_layer_slides(window):
    config = MistralConfig(**make_backbone("mistral_gqa").config.to_dict() | {"sliding_window": window})
    model, ids = MistralForCausalLM(config).eval().double(), tokens(2, LENGTH)
    expected = one_shot(model, ids)
    for chunk in CHUNKS:
        assert_same(prefill(model, ids, chunk), expected, 1e-10)


def beyond_the_cache(model, length, read):
    ids = torch.zeros(1, length, dtype=torch.long)
    with PeakMemory() as memory:
        output = read(model, ids)
    return memory.peak - int(cache_bytes(output.past_key_values).bytes.sum())


@torch.no_grad()
def by_copies_and_masks(model, ids):
    """The library's way: the cache grows by copies, the attention reads a mask of chunk x tokens."""
    cache = DynamicCache(config=model.config)
    for part in ids.split(64, 1):
        output = read_chunk(model, part, cache)
    return output


@pytest.mark.parametrize("heads", [None, "ragged", "beta_one"])
def test_memory_beyond_the_cache_does_not_grow_with_the_prompt(heads):
    model = make("qwen2_gqa", heads)
    short, long = (
        beyond_the_cache(model, length, lambda model, ids: prefill(model, ids, 64)) for length in (512, 2048)
    )
    assert long < 1.01 * short
    if heads == "ragged":
        control, grown = (beyond_the_cache(model, length, by_copies_and_masks) for length in (512, 2048))
        assert grown > 2 * control, "negative control"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu(dtype):
    model, ids = make_converted("qwen2_gqa", "ragged").to(dtype).cuda(), tokens(1, LENGTH).cuda()
    tolerance = 1e-3 if dtype == torch.float32 else 0.1
    assert difference(prefill(model, ids, 5).logits, one_shot(model, ids).logits) < tolerance


@torch.no_grad()
def memory_of(read, model, length):
    """Peak, cache, and positions counted of a prefill in chunks of 8."""
    with PeakMemory() as memory:
        cache = read(model, tokens(1, length), 8).past_key_values
    return memory.peak, int(cache_bytes(cache).bytes.sum()), cache.get_seq_length()


@pytest.mark.parametrize(("backbone", "heads"), [*PAIRS, ("llama_mha", "beta_one"), ("gemma3_text", None)])
def test_first_and_last_chunks_take_the_memory_of_all(backbone, heads):
    model = make(backbone, heads).requires_grad_(False)
    for length in (1, 8, 9, 24, 37):
        assert memory_of(PREFILLS["chunked"], model, length) == memory_of(prefill, model, length), length
