"""Files that appear whole or not at all, and folders in which one run works at a time."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


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
            os.replace(target, scratch / f"{target.name}.old")  # removed with the rest: a kill leaves no half of it
        os.replace(inner, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def writing_weights(target: str | Path) -> Iterator[None]:
    """Turn a write error of safetensors, for example on a full disk, into an OSError that names the file.

    Raises:
        OSError: the weights cannot be written.
    """
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise OSError(f"{target}: cannot be written ({error})") from error


@contextmanager
def alone_in(folder: str | Path) -> Iterator[None]:
    """Run the block under a lock on `folder` that only one block of one process can hold. A missing folder is made.

    The kernel frees the lock when its holder ends, even by a kill.

    Raises:
        ValueError: another run works there.
    """
    lock = FileLock(Path(folder, ".lock"))
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(f"{folder}: another run works in this folder; wait for it or stop it") from None
    except (OSError, NotImplementedError):  # no locks here, or nothing can be written: the block says so
        pass
    try:
        yield
    finally:
        lock.release()
