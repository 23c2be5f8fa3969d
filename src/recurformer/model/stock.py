"""A model of windows as a stock model of transformers: `layer_types` says which layers slide, and no code of ours runs.

A layer all of whose heads have one window of 16 bits computes what a stock sliding layer does, with the same weights.
Both count the token itself among those of the window. A stock layer alone forgets the first tokens.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel

from .config import MIXED_LAYERS, MODEL_TYPE_PREFIX, RecurFormerConfigMixin
from .convert import NOT_INHERITED, load
from .families import FAMILIES
from .layout import FUSED, PROJECTIONS, SLIDING, sliding_layers
from .packed import FULL_BITS

FULL = "full_attention"
LEAST = 2
"""Tokens of a window: at one, the library's cache keeps all tokens and miscounts them."""


def windows_of_layers(config: Any) -> list[int | None]:
    """Return for every layer the tokens of its heads' window; None where all of its heads attend to everything.

    Args:
        config: of a converted model. A stock sliding layer in it counts as it is.

    Raises:
        ValueError: a layer is neither; its number is named.
    """
    windows: list[int | None] = [None] * config.num_hidden_layers
    for layer in sliding_layers(config):
        windows[layer] = config.sliding_window
    for layer, heads in enumerate(config.recurrent_heads):
        if not heads:
            continue
        if config.mixer != "window":
            raise ValueError(
                f"layer {layer} has the mixer {config.mixer!r}: a stock layer can stand for 'window' alone"
            )
        if len(heads) < config.num_attention_heads:
            raise ValueError(
                f"layer {layer} has windows in {len(heads)} of its {config.num_attention_heads} heads: a stock layer"
                " has them in all or in none (select_heads takes whole layers by unit='layer')"
            )
        bits = set(config.group_bits[layer]) if config.group_bits else {FULL_BITS}
        if bits != {FULL_BITS}:
            raise ValueError(f"layer {layer} keeps {min(bits)} bits of a number: a stock cache keeps {FULL_BITS}")
        sizes = sorted(set(config.group_windows[layer]) if config.group_windows else {config.window_tokens})
        if len(sizes) > 1 or sizes[0] < LEAST:
            raise ValueError(
                f"layer {layer} has windows of {' and '.join(map(str, sizes))} tokens: a stock layer has one size,"
                f" of at least {LEAST}"
            )
        windows[layer] = sizes[0]
    return windows


def stock_config(config: Any, without_sinks: bool) -> PreTrainedConfig:
    """Return the configuration of the stock model that computes what a converted one does.

    Arguments and errors are those of `as_stock`.
    """
    backbone = config.model_type.removeprefix(MODEL_TYPE_PREFIX)
    windows = windows_of_layers(config)
    sizes = {size: windows.index(size) for size in windows if size is not None}  # -> its first layer
    if not any(config.recurrent_heads):
        raise ValueError("no head is replaced: the original is the stock model already")
    if len(sizes) > 1:
        (one, first), (other, second) = list(sizes.items())[:2]
        raise ValueError(
            f"layer {second} has a window of {other} tokens and layer {first} one of {one}: the layers of a stock model"
            " have one size"
        )
    (window,) = sizes
    full = [layer for layer, size in enumerate(windows) if size is None]
    family = FAMILIES[backbone]
    kind = family.some_slide if full else family.all_slide
    if not kind:
        rule = "have a window in all layers or in none" if family.all_slide else "have no windows"
        place = f"layer {full[0]} has no window, and " if family.all_slide else ""
        raise ValueError(f"{place}stock models of the family {backbone} {rule}: use export without --stock")
    if config.sink_tokens and not without_sinks:
        raise ValueError(
            f"sink_tokens={config.sink_tokens}: stock layers forget the first tokens, which these windows keep. Convert"
            " with sink_tokens=0, or give --without-sinks: texts longer than a window are then read otherwise"
        )
    stock = CONFIG_MAPPING[kind]
    ours = {*RecurFormerConfigMixin.__dataclass_fields__, *NOT_INHERITED, MIXED_LAYERS}
    settings = {key: value for key, value in config.to_dict().items() if key not in ours}
    slides: dict[str, Any] = {"sliding_window": window, "use_sliding_window": True}
    if MIXED_LAYERS in stock.__dataclass_fields__:
        slides[MIXED_LAYERS] = [FULL if size is None else SLIDING for size in windows]
    if family.ropes:
        slides["rope_parameters"] = _ropes(config, family.ropes)
    return stock(**settings | slides)


def _ropes(config: Any, kinds: tuple[str, ...]) -> dict[str, Any]:
    """The rotary settings by kind of layer: windows turn as the layers that they come from, which attended fully."""
    own = {kind: config.rope_parameters[kind] for kind in kinds}
    sliding = sliding_layers(config)
    if sliding and own[SLIDING] != own[FULL]:
        raise ValueError(
            f"layer {sliding[0]} is a sliding layer of the original and turns its keys by other angles than the new"
            " windows: a stock model has one set of angles for all sliding layers"
        )
    return own | {SLIDING: own[FULL]}


def _fused(state: dict[str, Tensor]) -> None:
    """Put the projections of queries, keys and values of every layer into one, in place, as Phi-3 has them."""
    first, *others = (f".{name}." for name in PROJECTIONS[:3])
    for name in [name for name in state if first in name]:
        parts = [state.pop(name), *(state.pop(name.replace(first, other)) for other in others)]
        state[name.replace(first, f".{FUSED}.")] = torch.cat(parts)


def as_stock(model: PreTrainedModel, without_sinks: bool = False) -> PreTrainedModel:
    """Return a converted model as a stock model of transformers, with the same outputs up to rounding.

    The given model is left as it is and shares no weights with the new one. Where the original's family has no sliding
    layers, the model gets the type of another with the same weights: of a Llama whose layers all have windows a
    Mistral, of one with both kinds of layers a Ministral. Padding between tokens counts as tokens in a stock window.

    Args:
        model: a converted model. Every layer has windows in all of its heads or in none. They have one size, of at
            least two tokens, and 16 bits.
        without_sinks: whether to leave out the first tokens that the windows keep. Outputs for texts longer than a
            window then differ.

    Raises:
        ValueError: the model is not such a one, or it keeps first tokens; the layer and what would be right are named.
    """
    config = model.config
    if not isinstance(config, RecurFormerConfigMixin):
        raise ValueError(f"{type(model).__name__} is not a converted language model: it is a stock model already")
    stock = stock_config(config, without_sinks)
    state = model.state_dict()
    if stock.model_type == "phi3":
        _fused(state)
    return load(MODEL_FOR_CAUSAL_LM_MAPPING[type(stock)], stock, state, model)
