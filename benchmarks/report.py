"""The tables of ratios with the goals beside them, as Markdown."""

from collections.abc import Sequence

import pandas as pd

from benchmarks.goals import Judged


def _spread(row: pd.Series) -> str:
    return "" if pd.isna(row.ratio) else f"{row.ratio:.3g} [{row.ratio_low:.3g}, {row.ratio_high:.3g}]"


def _scaled(value: float, factor: float, pattern: str) -> str:
    return "" if pd.isna(value) else format(value * factor, pattern)


def _line(row: pd.Series) -> dict[str, str]:
    return {
        "case": row.case,
        "candidate": row.candidate,
        "ms": _scaled(row.median_seconds, 1e3, ".3g"),
        "x baseline": f"{_spread(row)} {row.baseline}".strip() if row.candidate != row.baseline else "1",
        "peak MB": _scaled(row.peak_bytes, 1e-6, ".0f"),
        "error": _scaled(row.error, 1, ".0e"),
        "goal": row.goal,
        "met": row.met,
    }


def _about(judged: Judged) -> str:
    return f"{judged.goal.topic}, {judged.goal.case}, {judged.goal.candidate}, threads: {judged.threads}"


def table(rows: pd.DataFrame) -> str:
    """The measurements of one topic and number of threads."""
    first = rows.iloc[0]
    lines = pd.DataFrame([_line(row) for _, row in rows.iterrows()])
    shown = lines.to_markdown(index=False, disable_numparse=True)
    return f"### {first.topic} on {first.device}, threads: {first.threads}\n\n{shown}\n"


def summary(judged: Sequence[Judged]) -> str:
    """The goals that could not be decided, and how many of the others are met."""
    undecided = [f"- {_about(found)}: {found.goal} ({found.missing})" for found in judged if found.missing]
    met = [found.verdict == "met" for found in judged if not found.missing]
    parts = ["### Goals that this run does not decide\n", *undecided, ""] if undecided else []
    return "\n".join([*parts, f"{sum(met)} of {len(met)} decided goals met."])
