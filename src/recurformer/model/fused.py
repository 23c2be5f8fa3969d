"""Quicker inference: one token goes through our kernels, and fused weights take the place of their factors.

A hybrid layer fuses products of its weights:

    dt_proj . x_proj's rows of the step size                        (when the channels are few against the rank)
    o_proj's columns of replaced heads . the mixer's readout        (when the replaced heads are many)

It fuses whatever costs no more multiply-adds than its factors. A Mamba block's readout is out_proj, and its -exp(A_log)
is kept beside the products, as it changes no more often.
`folded` is the switch.
"""

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .attention import RecurFormerAttention
from .few_rows import FewRowsDecoderLayer, FewRowsLinear, swap
from .layer_step import LayerSteps
from .layout import refuse_adapter
from .mamba import CausalConv, FusedMamba, MambaBlock
from .mixer import FusedWeights, Mixer
from .native import use_large_pages


class Savings(NamedTuple):
    """Multiply-adds of one token, or weights that it reads, that a layer's products save; negative where they cost."""

    step: int
    output: int


def savings(layer: Any) -> Savings:
    """Return what the products save in a layer (`RecurFormerAttention`) whose mixer has a readout."""
    mixer, hidden = layer.mixer, len(layer.o_proj.weight)
    replaced, channels = mixer.readout.weight.shape
    step = channels * (2 * mixer.dt_rank - channels) if isinstance(mixer, MambaBlock) else -1
    return Savings(step, output=replaced * (hidden + channels) - hidden * channels)


def _matmul(left: Tensor, right: Tensor) -> Tensor:
    """Matrix product, rounded once: half precision is multiplied in float32."""
    wide = torch.promote_types(left.dtype, torch.float32)
    return (left.to(wide) @ right.to(wide)).to(left.dtype)


def fuse(layer: Any) -> FusedWeights:
    """Fuse those weights of a layer (`RecurFormerAttention`) whose product costs no more than its factors."""
    mixer, weight, saved = layer.mixer, layer.o_proj.weight, savings(layer)
    with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
        selection = output = None
        if saved.output >= 0:
            readout = mixer.whole_readout()
            retained, replaced = weight.split([weight.shape[1] - len(readout), len(readout)], 1)
            output = torch.cat([retained, _matmul(replaced, readout)], 1)
        if not isinstance(mixer, MambaBlock):
            return FusedWeights(output)
        if saved.step >= 0:
            step, matrices = mixer.x_proj.weight.split([mixer.dt_rank, 2 * mixer.d_state])
            bias = mixer.dt_proj.bias
            selection = (
                torch.cat([_matmul(mixer.dt_proj.weight, step), matrices]),
                torch.cat([bias, bias.new_zeros(len(matrices))]),
            )
        return FusedMamba(output, selection, *mixer.transition())


class Folding:
    """A layer's fused weights, made when they are first needed and again after a factor has changed.

    A change is seen by the parameter's version counter or its place in memory. Fused optimizers raise no counter, so a
    forward pass with gradients forgets the fused weights too. Nothing shows a write through `.data`.
    """

    def __init__(self) -> None:
        self.fused: FusedWeights | None = None
        self.owners: list[dict[str, Any]] = []
        self.factors: list[tuple[dict[str, Any], str, Tensor, int]] = []

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copy of the model is not folded: nothing would end it, and it has weights of its own."""
        return type(None), ()

    def __call__(self, layer: nn.Module) -> FusedWeights | None:
        """Return the layer's fused weights; None with gradients, and in traced code, which would freeze them.

        Raises:
            ValueError: a projection has been wrapped or quantized since the model was folded.
        """
        if torch.compiler.is_compiling():
            return None
        if torch.is_grad_enabled():
            self.fused = None
            return None
        if self.fused is None or self.changed(layer):
            _check(layer)
            self.fused = fuse(layer)
            self.owners, self.factors = _owners(layer), list(_factors(layer))
        return self.fused

    def changed(self, layer: Any) -> bool:
        """Return whether a factor, or the module that has it, is another one since the weights were fused."""
        owners = _owners(layer)
        if len(owners) != len(self.owners) or any(map(operator.is_not, owners, self.owners)):
            return True
        return any(
            owner[name]._version != version or owner[name].data_ptr() != factor.data_ptr()
            for owner, name, factor, version in self.factors
        )


def _owners(layer: Any) -> list[dict[str, Any]]:
    """Return where the layer's factors are held."""
    mixer: nn.Module = layer.mixer
    return [module._parameters for module in (layer.o_proj, mixer, *mixer._modules.values()) if module is not None]


def _factors(layer: Any) -> Iterator[tuple[dict[str, Any], str, Tensor, int]]:
    """Yield the place of every factor, the factor (held, so that nothing else takes its memory), and its version."""
    for module in (layer.o_proj, *layer.mixer.modules()):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield module._parameters, name, parameter.detach(), parameter._version


PLAIN = (nn.Linear, FewRowsLinear, CausalConv)


def _check(layer: Any) -> None:
    parts = ((name, part) for name, part in layer.mixer.named_children() if not isinstance(part, Mixer))
    for name, module in (("o_proj", layer.o_proj), *parts):
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
    """Inside, forward passes without gradients are quicker, with the same result but for rounding.

    On a processor, one token of few sequences goes through our C++ kernels in every linear layer, norm and gated
    feed-forward part of float32 or bfloat16 (`few_rows.py`): they read memory faster than torch's product. So does the
    attention to all cached tokens, unless some are padding, and a layer that attends or has a Mamba block is one call
    (`layer_step.py`); a `DynamicCache` then has room for tokens to come. Mamba blocks and mixers with a readout compute
    with fused weights. These are made at the first such pass and again whenever a factor has changed; they cost memory
    of about the output projections' size until the end. The model's parameters and saved checkpoints stay as they are.
    Training passes and compiled code use the parameters. Changes through `parameter.data` are not seen, and forward
    hooks on the parts of a decoder layer may not be called. Of several on one model the last entered must be the first
    left.

    Args:
        model: a converted model or an original; only Mamba blocks and mixers with a readout have weights to fuse.

    Raises:
        ValueError: a projection has been wrapped, quantized or offloaded.
    """
    hybrid: list[Any] = [module for module in model.modules() if isinstance(module, RecurFormerAttention)]
    # mixers without a readout have nothing to fuse, and inside another `folded` there is nothing to do
    layers = [layer for layer in hybrid if hasattr(layer.mixer, "readout") and layer.folding is None]
    for layer in layers:
        _check(layer)
    use_large_pages(parameter for parameter in model.parameters() if type(parameter) is nn.Parameter)
    swap_back = swap(model)
    for layer in layers:
        layer.folding = Folding()
    of_decoders = [module.self_attn for module in model.modules() if isinstance(module, FewRowsDecoderLayer)]
    stepping = [layer for layer in {*hybrid, *of_decoders} if getattr(layer, "steps", None) is None]
    for layer in stepping:
        layer.steps = LayerSteps()
    try:
        yield
    finally:
        swap_back()
        for layer in layers:
            layer.folding = None
        for layer in stepping:
            layer.steps = None
