"""Mamba and its rivals in the place of the same heads, by the share of heads that they replace, trained and not."""

import pandas as pd

from recurformer.render.ablations import of
from recurformer.render.figures.ablations.panels import quality_figure


def _chosen(points: pd.DataFrame) -> pd.DataFrame:
    """The original stands at β = 0."""
    return pd.concat([of(points, "original").assign(setting=0.0), of(points, "mixer")])


ablation_mixers = quality_figure(
    _chosen,
    "setting",
    "heads replaced, β",
    "Mixers on the same heads",
    "At each β the same heads, those of the highest RA-I.",
)
