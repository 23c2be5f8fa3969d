"""The switch that lets inference compute with fused weights instead of the weights, one after the other."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from .adapters import refuse_adapter
from .attention import RecurFormerAttention
from .fused_weights import Folding
from .mamba import CausalConv

PLAIN = (nn.Linear, CausalConv)


def _check(layer: Any) -> None:
    for name, module in (("o_proj", layer.o_proj), *layer.mamba.named_children()):
        refuse_adapter(module, f"folded: {name} of layer {layer.layer_idx}")
        if type(module) not in PLAIN:
            raise ValueError(
                f"folded: {name} of layer {layer.layer_idx} is a {type(module).__name__}, not an ordinary layer; use"
                " the model without folded"
            )
        if any(parameter.is_meta for parameter in module.parameters()):
            raise ValueError(f"folded: {name} of layer {layer.layer_idx} has no weights here (offloaded or on meta)")


@contextmanager
def folded(model: nn.Module) -> Iterator[None]:
    """Inside, forward passes without gradients compute with fused weights: fewer operations, the same result.

    The same but for rounding. Weights are fused at the first such pass and again whenever one has changed; they cost
    memory of about the output projections' size until the end. The model's parameters and saved checkpoints stay as
    they are. Training passes and compiled code use the parameters. Changes through `parameter.data` are not seen, and
    forward hooks on projections inside a Mamba block are not called. Of several on one model the last entered must be
    the first left.

    Args:
        model: a converted model; others, and those with another mixer than Mamba, have nothing to fold.

    Raises:
        ValueError: a projection has been wrapped, quantized or offloaded.
    """
    layers: list[Any] = [module for module in model.modules() if isinstance(module, RecurFormerAttention)]
    # other mixers have nothing to fuse, and inside another `folded` there is nothing to do
    layers = [layer for layer in layers if layer.config.mixer == "mamba" and layer.folding is None]
    for layer in layers:
        _check(layer)
    for layer in layers:
        layer.folding = Folding()
    try:
        yield
    finally:
        for layer in layers:
            layer.folding = None
