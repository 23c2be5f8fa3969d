"""Linear layers, norms and feed-forward parts of one token of few sequences, by the C++ kernels of `rows.cpp`.

Reading the weights bounds such a token: the kernels read memory faster than torch's products do, and one call takes the
place of several operators. Other inputs go through the library's own code.
"""

from collections.abc import Callable, Sequence
from ctypes import Structure
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from . import native
from .cpp_step import MOST_ROWS, takes, threads_of
from .families import FAMILIES
from .native import fields

ACTIVATIONS = MappingProxyType({"SiLUActivation": False, "SiLU": False, "GELUTanh": True})
"""Of a gated feed-forward part, by class -> whether it is GELU's approximation with tanh."""


class Product(Structure):
    """The ctypes twin of a linear layer and its outputs."""

    _fields_ = fields("weight bias y", "outputs")


class ProductsArguments(Structure):
    """The ctypes twin of several layers' input."""

    _fields_ = fields("x", "x_stride batch features count", counts="half threads")


class NormArguments(Structure):
    """The ctypes twin of a norm."""

    _fields_ = fields("x weight y", "rows dim", "epsilon offset", "half")


class GatedArguments(Structure):
    """The ctypes twin of a gated feed-forward part, perhaps between residual sums."""

    _fields_ = fields(
        "x gate up down residual norm y",
        "x_stride residual_stride batch features inner outputs",
        "epsilon offset",
        "half threads tanh",
    )


def takes_token(x: Tensor, *weights: Tensor | None) -> bool:
    """Return whether the kernels read rows x (B, 1, ..., features) and these weights, or None in a weight's place."""
    few = x.dim() > 2 and x.shape[1] == 1 and x.shape[0] <= MOST_ROWS
    return few and takes((x,), weights, x.dtype)


def products(x: Tensor, layers: Sequence[tuple[Tensor, Tensor | None]]) -> list[Tensor]:
    """Return x W^T + bias (B, 1, outputs) for each weight W (outputs, features) and bias, of x (B, 1, features).

    Raises:
        RuntimeError: a weight or a bias has another shape.
    """
    rows, _, features = x.shape
    found, described = [], (Product * len(layers))()
    for one, (weight, bias) in zip(described, layers, strict=True):
        outputs = weight.shape[0]
        if weight.shape != (outputs, features) or (bias is not None and bias.shape != (outputs,)):
            shapes = tuple(weight.shape), None if bias is None else tuple(bias.shape)
            raise RuntimeError(f"C++ kernels: weight and bias are {shapes}, the rows have {features} features")
        y = x.new_empty(rows, 1, outputs)
        one.weight, one.y, one.outputs = weight.data_ptr(), y.data_ptr(), outputs
        one.bias = None if bias is None else bias.data_ptr()
        found.append(y)
    half, threads = x.dtype == torch.bfloat16, threads_of(sum(weight.numel() for weight, _ in layers))
    given = ProductsArguments(x.data_ptr(), x.stride(0), rows, features, len(layers), half, threads)
    native.call("products", given, described)
    return found


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + bias (B, L, outputs) of x (B, L, features), by the kernel where it takes them."""
    return products(x, [(weight, bias)])[0] if takes_token(x, weight, bias) else F.linear(x, weight, bias)


def project(x: Tensor, layers: Sequence[nn.Linear]) -> list[Tensor]:
    """Return the outputs (B, L, outputs) of several linear layers of x (B, L, features), by one call if possible."""
    if all(type(layer) is FewRowsLinear for layer in layers):
        weights = [(layer.weight, layer.bias) for layer in layers]
        if takes_token(x, *(part for pair in weights for part in pair)):
            return products(x, weights)
    return [layer(x) for layer in layers]


class FewRowsLinear(nn.Linear):
    """A linear layer."""

    is_plain = True  # a conversion takes it for what it was

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + bias (..., outputs) of x (..., features)."""
        return product(x, self.weight, self.bias)


class FewRowsNorm(nn.Module):
    """What a family's RMS norm becomes; Gemma's adds one to its weights."""

    @property
    def terms(self) -> tuple[float, float]:
        """What is added to the mean square, and to the weights."""
        plain = hasattr(self, "variance_epsilon")
        epsilon: Any = self.variance_epsilon if plain else self.eps
        return epsilon, float(not plain)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension of x (B, L, ..., features)."""
        weight: Any = self.weight
        if not (takes_token(x, weight) and x.is_contiguous() and weight.shape == x.shape[-1:]):
            return super().forward(x)
        y, dim = torch.empty_like(x), x.shape[-1]
        pointers = x.data_ptr(), weight.data_ptr(), y.data_ptr()
        native.call("rms_norm", NormArguments(*pointers, x.numel() // dim, dim, *self.terms, x.dtype == torch.bfloat16))
        return y


def activation_of(part: Any) -> bool | None:
    """Return of a feed-forward part what `ACTIVATIONS` says; None where no kernel has its activation."""
    return ACTIVATIONS.get(type(part.act_fn).__name__)


def _feed(part: Any, x: Tensor, residual: Tensor | None = None, norm: Any = None) -> Tensor | None:
    """Return down(activation(gate(x)) * up(x)) (B, 1, hidden) of a feed-forward part; None where no kernel takes it.

    With `residual` and `norm` the part stands between residual sums: h + down(...) of norm(h), h = residual + x.
    """
    parts: list[Any] = [part._modules.get(name) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(type(layer) is FewRowsLinear and layer.bias is None for layer in parts):
        return None
    gate, up, down = (layer.weight for layer in parts)
    tanh, scale = activation_of(part), None if norm is None else norm.weight
    if tanh is None or not takes_token(x, gate, up, down, scale):
        return None
    rows, _, features = x.shape
    outputs, inner = down.shape
    if not gate.shape == up.shape == (inner, features):
        raise RuntimeError(f"C++ kernels: gate and up are {tuple(gate.shape)} and {tuple(up.shape)}")
    if residual is not None and not (
        takes_token(residual) and residual.shape == x.shape and residual.dtype == x.dtype and outputs == features
    ):
        return None
    y = x.new_empty(rows, 1, outputs)
    pointers = (None if tensor is None else tensor.data_ptr() for tensor in (x, gate, up, down, residual, scale, y))
    sizes = x.stride(0), 0 if residual is None else residual.stride(0), rows, features, inner, outputs
    terms = (0.0, 0.0) if norm is None else norm.terms
    half, threads = x.dtype == torch.bfloat16, threads_of(gate.numel())
    native.call("gated_products", GatedArguments(*pointers, *sizes, *terms, half, threads, tanh))
    return y


class FewRowsFeedForward(nn.Module):
    """What a family's gated feed-forward part becomes."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, L, hidden) of x (B, L, hidden)."""
        y = _feed(self, x)
        return super().forward(x) if y is None else y


LAYER = frozenset({"self_attn", "input_layernorm", "post_attention_layernorm", "mlp"})
"""The parts of a decoder layer that adds what they give to its input, as Llama's does; other layers have more."""


class FewRowsDecoderLayer(nn.Module):
    """What such a decoder layer becomes: all that follows its attention is one call, or all of it (`layer_step.py`)."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the layer's outputs (B, L, hidden); arguments as of the library's layers."""
        parts: dict[str, Any] = self._modules
        norm = parts.get("post_attention_layernorm")
        if args or not (isinstance(norm, FewRowsNorm) and takes_token(hidden_states)):
            return super().forward(hidden_states, *args, **kwargs)
        step = getattr(parts["self_attn"], "steps", None)
        if step is not None and (outputs := step(self, hidden_states, kwargs)) is not None:
            return outputs
        attended, _ = parts["self_attn"](hidden_states=parts["input_layernorm"](hidden_states), **kwargs)
        outputs = _feed(parts["mlp"], attended, hidden_states, norm)
        if outputs is None:
            hidden_states = hidden_states + attended
            outputs = hidden_states + parts["mlp"](norm(hidden_states))
        return outputs


@cache
def _known() -> frozenset[str]:
    """The modules of the library that define the families: norms of other ones may have other formulas."""
    return frozenset(getattr(transformers, family.model).__module__ for family in FAMILIES.values())


@cache
def quick(stock: type[nn.Module]) -> type[nn.Module] | None:
    """Return the class that takes the place of a stock one while a model is folded, or None."""
    if stock is nn.Linear:
        return FewRowsLinear
    if stock.__module__ not in _known():
        return None
    kinds: dict[str, type[nn.Module]] = {
        "RMSNorm": FewRowsNorm,
        "MLP": FewRowsFeedForward,
        "DecoderLayer": FewRowsDecoderLayer,
    }
    step = next((kind for ending, kind in kinds.items() if stock.__name__.endswith(ending)), None)
    return step and type(f"FewRows{stock.__name__}", (step, stock), {})


def _replaceable(module: nn.Module) -> bool:
    """Return whether a module has no quantized weights and, as a decoder layer, nothing but the parts of `LAYER`."""
    plain = all(type(parameter) is nn.Parameter for parameter in module.parameters(recurse=False))
    a_layer = type(module).__name__.endswith("DecoderLayer")
    return plain and not (a_layer and (module._modules.keys() != LAYER or hasattr(module, "residual_multiplier")))


def swap(model: nn.Module) -> Callable[[], None]:
    """Give a model's layers, norms, feed-forward and linear parts our classes; the result gives theirs back."""
    swapped = []
    for module in model.modules():
        stock: Any = type(module)  # to mypy no class of modules is hashable
        if _replaceable(module) and (ours := quick(stock)) is not None:
            module.__class__ = ours
            swapped.append((module, stock))

    def back() -> None:
        for module, stock in swapped:
            module.__class__ = stock

    return back
