"""Global state that a training run changes and restores, and the one device that it computes on."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel, TrainingArguments

from recurformer.model.convert import errors_only


@contextmanager
def training_state(model: PreTrainedModel, gradient_checkpointing: bool) -> Iterator[None]:
    """Changes of a model by training, other than of its weights; undone afterwards."""
    use_cache, training, forward = model.config.use_cache, model.training, model.__dict__.get("forward")
    if gradient_checkpointing:
        # transformers 5.23 renamed the method and warns about the name that 5.17 knows
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    try:
        yield
    finally:
        if gradient_checkpointing:
            disable = getattr(model, "activation_checkpointing_disable", None) or model.gradient_checkpointing_disable
            disable()
        model.config.use_cache = use_cache
        model.train(training)
        _set_forward(model, forward)


def _set_forward(model: PreTrainedModel, forward: Any) -> None:
    """The attribute of this object alone; None: its class has it."""
    model.__dict__.pop("forward", None)
    if forward is not None:
        model.__dict__["forward"] = forward


@contextmanager
def as_it_is(model: PreTrainedModel) -> Iterator[None]:
    """Out of a training for a while: in evaluation mode, and without the mixed precision that the library wraps around
    the forward pass.
    """
    training, forward = model.training, model.__dict__.get("forward")
    _set_forward(model, None)
    model.eval()
    try:
        yield
    finally:
        model.train(training)
        _set_forward(model, forward)


@contextmanager
def quiet_library() -> Iterator[None]:
    """Only errors: no bar for every checkpoint written, and no remark on the order of the library's steps."""
    with errors_only(), warnings.catch_warnings():
        # the library steps a scheduler that it resumes before the optimiser's first step of this process
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        yield


def fast_bf16(place: torch.device) -> bool:
    """Whether products in bfloat16 are faster than in float32 there: on a GPU, and on processors that have instructions
    for them, where a training step of SmolLM2-135M takes a third to a half of the time.
    """
    if place.type != "cpu":
        return place.type == "cuda"
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


class OneDeviceArguments(TrainingArguments):
    """The library's settings of a training on the one device where the model is; a GPU becomes the current one.

    Left alone, the library moves a model to the first GPU and spreads it over all by `torch.nn.DataParallel`, each with
    a whole batch.

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
            torch.cuda.set_device(self.place)  # batches are sent there
        return self.place

    @property
    def n_gpu(self) -> int:
        """At most 1."""
        return min(super().n_gpu, 1)
