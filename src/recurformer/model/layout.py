"""Which heads of a layer attend and which are replaced, and how they come out of a stock layer of any family."""

import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, rotate_half

SLIDING = "sliding_attention"
"""The library's name of a layer that attends through a sliding window."""


def check_heads(heads: Sequence[Iterable[Any]], layers: int, query_heads: int) -> list[list[int]]:
    """Return the replaced query heads of every layer as sorted lists of ints.

    Raises:
        ValueError: the number of layers differs, or a head is out of range or named twice.
    """
    if len(heads) != layers:
        raise ValueError(
            f"heads names {len(heads)} layers, but the model has {layers}: give one list of query heads per layer"
        )
    checked = []
    for index, layer in enumerate(heads):
        try:
            numbers = sorted(operator.index(head) for head in layer)
        except TypeError:
            raise ValueError(f"heads[{index}]={layer!r} must be a list of query head numbers") from None
        wrong = [head for head in numbers if not 0 <= head < query_heads]
        if wrong:
            raise ValueError(
                f"heads[{index}] names head {wrong[0]}, but the layer's query heads are 0 to {query_heads - 1}"
            )
        twice = [head for head, following in pairwise(numbers) if head == following]
        if twice:
            raise ValueError(f"heads[{index}] names head {twice[0]} twice: name every replaced query head once")
        checked.append(numbers)
    return checked


def sliding_layers(config: Any) -> list[int]:
    """Return the layers that attend through a sliding window between layers that do not, of any configuration."""
    return [index for index, kind in enumerate(getattr(config, "layer_types", None) or ()) if kind == SLIDING]


@dataclass(frozen=True)
class HeadLayout:
    """Order of one layer's heads. A KV head is kept, with its keys, while one of its query heads still attends.

    Attributes:
        retained: query heads that attend, in order.
        replaced: query heads in whose place a mixer stands, in order.
        kv_heads: KV heads in the order of the value projection's rows: first those that keep their keys.
        attended_kv_heads: how many of `kv_heads` keep their keys and enter the cache.
        group_sizes: retained query heads of every attended KV head; ragged when head replacement splits a group (GQA).
    """

    retained: tuple[int, ...]
    replaced: tuple[int, ...]
    kv_heads: tuple[int, ...]
    attended_kv_heads: int
    group_sizes: tuple[int, ...]
    queries_per_kv_head: int

    def projected_heads(self, every_key: bool) -> dict[str, tuple[int, ...]]:
        """Return the heads whose queries ("q"), keys and values the layer projects, in the order of their rows.

        Args:
            every_key: replaced heads keep their queries and keys, because their mixer reads them.
        """
        return {
            "q": self.retained + self.replaced if every_key else self.retained,
            "k": self.kv_heads if every_key else self.kv_heads[: self.attended_kv_heads],
            "v": self.kv_heads,
        }

    @property
    def ragged(self) -> bool:
        """Whether attended KV heads serve different numbers of query heads."""
        return len(set(self.group_sizes)) > 1

    @property
    def value_head_of_replaced(self) -> list[int]:
        """Position in `kv_heads` that every replaced query head reads."""
        position = {kv_head: index for index, kv_head in enumerate(self.kv_heads)}
        return [position[head // self.queries_per_kv_head] for head in self.replaced]

    @property
    def replaced_value_heads(self) -> dict[int, int]:
        """Positions in `kv_heads` that replaced query heads read, in their order, and how many of them read each."""
        return dict(Counter(self.value_head_of_replaced))

    @property
    def query_spans(self) -> list[tuple[int, int]]:
        """First and past-the-last retained query head of every attended KV head."""
        return list(pairwise(accumulate(self.group_sizes, initial=0)))

    @property
    def replaced_spans(self) -> list[tuple[int, int]]:
        """First and past-the-last position of every run of neighbours in `replaced_value_heads`."""
        places = list(self.replaced_value_heads)
        starts = [index for index, place in enumerate(places) if index == 0 or place != places[index - 1] + 1]
        return [(places[start], places[stop - 1] + 1) for start, stop in pairwise([*starts, len(places)])]


def head_layout(replaced: Sequence[int], query_heads: int, kv_heads: int) -> HeadLayout:
    """Lay out a layer whose query heads `replaced` (checked) are replaced."""
    group = query_heads // kv_heads
    gone = set(replaced)
    retained = tuple(head for head in range(query_heads) if head not in gone)
    attended = sorted({head // group for head in retained})
    value_only = sorted({head // group for head in gone} - set(attended))
    return HeadLayout(
        retained=retained,
        replaced=tuple(sorted(gone)),
        kv_heads=(*attended, *value_only),
        attended_kv_heads=len(attended),
        group_sizes=tuple(sum(head // group == kv_head for head in retained) for kv_head in attended),
        queries_per_kv_head=group,
    )


FUSED = "qkv_proj"
"""The projection that gives queries, keys and values side by side, where a family has it (Phi-3)."""
PROJECTIONS = ("q_proj", "k_proj", "v_proj", FUSED, "o_proj")
NORMS = ("q_norm", "k_norm")
"""Of the features of each head, shared by all heads (Qwen3, Gemma 3)."""


def check_stock(attention: Any, index: int) -> None:
    """Refuse a stock attention module that has more than is known here, for it would be lost in a conversion.

    Raises:
        ValueError: a projection is no ordinary linear layer, a norm covers more than one head, or there is a part that
            is not known.
    """
    for name, module in attention.named_children():
        if name in PROJECTIONS:
            if type(module) is not nn.Linear and not getattr(module, "is_plain", False):
                raise ValueError(
                    f"{name} of layer {index} is a {type(module).__name__}, not an ordinary linear layer: load the"
                    " model without quantization before converting"
                )
        elif name not in NORMS:
            raise ValueError(f"{name} of layer {index}, a {type(module).__name__}, cannot be split by heads")
        elif module.weight.shape != (attention.head_dim,):
            raise ValueError(
                f"{name} of layer {index} normalises {module.weight.numel()} features, not the {attention.head_dim} of"
                " a head: no head can be taken out alone"
            )
    for name, _ in attention.named_parameters(recurse=False):
        raise ValueError(f"{name} of layer {index} cannot be split by heads")


def has_bias(attention: Any) -> bool:
    """Return whether queries, keys and values have biases."""
    projection = attention.qkv_proj if hasattr(attention, FUSED) else attention.q_proj
    return projection.bias is not None


def rotates(attention: Any) -> bool:
    """Return whether the layer, stock or converted, knows positions; some of SmolLM3's do not."""
    return bool(getattr(attention, "rotates", getattr(attention, "use_rope", True)))


def split_fused(state: dict[str, Tensor], prefix: str, sizes: Sequence[int]) -> None:
    """Replace the fused projection of an attention module in a model's state dict, in place.

    `prefix` begins the module's names; `sizes` are the rows of queries, keys and values.
    """
    for part in ("weight", "bias"):
        fused = state.pop(f"{prefix}{FUSED}.{part}", None)
        if fused is not None:
            rows = zip(PROJECTIONS, fused.split(list(sizes)), strict=False)
            state.update({f"{prefix}{name}.{part}": tensor for name, tensor in rows})


def rotate(queries: Tensor, keys: Tensor, position_embeddings: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """Return queries and keys (B, heads, L, head_dim), not rotated yet, as a layer compares them.

    Cosines and sines are (B, L, rotated features), which may be fewer than a head has; None for a layer without
    positions.
    """
    if position_embeddings is None:
        return queries, keys
    cos, sin = position_embeddings
    turned = cos.shape[-1]
    if turned == queries.shape[-1]:
        return apply_rotary_pos_emb(queries, keys, cos, sin)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)

    def part(x: Tensor) -> Tensor:
        first, rest = x[..., :turned], x[..., turned:]
        return torch.cat([first * cos + rotate_half(first) * sin, rest], -1)

    return part(queries), part(keys)


def refuse_adapter(module: nn.Module, place: str) -> None:
    """Refuse a layer that PEFT has wrapped in an adapter.

    Raises:
        ValueError: it is wrapped; the message calls it `place`.
    """
    if hasattr(module, "base_layer"):  # PEFT's name of the wrapped layer
        raise ValueError(f"{place} has an adapter; merge it first: model = model.merge_and_unload()")
