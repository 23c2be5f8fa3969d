"""Live curves of a training in the trackers of transformers' Trainer. None of them can stop a training or change it."""

import os
import sys
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from recurformer.records import RUNNING, run_name
from recurformer.tracking import PROJECT, use_store

VARIABLE = "RECURFORMER_TRACKERS"


class LiveTracker(TrainerCallback):
    """One of Trainer's trackers. Its first failure is one line on standard error; from then on it gets nothing more."""

    def __init__(self, name: str) -> None:
        self.name, self.callback = name, None
        self.callback = self._call(self._make)

    def _make(self) -> TrainerCallback:
        use_store()
        return INTEGRATION_TO_CALLBACK[self.name]()

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (Exception, SystemExit) as error:
            self.callback = None
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            print(
                f"tracker {self.name} gave up, the training does not: {reason}; `recurformer track` imports it later",
                file=sys.stderr,
                flush=True,
            )

    def _pass_on(self, event: str, *state: Any, **more: Any) -> None:
        if self.callback:
            self._call(getattr(self.callback, event), *state, **more)

    on_train_begin = partialmethod(_pass_on, "on_train_begin")  # type: ignore[assignment]
    on_log = partialmethod(_pass_on, "on_log")  # type: ignore[assignment]
    on_train_end = partialmethod(_pass_on, "on_train_end")  # type: ignore[assignment]


def live_trackers() -> list[LiveTracker]:
    """The trackers that RECURFORMER_TRACKERS names, separated by spaces or commas, each once.

    Raises:
        ValueError: Trainer has no tracker of such a name.
    """
    names = list(dict.fromkeys(os.environ.get(VARIABLE, "").replace(",", " ").split()))
    if unknown := [name for name in names if name not in INTEGRATION_TO_CALLBACK]:
        there_are = ", ".join(INTEGRATION_TO_CALLBACK)
        raise ValueError(f"{VARIABLE}: there is no tracker {unknown[0]!r}; there are: {there_are}")
    return [LiveTracker(name) for name in names]


def live_names(output_dir: Path) -> dict[str, str]:
    """The names under which Trainer's trackers show the training; one without a record is named by its folder."""
    return {"project": PROJECT, "run_name": run_name(RUNNING.get() or output_dir)}
