"""What the model hub holds: a model's files at one commit, and the rows of a data set; or a refusal in one line.

Where the cache lies, whether the network may be used and who asks is said by the variables of the hub's client:
HF_HOME, HF_HUB_OFFLINE, HF_TOKEN. Nothing here knows what the files mean.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.utils import disable_progress_bars

from recurformer.corpora.package import ResourceError

COMMIT = re.compile(r"[0-9a-f]{40}")
READ_TOGETHER = 1_000
"""Rows of a data set that become Python objects at a time: singly they take four times as long."""


def fetch_snapshot(repo: str, patterns: Sequence[str], revision: str | None = None) -> Path:
    """Folder of those files of a model that match `patterns`, downloaded unless they are in the hub's cache.

    Args:
        repo: `owner/name`.
        patterns: of file names, such as `*.json`.
        revision: the commit (40 hexadecimal digits); None: the newest, or without the network the newest in the cache.

    Returns:
        A folder of the cache; its name is the commit.

    Raises:
        ValueError: `revision` is no commit.
        ResourceError: it cannot be fetched.
    """
    if revision is not None:
        _check_commit(repo, revision)
    disable_progress_bars()  # their control characters make logs unreadable
    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=list(patterns)))
    except Exception as error:  # the client, its HTTP library and its downloader each raise their own kinds
        raise _refusal("model", repo, revision, error) from error


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
        raise _refusal("data set", repo, revision, error) from error


def _check_commit(repo: str, revision: str) -> None:
    # a branch name would let the files change under a recorded result
    if not COMMIT.fullmatch(revision):
        raise ValueError(f"revision of {repo} is {revision!r}; it must be a commit of 40 hexadecimal digits")


def _refusal(kind: str, repo: str, revision: str | None, error: Exception) -> ResourceError:
    said = " ".join(str(error).split()) or type(error).__name__
    place = f"{repo} at {revision}" if revision else repo
    return ResourceError(f"cannot read the {kind} {place} of the hub: {said}")
