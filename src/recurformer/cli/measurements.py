"""Reading tidy measurement files: the stem of a file's name is the kind of what it holds."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd

READERS: dict[str, Callable[[Path], pd.DataFrame]] = {".csv": pd.read_csv, ".parquet": pd.read_parquet}


def read_measurements(files: Iterable[str | Path]) -> dict[str, pd.DataFrame]:
    """One frame for each kind, the rows of all its files one below the other.

    Raises:
        ValueError: a file is unreadable or of an unknown format.
    """
    frames: dict[str, list[pd.DataFrame]] = {}
    for file in map(Path, files):
        if file.suffix not in READERS:
            raise ValueError(f"{file}: a measurement file ends in {' or '.join(READERS)}")
        try:
            frames.setdefault(file.stem, []).append(READERS[file.suffix](file))
        except (OSError, ValueError) as error:
            raise ValueError(f"{file}: unreadable ({str(error).splitlines()[0]})") from None
    return {kind: pd.concat(parts, ignore_index=True) for kind, parts in frames.items()}
