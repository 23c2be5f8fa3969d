"""Files that appear whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(target: str | Path, directory: bool = False) -> Iterator[Path]:
    """A temporary path beside `target` that becomes it when the block ends well, and vanishes when it does not.

    The temporary name keeps the suffix, from which some writers tell the format. What a killed process left under it is
    removed by the next one; two at once must not write the same target.

    Raises:
        ValueError: the place cannot be written to.
    """
    target = Path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = target.with_name(f".unfinished-{target.name}")
        if scratch.is_dir():
            shutil.rmtree(scratch)
        scratch.mkdir()
    except OSError as error:
        raise ValueError(f"{target}: cannot be written ({error.strerror})") from None
    try:
        inner = scratch / target.name
        if directory:
            inner.mkdir()
        yield inner
        if directory and target.is_dir():
            shutil.rmtree(target)
        os.replace(inner, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def writing_weights(target: str | Path) -> Iterator[None]:
    """Raise what safetensors says of a full disk, which names no file and is no error of the system, as one that is.

    Raises:
        OSError: the weights cannot be written.
    """
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise OSError(f"{target}: cannot be written ({error})") from error
