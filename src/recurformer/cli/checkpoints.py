"""Opening checkpoints and texts for the stages, with errors that name the file."""

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


def device() -> str:
    """The accelerator when there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _require_checkpoint(folder: str | Path) -> None:
    # Without this the library takes the name of a missing folder for that of a repository and asks the hub.
    if not Path(folder, "config.json").is_file():
        raise ValueError(f"{folder}: no checkpoint, there is no config.json in it")


def add_dtype(parser: ArgumentParser) -> None:
    """The type in which a stage that measures opens its models."""
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], default="auto", help="of the weights (default: as they were saved)"
    )


def open_model(folder: str | Path, dtype: str = "auto") -> "PreTrainedModel":
    """A causal language model on the accelerator, converted or not, in evaluation mode.

    Args:
        folder: of the checkpoint.
        dtype: of the weights: "auto" as they were saved; "float32" for training, whose small steps bfloat16 weights
            would swallow.

    Raises:
        ValueError: the checkpoint is missing or damaged.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    import recurformer.model.modeling  # noqa: F401  registers the converted classes

    _require_checkpoint(folder)
    disable_progress_bar()  # its control characters make logs unreadable
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        return model.to(device()).eval()  # type: ignore[arg-type]  # the library wraps .to without its signature
    except (SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{folder}: not a readable checkpoint ({reason})") from None


def open_config(folder: str | Path) -> "PreTrainedConfig":
    """The configuration of a model, converted or not."""
    _require_checkpoint(folder)
    from transformers import AutoConfig

    import recurformer.model.modeling  # noqa: F401  registers the converted classes

    return AutoConfig.from_pretrained(folder)


def open_tokenizer(folder: str | Path) -> "PreTrainedTokenizerBase":
    """The tokenizer beside a model."""
    _require_checkpoint(folder)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def open_texts(articles: str | Path, split: str | None = None) -> pd.DataFrame:
    """Articles of one split, or of both.

    Raises:
        ValueError: the file is unreadable or the split has no article.
    """
    try:
        frame = pd.read_parquet(articles)
    except (OSError, ValueError) as error:
        raise ValueError(f"{articles}: not a readable Parquet file ({str(error).splitlines()[0]})") from None
    chosen = frame if split is None else frame[frame.split == split]
    if chosen.empty:
        raise ValueError(
            f"{articles}: no article in split {split!r}; lower corpus.minimum_characters or change the split"
        )
    return chosen.reset_index(drop=True)


def read_heads(path: str | Path) -> list[list[int]]:
    """Replaced query heads per layer, as `recurformer select` wrote them."""
    try:
        return json.loads(Path(path).read_text())["heads"]
    except (OSError, json.JSONDecodeError, KeyError) as error:
        raise ValueError(f"{path}: not a selection written by `recurformer select` ({error})") from None
