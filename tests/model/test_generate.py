"""Every way to generate writes the same, for every mixer and family; and what generation refuses: masks, caches and
modes that the state cannot honour.
"""

import pytest
import torch
from tiny_models import (
    ALL,
    MAMBA,
    PAD,
    difference,
    every_case,
    every_mixer,
    make_backbone,
    shared_converted,
    shared_mixed,
    tokens,
)
from transformers import Cache, CompileConfig, DynamicCache, StaticCache

from recurformer.model.convert import convert

LENGTH, NEW, CUT = 13, 4, 5  # tokens of a prompt, written ones, and how much shorter the other prompt is
GREEDY = {"do_sample": False, "max_new_tokens": NEW, "return_dict_in_generate": True, "output_logits": True}
STATIC = {"cache_implementation": "static", "disable_compile": True}


def generate(model, ids, **arguments):
    """Tokens (B, L + NEW), the logits (B, NEW, vocabulary) that chose them, and the cache."""
    attention_mask = arguments.pop("attention_mask", torch.ones_like(ids))
    result = model.generate(ids, attention_mask=attention_mask, **GREEDY | arguments)
    return result.sequences, torch.stack(result.logits, 1), result.past_key_values


def check_same(result, expected):
    assert torch.equal(result[0][:, -NEW:], expected[0][:, -NEW:])
    assert difference(result[1], expected[1]) < 1e-4


def check_left_padding(model, *ways):
    """Two prompts in a batch, the first padded, in each way: what is written of each one alone, without a cache."""
    prompts = tokens(1, LENGTH - CUT, seed=1), tokens(1, LENGTH, seed=2)
    padded = torch.cat([torch.cat([torch.full((1, CUT), PAD), prompts[0]], 1), prompts[1]])
    mask = torch.ones_like(padded)
    mask[0, :CUT] = 0
    alone = [generate(model, ids, use_cache=False) for ids in prompts]
    for way in ways:
        both = generate(model, padded, attention_mask=mask, **way)
        for row, expected in enumerate(alone):
            check_same([part[row : row + 1] for part in both[:2]], expected)


@every_case
def test_every_way_to_generate_writes_what_reading_all_again_writes(mixer, backbone, heads):
    model, ids = shared_mixed(mixer, backbone, heads), tokens(2, LENGTH)
    # in chunks of one the library's mask function takes every token for a generated one
    check_left_padding(model, {}, {"prefill_chunk_size": 3}, STATIC, STATIC | {"prefill_chunk_size": 1})
    first = generate(model, ids)
    history = torch.cat([first[0], tokens(2, 4, seed=3)], 1)  # several tokens at once go on from a returned cache
    check_same(generate(model, history, past_key_values=first[2]), generate(model, history, use_cache=False))


@every_mixer
def test_beams(mixer):
    model, ids = shared_mixed(mixer, heads="ragged"), tokens(2, LENGTH)
    beams = {"num_beams": 3, "max_new_tokens": 5, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    assert torch.equal(model.generate(ids, **beams), model.generate(ids, use_cache=False, **beams))


@pytest.mark.parametrize("mixer", ["mamba", "window"])
def test_generate_compiles_the_step_of_a_static_cache(mixer):
    """As it does on a GPU: into one graph, for all tokens after the prompt."""
    base = make_backbone("qwen2_gqa", num_hidden_layers=2)
    model, ids, graphs = convert(base, [[1, 3, 4, 5], ALL], mixer, **MAMBA), tokens(2, LENGTH), []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = CompileConfig(fullgraph=True, backend=counted, mode=None)
    compiled._compile_all_devices = True
    result = generate(model, ids, cache_implementation="static", compile_config=compiled)
    check_same(result, generate(model, ids))
    assert len(graphs) == 1


def test_embeddings_may_stand_for_the_prompt():
    model, ids = shared_converted("qwen2_gqa", "ragged"), tokens(2, LENGTH)
    arguments = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, "do_sample": False}
    arguments |= {"eos_token_id": 3, "pad_token_id": 0}
    written = model.generate(inputs_embeds=model.get_input_embeddings()(ids), **arguments)
    assert torch.equal(written, model.generate(ids, **arguments)[:, LENGTH:])


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
    small = convert(make_backbone("llama_mha", num_hidden_layers=1), [[0, 1]], "window", window_tokens=3)
    compiled, places = torch.compile(small, backend="eager"), torch.arange(8).unsqueeze(0)
    compiled(ids, attention_mask=ones, position_ids=places)
    with pytest.raises(RuntimeError, match="packed sequences"):
        compiled(ids, attention_mask=ones, position_ids=packed)
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
def test_a_cache_of_other_layers_is_refused_in_one_line(make_cache):
    model, ids = shared_converted("llama_mha", "attention_free_first"), tokens(2, 4)
    for run in (model, model.generate):
        with pytest.raises(ValueError, match=r"past_key_values: layer .*DynamicCache\(config=model.config\)") as error:
            run(ids, past_key_values=make_cache(model.config))
        assert "\n" not in str(error.value)


def test_a_model_without_replaced_heads_takes_any_cache():
    model, ids = convert(make_backbone("llama_mha"), [[], [], []]), tokens(2, 4)
    assert difference(model(ids, past_key_values=DynamicCache()).logits, model(ids).logits) == 0
