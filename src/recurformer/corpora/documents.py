"""A user's own texts: text files, folders of them, tables of texts, data sets of the hub; split by document."""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from recurformer.corpora.hub import stream_rows
from recurformer.corpora.package import ResourceError, first_line

HELD_OUT = 0.2
"""Fraction of the documents that are held out where no column `split` says which."""
MOST_OF_HUB = 10_000
"""Documents that are read of a data set of the hub: some of these have terabytes."""
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(:[\w.-]+)?")
TABLES: dict[str, tuple[str, Callable[[Path], pd.DataFrame]]] = {
    ".parquet": ("Parquet", pd.read_parquet),
    ".jsonl": ("JSONL", lambda file: pd.read_json(file, lines=True, dtype=False, convert_dates=False)),
}
TAKES = "give text files, folders of .txt or .md, .parquet or .jsonl files, or a data set of the hub (OWNER/NAME)"


class Documents(NamedTuple):
    """Texts to train on, and texts to measure on."""

    train: list[str]
    held_out: list[str]


def read_documents(files: Sequence[str | Path], seed: int = 0) -> Documents:
    """Read and split documents; one that occurs twice counts once, so that none is on both sides.

    The end of a single document is held out, regardless of its split.

    Args:
        files: `.parquet` and `.jsonl` files with a column text, as `recurformer corpus` writes one; folders, of which
            all .txt and .md files are read; a name of a data set on the hub (`OWNER/NAME`, or `OWNER/NAME:CONFIG`), of
            which the first `MOST_OF_HUB` documents are read; all others are UTF-8 text. Where a table has a column
            split, its articles of split "train" are trained on, others held out.
        seed: of the split of all other documents.

    Raises:
        ValueError: a source is missing, unreadable or lacks the column; names the source.
    """
    splits: dict[str, str | None] = {}
    for file in files:
        for text, split in _read(Path(file)):
            if text.strip():
                splits.setdefault(text, split)
    if len(splits) == 1:
        (text,) = splits
        cut = round((1 - HELD_OUT) * len(text))
        return Documents([text[:cut]], [text[cut:]])
    unsplit = [text for text, split in splits.items() if split is None]
    order = np.random.default_rng(seed).permutation(len(unsplit))
    held = {unsplit[index] for index in order[: max(1, round(HELD_OUT * len(unsplit)))]}
    trained_on = {text: text not in held if split is None else split == "train" for text, split in splits.items()}
    return Documents(*([text for text, side in trained_on.items() if side is wanted] for wanted in (True, False)))


def _read(source: Path) -> Iterable[tuple[str, str | None]]:
    """The texts of one source, each with its split, if the source names it."""
    if source.is_dir():
        files = [file for file in sorted(source.rglob("*")) if file.suffix in {".txt", ".md"}]
        if not files:
            raise ValueError(f"{source}: a folder without any .txt or .md file")
        return [text for file in files for text in _read(file)]
    if source.suffix in TABLES:
        return _read_table(source)
    if HUB_NAME.fullmatch(str(source)) and source.suffix not in {".txt", ".md"} and not source.parent.exists():
        return [(text, None) for text in _read_hub(str(source))]
    try:
        return [(source.read_text(encoding="utf-8"), None)]
    except UnicodeDecodeError:
        raise ValueError(f"{source}: not UTF-8 text; {TAKES}") from None
    except OSError as error:
        raise ValueError(f"{source}: cannot be read ({error.strerror}); {TAKES}") from None


def _read_table(file: Path) -> list[tuple[str, str | None]]:
    kind, read = TABLES[file.suffix]
    try:
        frame = read(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: not a readable {kind} file ({first_line(error)})") from None
    if "text" not in frame:
        raise ValueError(f"{file}: column 'text' is missing; there are: {', '.join(map(str, frame))}")
    frame = frame.dropna(subset=["text"])
    if not pd.api.types.is_string_dtype(frame.text):
        raise ValueError(f"{file}: column 'text' holds {frame.text.dtype}, not texts")
    splits = frame.split.astype(str) if "split" in frame else [None] * len(frame)
    return list(zip(frame.text, splits, strict=True))


def _read_hub(name: str) -> list[str]:
    """The first documents of the split train of a data set."""
    repo, _, config = name.partition(":")
    try:
        rows = list(islice(stream_rows(repo, config or None), MOST_OF_HUB))
    except ResourceError as error:
        raise ResourceError(f"{name}: no such file or folder; {error}") from error
    texts = [row["text"] for row in rows if isinstance(row.get("text"), str)]
    if not texts or len(texts) < len(rows):
        raise ResourceError(f"{name}: the data set has no texts in a column 'text'")
    return texts
