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
    """Window and threshold that one model's others are compared with: those that agree with themselves wholly."""
    agree = rows.assign(changed=changed_share(rows)).groupby(["window", "threshold"]).agg(
        correlation=("rank_correlation", "min"), changed=("changed", "max")
    )  # fmt: skip
    window, threshold = agree.sort_values(["correlation", "changed"], ascending=[False, True], kind="stable").index[0]
    return float(window), float(threshold)
