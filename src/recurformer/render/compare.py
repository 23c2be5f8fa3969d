"""Agreement of two folders of results: a reference run and another run, measurement by measurement."""

from pathlib import Path

import numpy as np
import pandas as pd

from recurformer.render.measurements import READERS, read_frame

KEY_COLUMNS = frozenset(
    {
        "sample", "layer", "head", "query", "key", "beta", "length", "seed", "learning_rate", "pairs", "article",
        "hops", "step",
    }
)  # fmt: skip
"""Numeric columns that identify a measurement; columns of texts do so too. All other numbers are measurements."""
UNCOMPARED = frozenset({"seconds", "minutes", "run", "runs"})
"""Last words of columns that no two runs agree on."""
VERDICT = "verdict"
"""Last word of columns whose texts are compared, as they depend on the numbers."""
INTERVALS = {
    "ours": [("low", "high"), ("mean_low", "mean_high")],
    "h_gq_ours": [("h_gq_low", "h_gq_high")],
    "perplexity": [("perplexity_low", "perplexity_high")],
    "divergence": [("divergence_low", "divergence_high")],
}
"""Columns of tables, with those that may hold the bounds of their intervals."""
COLUMNS = [
    "file", "status", "column", "rows", "unmatched", "largest_difference", "largest_relative", "differing",
    "equal_share", "bounded", "outside", "apart",
]  # fmt: skip


def _files(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder to compare")
    found = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.suffix in READERS}
    return {
        place.as_posix(): path
        for place, path in found.items()
        if path.is_file() and place.parts[0] != "tracking"  # the stores of trackers repeat the metric logs
    }


def _keyed(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Index the rows by their keys; rows with the same keys are numbered, so that the first meets the first."""
    keyed = frame[keys].astype(object).where(frame[keys].notna(), "")
    # Numbers go through text: 0.9 and 0.90, 1 and 1.0 are the same key.
    texts = keyed.map(lambda cell: f"{cell:.10g}" if isinstance(cell, int | float) else str(cell))
    number = texts.groupby(keys).cumcount() if keys else pd.Series(range(len(frame)), index=frame.index)
    return frame.set_index(pd.MultiIndex.from_frame(texts.assign(occurrence=number)))


def _is_measurement(frame: pd.DataFrame, column: str) -> bool:
    numeric = pd.api.types.is_numeric_dtype(frame[column]) and not pd.api.types.is_bool_dtype(frame[column])
    return numeric and column not in KEY_COLUMNS


def _numbers(column: pd.Series) -> np.ndarray:
    """The numbers of a column; NaN for texts such as not-run."""
    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=float, na_value=np.nan)


def _compare_with_interval(column: str, ours: pd.DataFrame, theirs: pd.DataFrame) -> dict[str, float]:
    """How many values of ours have a recorded interval, how many of these lie outside it, beyond rounding, and how many
    are apart from it: their own interval does not meet it. A single training with every answer right lies outside the
    interval of a mean over several, and says nothing against it.
    """
    for low, high in INTERVALS.get(column, []):
        if {low, high} <= set(theirs.columns):
            values, *bounds = _numbers(ours[column]), _numbers(theirs[low]), _numbers(theirs[high])
            known = ~np.isnan([values, *bounds]).any(axis=0)
            slack = 1e-6 * np.abs(values)
            outside = known & ((values < bounds[0] - slack) | (values > bounds[1] + slack))
            own = [_numbers(ours[name]) if name in ours else values for name in (low, high)]
            apart = outside & ~((own[0] <= bounds[1] + slack) & (own[1] >= bounds[0] - slack))
            return {"bounded": int(known.sum()), "outside": int(outside.sum()), "apart": int(apart.sum())}
    return {"bounded": 0, "outside": 0, "apart": 0}


def _compare_column(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
    """Largest differences of two columns of numbers; two missing values agree, one missing value does not."""
    known = ~np.isnan(ours) & ~np.isnan(theirs)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    ours, theirs = ours[known & ~same], theirs[known & ~same]
    difference = np.abs(ours - theirs)
    with np.errstate(invalid="ignore"):
        relative = np.nan_to_num(difference / np.maximum(np.abs(ours), np.abs(theirs)), nan=np.inf, posinf=np.inf)
    return {
        "largest_difference": float(difference.max(initial=0.0)),
        "largest_relative": float(relative.max(initial=0.0)),
        "differing": int((~same).sum()),
        "equal_share": float(same.mean()) if len(same) else 1.0,
    }


def _compare_file(name: str, recorded: pd.DataFrame, results: pd.DataFrame) -> list[dict[str, object]]:
    """One row for each column of measurements, and one for each column that only one of the files has."""
    recorded, results = (
        frame.drop(columns=[column for column in frame.columns if column.rpartition("_")[2] in UNCOMPARED])
        for frame in (recorded, results)
    )
    shared = [column for column in recorded.columns if column in results.columns]
    # A column without any number is read as text in one file and as numbers in the other: either reading suffices.
    measured = [c for c in shared if _is_measurement(recorded, c) or _is_measurement(results, c)]
    verdicts = [column for column in shared if column.rpartition("_")[2] == VERDICT]
    keys = [column for column in shared if column not in {*measured, *verdicts}]
    ours, theirs = _keyed(results, keys), _keyed(recorded, keys)
    common = theirs.index.intersection(ours.index)
    if any(not _is_measurement(f, c) for f in (recorded, results) for c in f.columns if c not in shared):
        common = common[:0]  # without a key that one side has, rows would meet by chance
    facts = {"file": name, "rows": len(common), "unmatched": len(ours) + len(theirs) - 2 * len(common)}
    rows: list[dict[str, object]] = []
    for column in measured:
        numbers = [_numbers(frame.loc[common, column]) for frame in (ours, theirs)]
        inside = _compare_with_interval(column, ours.loc[common], theirs.loc[common])
        rows.append({**facts, "status": "compared", "column": column, **_compare_column(*numbers), **inside})
    for column in verdicts:
        differing = int((ours.loc[common, column].fillna("") != theirs.loc[common, column].fillna("")).sum())
        rows.append({**facts, "status": "compared", "column": column, "differing": differing})
    if not rows:
        rows.append({**facts, "status": "compared", "column": ""})
    for frame, other, status in ((recorded, results, "column missing"), (results, recorded, "column extra")):
        rows += [{"file": name, "status": status, "column": c} for c in frame.columns if c not in other.columns]
    return rows


def compare(recorded_dir: str | Path, results_dir: str | Path) -> pd.DataFrame:
    """Compare every CSV and Parquet file, measurements and tables, that lies below both folders under the same path.

    Rows are matched by their keys: the columns of texts and those in `KEY_COLUMNS`. When only one side has one of
    these, no row is matched.

    Args:
        recorded_dir: the reference run.
        results_dir: the run to compare with it.

    Returns:
        One row for each file and column of measurements: file, status ("compared"; "missing": only in the reference,
        "extra": only in results; "column missing", "column extra" likewise), column, rows (matched), unmatched (rows of
        either side without a partner), largest_difference, largest_relative (over the larger of the two absolute
        values), differing (matched rows that are not equal), equal_share (of the matched rows), bounded (matched rows
        whose interval is recorded), outside (of these, values outside their interval), apart (of these, values
        whose own interval does not meet the recorded one).

    Raises:
        ValueError: a folder is missing, a file is unreadable, or nothing lies in both folders.
    """
    recorded, results = _files(Path(recorded_dir)), _files(Path(results_dir))
    if not recorded.keys() & results.keys():
        raise ValueError(f"{recorded_dir} and {results_dir} have no measurement in common: nothing can be compared")
    rows: list[dict[str, object]] = []
    for name in sorted({*recorded, *results}):
        if name in recorded and name in results:
            rows += _compare_file(name, read_frame(recorded[name]), read_frame(results[name]))
        else:
            rows.append({"file": name, "status": "missing" if name in recorded else "extra"})
    frame = pd.DataFrame(rows, columns=COLUMNS)
    counts = ["rows", "unmatched", "differing", "bounded", "outside", "apart"]
    return frame.astype(dict.fromkeys(counts, "Int64"))


def summary(comparison: pd.DataFrame) -> str:
    """A comparison in Markdown: the counts, the files that are on one side only, and the columns that differ."""
    compared = comparison[comparison["status"] == "compared"]
    equal = compared["differing"].fillna(0).eq(0) & compared["unmatched"].fillna(0).eq(0)
    lines = [
        f"{compared['file'].nunique()} files, {len(compared)} columns compared: {int(equal.sum())} equal, "
        f"{int((~equal).sum())} different."
    ]
    if bounded := int(compared["bounded"].sum()):
        outside, apart = int(compared["outside"].sum()), int(compared["apart"].sum())
        lines.append(
            f"{bounded} values have a recorded interval: {bounded - outside} lie in it, {outside} outside, of which "
            f"{apart} have an interval of their own that does not meet it."
        )
    for status in ("missing", "extra", "column missing", "column extra"):
        rows = comparison[comparison["status"] == status]
        names = [f"{row.file} {row.column}" if status.startswith("column") else row.file for row in rows.itertuples()]
        if names:
            lines.append(f"{status} ({len(names)}): {', '.join(map(str, names))}")
    if not equal.all():
        different = compared[~equal].sort_values("largest_relative", ascending=False).drop(columns="status")
        lines.append(different.to_markdown(index=False, floatfmt=".3g"))
    return "\n\n".join(lines) + "\n"
