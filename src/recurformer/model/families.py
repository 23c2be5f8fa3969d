"""The families of backbones that can be converted: one row each, from which everything else that knows them derives.

A row is plain text, so that the settings of a study can read it without torch. How queries, keys and values come out of
a layer is read from the stock module itself (`layout.py`), which refuses unknown parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Family:
    """One family, by the names of its classes in transformers.

    Attributes:
        config: of the configuration.
        model: of the decoder without language-model head.
        language_model: of the decoder with it.
        whole_heads: whether the library refuses a hidden size that the heads do not divide.
        ropes: kinds of layers that have rotary settings of their own; empty where all layers share one.
        small: settings of a small random model for which the library's defaults are too large, or slide.
        some_slide: model type with the same weights whose layers may have a sliding window or none; "": there is none.
        all_slide: likewise, whose layers have one window.
    """

    config: str
    model: str
    language_model: str
    whole_heads: bool = False
    ropes: tuple[str, ...] = ()
    small: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    some_slide: str = ""
    all_slide: str = ""


FAMILIES: dict[str, Family] = {
    "llama": Family(
        "LlamaConfig",
        "LlamaModel",
        "LlamaForCausalLM",
        whole_heads=True,
        some_slide="ministral",
        all_slide="mistral",
    ),
    "qwen2": Family("Qwen2Config", "Qwen2Model", "Qwen2ForCausalLM", some_slide="qwen2", all_slide="qwen2"),
    "mistral": Family(
        "MistralConfig",
        "MistralModel",
        "MistralForCausalLM",
        small={"sliding_window": None},
        some_slide="ministral",
        all_slide="mistral",
    ),
    "qwen3": Family("Qwen3Config", "Qwen3Model", "Qwen3ForCausalLM", some_slide="qwen3", all_slide="qwen3"),
    "smollm3": Family(
        "SmolLM3Config",
        "SmolLM3Model",
        "SmolLM3ForCausalLM",
        small={"no_rope_layer_interval": 2},
        some_slide="smollm3",
        all_slide="smollm3",
    ),
    "granite": Family(
        "GraniteConfig",
        "GraniteModel",
        "GraniteForCausalLM",
        small={
            "attention_multiplier": 0.25,
            "embedding_multiplier": 4.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
    ),
    "phi3": Family("Phi3Config", "Phi3Model", "Phi3ForCausalLM", all_slide="phi3"),
    "gemma": Family("GemmaConfig", "GemmaModel", "GemmaForCausalLM"),
    "gemma3_text": Family(
        "Gemma3TextConfig",
        "Gemma3TextModel",
        "Gemma3ForCausalLM",
        whole_heads=True,
        ropes=("full_attention", "sliding_attention"),
        small={"sliding_window": 16, "sliding_window_pattern": 2},
        some_slide="gemma3_text",
        all_slide="gemma3_text",
    ),
}
"""The library's `model_type` -> the family."""

REFUSED = {
    "gemma2": "it bounds attention scores by a softcap, which no mixer and no fused kernel here knows",
    "gemma3": "it reads images too; convert its language model, a Gemma3ForCausalLM (gemma3_text)",
    "gpt_oss": "its attention has learned sinks, which would be lost with the heads",
    "olmo2": "it normalises queries and keys over all heads together, so that none can be taken out alone",
    "olmo3": "it normalises queries and keys over all heads together, so that none can be taken out alone",
}
"""Well-known model types that cannot be converted, and why."""


def refusal(model_type: str) -> str:
    """Say in one line why models of a type cannot be converted."""
    reason = REFUSED.get(model_type, "its layers may hold heads in a way that is not known here")
    return f"model type {model_type!r} is not supported: {reason}; supported are {', '.join(sorted(FAMILIES))}"
