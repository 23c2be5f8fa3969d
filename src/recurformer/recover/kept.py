"""Results of finished steps, kept in a folder: a run that was killed takes them up instead of computing them again."""

import json
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from recurformer.files import atomic_path, writing_weights


class KeptSteps:
    """Finished steps of one run, each with its result as JSON, and with tensors where it changed a model.

    Args:
        folder: may hold other files and the steps of other runs, which stay.
        about: the facts that the results depend on, as JSON; each has a folder of its own in there.
    """

    def __init__(self, folder: str | Path, about: Mapping[str, Any]) -> None:
        self.folder = Path(folder, sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12])

    def _write(self, name: str, content: Any) -> None:
        with atomic_path(self.folder / name) as path:
            path.write_text(json.dumps(content))

    def _read(self, name: str) -> dict[str, Any] | None:
        file = self.folder / f"{name}.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each finished step, by its name."""
        # a killed process leaves unfinished files as folders
        files = sorted(file for file in self.folder.glob("*.json") if file.is_file())
        return {file.stem: json.loads(file.read_text(encoding="utf-8"))["seconds"] for file in files}

    def result(self, name: str, make: Callable[[], Any]) -> Any:
        """The result of a step: read if it is kept, else made and kept. It always passes through JSON."""
        if (entry := self._read(name)) is None:
            began = time.perf_counter()
            value = make()
            self._write(f"{name}.json", {"seconds": time.perf_counter() - began, "value": value})
            entry = self._read(name)
        assert entry is not None
        return entry["value"]

    def change(self, name: str, tensors: Mapping[str, Tensor], make: Callable[[], Any]) -> Any:
        """The same of a step that changes tensors in place: where it is kept, they get their values.

        Args:
            name: of the step.
            tensors: all that the step may change.
            make: changes them and returns the step's result as JSON.

        Raises:
            OSError: the tensors cannot be written.
        """
        file = self.folder / f"{name}.safetensors"
        if self._read(name) is not None:
            values = load_file(file)
            with torch.no_grad():
                for key, tensor in tensors.items():
                    tensor.copy_(values[key])

        def changed() -> Any:
            value = make()
            with atomic_path(file) as path, writing_weights(file):
                save_file({key: tensor.detach().contiguous() for key, tensor in tensors.items()}, path)
            return value

        return self.result(name, changed)
