"""The committed ratios, by kind of device, and what got worse than they are."""

from pathlib import Path

import pandas as pd

from recurformer.files import atomic_path

KEY = ["device", "threads", "topic", "case", "candidate"]
COLUMNS = [*KEY, "baseline", "ratio", "ratio_low", "ratio_high"]
WORSE = 0.8
"""A ratio that fell below this share of the committed one is a regression, unless the spreads overlap."""


def read(path: str | Path) -> pd.DataFrame:
    """The committed ratios of all devices; none when there is no file."""
    return pd.read_csv(path) if Path(path).exists() else pd.DataFrame(columns=COLUMNS)


def write(path: str | Path, rows: pd.DataFrame) -> None:
    """Keep the ratios of a run; what it did not measure stays as it was."""
    kept = pd.concat([read(path).set_index(KEY), rows.set_index(KEY)[COLUMNS[len(KEY) :]]])
    kept = kept[~kept.index.duplicated(keep="last")].sort_index().dropna(subset="ratio")
    with atomic_path(path) as scratch:
        kept.to_csv(scratch, float_format="%.4g")


def regressions(path: str | Path, rows: pd.DataFrame) -> list[str]:
    """One line for each ratio of the run that fell by over 20 % and by more than both spreads explain, and for each
    candidate of a measured case that is no longer there.

    Raises:
        ValueError: no ratio is committed for this kind of device.
    """
    committed = read(path)
    here = committed[committed.device == rows.device.iloc[0]]
    if here.empty:
        raise ValueError(f"{path} has no baseline for {rows.device.iloc[0]}: write one with --write-baseline")
    measured = set(map(tuple, rows[KEY[:-1]].to_numpy()))
    here = here[[tuple(case) in measured for case in here[KEY[:-1]].to_numpy()]]
    if here.empty:
        raise ValueError(f"{path} has no ratio of a case of this run: write some with --write-baseline")
    both = here.merge(rows[COLUMNS], on=[*KEY, "baseline"], how="left", suffixes=("_then", ""))
    found = []
    for row in both.itertuples():
        about = f"{row.topic}, {row.case}, {row.candidate}, {row.threads} threads"
        if pd.isna(row.ratio):
            found.append(f"{about}: was {row.ratio_then:.3g}x {row.baseline}, is no longer measured")
        elif row.ratio < WORSE * row.ratio_then and row.ratio_high < row.ratio_low_then:
            found.append(f"{about}: {row.ratio:.3g}x {row.baseline}, was {row.ratio_then:.3g}x")
    return found
