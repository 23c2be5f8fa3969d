"""Query groups of unequal size: keys are read where they lie, whatever the input's length; weights of every layer."""

import pytest
import torch
from tiny_models import ALL, HEADS, MATRIX, difference, make_converted, tokens
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from recurformer.model.attention import RecurFormerAttention
from recurformer.model.layout import SLIDING

ragged_models = pytest.mark.parametrize("backbone", ["qwen2_gqa", "llama_gqa_tied"])


class Readers(TorchDispatchMode):
    """Names of the operations, views left out, that read the given tensors' memory."""

    def __init__(self, *read):
        super().__init__()
        self.storages, self.names = {x.untyped_storage().data_ptr() for x in read}, set()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
        if not function.is_view and any(x.untyped_storage().data_ptr() in self.storages for x in tensors):
            self.names.add(str(function).split(".")[1])
        return function(*arguments, **(keywords or {}))


@ragged_models
@torch.no_grad()
def test_cached_keys_are_never_copied(backbone, monkeypatch):
    model, attend, names = make_converted(backbone, "ragged"), RecurFormerAttention._attend, set()

    def watched(self, query, key, value, *arguments, **kwargs):
        if not self.layout.ragged:
            return attend(self, query, key, value, *arguments, **kwargs)
        with Readers(key, value) as readers:
            result = attend(self, query, key, value, *arguments, **kwargs)
        names.update(readers.names)
        return result

    monkeypatch.setattr(RecurFormerAttention, "_attend", watched)
    cache = DynamicCache(config=model.config)
    for piece in tokens(2, 20).split([10, 8, 1, 1], 1):
        model(piece, past_key_values=cache, use_cache=True)
    assert names == {"_scaled_dot_product_flash_attention_for_cpu"}


@ragged_models
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("padded", [False, True])
def test_group_by_group_equals_gathered_keys(backbone, implementation, padded):
    model, ids = make_converted(backbone, "ragged"), tokens(2, 16)
    mask = torch.ones_like(ids)
    mask[0, : 5 if padded else 0] = 0
    AttentionInterface.register("someone_elses", sdpa_attention_forward)  # must see all heads in one call
    AttentionMaskInterface.register("someone_elses", sdpa_mask)
    wanted = list(model.model.layers[2].self_attn.parameters())
    results = []
    for name in (implementation, "someone_elses"):
        model.set_attn_implementation(name)
        logits = model(ids, attention_mask=mask).logits[mask.bool()]
        results.append([logits, *torch.autograd.grad(logits.square().mean(), wanted)])
    for result, expected in zip(*results, strict=True):
        assert difference(result, expected) < 1e-5


@pytest.mark.parametrize(("backbone", "heads"), MATRIX)
def test_every_layer_has_its_weights_or_none_and_they_have_gradients(backbone, heads):
    model, ids = make_converted(backbone, heads), tokens(1, 9)
    model.set_attn_implementation("eager")
    result = model(ids, output_attentions=True)
    assert [weights is None for weights in result.attentions] == [replaced == ALL for replaced in HEADS[heads]]
    there = [weights for weights in result.attentions if weights is not None]
    for weights in there:
        weights.retain_grad()
    result.logits.square().mean().backward()
    assert all(weights.grad.any() for weights in there)
    generated = model.generate(ids, max_new_tokens=2, output_attentions=True, return_dict_in_generate=True)
    window = [model.config.sliding_window if kind == SLIDING else 10 for kind in model.config.layer_types]
    for step, queries in zip(generated.attentions, (9, 1), strict=True):
        assert [weights if weights is None else weights.shape[1:] for weights in step] == [
            None if replaced == ALL else (6 - len(replaced), queries, keys if queries == 1 else 9)
            for replaced, keys in zip(HEADS[heads], window, strict=True)
        ]
    model.set_attn_implementation("sdpa")  # gives no weights
    assert model(ids, output_attentions=True, return_dict=False)[-1] == (None,) * len(HEADS[heads])


def test_attention_weights_keep_the_order_of_heads():
    model, ids = make_converted("qwen2_gqa", "ragged"), tokens(1, 9)
    model.set_attn_implementation("eager")
    weights = model(ids, output_attentions=True).attentions
    for index, replaced in enumerate(HEADS["ragged"]):
        layer = model.model.layers[index].self_attn
        assert weights[index].shape == (1, 6 - len(replaced), 9, 9)
        for head in range(6 - len(replaced)):  # silence one head's queries: only its weights become uniform
            rows = slice(head * 8, head * 8 + 8)
            saved = [p[rows].clone() for p in (layer.q_proj.weight.data, layer.q_proj.bias.data)]
            layer.q_proj.weight.data[rows] = 0
            layer.q_proj.bias.data[rows] = 0
            changed = model(ids, output_attentions=True).attentions[index]
            layer.q_proj.weight.data[rows], layer.q_proj.bias.data[rows] = saved
            uniform = torch.ones(9, 9).tril() / torch.arange(1, 10).unsqueeze(1)
            assert torch.allclose(changed[0, head], uniform)
            others = [other for other in range(6 - len(replaced)) if other != head]
            assert torch.equal(changed[0, others], weights[index][0, others])
