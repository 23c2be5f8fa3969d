"""Backbones from the model hub, at a pinned revision or the newest."""

from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from recurformer.backbones.store import load_backbone
from recurformer.corpora.hub import fetch_snapshot
from recurformer.corpora.package import ResourceError

FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
"""Configuration, weights and tokenizer; not the weights once more in older formats."""
WITH_CARD = (*FILES, "*.jinja", "README.md")
"""The same, with the files that describe a model."""


def fetch_newest(repo: str) -> Path:
    """Folder of the newest files of a hub repository with its card; the folder's name is the commit.

    Raises:
        ResourceError: it cannot be fetched (`fetch_snapshot`).
    """
    return fetch_snapshot(repo, WITH_CARD)


def open_hub(repo: str, revision: str, dtype: str = "bfloat16") -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of a hub repository.

    Args:
        repo: `owner/name`.
        revision: the commit (40 hexadecimal digits).
        dtype: name of the torch type of the parameters. Llama2 is published in float16, Qwen2 in bfloat16; caches
            and mixers are compared in one type.

    Raises:
        ValueError: `revision` is no commit.
        ResourceError: it cannot be fetched (`fetch_snapshot`), or holds no model or no tokenizer.
    """
    folder = fetch_snapshot(repo, FILES, revision)
    model, tokenizer = load_backbone(folder, dtype)
    if tokenizer is None:
        raise ResourceError(f"{repo} at revision {revision} holds no tokenizer")
    return model, tokenizer
