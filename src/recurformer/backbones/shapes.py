"""Models of the published shapes of the paper's backbones (and SmolLM2), without weights or with random ones.

A model on the meta device has every parameter's shape and no memory, so parameters and caches of 7B models are counted
on a laptop.
"""

from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel, Qwen2Config

from recurformer.published import PUBLISHED

SHAPES = PUBLISHED
CONFIGURATIONS: dict[str, Callable[..., PreTrainedConfig]] = {"llama": LlamaConfig, "qwen2": Qwen2Config}


def load_shape(name: str) -> PreTrainedConfig:
    """A fresh configuration of the named published model.

    Raises:
        ValueError: `name` is not in SHAPES.
    """
    if name not in SHAPES:
        raise ValueError(f"there is no shape {name!r}; choose one of {', '.join(SHAPES)}")
    values = dict(SHAPES[name])
    architecture, theta = values.pop("architecture"), values.pop("rope_theta")
    return CONFIGURATIONS[architecture](rope_parameters={"rope_type": "default", "rope_theta": theta}, **values)


def meta_model(config: PreTrainedConfig, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """Model of this configuration on the meta device: shapes and types of all parameters, no memory, no values."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def random_model(
    config: PreTrainedConfig, seed: int = 0, dtype: torch.dtype = torch.bfloat16, device: str | torch.device = "cpu"
) -> PreTrainedModel:
    """Randomly initialised model of this configuration; the global random generators are left as they were."""
    device = torch.device(device)
    used = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=used), device:
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def open_shape(
    name: str, weights: str = "meta", dtype: str = "bfloat16", seed: int = 0, device: str = "cpu"
) -> tuple[PreTrainedModel, None]:
    """Model of a published shape; no tokenizer belongs to it.

    Args:
        name: a name in SHAPES.
        weights: "meta" (none) or "random" (drawn with `seed` on `device`).
        dtype: name of the torch type of the parameters.
        seed: of random weights.
        device: of random weights.
    """
    config = load_shape(name)
    makers: dict[str, Callable[[], PreTrainedModel]] = {
        "meta": lambda: meta_model(config, getattr(torch, dtype)),
        "random": lambda: random_model(config, seed, getattr(torch, dtype), device),
    }
    if weights not in makers:
        raise ValueError(f"weights is {weights!r}; choose one of {', '.join(makers)}")
    return makers[weights](), None
