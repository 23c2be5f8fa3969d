"""The figures of the paper, of recovery and of the ablations: name -> function of measurement frames.

Its parameters are named after the kinds of measurements that it takes (`recurformer.results.frames.COLUMNS`); one
with a default may be missing. All raise ValueError for a kind without rows or without one of its columns, and where
they are given nothing that they show.
"""

from collections.abc import Callable

from matplotlib.figure import Figure

from recurformer.render.figures.ablations import ABLATIONS
from recurformer.render.figures.equal_bytes import equal_bytes
from recurformer.render.figures.figure1 import figure1
from recurformer.render.figures.figure2 import figure2
from recurformer.render.figures.figure3 import figure3
from recurformer.render.figures.figure4 import figure4
from recurformer.render.figures.figure5 import figure5
from recurformer.render.figures.figure6 import figure6
from recurformer.render.figures.recovery import recovery

FIGURES: dict[str, Callable[..., Figure]] = {
    figure.__name__: figure for figure in (figure1, figure2, figure3, figure4, figure5, figure6, recovery, equal_bytes)
} | ABLATIONS

__all__ = ["FIGURES"]
