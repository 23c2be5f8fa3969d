"""Where verdicts come from: the measurement files of a study and of committed recordings."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from recurformer.paper import BACKBONE_LABELS
from recurformer.render.claims.claim import Missing
from recurformer.render.measurements import COLUMNS, require
from recurformer.render.reading import READERS, read_frame

THIS_STUDY = "this study"
LANGUAGE_ONLY = frozenset({"metrics", "profile"})
"""Kinds of files that HashHop has too, of which the claims speak about the language runs only."""


class Evidence:
    """The measurements of one source. It remembers which files were looked at.

    Attributes:
        source: "this study", or the folder of a recording.
        used: the files of all rows that were given out.
        seeds: the training seeds in them.
    """

    def __init__(self, source: str, frames: Mapping[str, pd.DataFrame]) -> None:
        self.source = source
        self.frames = frames
        self.used: set[str] = set()
        self.seeds: set[int] = set()

    def fresh(self) -> "Evidence":
        """The same measurements, nothing looked at."""
        return Evidence(self.source, self.frames)

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
        self.used.update(frame["file"])
        if "seed" in frame:
            self.seeds.update(int(seed) for seed in frame["seed"].unique())
        return frame

    def models(self, kind: str, **where: object) -> tuple[list[str], bool]:
        """The models that speak about a trend, and whether they are the paper's: these alone, or else all others.

        Raises:
            Missing: there is no such measurement.
        """
        frame = self.frames.get(kind, pd.DataFrame())
        for column, value in where.items():
            frame = frame[frame[column] == value] if not frame.empty else frame
        found = list(dict.fromkeys(frame["model"])) if not frame.empty else []
        if not found:
            raise Missing(f"no {kind} measurements")
        papers = [model for model in BACKBONE_LABELS if model in found]
        return (papers, True) if papers else (found, False)


def read_evidence(source: str, files: Iterable[str | Path]) -> Evidence:
    """The measurements in `files`, whose stems are their kinds; each row with its `file`, beta rounded.

    Raises:
        ValueError: a file is unreadable, empty or lacks columns.
    """
    frames: dict[str, list[pd.DataFrame]] = {}
    for file in map(Path, files):
        frame = read_frame(file)
        if file.stem in COLUMNS:
            require(frame, file.stem)
        frames.setdefault(file.stem, []).append(frame.assign(file=str(file)).round({"beta": 6}))
    return Evidence(source, {kind: pd.concat(parts, ignore_index=True) for kind, parts in frames.items()})


def read_recordings(folder: str | Path) -> list[Evidence]:
    """One source for each recording in `folder`: recorded/NAME/results holds measurements as a study left them."""
    found = []
    for results in sorted(Path(folder).glob("*/results")):
        files = [
            file
            for file in sorted(results.rglob("*"))
            if file.suffix in READERS and file.stem in COLUMNS and "tables" not in file.parts
            and (file.stem not in LANGUAGE_ONLY or "language" in file.parts)
        ]  # fmt: skip
        if files:
            found.append(read_evidence(str(results.parent), files))
    return found
