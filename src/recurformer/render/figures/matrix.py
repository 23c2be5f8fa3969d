"""Heat maps: of causal matrices, query by key, and of shares with their numbers."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.image import AxesImage

DECADES = 3
"""Powers of ten that a logarithmic colour scale spans below its largest value."""


def causal_matrix(rows: pd.DataFrame, column: str) -> np.ndarray:
    """The matrix (queries, keys) of the values in `column`, NaN where there is no row.

    Raises:
        ValueError: two rows for one query and key.
    """
    if rows.duplicated(["query", "key"]).any():
        raise ValueError(f"{column}: several rows for one query and key; a heat map shows one value for each")
    size = int(max(rows["query"].max(), rows["key"].max())) + 1
    matrix = np.full((size, size), np.nan)
    matrix[rows["query"].to_numpy(dtype=int), rows["key"].to_numpy(dtype=int)] = rows[column].to_numpy(dtype=float)
    return matrix


def log_norm(*matrices: np.ndarray) -> LogNorm:
    """A logarithmic colour scale down from the largest value of all matrices; what is smaller takes its lowest colour.

    Raises:
        ValueError: no positive value.
    """
    highest = max(float(np.nanmax(matrix, initial=0.0)) for matrix in matrices)
    if highest <= 0:
        raise ValueError("a logarithmic colour scale needs a positive value, the weights are all 0")
    return LogNorm(highest * 10.0**-DECADES, highest, clip=True)


def show_causal(axes: Axes, matrix: np.ndarray, norm: LogNorm, first: int = 0) -> AxesImage:
    """Draw a causal matrix, queries downwards and keys to the right; its first row and column are number `first`."""
    axes.grid(False)
    last = first + len(matrix) - 0.5
    image = axes.imshow(
        np.ma.masked_invalid(matrix), norm=norm, extent=(first - 0.5, last, last, first - 0.5), aspect="equal"
    )
    axes.spines[["top", "right"]].set_visible(True)
    axes.set_xlabel("key token")
    axes.set_ylabel("query token")
    return image


def show_shares(axes: Axes, shares: pd.DataFrame, dark: pd.DataFrame, size: float, top: float = 1.0) -> AxesImage:
    """Draw a table of shares, each with its number in per cent.

    Args:
        axes: where.
        shares: NaN where there is none.
        dark: which cells are so dark that their numbers are white.
        size: of the numbers, in points.
        top: the share of the brightest colour.
    """
    axes.grid(False)
    image = axes.imshow(np.ma.masked_invalid(shares.to_numpy()), vmin=0, vmax=top, cmap="cividis", aspect="auto")
    for (row, column), share in np.ndenumerate(shares.to_numpy()):
        if np.isfinite(share):
            colour = "white" if dark.iloc[row, column] else "black"
            axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=size, color=colour)
    return image
