"""The parameters of a converted model that a step of recovery trains."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from recurformer.train.optimiser import in_mixer

LORA_RANK = 8
LORA_TARGETS = r".*\.layers\.\d+\.(self_attn|mlp)\.\w+_proj"
"""Projections of retained heads and MLPs; a mixer's own lie one level deeper."""


TRAINED: dict[str, Callable[[str], bool]] = {
    "mixers": in_mixer,
    "attention": lambda name: ".self_attn." in name,
    "lora": lambda name: in_mixer(name) or "lora_" in name,
    "all": lambda name: True,
}
"""Whether a parameter of that name is trained: the mixers alone, whole attention layers with them, mixers in full and
all other projections by LoRA (arXiv 2106.09685), or everything."""


@contextmanager
def only_training(model: PreTrainedModel, trained: str, seed: int = 0) -> Iterator[None]:
    """Freeze the rest of a model while the block runs; adapters of LoRA are merged when it ends.

    Args:
        model: a converted model, changed in place.
        trained: a name in `TRAINED`.
        seed: of the adapters' initial weights.

    Raises:
        ValueError: an unknown name of `TRAINED`, weights in half precision, nothing to train, or LoRA without the
            package peft.
    """
    if trained not in TRAINED:
        raise ValueError(f"trained: {trained!r} is unknown; there are {', '.join(TRAINED)}")
    if model.dtype in {torch.float16, torch.bfloat16}:
        raise ValueError(f"converted: its weights are {model.dtype}, too coarse for small steps; load it in float32")
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    if trained == "mixers" and not any(map(in_mixer, before)):
        raise ValueError(f"mixer {model.config.mixer!r} has no parameters: there is nothing to train")
    adapters: Any = _adapt(model, seed) if trained == "lora" else None
    try:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(TRAINED[trained](name))
        yield
    finally:
        if adapters is not None:
            adapters.merge_and_unload()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(before[name])


def _adapt(model: PreTrainedModel, seed: int) -> Any:
    """Put LoRA adapters around the projections, in place."""
    try:
        from peft import LoraConfig
        from peft.tuners.lora import LoraModel
    except ImportError:
        raise ValueError("trained: lora needs the package peft, which is not installed") from None
    settings = LoraConfig(r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules=LORA_TARGETS)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LoraModel(model, settings, "default")
