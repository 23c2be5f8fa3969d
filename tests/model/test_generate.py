"""Checks that every way to run the same tokens gives the same answer, which `test_mixers.py` calls for every mixer; and
what generation refuses: masks, caches and modes that the state cannot honour."""

import pytest
import torch
from tiny_models import HEADS, MAMBA, PAD, difference, make_backbone, shared_converted, tokens
from transformers import Cache, CompileConfig, DynamicCache, StaticCache

from recurformer.model.convert import convert

LENGTH, NEW = 13, 6
GREEDY = {"do_sample": False, "max_new_tokens": NEW, "return_dict_in_generate": True, "output_logits": True}
some_models = pytest.mark.parametrize(
    ("backbone", "heads"),
    [("llama_mha", "beta_one"), ("qwen2_gqa", "ragged"), ("mistral_gqa", "attention_free_first")],
)


def generate(model, ids, **arguments):
    """Tokens (B, L + NEW) and the logits (B, NEW, vocabulary) that chose them."""
    attention_mask = arguments.pop("attention_mask", torch.ones_like(ids))
    result = model.generate(ids, attention_mask=attention_mask, **GREEDY | arguments)
    return result.sequences, torch.stack(result.logits, 1), result.past_key_values


def check_same(result, expected, tolerance=1e-4):
    assert torch.equal(result[0][:, -NEW:], expected[0][:, -NEW:])
    assert difference(result[1], expected[1]) < tolerance


def check_greedy(model):
    ids = tokens(2, LENGTH)
    check_same(generate(model, ids), generate(model, ids, use_cache=False))


def check_chunked_forward(model, cuts):
    ids = tokens(2, LENGTH)
    full, cache, parts = model(ids, use_cache=False).logits, DynamicCache(config=model.config), []
    for start, stop in zip((0, *cuts), (*cuts, LENGTH), strict=True):
        parts.append(model(ids[:, start:stop], past_key_values=cache, use_cache=True).logits)
    assert difference(torch.cat(parts, 1), full) < 1e-4
    assert cache.get_seq_length() == LENGTH


def check_left_padding(model, **arguments):
    short, long = tokens(1, LENGTH - 5, seed=1), tokens(1, LENGTH, seed=2)
    padded = torch.cat([torch.full((1, 5), PAD), short], 1)
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, :5] = 0
    both = generate(model, torch.cat([padded, long]), attention_mask=mask, **arguments)
    for row, ids in enumerate((short, long)):
        alone = generate(model, ids)
        check_same([both[0][row : row + 1], both[1][row : row + 1]], alone)


def check_continuation(model, pieces):
    """A returned cache is continued by several new tokens at once."""
    ids = tokens(2, LENGTH)
    first = generate(model, ids)
    history = torch.cat([first[0], tokens(2, pieces, seed=3)], 1)
    check_same(generate(model, history, past_key_values=first[2]), generate(model, history, use_cache=False))


@some_models
def test_static_cache_with_padding_and_chunked_prefill(backbone, heads):
    model, ids = shared_converted(backbone, heads), tokens(2, LENGTH)
    static = {"cache_implementation": "static", "disable_compile": True}
    check_left_padding(model, **static)
    for size in (1, 4):  # the library's mask function takes every single token for a generated one
        check_left_padding(model, prefill_chunk_size=size, **static)
    check_same(generate(model, ids, prefill_chunk_size=4, **static), generate(model, ids))


@pytest.mark.parametrize("mixer", ["mamba", "window"])
def test_generate_compiles_the_step_of_a_static_cache(mixer):
    """As it does on a GPU: into one graph, for all tokens after the prompt."""
    model, ids, graphs = convert(make_backbone("qwen2_gqa"), HEADS["ragged"], mixer, **MAMBA), tokens(2, LENGTH), []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = CompileConfig(fullgraph=True, backend=counted, mode=None)
    compiled._compile_all_devices = True
    result = generate(model, ids, cache_implementation="static", compile_config=compiled)
    check_same(result, generate(model, ids))
    assert len(graphs) == 1


@some_models
def test_embeddings_may_stand_for_the_prompt(backbone, heads):
    model, ids = shared_converted(backbone, heads), tokens(2, LENGTH)
    arguments = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, "do_sample": False}
    arguments |= {"eos_token_id": 3, "pad_token_id": 0}
    written = model.generate(inputs_embeds=model.get_input_embeddings()(ids), **arguments)
    assert torch.equal(written, model.generate(ids, **arguments)[:, LENGTH:])


def test_the_base_model_answers_in_the_form_that_is_asked_for():
    model, ids = shared_converted("qwen2_gqa", "ragged"), tokens(1, 4)
    cache = model(ids, use_cache=True).past_key_values
    assert model.model(ids, return_dict=None).last_hidden_state.shape == (1, 4, 48)
    assert isinstance(model.model(ids, return_dict=False), tuple)
    assert model(ids[:, :1], past_key_values=cache, is_causal=True).logits.isfinite().all()


def test_assisted_decoding_is_refused():
    model, ids = shared_converted("llama_mha", "mixed"), tokens(1, 13)
    with pytest.raises(ValueError, match="stateful"):
        model.generate(ids, assistant_model=make_backbone("llama_mha"), max_new_tokens=2)
    with pytest.raises(ValueError, match="stateful"):
        model.generate(ids, prompt_lookup_num_tokens=2, max_new_tokens=2)


def test_packed_sequences_are_refused():
    model, ids = shared_converted("llama_mha", "mixed"), tokens(1, 8)
    packed, ones = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]]), torch.ones(1, 8)
    for mask in (None, ones, torch.tensor([[1, 1, 1, 1, 1, 1, 0, 0]]), torch.tensor([[1, 1, 1, 0, 1, 1, 1, 1]])):
        with pytest.raises(ValueError, match="packed sequences"):
            model(ids, attention_mask=mask, position_ids=packed)
    with pytest.raises(ValueError, match="packed sequences"):
        model(ids, seq_idx=torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]]))
    compiled, places = torch.compile(model, backend="eager"), torch.arange(8).unsqueeze(0)
    for mask in (None, ones):
        compiled(ids, attention_mask=mask, position_ids=places)
        with pytest.raises(RuntimeError, match="packed sequences"):
            compiled(ids, attention_mask=mask, position_ids=packed)
    shifted = model(ids, position_ids=torch.arange(5, 13).unsqueeze(0), use_cache=False)  # not packed: one run
    assert difference(shifted.logits, model(ids, use_cache=False).logits) < 1e-5
    rows = torch.stack([torch.arange(8), torch.arange(8) + 5])
    assert difference(model(ids.expand(2, -1), position_ids=rows).logits, shifted.logits.expand(2, -1, -1)) < 1e-5


@pytest.mark.parametrize("backbone", ["llama_mha", "gemma3_text"])
def test_masks_that_the_state_cannot_honour_are_refused(backbone):
    model, ids = shared_converted(backbone, "mixed"), tokens(1, 8)
    block = torch.zeros(1, 1, 8, 8)
    for mask, fault in (
        (block, r"has the form \(1, 1, 8, 8\): mixers need the padding mask \(batch, tokens so far\)"),
        (torch.ones(8), r"has the form \(8,\): mixers need"),
        ({"full_attention": block, "sliding_attention": block}, "has the form dict: mixers need"),
        ({"full_attention": None, "linear_attention": torch.ones(1, 8)}, "has the form dict: mixers need"),
        (torch.ones(1, 7), "has 7 columns for 8 tokens"),
    ):
        with pytest.raises(ValueError, match=f"attention_mask {fault}"):
            model(ids, attention_mask=mask)
    given = {"inputs_embeds": torch.zeros(1, 8, 48), "past_key_values": None}
    with pytest.raises(ValueError, match=r"has the form \(1, 1, 8, 8\)"):
        model.create_masks_for_generate(config=model.config, attention_mask=block, **given)
    cache = model(ids).past_key_values
    with pytest.raises(ValueError, match="has 3 columns for 11 tokens"):
        model(tokens(1, 3), attention_mask=torch.ones(1, 3), past_key_values=cache)
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model.model()


@pytest.mark.parametrize("heads", ["mixed", "attention_free_first", "beta_one"])
@pytest.mark.parametrize(
    "make_cache",
    [
        lambda config: DynamicCache(),
        lambda config: DynamicCache(config=make_backbone("llama_mha").config),
        lambda config: StaticCache(config=make_backbone("llama_mha").config, max_cache_len=32),
        lambda config: Cache(layers=DynamicCache(config=config).layers[:2]),
        lambda config: Cache(layers=DynamicCache(config=config).layers * 2),
        lambda config: Cache(layers=DynamicCache(config=config).layers[::-1]),
    ],
    ids=["no config", "backbone's", "backbone's, static", "too few", "too many", "other order"],
)
def test_a_cache_of_other_layers_is_refused_in_one_line(heads, make_cache):
    model, ids = shared_converted("llama_mha", heads), tokens(2, 4)
    compiled = torch.compile(model.model, backend="eager")
    for run in (model, compiled, model.generate):
        with pytest.raises(ValueError, match=r"past_key_values: layer .*DynamicCache\(config=model.config\)") as error:
            run(ids, past_key_values=make_cache(model.config))
        assert "\n" not in str(error.value)


def test_a_model_without_replaced_heads_takes_any_cache():
    model, ids = convert(make_backbone("llama_mha"), [[], [], []]), tokens(2, 4)
    assert difference(model(ids, past_key_values=DynamicCache()).logits, model(ids).logits) == 0
