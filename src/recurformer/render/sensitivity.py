"""How much the choice of heads changes with the settings of RA-I."""

import pandas as pd

UNITS = ("kv_group", "head")
"""The unit of selection that is looked at: the first that a model was measured with."""


def one_unit(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of each model in its first unit of `UNITS`."""
    place = rows["unit"].map({unit: number for number, unit in enumerate(UNITS)}).fillna(len(UNITS))
    return rows[place == place.groupby(rows["model"]).transform("min")]


def changed_share(rows: pd.DataFrame) -> pd.Series:
    """Share of the chosen units that the default setting does not choose; 0 where none is chosen."""
    return (1 - rows["shared"] / rows["selected"]).where(rows["selected"] > 0, 0.0)


def default_setting(rows: pd.DataFrame) -> tuple[float, float]:
    """Window and threshold that one model's others are compared with.

    Raises:
        ValueError: no row, or rows of several settings, are marked as the default.
    """
    marked = rows.loc[rows["default"].astype(bool), ["window", "threshold"]].drop_duplicates()
    if len(marked) != 1:
        raise ValueError(f"ra_i_settings measurements mark {len(marked)} settings as the default; needed: one")
    window, threshold = marked.iloc[0]
    return float(window), float(threshold)
