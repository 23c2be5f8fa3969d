"""One arm of the recovery experiment: closed form, transfer and distillation on equally many tokens, with a curve."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor
from transformers import PreTrainedModel

from recurformer.recover.calibrate import ERRORS, calibrate
from recurformer.recover.curve import RecoveryCurve, Rows
from recurformer.recover.distil import distil
from recurformer.recover.kept import KeptSteps
from recurformer.recover.trained import TRAINED
from recurformer.recover.transfer import transfer
from recurformer.train.data import WindowDataset

TRANSFER = ("batch_size", "seed", "schedule", "warmup_share", "gradient_clip", "log_every", "save_every", "bf16")
"""Settings that transfer shares with the distillation after it."""


def run_arm(
    original: PreTrainedModel,
    converted: PreTrainedModel,
    windows: Tensor,
    *,
    curve: RecoveryCurve,
    folder: str | Path,
    steps: int,
    batch_size: int,
    calibrate_windows: int = 0,
    start: str = "random",
    transfer_steps: int = 0,
    transfer_learning_rate: float = 2e-3,
    log_every: int = 10,
    on_log: Rows | None = None,
    progress: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Calibrate, transfer and distil on as many tokens in all as `steps` steps have; interrupted, it resumes.

    Args:
        original: the model that `converted` was converted from; not changed.
        converted: the model that learns, in place.
        windows: (windows, L) token ids to learn from, without padding.
        curve: of these two models and windows.
        folder: for the state; metrics.jsonl of the last training stays in it.
        steps: optimiser steps of the whole arm; the closed form takes the place of as many as it has windows for.
        batch_size: windows in one step.
        calibrate_windows: of the closed form; 0: none.
        start: of the closed form, a name in `recurformer.recover.calibrate.STARTS`.
        transfer_steps: steps of transfer.
        transfer_learning_rate: its peak learning rate.
        log_every: steps between two rows of a training's log, at which alone the curve has points.
        on_log: called with every row of the last training's log.
        progress: of the closed form.
        **settings: of `recurformer.recover.distil.distil`, and of both trainings.

    Returns:
        The errors of the closed form in each layer, as of `calibrate`; no rows without one.

    Raises:
        ValueError: there are fewer windows or steps than the closed form and transfer shall have, or as the steps of
            recovery raise.
    """
    if calibrate_windows > len(windows):
        raise ValueError(f"calibrate_windows: {calibrate_windows} were asked for, the text has {len(windows)}")
    distil_steps = steps - -(-calibrate_windows // batch_size) - transfer_steps
    if distil_steps < 0:
        raise ValueError(f"steps: {steps} of {batch_size} windows are fewer than the closed form and transfer take")
    folder = Path(folder)
    about = {"curve": curve.identity, "windows": calibrate_windows, "start": start, "transfer": transfer_steps}
    kept = KeptSteps(folder / "steps", about)
    mixers = {name: tensor for name, tensor in converted.named_parameters() if TRAINED["mixers"](name)}
    curve.add(0, 0.0)

    def solve() -> tuple[float, list[dict[Any, Any]]]:
        began = time.perf_counter()
        chosen = windows[:calibrate_windows]
        errors = calibrate(original, converted, chosen, start=start, output_dir=folder / "layers", progress=progress)
        return time.perf_counter() - began, errors.to_dict("records")

    errors: list[dict[Any, Any]] = []
    if calibrate_windows:
        seconds, errors = kept.change("calibrate", mixers, solve)
        curve.add(windows[:calibrate_windows].numel(), seconds)
    layers = pd.DataFrame(errors, columns=ERRORS)
    dataset = WindowDataset(windows, seed=settings["seed"])
    common = {"batch_size": batch_size, "log_every": log_every, **settings}
    if transfer_steps:

        def carry_over() -> list[float]:
            shared = {key: common[key] for key in TRANSFER if key in common}
            on_row = curve.of_training(transfer_steps, log_every)
            transfer(original, converted, dataset, output_dir=folder / "transfer", steps=transfer_steps,
                learning_rate=transfer_learning_rate, on_log=on_row, **shared)  # fmt: skip
            return [curve.tokens, curve.seconds]

        curve.tokens, curve.seconds = kept.change("transfer", mixers, carry_over)
    if not distil_steps:
        (folder / "metrics.jsonl").touch()
        return layers
    on_row = curve.of_training(distil_steps, log_every, on_log)
    distil(original, converted, dataset, output_dir=folder, steps=distil_steps, on_log=on_row, **common)
    return layers
