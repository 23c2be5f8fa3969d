"""Reading one file of measurements, whatever its format."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd


def _read_jsonl(path: Path) -> pd.DataFrame:
    return pd.read_json(path, lines=True)


READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": pd.read_csv,
    ".jsonl": _read_jsonl,
    ".parquet": pd.read_parquet,
}
"""Suffix of a measurement file -> what reads it."""


def read_frame(path: Path) -> pd.DataFrame:
    """The rows of a measurement file.

    Raises:
        ValueError: the file is unreadable or of an unknown format.
    """
    if path.suffix not in READERS:
        raise ValueError(f"{path}: a measurement file ends in {', '.join(READERS)}")
    try:
        return READERS[path.suffix](path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: unreadable ({str(error).splitlines()[0]})") from None
