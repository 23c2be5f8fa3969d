"""Backbones as ordinary Hugging Face model directories on disk."""

from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from recurformer.corpora.package import ResourceError, first_line
from recurformer.files import writing_model


def save_backbone(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, directory: str | Path) -> Path:
    """Write model and tokenizer to `directory`, which exists only when complete; an earlier model there is replaced.

    Raises:
        ResourceError: the files cannot be written (nothing half-written is left).
        ValueError: the place cannot be written to, or holds anything but an earlier model.
    """
    directory = Path(directory)
    try:
        with writing_model(directory) as scratch:
            model.save_pretrained(scratch)
            if tokenizer is not None:
                tokenizer.save_pretrained(scratch)
    except OSError as error:
        raise ResourceError(f"cannot write the model to {directory}: {error.strerror or error}") from error
    return directory


def load_backbone(directory: str | Path, dtype: str = "auto") -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """Model and tokenizer of a directory; None where it holds no tokenizer.

    Args:
        directory: with config.json, weights and tokenizer.
        dtype: name of the torch type of the parameters; "auto": the one they were saved in.

    Raises:
        ResourceError: no such directory, or its files are truncated or corrupt.
    """
    directory = Path(directory)
    if not (directory / "config.json").is_file():
        raise ResourceError(f"{directory} is not a model directory: it has no config.json")
    try:
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=dtype, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except Exception as error:  # safetensors, json and transformers each raise their own kind
        raise ResourceError(f"{directory} holds no readable model: {first_line(error)}") from error
    has_tokenizer = any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))
    if not has_tokenizer:
        return model, None
    try:
        return model, AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ResourceError(f"{directory} holds no readable tokenizer: {first_line(error)}") from error
