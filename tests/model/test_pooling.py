"""Mean-pooled key-value heads: the same as one KV head for every query head, each the mean of its neighbours."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from recurformer.model.convert import convert, pool_kv_heads
from tests.model.tiny_models import PAIRS, difference, make_backbone, tokens

IDS = torch.arange(2, 22).view(2, 10)


def make(name, kv_heads):
    return make_backbone(name, num_key_value_heads=kv_heads)


def averaged(model, name, pooled):
    """The same model with a KV head for every query head, each the mean over its run of neighbours."""
    heads, kv_heads = 6, model.config.num_key_value_heads
    state = model.state_dict()
    for key in [key for key in state if ".k_proj." in key or ".v_proj." in key]:
        by_kv_head = state[key].view(kv_heads, 8, -1)
        by_query_head = torch.stack([by_kv_head[head * kv_heads // heads] for head in range(heads)])
        runs = [by_query_head[start : start + heads // pooled] for start in range(0, heads, heads // pooled)]
        means = torch.cat([run.mean(0, keepdim=True).expand_as(run) for run in runs])
        state[key] = means.reshape(-1, *state[key].shape[1:])
    wide = make(name, heads)
    wide.load_state_dict(state)
    return wide


@pytest.mark.parametrize("name", ["llama_mha", "qwen2_gqa"])
@pytest.mark.parametrize(("old", "new"), [(6, 2), (6, 1), (3, 2), (3, 3)])
@torch.no_grad()
def test_pooled_heads_are_means(name, old, new):
    model = make(name, old)
    pooled = pool_kv_heads(model, new)
    assert type(pooled) is type(model) and pooled.config.num_key_value_heads == new
    assert torch.allclose(pooled(IDS).logits, averaged(model, name, new)(IDS).logits, atol=1e-5)
    if new < old:
        assert not torch.allclose(pooled(IDS).logits, model(IDS).logits, atol=1e-2)
        assert model.config.num_key_value_heads == old


@torch.no_grad()
def test_the_checkpoint_is_an_ordinary_one(tmp_path):
    pooled = pool_kv_heads(make("qwen2_gqa", 6), 2)
    pooled.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.model_type == "qwen2" and torch.equal(loaded(IDS).logits, pooled(IDS).logits)


def test_what_is_kept():
    model = make("llama_mha", 3).to(torch.bfloat16).train()
    model.generation_config.temperature = 0.7
    pooled = pool_kv_heads(model, 1)
    assert (pooled.dtype, pooled.training) == (torch.bfloat16, True)
    assert pooled.generation_config.temperature == 0.7
    frequencies = pooled.model.rotary_emb.inv_freq
    assert frequencies.dtype == torch.float32  # as a loaded model has them


def test_what_cannot_be_is_refused_in_one_line():
    for heads in (0, 4, 6):
        with pytest.raises(ValueError, match=rf"kv_heads={heads} cannot serve 6 query heads; possible are 1, 2, 3$"):
            pool_kv_heads(make("llama_mha", 3), heads)
    with pytest.raises(ValueError, match=r"converted one \(recurformer_llama\)"):
        pool_kv_heads(convert(make("llama_mha", 3), [[0], [], []], dt_rank=2), 1)


@pytest.mark.parametrize("backbone", dict(PAIRS))
@torch.no_grad()
def test_every_family_is_pooled_or_refused(backbone):
    model, ids = make_backbone(backbone), tokens(2, 10)
    if backbone == "phi3":
        with pytest.raises(ValueError, match="a phi3 model has no k_proj and v_proj of its own"):
            pool_kv_heads(model, 1)
        return
    assert difference(pool_kv_heads(model, 2)(ids).logits, model(ids).logits) < 1e-5
    for name, parameter in model.named_parameters():
        if ".k_proj." in name or ".v_proj." in name:  # two equal heads are their mean
            parameter.copy_(torch.cat([parameter[:8], parameter[:8]]))
    assert difference(pool_kv_heads(model, 1)(ids).logits, model(ids).logits) < 1e-5
