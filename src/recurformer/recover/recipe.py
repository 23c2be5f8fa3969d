"""The recipe of `adapt`: its settings in one place, and the numbers of steps that fit into the time that is left."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Settings of `adapt`; the defaults are those of the paper's mixer. See `RECIPES`."""

    mixer: str = "mamba"
    """Mixer that replaces the heads, a name in `recurformer.model.mixers.MIXERS`."""
    tokens: int = 512
    """Length of a window."""
    profile_windows: int = 64
    """Windows, at most, on which heads are profiled."""
    recency_window: float = 0.1
    """k of the recency ratio, as a share of a window: 102 of 1,024 tokens in the paper's appendix."""
    calibrate_windows: int = 64
    """Windows, at most, from which the closed form is solved."""
    start: str = "linear"
    """Start of the mixers, a name in `recurformer.recover.calibrate.STARTS`."""
    held_out_windows: int = 24
    """Windows, at most, on which quality is measured; never trained on."""
    batch_size: int = 2
    """Windows in one training step."""
    transfer_learning_rate: float = 2e-3
    distil_learning_rate: float = 5e-4
    trained: str = "mixers"
    """Weights that distillation trains, a name in `recurformer.recover.trained.TRAINED`."""
    transfer_share: float = 1 / 3
    """Share of the training time that transfer has; distillation has the rest."""
    transfer_passes: float = 2.0
    """Passes over the text, at most, of transfer."""
    distil_passes: float = 3.0
    """The same of distillation."""
    passkey_lengths: tuple[int, ...] = (256, 512)
    passkey_samples: int = 2
    """Prompts at each of five depths."""
    cache_lengths: tuple[int, ...] = (10_240, 61_440)
    decoded: int = 32
    """Tokens, at most, over which the speed of decoding is measured."""
    repetitions: int = 5
    """Repetitions of each measurement of speed."""


RECIPES = {
    "window_state": Recipe(mixer="window_state", start="random", transfer_share=0, distil_learning_rate=3e-5),
    "mamba": Recipe(),
}
"""By mixer, first the one that comes nearest to its original. A window with a state needs no transfer: the closed form
leaves 3 % of the heads' output to be learnt in SmolLM2-135M, beside 40 % where Mamba blocks stand. Steps of a high
learning rate undo that: 20 at 2e-4 doubled the divergence from the original, 20 at 2e-5 lowered it."""
MINIMUM_WINDOWS = {"training": 8, "held-out": 2}
MINIMUM_STEPS = 10
"""Steps of the shortest training that is started: the learning rate rises over a tenth of the steps, and a single
step at its peak did harm (SmolLM2-135M)."""
TIMED_STEPS = 3
"""Steps on a throw-away copy, of which the first is not timed."""
SAVE_SECONDS = 120
"""Time between two checkpoints of a training."""
RESERVED = 0.05
"""Share of the minutes that opening and writing take."""


@dataclass(frozen=True)
class Plan:
    """Length of each training. It is decided once, so that a resumed run ends with the same weights."""

    transfer_steps: int
    distil_steps: int
    transfer_save_every: int
    distil_save_every: int


def plan_steps(
    seconds_left: float, transfer_seconds: float, distil_seconds: float, windows: int, recipe: Recipe
) -> Plan:
    """Divide the time that is left.

    Args:
        seconds_left: for both trainings; negative counts as none.
        transfer_seconds: of one step of transfer.
        distil_seconds: of one step of distillation.
        windows: for training.
        recipe: shares of the time and the most passes over the text; distillation gets the time that transfer leaves.
    """

    def steps(seconds: float, step_seconds: float, passes: float) -> int:
        most = math.ceil(passes * windows / recipe.batch_size)
        count = min(most, max(0, int(seconds / step_seconds)))
        return count if count >= MINIMUM_STEPS else 0

    transfer = steps(seconds_left * recipe.transfer_share, transfer_seconds, recipe.transfer_passes)
    distil = steps(seconds_left - transfer * transfer_seconds, distil_seconds, recipe.distil_passes)
    save_every = (max(1, round(SAVE_SECONDS / seconds)) for seconds in (transfer_seconds, distil_seconds))
    return Plan(transfer, distil, *save_every)
