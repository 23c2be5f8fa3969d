"""Which rows and columns of the original's weights go where."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import ALL, BACKBONES, MAMBA, PAIRS, make_backbone
from torch import Tensor
from transformers import PreTrainedConfig

from recurformer.model.convert import convert, split_weights
from recurformer.model.layout import head_layout


def rows(heads, head_dim):
    return [head * head_dim + row for head in heads for row in range(head_dim)]


def merge_weights(state: dict[str, Tensor], original: dict[str, Tensor], config: PreTrainedConfig) -> dict[str, Tensor]:
    """Undo `split_weights`; the queries and keys that it dropped come from `original`."""
    merged = {name: tensor for name, tensor in state.items() if ".mamba." not in name}
    head_dim = config.hidden_size // config.num_attention_heads
    for index, replaced in enumerate(config.recurrent_heads):
        if not replaced:
            continue
        layout = head_layout(replaced, config.num_attention_heads, config.num_key_value_heads)
        kept = (layout.retained, layout.kv_heads[: layout.attended_kv_heads], layout.kv_heads)
        prefix = f"model.layers.{index}.self_attn."
        for projection, heads in zip("qkv", kept, strict=True):
            for part in ("weight", "bias"):
                name = f"{prefix}{projection}_proj.{part}"
                if name in original:
                    merged[name] = original[name].clone()
                    if heads:
                        merged[name][rows(heads, head_dim)] = state[name]
        name = f"{prefix}o_proj.weight"
        merged[name] = torch.full_like(state[name], float("nan"))
        merged[name][:, rows([*layout.retained, *layout.replaced], head_dim)] = state[name]
    return merged


@settings(max_examples=100, deadline=None)
@given(data=st.data(), kv_heads=st.integers(1, 4), group=st.integers(1, 4))
def test_a_head_set_and_its_complement_partition_the_heads(data, kv_heads, group):
    heads = kv_heads * group
    replaced = data.draw(st.sets(st.integers(0, heads - 1)))
    layout = head_layout(sorted(replaced), heads, kv_heads)
    complement = head_layout(sorted(set(range(heads)) - replaced), heads, kv_heads)
    assert layout.retained == complement.replaced and layout.replaced == complement.retained
    assert sorted(layout.retained + layout.replaced) == list(range(heads))
    assert sorted(layout.kv_heads) == list(range(kv_heads))  # values of every KV head are needed
    attended = set(layout.kv_heads[: layout.attended_kv_heads])
    assert attended == {head // group for head in layout.retained}
    freed = [g for g in range(kv_heads) if {g * group + member for member in range(group)} <= replaced]
    assert set(layout.kv_heads[layout.attended_kv_heads :]) == set(freed)
    for kv_head, (start, stop) in zip(layout.kv_heads, layout.query_spans, strict=False):
        assert {head // group for head in layout.retained[start:stop]} == {kv_head}
    assert [place for span in layout.replaced_spans for place in range(*span)] == list(layout.replaced_value_heads)
    assert [layout.kv_heads[p] for p in layout.value_head_of_replaced] == [h // group for h in layout.replaced]


@settings(max_examples=25, deadline=None)
@given(data=st.data(), backbone=st.sampled_from([name for name in BACKBONES if name not in dict(PAIRS)]))
def test_slicing_and_merging_back_restores_the_original(data, backbone):
    base = make_backbone(backbone)
    heads = [sorted(data.draw(st.sets(st.sampled_from(ALL)))) for _ in range(3)]
    model = convert(base, heads, **MAMBA)
    original = base.state_dict()
    merged = merge_weights(model.state_dict(), original, model.config)
    assert merged.keys() == original.keys()
    assert all(torch.equal(merged[name], original[name]) for name in original)
    complement = [sorted(set(ALL) - set(layer)) for layer in heads]
    other = split_weights(original, convert(base, complement, **MAMBA).config)
    for index, (gone, kept) in enumerate(zip(heads, complement, strict=True)):
        name = f"model.layers.{index}.self_attn.q_proj.weight"
        if gone and kept:  # every row of the query projection is in exactly one of the two
            both = torch.cat([model.state_dict()[name], other[name]])
            assert torch.equal(both[np.argsort(rows([*kept, *gone], 8))], original[name])
