"""Checkpoints of a training that was killed: each is marked once it is whole, and only a marked one is resumed.

The library writes a checkpoint file by file into `checkpoint-<step>/`. A kill or a full disk in the middle leads to the
checkpoint before.
"""

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recurformer.files import atomic_path

COMPLETE = "complete"
"""Empty file in a checkpoint, written last."""
RUN = "training.json"


def fingerprint(model: nn.Module) -> int:
    """CRC-32 over the names and bytes of a model's parameters: tells one starting point from another."""
    value = 0
    for name, parameter in model.named_parameters():
        value = zlib.crc32(name.encode(), value)
        flat = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        value = zlib.crc32(flat.numpy().data, value)
    return value


def _remove(checkpoint: Path) -> None:
    (checkpoint / COMPLETE).unlink(missing_ok=True)  # first: a kill leaves no marked half
    shutil.rmtree(checkpoint)


def _checkpoints(folder: Path) -> list[Path]:
    """Newest first."""
    steps = {path: path.name.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*")}
    return sorted((path for path in steps if steps[path].isdigit()), key=lambda path: int(steps[path]), reverse=True)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint to resume from, or None; newer ones that are not whole are removed."""
    for checkpoint in _checkpoints(folder):
        if (checkpoint / COMPLETE).exists():
            return checkpoint
        _remove(checkpoint)
    return None


def open_run(folder: Path, run: dict[str, Any]) -> None:
    """Prepare `folder` for the run that `run` describes; files that another run left there are removed.

    Raises:
        ValueError: the folder cannot be written to, or holds checkpoints or metrics of no run of this function.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        description = folder / RUN
        try:
            earlier = json.loads(description.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            earlier = None
        if earlier != json.loads(json.dumps(run)):
            log = folder / "metrics.jsonl"
            left = [*_checkpoints(folder), *filter(Path.exists, [log])]
            if left and not (isinstance(earlier, dict) and earlier.keys() == run.keys()):
                raise ValueError(f"{left[0]}: not of a training that could be resumed here; choose another output_dir")
            for checkpoint in _checkpoints(folder):
                _remove(checkpoint)
            log.unlink(missing_ok=True)
            with atomic_path(description) as unfinished:
                unfinished.write_text(json.dumps(run, indent=1))
    except OSError as error:
        raise ValueError(f"{folder}: cannot be written ({error.strerror}); choose another output_dir") from None
