"""Learning rate and weight decay of each parameter, and the schedule of the rate over the steps."""

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from recurformer.model.mixers import MIXERS

UNDECAYED = ("A_log", ".mamba.D", "norm")


def in_mixer(name: str) -> bool:
    """Whether a parameter of this dotted name belongs to a mixer."""
    return bool(MIXERS.keys() & name.split("."))


def parameter_groups(
    model: nn.Module, learning_rate: float, mixer_learning_rate: float | None, weight_decay: float
) -> list[dict[str, Any]]:
    """Trainable parameters for an optimiser, in at most four groups: of a mixer or not, decayed or not.

    Without a rate of their own mixers learn at `learning_rate`.
    """
    mixer_rate = learning_rate if mixer_learning_rate is None else mixer_learning_rate
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            rate = mixer_rate if in_mixer(name) else learning_rate
            decayed = parameter.ndim > 1 and not any(part in name for part in UNDECAYED)
            groups.setdefault((rate, weight_decay if decayed else 0.0), []).append(parameter)
    return [{"params": params, "lr": rate, "weight_decay": decay} for (rate, decay), params in groups.items()]


Schedule = Callable[[int, int, float], float]
"""(step, steps, warmup_share) -> fraction of the peak rate that step 0, 1, … uses; never zero at first: the first step
already learns."""


def cosine(step: int, steps: int, warmup_share: float) -> float:
    """A linear rise, then half a cosine down to zero."""
    warmup = round(steps * warmup_share)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def one_cycle(step: int, steps: int, warmup_share: float) -> float:
    """Half a cosine up from 1/25 of the peak, half a cosine down to 1/250,000 of it, as in torch's OneCycleLR."""
    initial, final = 1 / 25, 1 / 250_000
    warmup = round(steps * warmup_share)
    if step < warmup:
        return initial + (1 - initial) * 0.5 * (1 - math.cos(math.pi * step / warmup))
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def constant(step: int, steps: int, warmup_share: float) -> float:
    """A linear rise, then the peak rate until the end."""
    warmup = round(steps * warmup_share)
    return (step + 1) / warmup if step < warmup else 1.0


SCHEDULES: dict[str, Schedule] = {"one_cycle": one_cycle, "cosine": cosine, "constant": constant}
