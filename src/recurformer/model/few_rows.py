"""Linear layers, norms and feed-forward parts of one token of few sequences, by the C++ kernels of `rows.cpp`.

Reading the weights bounds such a token: the kernels read memory faster than torch's products do, and one call takes the
place of several operators. Other inputs go through the library's own code.
"""

from collections.abc import Callable, Sequence
from ctypes import Structure, c_float, c_int32, c_int64, c_void_p
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from . import native
from .cpp_step import MOST_ROWS, ROWS, takes, threads_of
from .families import FAMILIES

ACTIVATIONS = MappingProxyType({"SiLUActivation": False, "SiLU": False, "GELUTanh": True})
"""Of a gated feed-forward part, by class -> whether it is GELU's approximation with tanh."""


class Product(Structure):
    """The ctypes twin of a linear layer and its outputs."""

    _fields_ = [("weight", c_void_p), ("bias", c_void_p), ("y", c_void_p), ("outputs", c_int64)]


class ProductsArguments(Structure):
    """The ctypes twin of several layers' input."""

    _fields_ = [
        ("x", c_void_p),
        *((name, c_int64) for name in ("x_stride", "batch", "features", "count")),
        *((name, c_int32) for name in ("half", "threads")),
    ]


class NormArguments(Structure):
    """The ctypes twin of a norm."""

    _fields_ = [
        *((name, c_void_p) for name in ("x", "weight", "y")),
        *((name, c_int64) for name in ("rows", "dim")),
        *((name, c_float) for name in ("epsilon", "offset")),
        ("half", c_int32),
    ]


class GatedArguments(Structure):
    """The ctypes twin of a gated feed-forward part."""

    _fields_ = [
        *((name, c_void_p) for name in ("x", "gate", "up", "down", "y")),
        *((name, c_int64) for name in ("x_stride", "batch", "features", "inner", "outputs")),
        *((name, c_int32) for name in ("half", "threads", "tanh")),
    ]


def takes_token(x: Tensor, *weights: Tensor | None) -> bool:
    """Return whether the kernels read rows x (B, 1, ..., features) and these weights, or None in a weight's place."""
    few = x.dim() > 2 and x.shape[1] == 1 and x.shape[0] <= MOST_ROWS and x.dtype in ROWS
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

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension of x (B, L, ..., features)."""
        weight: Any = self.weight
        if not (takes_token(x, weight) and x.is_contiguous() and weight.shape == x.shape[-1:]):
            return super().forward(x)
        plain = hasattr(self, "variance_epsilon")
        epsilon: Any = self.variance_epsilon if plain else self.eps
        y, dim = torch.empty_like(x), x.shape[-1]
        half = x.dtype == torch.bfloat16
        pointers = x.data_ptr(), weight.data_ptr(), y.data_ptr()
        given = NormArguments(*pointers, x.numel() // dim, dim, epsilon, float(not plain), half)
        native.call("rms_norm", given)
        return y


class FewRowsFeedForward(nn.Module):
    """What a family's gated feed-forward part becomes: down(activation(gate(x)) * up(x))."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, L, hidden) of x (B, L, hidden)."""
        parts: list[Any] = [self._modules.get(name) for name in ("gate_proj", "up_proj", "down_proj")]
        if not all(type(part) is FewRowsLinear and part.bias is None for part in parts):
            return super().forward(x)
        gate, up, down = (part.weight for part in parts)
        tanh = ACTIVATIONS.get(type(self.act_fn).__name__)
        if tanh is None or not takes_token(x, gate, up, down):
            return super().forward(x)
        rows, _, features = x.shape
        outputs, inner = down.shape
        if not gate.shape == up.shape == (inner, features):
            raise RuntimeError(f"C++ kernels: gate and up are {tuple(gate.shape)} and {tuple(up.shape)}")
        y = x.new_empty(rows, 1, outputs)
        pointers = (part.data_ptr() for part in (x, gate, up, down, y))
        sizes = x.stride(0), rows, features, inner, outputs
        half, threads = x.dtype == torch.bfloat16, threads_of(gate.numel())
        native.call("gated_products", GatedArguments(*pointers, *sizes, half, threads, tanh))
        return y


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
    kinds: dict[str, type[nn.Module]] = {"RMSNorm": FewRowsNorm, "MLP": FewRowsFeedForward}
    step = next((kind for ending, kind in kinds.items() if stock.__name__.endswith(ending)), None)
    return step and type(f"FewRows{stock.__name__}", (step, stock), {})


def swap(model: nn.Module) -> Callable[[], None]:
    """Give a model's linear layers, norms and feed-forward parts our classes; the result gives theirs back."""
    swapped = []
    for module in model.modules():
        stock: Any = type(module)  # to mypy no class of modules is hashable
        plain = all(type(parameter) is nn.Parameter for parameter in module.parameters(recurse=False))  # not quantized
        if plain and (ours := quick(stock)) is not None:
            module.__class__ = ours
            swapped.append((module, stock))

    def back() -> None:
        for module, stock in swapped:
            module.__class__ = stock

    return back
