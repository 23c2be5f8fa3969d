"""The final metrics of a run: the few numbers of a measured frame that its record keeps, declared with its stage.

    metrics=[Metric("h_gq", "correct", over="hops", by=["variant"])]

makes of a frame {"h_gq/near": 0.98, "h_gq/far": 0.95}.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Metric:
    """One number of a frame, or one for each value of some of its columns.

    Args:
        name: of the metric; the values of the columns `by` are appended, separated by slashes.
        column: its mean is the metric.
        over: the sum of this column divides the sum of `column` instead.
        by: columns with whose values the metric is named.
        of: applied to the quotient or the mean.
    """

    name: str
    column: str
    over: str = ""
    by: Sequence[str] = ()
    of: Callable[[float], float] = float

    def values(self, frame: "pd.DataFrame") -> Iterator[tuple[str, float]]:
        """The metrics of a frame, in the order of its rows."""
        groups = frame.groupby(list(self.by), dropna=False, sort=False) if self.by else [((), frame)]
        for key, rows in groups:
            count = rows[self.over].sum() if self.over else rows[self.column].count()
            if count:
                yield "/".join((self.name, *map(str, key))), self.of(float(rows[self.column].sum() / count))


def metrics_of(metrics: Iterable[Metric], frame: "pd.DataFrame") -> dict[str, float]:
    """All metrics of a frame; those that are no finite numbers are left out."""
    found = (entry for metric in metrics for entry in metric.values(frame))
    return {name: value for name, value in found if math.isfinite(value)}


def perplexity_of(nats: float) -> float:
    """The perplexity of a mean negative log-likelihood in nats; infinite where it has no number."""
    return math.exp(nats) if nats < 700 else math.inf
