"""Which parameters learn at which rate, and which of them decay."""

from typing import Any

from torch import nn

from recurformer.model.mixers import MIXERS

UNDECAYED = ("A_log", ".mamba.D", "norm")


def parameter_groups(
    model: nn.Module, learning_rate: float, mamba_learning_rate: float | None, weight_decay: float
) -> list[dict[str, Any]]:
    """Trainable parameters for an optimiser, in at most four groups: of a mixer or not, decayed or not.

    Without a rate of their own mixers learn at `learning_rate`.
    """
    mixer_rate = learning_rate if mamba_learning_rate is None else mamba_learning_rate
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            rate = mixer_rate if MIXERS.keys() & name.split(".") else learning_rate
            decayed = parameter.ndim > 1 and not any(part in name for part in UNDECAYED)
            groups.setdefault((rate, weight_decay if decayed else 0.0), []).append(parameter)
    return [{"params": found, "lr": rate, "weight_decay": decay} for (rate, decay), found in groups.items()]
