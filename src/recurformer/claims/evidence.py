"""Where verdicts come from: the measurement files of a study and of committed recordings, and the runs behind them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from recurformer.data.sizes import PUBLISHED
from recurformer.paper import BACKBONE_LABELS, SETTINGS, WINDOWS, label
from recurformer.records import read_record, record_of
from recurformer.results.cells import ranked_by_profile
from recurformer.results.frames import COLUMNS, groups, packed_frames, recordings, require
from recurformer.results.learned import largest_fall, why_undecided
from recurformer.results.scores import Measure, compared_subjects, papers_method, scores

THIS_STUDY = "this study"
ONE_MODEL = frozenset({"recovery", "mixer_prices"})
"""Kinds that are measured on one model: any of the paper's is enough."""
WIDTHS = frozenset(PUBLISHED[model]["hidden_size"] for model in BACKBONE_LABELS)
"""Model dimensions of the paper's backbones."""
UNTRAINED = frozenset({"baseline", "head_scores", "mixer_prices"})
"""Kinds of files whose seeds are those of no training of a converted model."""


Rows = Mapping[str, Iterable[int]]
"""Kind of measurement -> labels of some of its rows."""


def labels(frames: Iterable[pd.DataFrame]) -> list[int]:
    """The labels of the rows of several frames."""
    return [label for frame in frames for label in frame.index]


class Missing(Exception):
    """A source of evidence does not decide a claim; the message says why."""


class Undecided(Missing):
    """A source of evidence has measured a claim, but not well enough to decide it; the message says why."""


def because(reasons: Sequence[Missing]) -> Missing:
    """All reasons in one: undecided where one of them is."""
    undecided = any(isinstance(reason, Undecided) for reason in reasons)
    return (Undecided if undecided else Missing)("; ".join(dict.fromkeys(map(str, reasons))))


@dataclass(frozen=True, eq=False)
class Evidence:
    """The measurements of one source.

    Attributes:
        source: "this study", or the folder of a recording.
        frames: kind -> rows, each with the `file` that it stands in and a label of its own.
        settings: file -> the settings of the run that wrote it.
    """

    source: str
    frames: Mapping[str, pd.DataFrame]
    settings: Mapping[str, Mapping[str, Any]]
    _scores: dict[Measure, pd.DataFrame] = field(default_factory=dict, init=False, repr=False)

    def rows(self, kind: str, **where: object) -> pd.DataFrame:
        """All rows of a kind with the given values in the given columns (a list: any of these).

        Raises:
            Missing: there are none.
        """
        frame = self.frames.get(kind, pd.DataFrame())
        for column, value in where.items():
            if frame.empty:
                break
            frame = frame[frame[column].isin(value if isinstance(value, list) else [value])]
        if frame.empty:
            wanted = ", ".join(f"{column} {value}" for column, value in where.items())
            raise Missing(f"no {kind} measurements{f' of {wanted}' if wanted else ''}")
        return frame

    def scores(self, measure: Measure) -> pd.DataFrame:
        """The scores of all that was measured so: computed once for all claims that look at this source.

        Raises:
            Missing: there are no such rows.
        """
        rows = self.rows(measure.kind)
        if measure not in self._scores:
            self._scores[measure] = scores(rows, measure)
        return self._scores[measure]

    def still_learning(self, kind: str, **where: object) -> str:
        """Why some trainings may not have learned all that they could: the loss of one of them still falls, or its log
        is not known; empty where all have flattened.
        """
        rows = self.rows(kind, **where)
        for key, arm in groups(rows, [key for key in ("model", "beta") if key in rows]):
            if reason := why_undecided(largest_fall(arm)):
                *model, beta = key
                return f"{label(model[0]) if model else kind.upper()} at beta {beta:g}: {reason}"
        return ""

    def flattened(self, kind: str, **where: object) -> pd.DataFrame:
        """As `rows`, of trainings whose loss has flattened.

        Raises:
            Undecided: one may still learn.
        """
        if reason := self.still_learning(kind, **where):
            raise Undecided(reason)
        return self.rows(kind, **where)

    def models(self, kind: str, named: Iterable[str] = tuple(BACKBONE_LABELS), **where: object) -> list[str]:
        """The models that speak about a trend: those that the paper names, when all of them were measured, else every
        model that was.

        Raises:
            Missing: there is no such measurement.
        """
        measured, named = list(self.rows(kind, **where)["model"].unique()), list(named)
        return named if set(named) <= set(measured) else measured

    def _values(self, rows: Rows, column: str) -> set[Any]:
        """What some rows of all kinds have in a column, where they have it."""
        known = (kind for kind in rows if column in self.frames[kind])
        return set().union(*(self.frames[kind].loc[[*dict.fromkeys(rows[kind])], column].unique() for kind in known))

    def files(self, rows: Rows) -> list[str]:
        """The files of some rows, in order."""
        return sorted(self._values(rows, "file"))

    def runs(self, rows: Rows) -> list[str]:
        """The runs that wrote some rows, as far as they are known, in order."""
        return sorted(self._values(rows, "run") - {""})

    def seeds(self, rows: Rows) -> int:
        """How many seeds the trainings, or random choices of heads, behind some rows had: where fractions of heads or
        rates differ, the fewest of one.
        """
        counts = [0]
        for kind, labels in rows.items():
            if kind not in UNTRAINED and "seed" in self.frames[kind]:
                looked_at = self.frames[kind].loc[[*dict.fromkeys(labels)]]
                if "trained" in looked_at:  # the seed of an original as it came says nothing
                    looked_at = looked_at[looked_at["trained"].astype(bool) | (looked_at["family"] != "original")]
                if looked_at.empty:
                    continue
                replaced = looked_at[looked_at["beta"] > 0] if "beta" in looked_at else looked_at[:0]
                shown = looked_at if replaced.empty else replaced
                keys = [key for key in ("model", "beta", "learning_rate") if key in COLUMNS[kind]]
                counts.append(int(shown.groupby(keys)["seed"].nunique().min()) if keys else shown["seed"].nunique())
        return max(counts)

    def at_paper_scale(self, rows: Rows, models: Collection[str], samples: int) -> bool:
        """Whether some rows are of all the paper's models that a claim is about, or of a block as wide as one of them,
        over as many windows of text as the paper's, and at its sizes.
        """
        known = self._values(rows, "model")
        enough = known & set(BACKBONE_LABELS) if ONE_MODEL & set(rows) else set(models) <= known
        windows = all(samples >= WINDOWS[kind] for kind in rows if kind in WINDOWS)
        wide = self._values(rows, "width") <= WIDTHS
        return bool(enough or not known) and wide and windows and self.at_paper_sizes(rows)

    def at_paper_sizes(self, rows: Rows) -> bool:
        """Whether the runs behind the files of some rows had the sizes of the paper.

        A file whose run is not known is not taken for one of the paper's size.
        """
        return all(map(self._has_paper_sizes, self.files(rows)))

    def _has_paper_sizes(self, file: str) -> bool:
        expected, settings = SETTINGS.get(Path(file).stem, {}), self.settings.get(file, {})
        return all(name in settings and _same(settings[name], value) for name, value in expected.items())


def _same(setting: object, expected: object) -> bool:
    """A setting as a command line has it, a text, against a number or text."""
    return setting == expected or (isinstance(expected, int | float) and str(setting).replace(".", "", 1).isdigit()
        and float(str(setting)) == expected)  # fmt: skip


def views(frames: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Measurements as claims look at them: caches by profile, losses by plain training, our reading of the
    paper; HashHop by the paper's method, and by all subjects that are compared.
    """
    chosen = dict(frames)
    if "cache" in frames:
        chosen["cache"] = ranked_by_profile(frames["cache"])
    if "metrics" in frames:
        chosen["metrics"] = frames["metrics"][frames["metrics"]["arm"].isin(["original", "paper"])]
    if "hashhop" in frames:
        chosen["hashhop"] = papers_method(frames["hashhop"])
        chosen["compared_hashhop"] = compared_subjects(frames["hashhop"])
    return chosen


def evidence_of(source: str, frames: Mapping[str, pd.DataFrame]) -> Evidence:
    """Measurements as evidence, beta rounded, with the settings of the runs that wrote their files."""
    settings = {}
    for file in {file for frame in frames.values() for file in frame["file"].unique()}:
        record = record_of(file)
        settings[file] = read_record(record)["settings"] if record else {}
    return Evidence(source, {kind: frame.round({"beta": 6}) for kind, frame in views(frames).items()}, settings)


def read_recordings(folder: str | Path | None, kinds: Collection[str] = COLUMNS) -> list[Evidence]:
    """One source for each recording in `folder`: its measurements, of some kinds or of all, as a study left them."""
    sources = []
    for place in recordings(folder):
        known = packed_frames(place, COLUMNS.keys() & set(kinds))
        if frames := {kind: require(frame, kind) for kind, frame in known.items()}:
            sources.append(evidence_of(str(place), frames))
    return sources
