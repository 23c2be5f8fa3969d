"""Backbones from the model hub, at a pinned revision, with errors that say what to do."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from recurformer.backbones.store import first_line
from recurformer.corpora.package import ResourceError

COMMIT = re.compile(r"[0-9a-f]{40}")


def open_hub(
    repo: str, revision: str, cache_dir: str | Path, dtype: str = "bfloat16"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of a hub repository.

    Args:
        repo: `owner/name`.
        revision: the commit (40 hexadecimal digits). A branch name would let the weights change under a recorded
            result.
        cache_dir: where downloads are kept.
        dtype: name of the torch type of the parameters.

    Raises:
        ValueError: `revision` is no commit.
        ResourceError: the model is gated, does not exist, or the hub cannot be reached.
    """
    if not COMMIT.fullmatch(revision):
        raise ValueError(f"revision of {repo} is {revision!r}; it must be a commit of 40 hexadecimal digits")
    where = {"revision": revision, "cache_dir": str(cache_dir)}
    try:
        model = AutoModelForCausalLM.from_pretrained(repo, dtype=getattr(torch, dtype), **where)
        tokenizer = AutoTokenizer.from_pretrained(repo, **where)
    except (OSError, ValueError) as error:
        raise ResourceError(_explain(repo, revision, error)) from error
    return model, tokenizer


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _explain(repo: str, revision: str, error: BaseException) -> str:
    """One line for the innermost cause that we know; GatedRepoError is a RepositoryNotFoundError, so it comes first."""
    advice: dict[type[BaseException], str] = {
        GatedRepoError: f"{repo} is gated: accept its licence at https://huggingface.co/{repo} "
        "and set HF_TOKEN to a token that may read it",
        RepositoryNotFoundError: f"the hub has no model {repo}, or it is private and HF_TOKEN is not set",
        OfflineModeIsEnabled: f"{repo} is not in the cache and HF_HUB_OFFLINE forbids downloading it",
        LocalEntryNotFoundError: f"{repo} is not in the cache and the hub cannot be reached: check the network",
        ConnectionError: f"{repo} cannot be downloaded, the hub cannot be reached: check the network",
    }
    causes = list(_causes(error))
    for kind, message in advice.items():
        if any(isinstance(cause, kind) for cause in causes):
            return message
    if (
        "offline" in str(error).lower()
        or "couldn't connect" in str(error).lower()
        or os.environ.get("HF_HUB_OFFLINE") == "1"
    ):
        return f"{repo} is not in the cache and the hub cannot be reached: check the network and HF_HUB_OFFLINE"
    return f"cannot load {repo} at revision {revision}: {first_line(error)}"
