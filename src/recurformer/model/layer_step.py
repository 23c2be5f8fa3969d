"""One token's way through a decoder layer whose heads all have windows, as one call of the C++ kernels.

After few tokens, what Python does between the kernels takes as long as the kernels. So what does not change from token
to token is prepared once.
"""

from collections.abc import Mapping
from ctypes import Structure, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import native
from .cpp_step import WindowStepArguments, takes, threads_of, window_groups, window_slots
from .few_rows import (
    FewRowsLinear,
    FewRowsNorm,
    GatedArguments,
    NormArguments,
    Product,
    ProductsArguments,
    activation_of,
)
from .mixer_window import WindowMixer


class LayerArguments(Structure):
    """The ctypes twin of a layer's weights and sizes."""

    _fields_ = [
        ("norm", NormArguments),
        ("head_norms", NormArguments * 2),
        *((name, ProductsArguments) for name in ("projecting", "mixing")),
        ("feed", GatedArguments),
        ("attention", WindowStepArguments),
        ("projections", Product * 3),
        ("output", Product),
    ]


class LayerToken(Structure):
    """The ctypes twin of a token."""

    _fields_ = [(name, c_void_p) for name in ("x", "cos", "sin", "y", "seen")]


class Plan(NamedTuple):
    """What is prepared for a layer.

    Attributes:
        arguments: of the kernel, which reads them only.
        weights: the place of every tensor that they point to or do without, the tensor or None, and where it lies.
        parts: the place of every module that they stand for, and the module.
    """

    arguments: LayerArguments
    weights: list[tuple[dict[str, Any], str, Tensor | None, int]]
    parts: list[tuple[dict[str, Any], str, nn.Module]]

    def holds(self, dtype: torch.dtype) -> bool:
        """Return whether the layer still has these parts and weights."""
        return all(owner.get(name) is part for owner, name, part in self.parts) and all(
            owner.get(name) is tensor and (tensor is None or (tensor.data_ptr() == place and tensor.dtype is dtype))
            for owner, name, tensor, place in self.weights
        )


def _product(layer: nn.Linear) -> Product:
    bias = None if layer.bias is None else layer.bias.data_ptr()
    return Product(weight=layer.weight.data_ptr(), bias=bias, outputs=layer.out_features)


def _rows(batch: int, layers: list[Any], half: bool) -> ProductsArguments:
    """The twin of what several linear layers read."""
    features, threads = layers[0].in_features, threads_of(sum(layer.weight.numel() for layer in layers))
    return ProductsArguments(
        x_stride=features, batch=batch, features=features, count=len(layers), half=half, threads=threads
    )


def _norm(norm: Any, rows: int, half: bool) -> NormArguments:
    epsilon, offset = norm.terms
    weight: Tensor = norm.weight
    return NormArguments(
        weight=weight.data_ptr(), rows=rows, dim=len(weight), epsilon=epsilon, offset=offset, half=half
    )


class Parts(NamedTuple):
    """A decoder layer's parts that have weights."""

    projections: list[Any]
    gated: list[Any]
    norms: list[Any]
    head_norms: list[Any]


def _parts(layer: Any, hidden: int) -> Parts | None:
    """Return a layer's parts; None where one is not as the kernel knows it."""
    attention, feed = layer.self_attn, layer.mlp
    mixer, heads, dim = attention.mixer, attention.config.num_attention_heads, attention.head_dim
    alone = type(mixer) is WindowMixer and not attention.layout.retained
    if not alone or not attention.rotates or attention.scaling != dim**-0.5 or activation_of(feed) is None:
        return None
    parts = Parts(
        [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj],
        [feed._modules.get(name) for name in ("gate_proj", "up_proj", "down_proj")],
        [layer.input_layernorm, layer.post_attention_layernorm],
        [attention.q_norm, attention.k_norm] if attention.normed else [],
    )
    linear, norms = parts.projections + parts.gated, parts.norms + parts.head_norms
    if any(type(part) is not FewRowsLinear for part in linear) or any(part.bias is not None for part in parts.gated):
        return None
    groups, inner = len(mixer.places) * dim, parts.gated[0].out_features
    shapes: list[tuple[int, ...]] = [(heads * dim, hidden), (groups, hidden), (groups, hidden), (hidden, heads * dim)]
    shapes += [(inner, hidden), (inner, hidden), (hidden, inner), (hidden,), (hidden,), (dim,), (dim,)]
    fits = all(part.weight.shape == shape for part, shape in zip(linear + norms, shapes, strict=False))
    return parts if fits and all(isinstance(norm, FewRowsNorm) for norm in norms) else None


def plan_of(layer: Any, x: Tensor, cos: Tensor) -> Plan | None:
    """Prepare a decoder layer for tokens x (B, 1, hidden); None where a part is not as the kernel knows it.

    Args:
        layer: a `FewRowsDecoderLayer` with a `RecurFormerAttention`.
        x: a token.
        cos: the cosines (B or 1, 1, rotated features) of its place.
    """
    batch, _, hidden = x.shape
    parts = _parts(layer, hidden)
    if parts is None:
        return None
    attention, mixer = layer.self_attn, layer.self_attn.mixer
    heads, groups, dim = attention.config.num_attention_heads, len(mixer.places), attention.head_dim
    owners = [(part._parameters, name) for kind in parts for part in kind for name in ("weight", "bias")]
    owners.append((mixer._buffers, "center"))
    held = [(owner, name, owner.get(name)) for owner, name in owners]
    if not takes((), (tensor for _, _, tensor in held), x.dtype):
        return None
    half, threads = x.dtype == torch.bfloat16, torch.get_num_threads()
    norm, second = (_norm(norm, batch, half) for norm in parts.norms)
    arguments = LayerArguments(
        norm=norm,
        projecting=_rows(batch, parts.projections[:3], half),
        mixing=_rows(batch, parts.projections[3:], half),
        feed=GatedArguments(
            **{name: part.weight.data_ptr() for name, part in zip(("gate", "up", "down"), parts.gated, strict=True)},
            **{"norm": second.weight, "epsilon": second.epsilon, "offset": second.offset},
            **{"x_stride": hidden, "residual_stride": hidden, "batch": batch, "features": hidden, "outputs": hidden},
            **{"inner": parts.gated[0].out_features, "threads": threads_of(parts.gated[0].weight.numel())},
            **{"half": half, "tanh": activation_of(layer.mlp)},
        ),
        attention=WindowStepArguments(
            center=None if mixer.center is None else mixer.center.data_ptr(),
            **{"queries_stride": heads * dim, "keys_stride": groups * dim, "values_stride": groups * dim},
            **{f"{name}_stride": cos.shape[2] if len(cos) > 1 else 0 for name in ("cos", "sin")},
            **{"batch": batch, "length": 1, "heads": heads, "groups": groups, "dim": dim, "turned": cos.shape[2]},
            **{"sinks": mixer.windows[0].sinks, "threads": threads, "half": half},
        ),
        projections=(Product * 3)(*map(_product, parts.projections[:3])),
        output=_product(parts.projections[3]),
    )
    for place, (part, count) in enumerate(zip(parts.head_norms, (heads, groups), strict=False)):
        arguments.head_norms[place] = _norm(part, batch * count, half)
    modules = [module._modules for module in (layer, attention, layer.mlp)]
    return Plan(
        arguments,
        [(owner, name, tensor, 0 if tensor is None else tensor.data_ptr()) for owner, name, tensor in held],
        [(owner, name, part) for owner in modules for name, part in owner.items()],
    )


class LayerSteps:
    """A decoder layer's step while its model is folded (`recurformer.folded`)."""

    def __init__(self) -> None:
        self.plans: dict[tuple[Any, ...], Plan | None] = {}

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copy of the model is not folded, and what points to weights points to those of this one."""
        return type(None), ()

    def __call__(self, layer: Any, x: Tensor, given: Mapping[str, Any]) -> Tensor | None:
        """Return a layer's outputs (B, 1, hidden) of x (B, 1, hidden), its windows in place.

        Args:
            layer: the decoder layer.
            x: a token that the kernels take (`takes_token`).
            given: the other arguments of its forward pass.

        Returns:
            None where no kernel takes the token; nothing has changed then.

        Raises:
            RuntimeError: the cache has no slot for the token.
        """
        attention, cache = layer.self_attn, given.get("past_key_values")
        if cache is None or given.get("recurrent_mask") is not None or attention.training or not x.is_contiguous():
            return None
        if attention._forward_hooks or attention._forward_pre_hooks or "forward" in attention.__dict__:
            return None
        cos, sin = given.get("mixer_positions") or given["position_embeddings"]
        key = x.shape, x.dtype, cos.shape, torch.get_num_threads()
        plan = self.plans.get(key)
        if key not in self.plans or (plan is not None and not plan.holds(x.dtype)):
            plan = self.plans[key] = plan_of(layer, x, cos)
        if plan is None:
            return None
        mixer, rows = attention.mixer, len(x)
        seen = mixer.previous(cache, "recurrent")
        slots = None if seen is None else mixer.slots_of_step(x.dtype, cache)
        if slots is None or seen.shape != (rows, 1) or seen.dtype != torch.int64 or not seen.is_contiguous():
            return None
        for turn in (cos, sin):
            if turn.shape != (len(cos), 1, cos.shape[2]) or turn.dtype != x.dtype or not turn.is_contiguous():
                return None
        y, windows = torch.empty_like(x), [window.stored(mixer.head_dim, x.itemsize) for window in mixer.windows]
        pointers = (tensor.data_ptr() for tensor in (x, cos, sin, y, seen))
        token, groups = LayerToken(*pointers), window_groups(mixer.places)
        if native.call("layer_step", plan.arguments, token, window_slots(slots, windows, rows), groups):
            slots = mixer.more_slots(cache, seen)
            if native.call("layer_step", plan.arguments, token, window_slots(slots, windows, rows), groups):
                raise RuntimeError(f"the cache has no slot for a token after {int(seen.max())} others")
        if attention.counts_tokens:
            tick = x[:, :, :1].unsqueeze(1)  # (B, 1, 1, 1)
            cache.update(tick, tick, attention.layer_idx)
        return y
