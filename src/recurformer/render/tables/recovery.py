"""Quality of a converted model by recipe, compared with its original after the same training."""

from typing import Any

import numpy as np
import pandas as pd

from recurformer.paper import label
from recurformer.render.tables.table import Table
from recurformer.results.frames import COLUMNS, groups, records, runs_of
from recurformer.results.learned import CURVE, LENGTHS, arm_label, last_points, recovery_points, untrained
from recurformer.results.scores import CONTINUATION, PASSKEY, identified
from recurformer.results.words import NOTHING, estimated, number

UNTOUCHED = "original, as it was"
SHOWN_LENGTHS = dict(zip(LENGTHS, ("10k", "60k"), strict=True))


def _of(rows: pd.DataFrame | None, kind: str, run: Any) -> pd.DataFrame:
    """The rows of a kind of the ablations that were measured on the model of a run."""
    if rows is None:
        return pd.DataFrame(columns=COLUMNS[kind])
    family, method = {"original": ("original", "full"), "paper": ("mixer", "mamba")}.get(
        run.arm, ("recovered", run.arm)
    )
    found = identified(rows, kind)
    share = (found["setting"] - run.beta).abs() < 1e-6 if run.beta else True
    chosen = (found["model"] == run.model) & (found["family"] == family) & (found["method"] == method) & share
    return found[chosen & (found["trained"] == (run.tokens > 0)) & (found["seed"] == run.seed)]


def _lines(ends: pd.DataFrame, original: pd.Series, needle: Any, continuation: Any, runs: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for run in records(ends):
        needles, written = _of(needle, "needle", run), _of(continuation, "continuation", run)
        asked = needles[needles["task"] == PASSKEY].groupby("length")[["correct", "queries"]].sum()
        rows.append({
            **{name: getattr(run, name) for name in (*CURVE, "tokens")}, "minutes": run.seconds / 60,
            **{name: getattr(run, name) for name in ("perplexity", "perplexity_low", "perplexity_high")},
            "over_original": run.perplexity / original["perplexity"],
            **{name: getattr(run, name) for name in ("divergence", "divergence_low", "divergence_high")},
            "continuation": CONTINUATION.shown(CONTINUATION.estimate(written).mean) if len(written) else np.nan,
            **{f"passkeys_{row.Index}": f"{row.correct} of {row.queries}" for row in asked.itertuples()},
            **{f"cache_{name}": getattr(run, f"bytes_{length}") / original[f"bytes_{length}"]
               for length, name in SHOWN_LENGTHS.items()},
            "windows": run.windows, "runs": runs(run.rows),
        })  # fmt: skip
    return rows


def recovery_table(
    recovery: pd.DataFrame, needle: pd.DataFrame | None = None, continuation: pd.DataFrame | None = None
) -> Table:
    """Every arm at the end of its run: quality on held-out windows, needles, continuations, cache, tokens and minutes.

    Raises:
        ValueError: no original.
    """
    found = recovery_points(recovery)
    rows: list[dict[str, Any]] = []
    for model, of_model in groups(found, "model"):
        original = untrained(found, model)
        ends = pd.concat([original.to_frame().T, last_points(of_model).sort_values(["beta", "arm"])])
        rows += _lines(ends, original, needle, continuation, lambda labels: runs_of(recovery.loc[list(labels)]))
    frame = pd.DataFrame(rows)
    passkeys = sorted(
        (str(name) for name in frame if str(name).startswith("passkeys_")), key=lambda name: int(name[9:])
    )
    seeds = {key: rows["seed"].unique() for key, rows in groups(frame, ["model", "arm"])}
    lines = [
        {
            "Model": label(row.model),
            "Recipe": (arm_label(row.arm, row.mixer) if row.tokens else UNTOUCHED)
            + (f", seed {row.seed}" if len(seeds[row.model, row.arm]) > 1 and row.tokens else ""),
            "β": number(row.beta, 2),
            "tokens": number(row.tokens, 0),
            "minutes": number(row.minutes, 1),
            ("held-out windows", "perplexity"): _with(row, "perplexity", 2),
            ("held-out windows", "over original"): number(row.over_original, 3),
            ("held-out windows", "KL"): _with(row, "divergence", 3),
            "continuation perplexity": number(row.continuation, 2),
            **{("passkeys", name[9:]): getattr(row, name) if isinstance(getattr(row, name), str) else NOTHING
               for name in passkeys},
            **{("cache", name): number(getattr(row, f"cache_{name}"), 4) for name in SHOWN_LENGTHS.values()},
        }
        for row in records(frame)
    ]  # fmt: skip
    notes = (
        "Recipes: paper's: Mamba blocks started at random, all weights trained on the language-model loss; from the "
        "closed form: the same, after the blocks' last layers were solved for; plus: solved for, then mixers and "
        "attention trained on the divergence from the original. Named by a mixer: the same as plus, at equal bytes.",
        "Perplexity and KL (divergence from the original, nats a token) with 95 % intervals over "
        f"{frame['windows'].min()} held-out windows. Minutes: of training only, on the machine named below.",
        "Cache: bytes at 10,240 and 61,440 tokens over those of the original. HashHop: not-run, SmolLM2 has not "
        "learned it.",
    )
    return Table("recovery", "Quality of a converted model by recipe", frame, lines, notes)


def _with(row: Any, name: str, decimals: int) -> str:
    """A value with its interval."""
    low, high = getattr(row, f"{name}_low"), getattr(row, f"{name}_high")
    return estimated(getattr(row, name), low, high, decimals)
