"""Surroundings in which lm-eval runs a model: without its remarks, and with the settings of its tasks."""

import contextlib
import io
import logging
import os
from collections.abc import Iterator

from transformers import GenerationConfig, PreTrainedModel


@contextlib.contextmanager
def tasks_own_limits(model: PreTrainedModel) -> Iterator[None]:
    """Without the length and sampling that a model is published with: its `max_new_tokens` would win over a task."""
    own = model.generation_config
    ends = {name: getattr(own, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**ends)
    try:
        yield
    finally:
        model.generation_config = own


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without lm-eval's bars and remarks, which fill a log, and without the worker processes of its bootstrap."""
    logger = logging.getLogger("lm_eval")
    level, workers = logger.level, os.environ.get("DISABLE_MULTIPROC")
    logger.setLevel(logging.ERROR)
    os.environ["DISABLE_MULTIPROC"] = "1"
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
        if workers is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = workers
