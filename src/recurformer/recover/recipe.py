"""The recipes of `adapt`, and the numbers of steps that fit into the time that is left."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recurformer.study import Recipe, Training

_ALONE = Recipe(calibrate_windows=64, trained="mixers", language_model_share=0.0)
"""The mixers alone learn, from the original alone."""
RECIPES = {
    "mamba": _ALONE.model_copy(update={"start": "linear", "transfer_steps": 1_000_000}),
    "window_state": _ALONE.model_copy(update={"mixer": "window_state", "learning_rate": 3e-5}),
}
"""By mixer, first the paper's. The windows and steps of transfer are the most that are used. A window with a state
needs no transfer: the closed form leaves 3 % of the heads' output to be learnt in SmolLM2-135M, beside 40 % where Mamba
blocks stand. Steps of a high learning rate undo that: 20 at 2e-4 doubled the divergence from the original, 20 at 2e-5
lowered it."""
BY_PRICE = Recipe(mixer="window", sink_tokens=4, trained="attention", language_model_share=0.0, learning_rate=3e-5)
"""A window for each group of heads; its training is optional."""
TOKENS = 512
"""Length of a window. Distillation reads longer ones in less memory."""
TRAINING = Training(steps=1, batch_size=2, learning_rate=5e-4, weight_decay=0.0, log_every=1)
"""Settings of `adapt` that a recipe does not name; the minutes decide on the steps."""
TRANSFER_FRACTION = 1 / 3
"""Fraction of the training time that transfer has; distillation has the rest."""
PASSES = {"transfer": 2.0, "distil": 3.0}
"""Passes over the text, at most."""
MINIMUM_STEPS = 10
"""Steps of the shortest training that is started: the learning rate rises over a tenth of the steps, and a single
step at its peak did harm (SmolLM2-135M)."""
SAVE_SECONDS = 120
"""Time between two checkpoints of a training."""


def memory_settings(tokens: int, batch_size: int) -> dict[str, Any]:
    """How distillation reads a batch of windows of so many tokens: long ones one after the other, with activations made
    again in the backward pass. It changes no step but by rounding.
    """
    return {"gradient_accumulation": batch_size, "gradient_checkpointing": True} if tokens > TOKENS else {}


@dataclass(frozen=True)
class Plan:
    """Length of each training. It is decided once, so that a resumed run ends with the same weights."""

    transfer_steps: int
    distil_steps: int
    save_every: int

    @classmethod
    def of(cls, recipe: Recipe, training: Training) -> "Plan":
        """The steps that a recipe names, without those in whose place the closed form stands.

        Raises:
            ValueError: they are fewer.
        """
        left = training.steps - -(-recipe.calibrate_windows // training.batch_size) - recipe.transfer_steps
        if left < 0:
            raise ValueError(
                f"steps: {training.steps} of {training.batch_size} windows are fewer than the closed form and transfer "
                "take"
            )
        return cls(recipe.transfer_steps, left, training.save_every)


def plan_steps(seconds_left: float, pace: Mapping[str, float], windows: int, recipe: Recipe) -> Plan:
    """Divide the time that is left.

    Args:
        seconds_left: for both trainings; negative counts as none.
        pace: seconds of a step of "transfer", if the recipe has some, and of "distil".
        windows: for training.
        recipe: its `transfer_steps` are the most; distillation gets the time that transfer leaves.
    """

    def steps(name: str, seconds: float) -> int:
        most = math.ceil(PASSES[name] * windows / TRAINING.batch_size)
        count = min(most, max(0, int(seconds / pace[name])))
        return count if count >= MINIMUM_STEPS else 0

    transfer = (
        min(recipe.transfer_steps, steps("transfer", seconds_left * TRANSFER_FRACTION)) if "transfer" in pace else 0
    )
    distil = steps("distil", seconds_left - transfer * pace.get("transfer", 0.0))
    return Plan(transfer, distil, max(1, round(SAVE_SECONDS / max(pace.values()))))
