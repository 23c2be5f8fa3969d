"""What a training run changes around itself, and puts back."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel
from transformers.utils import logging


@contextmanager
def training_state(model: PreTrainedModel, gradient_checkpointing: bool) -> Iterator[None]:
    """What training changes about a model besides its weights, undone afterwards."""
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
    """Of this object alone; None: that of its class."""
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
    """Only errors: no bar for every checkpoint written, and no remark on how the library orders them."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            # the library steps a scheduler that it resumes before the optimiser's first step of this process
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
