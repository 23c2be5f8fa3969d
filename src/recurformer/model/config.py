"""Configurations of the converted models: the backbone's, plus the recurrent heads and the Mamba blocks' sizes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config

from .layout import check_heads

MODEL_TYPE_PREFIX = "recurformer_"


def layer_type(replaced: list[int], query_heads: int) -> str:
    """Return the library's cache type of a layer: `full_attention`, `hybrid` or `linear_attention`."""
    if not replaced:
        return "full_attention"
    return "linear_attention" if len(replaced) == query_heads else "hybrid"


@dataclass(kw_only=True)
class RecurFormerConfigMixin:
    """Fields that every RecurFormer config adds to its backbone's.

    Attributes:
        recurrent_heads: replaced query heads of every layer; None replaces none.
        mamba_d_state: states per channel (paper: 16).
        mamba_d_conv: taps of the convolution (paper: 4).
        mamba_expand: channels per input feature (paper: 2).
        mamba_dt_rank: rank of the step-size projection (paper: 256).
        sliding_window: must stay None: the retained heads attend to the whole context.
        layer_types: derived from `recurrent_heads`, never read; chooses the layers of the library's caches.

    Raises:
        ValueError: a field has a wrong value (a wrong type is refused by `strict`, by the field's name).
    """

    recurrent_heads: list[list[int]] | None = None
    mamba_d_state: int = 16
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_dt_rank: int = 256
    sliding_window: int | None = None

    if TYPE_CHECKING:  # of the backbone's config
        num_hidden_layers: int
        num_attention_heads: int

    base_model_tp_plan = None  # head counts differ from layer to layer
    base_model_pp_plan = None

    def __post_init__(self, **kwargs):
        kwargs.pop("layer_types", None)
        super().__post_init__(**kwargs)  # type: ignore[misc]
        for name in ("mamba_d_state", "mamba_d_conv", "mamba_expand", "mamba_dt_rank"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name}={value!r} must be a whole number of at least 1")
        if self.sliding_window is not None:
            raise ValueError(
                f"sliding_window={self.sliding_window} is not supported: set it to None (attend to everything)"
            )
        if self.recurrent_heads is None:
            self.recurrent_heads = [[] for _ in range(self.num_hidden_layers)]
        self.recurrent_heads = check_heads(self.recurrent_heads, self.num_hidden_layers, self.num_attention_heads)
        self.layer_types = [layer_type(heads, self.num_attention_heads) for heads in self.recurrent_heads]
        if set(self.layer_types) == {"linear_attention"}:
            self.layer_types[0] = "hybrid"  # one layer of the cache must know how many tokens it has seen


def define_config(name: str, base: type[PreTrainedConfig]) -> type[Any]:
    """Return the RecurFormer config class over the backbone config `base`, registered with `AutoConfig`."""
    attributes = {
        "__module__": __name__,
        "__doc__": f"{name} with Mamba blocks in place of some heads; see `RecurFormerConfigMixin`.",
        "model_type": f"{MODEL_TYPE_PREFIX}{base.model_type}",
    }
    # without strict the library accepts any type for a field
    config: type[Any] = strict(type(f"RecurFormer{name}Config", (RecurFormerConfigMixin, base), attributes))
    AutoConfig.register(
        config.model_type, config, exist_ok=True
    )  # the package and exported code may meet in one process
    return config


RecurFormerLlamaConfig = define_config("Llama", LlamaConfig)
RecurFormerMistralConfig = define_config("Mistral", MistralConfig)
RecurFormerQwen2Config = define_config("Qwen2", Qwen2Config)
