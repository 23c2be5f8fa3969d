"""One process computes on one device, the model's, however many a machine has.

Left alone, the library's `Trainer` moves a model to the first GPU and spreads it over all that it sees by
`torch.nn.DataParallel`, each with a whole batch.
"""

from typing import Any

import torch
from transformers import TrainingArguments


def fast_bf16(place: torch.device) -> bool:
    """Whether products in bfloat16 are faster than in float32 there: on a GPU, and on processors that have instructions
    for them, where a training step of SmolLM2-135M takes a third to a half of the time.
    """
    if place.type != "cpu":
        return place.type == "cuda"
    found = torch.cpu.get_capabilities()
    return bool(found.get("avx512_bf16") or found.get("amx_bf16"))


class OneDeviceArguments(TrainingArguments):
    """The library's settings of a training, for the device where the model is; a GPU becomes the current one.

    Args:
        place: the device.
        **settings: the library's.
    """

    def __init__(self, place: torch.device, **settings: Any):
        self.place = place
        super().__init__(**settings)

    @property
    def device(self) -> torch.device:
        """The model's device."""
        self._setup_devices  # noqa: B018  the library's state, and the first GPU as the current one
        if self.place.type == "cuda":
            torch.cuda.set_device(self.place)  # to which batches are sent
        return self.place

    @property
    def n_gpu(self) -> int:
        """At most 1."""
        return min(super().n_gpu, 1)
