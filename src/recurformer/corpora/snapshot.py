"""Repositories of the model hub at one commit: fetched into the hub's own cache and verified, or refused in one line.

Where the cache lies, whether the network may be used and who asks is said by the variables of the hub's client:
HF_HOME, HF_HUB_OFFLINE, HF_TOKEN. Nothing here knows what the files mean.
"""

import logging
import os
import re
from collections.abc import Iterator, Sequence
from hashlib import sha1
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import disable_progress_bars, filter_repo_objects

from recurformer.corpora.package import ResourceError, file_sha256, first_line

COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
REFUSED = (401, 403)

logger = logging.getLogger(__name__)


def newest_commit(repo: str) -> str:
    """The commit that a model's branch main points to; without the network, the one in the hub's cache.

    Raises:
        ResourceError: as `fetch_snapshot`.
    """
    disable_progress_bars()
    try:
        return Path(snapshot_download(repo, allow_patterns=["config.json"])).name
    except Exception as error:
        raise ResourceError(_explain(repo, "main", "model", error)) from error


def fetch_snapshot(repo: str, revision: str, patterns: Sequence[str], kind: str = "model") -> Path:
    """Folder of those files of a repository that match `patterns`, downloaded unless they are in the hub's cache.

    A lost connection is taken up again inside a file. When the process ends before the download does, the files that
    are complete stay. Every file is verified by its name in the cache, which is the checksum that the hub gave.

    Args:
        repo: `owner/name`.
        revision: the commit (40 hexadecimal digits). A branch name would let the files change under a recorded result.
        patterns: of file names, such as `*.json`.
        kind: "model" or "dataset".

    Raises:
        ValueError: `revision` is no commit.
        ResourceError: the repository is gated or does not exist, the hub cannot be reached, the cache cannot be
            written, or a file is damaged.
    """
    if not COMMIT.fullmatch(revision):
        raise ValueError(f"revision of {repo} is {revision!r}; it must be a commit of 40 hexadecimal digits")
    disable_progress_bars()  # their control characters make logs unreadable
    try:
        folder = Path(snapshot_download(repo, revision=revision, repo_type=kind, allow_patterns=list(patterns)))
    except Exception as error:  # the client, its HTTP library and its downloader each raise their own kinds
        raise ResourceError(_explain(repo, revision, kind, error)) from error
    names = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file())
    _verify(repo, [folder / name for name in filter_repo_objects(names, allow_patterns=list(patterns))])
    return folder


def _verify(repo: str, files: Sequence[Path]) -> None:
    # One step only: the blob itself may be a link into a store that other caches share.
    blobs = {path: path.parent / os.readlink(path) for path in files if path.is_symlink()}
    for blob in blobs.values():
        if _checksum(blob) != blob.name:
            raise ResourceError(f"{blob.resolve()} is damaged (a file of {repo}): delete it and run again")
    if unlinked := len(files) - len(blobs):
        logger.warning("%s: %d files are copies without a checksum in their name, not verified", repo, unlinked)


def _checksum(blob: Path) -> str:
    """The hub's name for a file of these bytes: SHA-256 for a large file, git's checksum for any other."""
    if SHA256.fullmatch(blob.name):
        return file_sha256(blob)
    content = blob.read_bytes()
    return sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _explain(repo: str, revision: str, kind: str, error: BaseException) -> str:
    """One line for the first kind of error that is among the causes: the narrower kinds stand first."""
    page = f"https://huggingface.co/{'' if kind == 'model' else 'datasets/'}{repo}"
    missing = f"{repo} at {revision} is not, or not wholly, in the cache ({HF_HUB_CACHE})"
    advice: dict[type[BaseException], str] = {
        GatedRepoError: f"{repo} is gated: accept its licence at {page} and set HF_TOKEN to a token that may read it",
        RepositoryNotFoundError: f"the hub has no {kind} {repo}, or it is private and HF_TOKEN may not read it",
        RevisionNotFoundError: f"{repo} has no revision {revision}: correct it in the configuration",
        OfflineModeIsEnabled: f"{missing} and HF_HUB_OFFLINE forbids downloading it",
    }
    causes = list(_causes(error))
    for known, message in advice.items():
        if any(isinstance(cause, known) for cause in causes):
            return message
    answers = [cause.response.status_code for cause in causes if isinstance(cause, HfHubHTTPError)]
    if any(code in REFUSED for code in answers):
        return f"the hub refuses access to {repo} ({answers[0]}): set HF_TOKEN to a valid token that may read {page}"
    if answers:
        return f"the hub answers {answers[0]} for {repo}: try again later, what is complete is kept"
    if isinstance(error, LocalEntryNotFoundError):
        return f"{missing} and the hub cannot be reached ({first_line(causes[-1])})"
    if isinstance(error, OSError) and error.errno:
        return f"cannot write {repo} to the cache ({HF_HUB_CACHE}): {error.strerror}"
    return f"cannot fetch {repo} at revision {revision}: {first_line(error)}; run again, what is complete is kept"
