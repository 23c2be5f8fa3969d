"""Checkpoints that can be trusted after a kill: each is sealed once whole, and only a sealed, undamaged one is resumed.

The library writes a checkpoint file by file into `checkpoint-<step>/`. The seal, written last and at once, lists the
size and checksum of every file. A kill in the middle, a full disk or a damaged file all lead to the checkpoint
before.
"""

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recurformer.files import atomic_path

SEAL = "seal.json"
RUN = "run.json"


def checksum(path: Path) -> int:
    """CRC-32 of a file, read in pieces of 16 MiB."""
    value = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 24):
            value = zlib.crc32(piece, value)
    return value


def fingerprint(model: nn.Module) -> int:
    """CRC-32 over the names and bytes of a model's parameters: tells one starting point from another."""
    value = 0
    for name, parameter in model.named_parameters():
        value = zlib.crc32(name.encode(), value)
        flat = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        value = zlib.crc32(flat.numpy().data, value)
    return value


def seal(checkpoint: Path) -> None:
    """Declare `checkpoint` whole."""
    files = {path.name: [path.stat().st_size, checksum(path)] for path in checkpoint.iterdir() if path.is_file()}
    _write_whole(checkpoint / SEAL, files)


def _is_sound(checkpoint: Path) -> bool:
    try:
        files = json.loads((checkpoint / SEAL).read_text(encoding="utf-8"))
        return all(
            (checkpoint / name).stat().st_size == size and checksum(checkpoint / name) == value
            for name, (size, value) in files.items()
        )
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def step_of(checkpoint: Path) -> int:
    """The number of steps done when `checkpoint` was written."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def _checkpoints(folder: Path) -> list[Path]:
    """Newest first."""
    folders = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    return sorted(folders, key=step_of, reverse=True)


def last_sound_checkpoint(folder: Path, steps_logged: set[int]) -> Path | None:
    """The newest checkpoint to resume from, or None; the newer, unsound ones are removed.

    A checkpoint whose step is not among `steps_logged` would leave a hole in the metrics, and counts as unsound.
    """
    for checkpoint in _checkpoints(folder):
        if step_of(checkpoint) in steps_logged and _is_sound(checkpoint):
            return checkpoint
        shutil.rmtree(checkpoint)
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
                shutil.rmtree(checkpoint)
            log.unlink(missing_ok=True)
            _write_whole(description, run)
    except OSError as error:
        raise ValueError(f"{folder}: cannot be written ({error.strerror}); choose another output_dir") from None


def _write_whole(path: Path, content: dict[str, Any]) -> None:
    with atomic_path(path) as unfinished:
        unfinished.write_text(json.dumps(content, indent=1))
