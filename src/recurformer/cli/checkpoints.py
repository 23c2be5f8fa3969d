"""Opening and saving checkpoints for the stages, with errors that name the file."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recurformer.files import writing_model

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


def device() -> str:
    """The accelerator when there is one; each of several processes that train together has its own.

    Raises:
        ValueError: there are GPUs, but fewer than processes.
    """
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    number, cards = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= cards:
        raise ValueError(f"there are only {cards} GPUs, and this process is number {number + 1}: ask for fewer")
    return f"cuda:{number}"


def _open(folder: str | Path, auto_class: str, fault: str, **options: Any) -> Any:
    """What an auto class of transformers opens of a checkpoint, or one line that says that the folder has the `fault`.

    A checkpoint is read, never run: no modules that lie beside it, and no pickled weights.

    Raises:
        ValueError: there is no checkpoint, or it is damaged.
        PermissionError: a file in it must not be read.
    """
    import transformers

    # Without this the library takes the name of a missing folder for that of a repository and asks the hub.
    if not Path(folder, "config.json").is_file():
        raise ValueError(f"{folder}: no checkpoint, there is no config.json in it")
    for file in filter(Path.is_file, Path(folder).iterdir()):
        file.open("rb").close()  # the library says of weights that it may not read that there are none
    options |= {"local_files_only": True, "trust_remote_code": False}
    try:
        return getattr(transformers, auto_class).from_pretrained(folder, **options)
    except Exception as error:  # json, safetensors, tokenizers and transformers each raise their own kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{folder}: {fault} ({reason})") from error


def open_model(folder: str | Path, dtype: str = "auto") -> "PreTrainedModel":
    """A causal language model on the accelerator, converted or not, in evaluation mode.

    Args:
        folder: of the checkpoint.
        dtype: of the weights: "auto" as they were saved; "float32" for training, whose small steps bfloat16 weights
            would swallow.

    Raises:
        ValueError: the checkpoint is missing or damaged.
    """
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # its control characters make logs unreadable
    model = _open(folder, "AutoModelForCausalLM", "not a readable checkpoint", dtype=dtype, use_safetensors=True)
    return model.to(device()).eval()


def open_converted(
    folder: str | Path, heads: str | Path, mixer: str, seed: int, dtype: str = "auto", **sizes: Any
) -> "PreTrainedModel":
    """A model whose chosen heads are replaced by one mixer in each layer, before any training.

    Args:
        folder: of the original's checkpoint.
        heads: file that `recurformer select` wrote.
        mixer: a name in `recurformer.model.mixers`.
        seed: of the mixers' weights.
        dtype: as `open_model` takes it.
        sizes: of the mixer.

    Raises:
        ValueError: the checkpoint or the choice of heads is missing or damaged.
    """
    from transformers import set_seed

    from recurformer.model.convert import convert

    set_seed(seed)
    return convert(open_model(folder, dtype), read_heads(heads), mixer, **sizes)


def open_config(folder: str | Path) -> "PreTrainedConfig":
    """The configuration of a model, converted or not.

    Raises:
        ValueError: the checkpoint is missing or damaged.
    """
    return _open(folder, "AutoConfig", "not a readable checkpoint")


def open_tokenizer(folder: str | Path) -> "PreTrainedTokenizerBase":
    """The tokenizer beside a model.

    Raises:
        ValueError: the checkpoint is missing, or its tokenizer is missing or damaged.
    """
    return _open(folder, "AutoTokenizer", "no readable tokenizer in it")


def save_checkpoint(
    target: str | Path, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", **options: Any
) -> None:
    """Write a model and its tokenizer to a folder, which appears whole or not at all.

    Raises:
        OSError: it cannot be written.
        ValueError: the folder holds anything but an earlier model.
    """
    with writing_model(target) as folder:
        model.save_pretrained(folder, **options)
        tokenizer.save_pretrained(folder)


def read_heads(path: str | Path) -> list[list[int]]:
    """Replaced query heads per layer, as `recurformer select` wrote them.

    Raises:
        ValueError: the file is unreadable or holds something else.
    """
    try:
        heads = json.loads(Path(path).read_text(encoding="utf-8"))["heads"]
        if all(type(head) is int for layer in heads for head in layer) and {*map(type, [heads, *heads])} == {list}:
            return heads
        reason = "heads is not a list of integers for each layer"
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error)
    raise ValueError(f"{path}: not a selection written by `recurformer select` ({reason})")
