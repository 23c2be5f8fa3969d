"""Files that appear whole or not at all, folders in which one run works at a time, and YAML without what it does in
silence: the last of two keys wins, and `010` is 8.
"""

import hashlib
import os
import shutil
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from re import fullmatch
from typing import Any

import yaml
from filelock import FileLock, Timeout

MADE = ".recurformer"
"""File in a model's folder that lists the others there with their contents, so that a later run knows its own."""
HASHED = 2**24
"""Bytes up to which that list knows a file by a checksum; a larger one, of weights, by its size."""
LOCK = ".lock"
"""File by which one process has a folder for itself."""
STAMP = ".snakemake_timestamp"
"""File that Snakemake adds to a folder that a job has written."""


@contextmanager
def atomic_path(target: str | Path, directory: bool = False) -> Iterator[Path]:
    """A temporary path beside `target` that becomes it when the block ends well, and vanishes when it does not.

    The temporary name keeps the suffix, from which some writers tell the format. What a killed process left under it is
    removed by the next one; two at once must not write the same target. Whatever a writer did, the umask decides who
    may read the result. A folder that is a link is written where the link points.

    Raises:
        ValueError: the place cannot be written to.
    """
    target = Path(os.path.realpath(target) if directory else target)
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
        allowed = scratch.stat().st_mode
        for path in (inner, *inner.rglob("*")):
            path.chmod(allowed & (0o777 if path.is_dir() else 0o666))
        if directory and target.is_dir():
            os.replace(target, scratch / f"{target.name}.old")  # removed with the rest: a kill leaves no half of it
        os.replace(inner, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def refuse_strange(folder: str | Path, ours: Container[Path], why: str = "which no earlier run wrote") -> None:
    """Refuse to replace a folder that holds any file which is not among `ours`.

    Args:
        folder: may be missing.
        ours: files that earlier runs wrote there, each as `folder` with its place in there.
        why: what the message says of another file.

    Raises:
        ValueError: names the file.
    """
    folder = Path(folder)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"{folder}: exists and is not a folder; name a new one")
    if Path.cwd().is_relative_to(folder.resolve()):
        raise ValueError(f"{folder}: the command runs in this folder and cannot replace it; name a new one")
    files = (path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir())
    for path in files:
        if path not in ours and path.name != STAMP:
            raise ValueError(
                f"{folder}: holds {path.relative_to(folder)}, {why}; name a new folder, or move this one away"
            )


def refuse_strange_model(folder: str | Path) -> None:
    """Refuse to replace a folder that is not as `writing_model` left it.

    Raises:
        ValueError: names a file that was added or changed.
    """
    made = Path(folder, MADE)
    if not made.is_file():
        return refuse_strange(folder, ())
    lines = (line.partition(" ") for line in made.read_text(encoding="utf-8", errors="replace").splitlines())
    ours = {made, *(Path(folder, name) for content, _, name in lines if content == _content(Path(folder, name)))}
    refuse_strange(folder, ours, f"which no earlier run wrote as it is, by the list {MADE}")


def _content(file: Path) -> str:
    """What tells one content of a file from another; nothing of a file that is missing."""
    if not file.is_file():
        return ""
    size = file.stat().st_size
    return hashlib.sha256(file.read_bytes()).hexdigest() if size <= HASHED else str(size)


@contextmanager
def writing_model(target: str | Path) -> Iterator[Path]:
    """As `atomic_path` of a folder, for a model: it replaces nothing but an earlier result.

    Raises:
        OSError: the weights cannot be written.
        ValueError: the place cannot be written to, or holds other files.
    """
    refuse_strange_model(target)
    with writing_weights(target), atomic_path(target, directory=True) as folder:
        yield folder
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        lines = [f"{_content(path)} {path.relative_to(folder).as_posix()}\n" for path in files]
        (folder / MADE).write_text("".join(lines), encoding="utf-8")


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
    lock = FileLock(Path(folder, LOCK))
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


_PLAIN = {
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[^_:]*",
    "bool": r"(?i:true|false)",
    "timestamp": r"(?!)",
}
"""Type -> the words that YAML and a reader take for the same: no octal numbers, times of day, `on` or dates."""


class _Refused(yaml.MarkedYAMLError):
    """What is YAML, but would surprise."""


class _Loader(yaml.SafeLoader):
    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        kind, word = node.tag.rpartition(":")[2], node.value
        if node.style is None and kind in _PLAIN and not fullmatch(_PLAIN[kind], word):
            meaning = "a date" if kind == "timestamp" else str(yaml.safe_load(word)).lower()
            said = f'YAML reads {word} as {meaning}; if it is a text, write "{word}"'
            raise _Refused(problem=said, problem_mark=node.start_mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line, name = key.start_mark.line + 1, (key.tag, key.value)
                if name in lines:
                    said = f"the key {key.value!r} stands twice, first in line {lines[name]}; write it once"
                    raise _Refused(problem=said, problem_mark=key.start_mark)
                lines[name] = line
        return node


def read_yaml(path: str | Path) -> Any:
    """What a YAML file says.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no text in UTF-8, or as of `parse_yaml`.
    """
    try:
        text = Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text in UTF-8 ({error.reason} at byte {error.start})") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Any:
    """What a YAML or JSON text says; `source` is its name in errors.

    Raises:
        ValueError: it is not YAML; a key stands twice; a word without quotes means something else than it seems to. In
            one line, with the number of the line.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{source}, line {mark.line + 1}" if mark else source
        if isinstance(error, _Refused):
            raise ValueError(f"{place}: {error.problem}") from None
        raise ValueError(f"{place}: not YAML ({str(error).splitlines()[0]})") from None
