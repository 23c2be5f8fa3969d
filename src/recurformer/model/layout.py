"""Which heads of a layer attend, which are replaced, and where each one's keys and values lie."""

import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

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
        return self._positions(self.replaced)

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

    def _positions(self, heads: Sequence[int]) -> list[int]:
        position = {kv_head: index for index, kv_head in enumerate(self.kv_heads)}
        return [position[head // self.queries_per_kv_head] for head in heads]


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
