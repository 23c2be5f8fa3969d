"""A user's own texts: text files, folders of them, tables of texts, data sets of the hub; split by document."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from recurformer.data.fetch import ResourceError, first_line, stream_rows

HELD_OUT = 0.2
"""Fraction of the documents that are held out where no column `split` says which."""
MOST_OF_HUB = 10_000
"""Documents that are read of a data set of the hub: some of these have terabytes."""
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(:[\w.-]+)?")
PLAIN = (".txt", ".md")


def _read_lines(file: Path) -> pd.DataFrame:
    """A row for each JSON object, of values as they are: a table's reader would make one type of each column.

    Raises:
        ValueError: a line is none; names it.
    """
    rows = []
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            try:
                rows += [json.loads(line)] if line.strip() else []
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {number}: {error}") from None
    return pd.DataFrame(rows, dtype=object)


TABLES: dict[str, tuple[str, Callable[[Path], pd.DataFrame]]] = {
    ".parquet": ("Parquet", pd.read_parquet),
    ".jsonl": ("JSONL", _read_lines),
}
TAKES = (
    f"give {' or '.join(PLAIN)} files, folders of them, {' or '.join(TABLES)} files with a column 'text', or a data set"
    " of the hub (OWNER/NAME)"
)


class Documents(NamedTuple):
    """Texts to train on, and texts to measure on."""

    train: list[str]
    held_out: list[str]


def read_documents(files: Sequence[str | Path], seed: int = 0) -> Documents:
    """Read and split documents; one that occurs twice counts once, so that none is on both sides.

    The end of a single document is held out, regardless of its split.

    Args:
        files: `.txt` and `.md` files and files without a suffix, in UTF-8; folders, of which all .txt and .md files are
            read; `.parquet` and `.jsonl` files with a column text, as `recurformer corpus` writes one; a name of a data
            set on the hub (`OWNER/NAME`, or `OWNER/NAME:CONFIG`), of which the first `MOST_OF_HUB` documents are read.
            Where a table has a column split, its articles of split "train" are trained on, others held out.
        seed: of the split of all other documents.

    Raises:
        ValueError: a source is missing, unreadable, of another kind or lacks the column; names the source. Or there is
            no text in them.
    """
    splits: dict[str, str | None] = {}
    for file in files:
        for text, split in _read(Path(file)):
            if text.strip():
                splits.setdefault(text, split)
    if not splits:
        raise ValueError(f"{', '.join(map(str, files))}: no text in {'it' if len(files) == 1 else 'them'}; {TAKES}")
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
    kind = source.suffix.lower()
    if source.is_dir():
        files = [file for file in sorted(source.rglob("*")) if file.suffix.lower() in PLAIN]
        if not files:
            raise ValueError(f"{source}: a folder without any .txt or .md file")
        return [text for file in files for text in _read(file)]
    if kind in TABLES:
        return _read_table(source)
    if HUB_NAME.fullmatch(str(source)) and kind not in PLAIN and not source.parent.exists():
        return [(text, None) for text in _read_hub(str(source))]
    if source.exists() and kind not in {*PLAIN, ""}:
        raise ValueError(f"{source}: a {kind} file is not read; {TAKES}")
    try:
        text = source.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{source}: not UTF-8 text; {TAKES}") from None
    except OSError as error:
        raise ValueError(f"{source}: cannot be read ({error.strerror}); {TAKES}") from None
    if "\0" in text:  # as UTF-16 has them
        line = text[: text.index("\0")].count("\n") + 1
        raise ValueError(f"{source}: not UTF-8 text, with a NUL in line {line}; {TAKES}")
    return [(text, None)]


def _read_table(file: Path) -> list[tuple[str, str | None]]:
    kind, read = TABLES[file.suffix.lower()]
    if not file.exists():
        raise ValueError(f"{file}: no such file")
    try:
        frame = read(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: not a readable {kind} file ({first_line(error)})") from None
    if "text" not in frame:
        raise ValueError(f"{file}: column 'text' is missing; there are: {', '.join(map(str, frame))}")
    frame = frame.dropna(subset=["text"])
    for row, text in enumerate(frame.text, 1):
        try:
            text.encode()
        except (AttributeError, UnicodeEncodeError):  # a number; half of a sign
            raise ValueError(f"{file}: column 'text' holds {text!r:.40} in row {row}, not a text") from None
        if "\0" in text:
            raise ValueError(f"{file}: column 'text' holds a NUL in row {row}")
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
