"""Published shapes of the paper's backbones (and SmolLM2), and models of such shapes without weights.

A model on the meta device has every parameter's shape and no memory, so parameters and caches of 7B models are counted
on a laptop.
"""

from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel, Qwen2Config


def _rope(theta: float) -> dict[str, object]:
    return {"rope_type": "default", "rope_theta": theta}


# Values of the config.json that each model's authors publish.
SHAPES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama2-7b": lambda: LlamaConfig(
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=32,
        vocab_size=32000,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        rope_parameters=_rope(10_000.0),
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "qwen2-7b": lambda: Qwen2Config(
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152064,
        max_position_embeddings=131072,
        rms_norm_eps=1e-6,
        rope_parameters=_rope(1_000_000.0),
        tie_word_embeddings=False,
        bos_token_id=151643,
        eos_token_id=151643,
    ),
    "qwen2-0.5b": lambda: Qwen2Config(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=151936,
        max_position_embeddings=131072,
        rms_norm_eps=1e-6,
        rope_parameters=_rope(1_000_000.0),
        tie_word_embeddings=True,
        bos_token_id=151643,
        eos_token_id=151643,
    ),
    "smollm2-135m": lambda: LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters=_rope(100_000.0),
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    ),
}


def load_shape(name: str) -> PreTrainedConfig:
    """A fresh configuration of the named published model.

    Raises:
        ValueError: `name` is not in SHAPES.
    """
    if name not in SHAPES:
        raise ValueError(f"there is no shape {name!r}; choose one of {', '.join(SHAPES)}")
    return SHAPES[name]()


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
