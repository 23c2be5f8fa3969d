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


def mark_complete(checkpoint: Path) -> None:
    """Declare `checkpoint` whole."""
    (checkpoint / COMPLETE).touch()


def _remove(checkpoint: Path) -> None:
    (checkpoint / COMPLETE).unlink(missing_ok=True)  # first: a kill leaves no marked half
    shutil.rmtree(checkpoint)


def step_of(checkpoint: Path) -> int:
    """The number of steps done when `checkpoint` was written."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def _checkpoints(folder: Path) -> list[Path]:
    """Newest first."""
    folders = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    return sorted(folders, key=step_of, reverse=True)


def last_checkpoint(folder: Path, steps_logged: set[int]) -> Path | None:
    """The newest checkpoint to resume from, or None; newer ones that are not whole are removed.

    So is a checkpoint whose step is not among `steps_logged`: it would leave a hole in the metrics.
    """
    for checkpoint in _checkpoints(folder):
        if step_of(checkpoint) in steps_logged and (checkpoint / COMPLETE).exists():
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
            _write_whole(description, run)
    except OSError as error:
        raise ValueError(f"{folder}: cannot be written ({error.strerror}); choose another output_dir") from None


def _write_whole(path: Path, content: dict[str, Any]) -> None:
    with atomic_path(path) as unfinished:
        unfinished.write_text(json.dumps(content, indent=1))
