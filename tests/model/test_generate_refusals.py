"""What generation refuses: masks, caches and modes that the state cannot honour."""

import pytest
import torch
from tiny_models import difference, make_backbone, shared_converted, tokens
from transformers import Cache, DynamicCache, StaticCache

from recurformer.model import modeling
from recurformer.model.convert import convert


def test_assisted_decoding_is_refused():
    model, ids = shared_converted("llama_mha", "mixed"), tokens(1, 13)
    with pytest.raises(ValueError, match="stateful"):
        model.generate(ids, assistant_model=make_backbone("llama_mha"), max_new_tokens=2)
    with pytest.raises(ValueError, match="stateful"):
        model.generate(ids, prompt_lookup_num_tokens=2, max_new_tokens=2)


def test_packed_sequences_are_refused():
    model, ids = shared_converted("llama_mha", "mixed"), tokens(1, 8)
    packed = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]])
    with pytest.raises(ValueError, match="packed sequences"):
        model(ids, position_ids=packed)
    with pytest.raises(ValueError, match="packed sequences"):
        model(ids, seq_idx=torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]]))
    compiled = torch.compile(lambda positions: modeling._refuse_packing(None, positions, {}), backend="eager")
    with pytest.raises(RuntimeError, match="packed sequences"):
        compiled(packed)
    shifted = model(ids, position_ids=torch.arange(5, 13).unsqueeze(0), use_cache=False)  # not packed: one run
    assert shifted.logits.isfinite().all()


def test_masks_that_the_state_cannot_honour_are_refused():
    model, ids = shared_converted("llama_mha", "mixed"), tokens(1, 8)
    with pytest.raises(ValueError, match="attention_mask has 4 dimensions"):
        model(ids, attention_mask=torch.zeros(1, 1, 8, 8))
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
