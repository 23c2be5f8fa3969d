"""A user's own texts: plain-text files, one document each, and Parquet files of articles; split by document."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

HELD_OUT = 0.2
"""Share of the documents that are held out where no column `split` says which."""


class Documents(NamedTuple):
    """Texts to train on, and texts to measure on."""

    train: list[str]
    held_out: list[str]


def read_documents(files: Sequence[str | Path], seed: int = 0) -> Documents:
    """Read and split documents; one that occurs twice counts once, so that none is on both sides.

    The end of a single document is held out, regardless of its split.

    Args:
        files: `.parquet` files with a column text, as `recurformer corpus` writes them; all others are UTF-8 text.
            Where a Parquet file has a column split, its articles of split "train" are trained on, others held out.
        seed: seed of the split of all other documents.

    Raises:
        ValueError: a file is missing, unreadable or lacks the column; names the file.
    """
    found: dict[str, str | None] = {}
    for file in files:
        for text, split in _read(Path(file)):
            if text.strip():
                found.setdefault(text, split)
    if len(found) == 1:
        (text,) = found
        cut = round((1 - HELD_OUT) * len(text))
        return Documents([text[:cut]], [text[cut:]])
    unsplit = [text for text, split in found.items() if split is None]
    order = np.random.default_rng(seed).permutation(len(unsplit))
    held = {unsplit[index] for index in order[: max(1, round(HELD_OUT * len(unsplit)))]}
    trained_on = {text: text not in held if split is None else split == "train" for text, split in found.items()}
    return Documents(*([text for text, side in trained_on.items() if side is wanted] for wanted in (True, False)))


def _read(file: Path) -> list[tuple[str, str | None]]:
    """The texts of one file, each with its split, if the file names it."""
    if file.suffix == ".parquet":
        return _read_parquet(file)
    try:
        return [(file.read_text(encoding="utf-8"), None)]
    except UnicodeDecodeError:
        raise ValueError(f"{file}: not UTF-8 text; give plain text or a .parquet file of articles") from None
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror})") from None


def _read_parquet(file: Path) -> list[tuple[str, str | None]]:
    try:
        frame = pd.read_parquet(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: not a readable Parquet file ({str(error).splitlines()[0]})") from None
    if "text" not in frame:
        raise ValueError(f"{file}: column 'text' is missing; write it by `recurformer corpus`")
    if not pd.api.types.is_string_dtype(frame.text):
        raise ValueError(f"{file}: column 'text' holds {frame.text.dtype}, not texts")
    frame = frame.dropna(subset=["text"])
    splits = frame.split.astype(str) if "split" in frame else [None] * len(frame)
    return list(zip(frame.text, splits, strict=True))
