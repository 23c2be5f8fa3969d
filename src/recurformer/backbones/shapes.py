"""Models of the published shapes of the paper's backbones (and SmolLM2), without weights or with random ones.

A model on the meta device has every parameter's shape and no memory, so parameters and caches of 7B models are counted
on a laptop.
"""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel, Qwen2Config

from recurformer.published import PUBLISHED

CONFIGURATIONS = {"llama": LlamaConfig, "qwen2": Qwen2Config}


def load_shape(name: str) -> PreTrainedConfig:
    """A fresh configuration of the named published model.

    Raises:
        ValueError: `name` is not in PUBLISHED.
    """
    if name not in PUBLISHED:
        raise ValueError(f"there is no shape {name!r}; choose one of {', '.join(PUBLISHED)}")
    values = dict(PUBLISHED[name])
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
