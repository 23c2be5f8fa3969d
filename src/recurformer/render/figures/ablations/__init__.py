"""The figures that the paper's reviewers asked for: name -> function of the kinds of measurements that it takes."""

from collections.abc import Callable

from matplotlib.figure import Figure

from recurformer.render.figures.ablations.needle import ablation_needle
from recurformer.render.figures.ablations.quality import ablation_granularity, ablation_mixers, ablation_pareto
from recurformer.render.figures.ablations.ra_i import ablation_ra_i
from recurformer.render.figures.ablations.selectors import ablation_selectors
from recurformer.render.figures.ablations.sizes import ablation_sizes

ABLATIONS: dict[str, Callable[..., Figure]] = {
    "ablation_pareto": ablation_pareto,
    "ablation_granularity": ablation_granularity,
    "ablation_selectors": ablation_selectors,
    "ablation_mixers": ablation_mixers,
    "ablation_sizes": ablation_sizes,
    "ablation_needle": ablation_needle,
    "ablation_ra_i": ablation_ra_i,
}

__all__ = ["ABLATIONS"]
