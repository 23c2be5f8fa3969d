"""Results of finished steps, kept in a folder: a run that was killed takes them up instead of computing them again."""

import json
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from recurformer.files import atomic_path, writing_weights
from recurformer.train.checkpoints import fingerprint


class KeptSteps:
    """Finished steps of one run, each with its result as JSON, and with tensors where it changed a model.

    Args:
        folder: may hold other files and the steps of other runs, which stay; each run has a folder of its own in there.
        models: as they are at the start.
        windows: token ids, (windows, L) each.
        **settings: all else that the results depend on, as JSON.
    """

    def __init__(
        self, folder: str | Path, models: Iterable[nn.Module] = (), windows: Iterable[Tensor] = (), **settings: Any
    ) -> None:
        texts = [zlib.crc32(ids.cpu().numpy().data) for ids in windows]
        about = {"models": [fingerprint(model) for model in models], "windows": texts, **settings}
        self.folder = Path(folder, sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12])

    def _read(self, name: str) -> dict[str, Any] | None:
        file = self.folder / f"{name}.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each finished step, by its name."""
        # a killed process leaves unfinished files as folders
        files = sorted(file for file in self.folder.glob("*.json") if file.is_file())
        return {file.stem: json.loads(file.read_text(encoding="utf-8"))["seconds"] for file in files}

    def values(self, prefix: str) -> list[Any]:
        """The results of all finished steps whose names begin with `prefix`."""
        return [entry["value"] for name in self.seconds if name.startswith(prefix) and (entry := self._read(name))]

    def result(self, name: str, make: Callable[[], Any]) -> Any:
        """The result of a step: read if it is kept, else made and kept. It always passes through JSON."""
        if (entry := self._read(name)) is None:
            began = time.perf_counter()
            value = make()
            made = {"seconds": time.perf_counter() - began, "value": value}
            with atomic_path(self.folder / f"{name}.json") as path:
                path.write_text(json.dumps(made))
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
