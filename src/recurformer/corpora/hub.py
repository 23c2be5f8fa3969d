"""What the model hub holds: a model's files at one commit, and the rows of a data set; or a refusal in one line.

Where the cache lies, whether the network may be used and who asks is said by the variables of the hub's client:
HF_HOME, HF_HUB_OFFLINE, HF_TOKEN. Nothing here knows what the files mean.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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
from huggingface_hub.utils import disable_progress_bars

from recurformer.corpora.package import ResourceError, first_line

COMMIT = re.compile(r"[0-9a-f]{40}")
REFUSED = (401, 403)
READ_TOGETHER = 1_000
"""Rows of a data set that become Python objects at a time: singly they take four times as long."""


def newest_commit(repo: str) -> str:
    """The commit that a model's branch main points to; without the network, the one in the hub's cache.

    Raises:
        ResourceError: as `fetch_snapshot`.
    """
    disable_progress_bars()
    try:
        return Path(snapshot_download(repo, allow_patterns=["config.json"])).name
    except Exception as error:
        raise ResourceError(_explain(repo, "main", error)) from error


def fetch_snapshot(repo: str, revision: str, patterns: Sequence[str]) -> Path:
    """Folder of those files of a model that match `patterns`, downloaded unless they are in the hub's cache.

    A lost connection is taken up again inside a file. When the process ends before the download does, the files that
    are complete stay.

    Args:
        repo: `owner/name`.
        revision: the commit (40 hexadecimal digits).
        patterns: of file names, such as `*.json`.

    Raises:
        ValueError: `revision` is no commit.
        ResourceError: the repository is gated or does not exist, the hub cannot be reached, or the cache cannot be
            written.
    """
    _check_commit(repo, revision)
    disable_progress_bars()  # their control characters make logs unreadable
    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=list(patterns)))
    except Exception as error:  # the client, its HTTP library and its downloader each raise their own kinds
        raise ResourceError(_explain(repo, revision, error)) from error


def stream_rows(repo: str, config: str | None = None, revision: str | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a data set's split train, in their order; read as they come and not kept.

    Args:
        repo: `owner/name`.
        config: which of its configurations.
        revision: the commit (40 hexadecimal digits); None: the newest.

    Raises:
        ValueError: `revision` is no commit.
        ResourceError: it cannot be read.
    """
    import datasets

    if revision is not None:
        _check_commit(repo, revision)
    datasets.disable_progress_bars()
    try:
        rows = datasets.load_dataset(repo, config, split="train", revision=revision, streaming=True)
        for batch in rows.iter(READ_TOGETHER):
            yield from (dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True))
    except Exception as error:  # the library, the hub's client and its HTTP library each raise their own kinds
        said = " ".join(str(error).split()) or type(error).__name__
        place = f"{repo} at {revision}" if revision else repo
        raise ResourceError(f"cannot read the data set {place} of the hub: {said}") from error


def _check_commit(repo: str, revision: str) -> None:
    # a branch name would let the files change under a recorded result
    if not COMMIT.fullmatch(revision):
        raise ValueError(f"revision of {repo} is {revision!r}; it must be a commit of 40 hexadecimal digits")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _explain(repo: str, revision: str, error: BaseException) -> str:
    """One line for the first kind of error that is among the causes: the narrower kinds stand first."""
    page = f"https://huggingface.co/{repo}"
    missing = f"{repo} at {revision} is not, or not wholly, in the cache ({HF_HUB_CACHE})"
    advice: dict[type[BaseException], str] = {
        GatedRepoError: f"{repo} is gated: accept its licence at {page} and set HF_TOKEN to a token that may read it",
        RepositoryNotFoundError: f"the hub has no model {repo}, or it is private and HF_TOKEN may not read it",
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
