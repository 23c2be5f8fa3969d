"""Configurations of the converted models: the backbone's, plus the recurrent heads, their mixer and its sizes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import transformers
from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig

from .families import FAMILIES, Family
from .layout import SLIDING, check_heads, sliding_layers
from .mixers import MIXERS
from .packed import BITS

MODEL_TYPE_PREFIX = "recurformer_"
SIZES = {
    "mamba_d_state": 1,
    "mamba_d_conv": 1,
    "mamba_expand": 1,
    "mamba_dt_rank": 1,
    "window_tokens": 1,
    "sink_tokens": 0,
}
"""Fields that are sizes, and the least that each may be."""
MIXED_LAYERS = "layer_types"
"""The field of a family's config that names the kind of each layer, where layers may differ."""
REPLACED_KINDS = ("hybrid", "linear_attention")
"""Kinds of layers that have replaced heads."""


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
        mixer: the mixer in their place, a name in `MIXERS` (paper: mamba).
        mamba_d_state: states per channel (paper: 16).
        mamba_d_conv: taps of the convolution (paper: 4).
        mamba_expand: channels per input feature (paper: 2).
        mamba_dt_rank: rank of the step-size projection (paper: 256).
        window_tokens: tokens that the mixers `window`, `window_state` and `mean` look back on, the token itself among
            them.
        sink_tokens: first tokens that the mixers `window` and `window_state` never forget.
        group_windows: for every layer the windows of the KV heads that replaced heads read, in ascending order of the
            heads; None is `window_tokens` for all. Of the mixer `window` alone.
        group_bits: as `group_windows`, the bits of each number of their keys and values in the cache: 16 (as they
            are), 8, 6, 5 or 4; None is 16 for all.
        layer_types: derived from `recurrent_heads`; chooses the layers of the library's caches. Only its layers with a
            sliding window are read, in families that have such layers: they stay as they are.

    Raises:
        ValueError: a field has a wrong value (a wrong type is refused by `strict`, by the field's name).
    """

    recurrent_heads: list[list[int]] | None = None
    mixer: str = "mamba"
    mamba_d_state: int = 16
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_dt_rank: int = 256
    window_tokens: int = 64
    sink_tokens: int = 4
    group_windows: list[list[int]] | None = None
    group_bits: list[list[int]] | None = None

    if TYPE_CHECKING:  # of the backbone's config
        num_hidden_layers: int
        num_attention_heads: int
        num_key_value_heads: int
        layer_types: list[str] | None
        rope_parameters: dict[str, Any]

    ropes: ClassVar[tuple[str, ...]] = ()  # of the family
    # Trainer cannot gather the None that a layer without attention has among the attention weights
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values", "attentions"]
    base_model_tp_plan = None  # head counts differ from layer to layer
    base_model_pp_plan = None

    def __post_init__(self, **kwargs):
        if MIXED_LAYERS in type(self).__dataclass_fields__:
            kinds = [SLIDING if kind == SLIDING else "full_attention" for kind in self.layer_types or ()]
            self.layer_types = kinds if len(kinds) == self.num_hidden_layers else None
        kwargs.pop(MIXED_LAYERS, None)
        super().__post_init__(**kwargs)  # type: ignore[misc]
        sliding = set(sliding_layers(self))
        if self.recurrent_heads is None:
            self.recurrent_heads = [[] for _ in range(self.num_hidden_layers)]
        self.check()
        self.recurrent_heads = check_heads(self.recurrent_heads, self.num_hidden_layers, self.num_attention_heads)
        self.layer_types = [
            SLIDING if index in sliding else layer_type(heads, self.num_attention_heads)
            for index, heads in enumerate(self.recurrent_heads)
        ]
        if set(self.layer_types) == {"linear_attention"}:
            self.layer_types[0] = "hybrid"  # one layer of the cache must know how many tokens it has seen
        if self.ropes:  # by kind of layer; those with replaced heads rotate as they did before
            alike = dict.fromkeys(REPLACED_KINDS, self.rope_parameters["full_attention"])
            self.rope_parameters = {**self.rope_parameters, **alike}

    def check(self) -> None:
        """Raise ValueError for a wrong value; assignments are checked by type only."""
        if self.mixer not in MIXERS:
            raise ValueError(f"mixer={self.mixer!r} is unknown; there are {', '.join(MIXERS)}")
        for name, least in SIZES.items():
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")
        if getattr(self, "use_bidirectional_attention", False):
            raise ValueError("use_bidirectional_attention=True is not supported: mixers read from left to right")
        heads = check_heads(self.recurrent_heads or [], self.num_hidden_layers, self.num_attention_heads)
        self._check_windows(heads)
        sliding = sliding_layers(self)
        wrong = [index for index in sliding if heads[index]]
        if wrong:
            others = [str(index) for index in range(self.num_hidden_layers) if index not in sliding]
            raise ValueError(
                f"heads[{wrong[0]}] names head {heads[wrong[0]][0]}, but layer {wrong[0]} attends through a sliding"
                f" window and stays as it is: replace heads of layers {', '.join(others) or '(there are no others)'}"
            )

    def _check_windows(self, heads: list[list[int]]) -> None:
        read = [len({head * self.num_key_value_heads // self.num_attention_heads for head in layer}) for layer in heads]
        for name in ("group_windows", "group_bits"):
            if (of_groups := getattr(self, name)) is None:
                continue
            if self.mixer != "window":
                raise ValueError(f"{name} is of the mixer window alone, not of {self.mixer}")
            named = [len(layer) for layer in of_groups]
            if named != read:
                raise ValueError(f"{name} names {named} KV heads by layer: the replaced heads read {read}")
        if any(window < 1 for layer in self.group_windows or () for window in layer):
            raise ValueError("group_windows: a window is a whole number of at least 1 token")
        if strange := sorted({bits for layer in self.group_bits or () for bits in layer} - set(BITS)):
            raise ValueError(f"group_bits: {strange[0]} is none of {', '.join(map(str, BITS))}")

    def architecture(self) -> dict[str, Any]:
        """Return the values that a model is built by: the replaced heads, their mixer and its sizes."""
        return {
            name: getattr(self, name) for name in ("recurrent_heads", "mixer", "group_windows", "group_bits", *SIZES)
        }

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save as the library does.

        Raises:
            ValueError: a value that was assigned is wrong, so that the saved config could not be loaded.
        """
        self.check()
        super().save_pretrained(*args, **kwargs)  # type: ignore[misc]


@dataclass(kw_only=True)
class FullAttentionConfigMixin(RecurFormerConfigMixin):
    """The same over a backbone whose layers all attend alike.

    Attributes:
        sliding_window: must stay None: the retained heads attend to the whole context. A window that all positions fit
            in, as published for Phi-3.5-mini, hides nothing and becomes None.
    """

    sliding_window: int | None = None

    if TYPE_CHECKING:  # of the backbone's config
        max_position_embeddings: int

    def __post_init__(self, **kwargs):
        if self.sliding_window is not None and self.sliding_window >= self.max_position_embeddings:
            self.sliding_window = None
        super().__post_init__(**kwargs)

    def check(self) -> None:
        """Raise ValueError for a wrong value, a sliding window among them."""
        super().check()
        if self.sliding_window is not None:
            raise ValueError(
                f"sliding_window={self.sliding_window} is not supported: set it to None (attend to everything)"
            )


def define_config(family: Family) -> type[Any]:
    """Return the RecurFormer config class over a family's config, registered with `AutoConfig`."""
    base: type[PreTrainedConfig] = getattr(transformers, family.config)
    mixed = MIXED_LAYERS in base.__dataclass_fields__
    attributes = {
        "__module__": __name__,
        "__doc__": f"{family.config} with a mixer in place of some heads; see `RecurFormerConfigMixin`.",
        "model_type": f"{MODEL_TYPE_PREFIX}{base.model_type}",
        "ropes": family.ropes,
    }
    bases = (RecurFormerConfigMixin if mixed else FullAttentionConfigMixin, base)
    # without strict the library accepts any type for a field
    config: type[Any] = strict(type(f"RecurFormer{family.config}", bases, attributes))
    AutoConfig.register(
        config.model_type, config, exist_ok=True
    )  # the package and exported code may meet in one process
    return config


CONFIGS = {name: define_config(family) for name, family in FAMILIES.items()}
"""Config classes by the model type of the backbone; each is found here by its own name too."""
globals().update({config.__name__: config for config in CONFIGS.values()})

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """The config classes."""
