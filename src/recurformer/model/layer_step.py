"""One token's way through a decoder layer whose heads attend to all tokens or to windows, as one call of the kernels.

Heads that attend to all tokens beside another mixer step by the same kernel.

After few tokens, what Python does between the kernels takes as long as the kernels. So what does not change from token
to token is prepared once.
"""

from collections.abc import Mapping, Sequence
from ctypes import Structure, c_void_p
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import native
from .caches import Roomy, with_room
from .cpp_step import (
    ROWS,
    WindowStepArguments,
    WindowStepInputs,
    takes,
    threads_of,
    window_groups,
    window_slots,
    window_step,
)
from .few_rows import (
    FewRowsLinear,
    FewRowsNorm,
    GatedArguments,
    NormArguments,
    Product,
    ProductsArguments,
    activation_of,
)
from .layout import NORMS, rotates
from .mixer_window import WindowMixer
from .prefill import IMPLEMENTATION as CHUNKED
from .window import Window

WITHOUT_WEIGHTS = frozenset({"sdpa", CHUNKED})
"""Attention functions that return no weights and read no mask after the last token, so that a kernel gives the same."""


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
        groups: of each KV head what `cpp_step.WindowGroup` names: first those that keep all tokens.
        whole: how many these are.
        windows: of the others.
        weights: the place of every tensor that they point to or do without, the tensor or None, and where it lies.
        parts: the place of every module that they stand for, and the module.
    """

    arguments: LayerArguments
    groups: tuple[tuple[int, ...], ...]
    whole: int
    windows: list[Window]
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


def _whole_groups(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return what `cpp_step.WindowGroup` names of KV heads that keep all tokens and serve so many query heads each."""
    firsts = list(accumulate(sizes, initial=0))
    return [(0, place, firsts[place], size, place, firsts[place]) for place, size in enumerate(sizes)]


def _groups(attention: Any) -> tuple[list[tuple[int, ...]], int] | None:
    """Return `groups` and `whole` of a `Plan`; None where a mixer without windows stands beside the heads."""
    layout, config = getattr(attention, "layout", None), attention.config
    if layout is None:  # a stock layer
        groups = config.num_key_value_heads
        return _whole_groups([config.num_attention_heads // groups] * groups), groups
    mixer, sizes = attention.mixer, layout.group_sizes
    if type(mixer) is not WindowMixer or len(sizes) + len(mixer.places) != len(layout.kv_heads):
        return None  # a KV head may serve retained and replaced heads
    shifts = (bool(sizes), 0, len(layout.retained), 0, len(sizes), len(layout.retained))
    behind = [tuple(map(sum, zip(place, shifts, strict=True))) for place in mixer.places]
    return _whole_groups(sizes) + behind, len(sizes)


def _parts(layer: Any, hidden: int, groups: int) -> Parts | None:
    """Return a layer's parts; None where one is not as the kernel knows it."""
    attention, feed = layer.self_attn, layer.mlp
    heads, dim = attention.config.num_attention_heads, attention.head_dim
    if not rotates(attention) or attention.scaling != dim**-0.5 or activation_of(feed) is None:
        return None
    own, gated = attention._modules, feed._modules
    parts = Parts(
        [own.get(name) for name in ("q_proj", "k_proj", "v_proj", "o_proj")],
        [gated.get(name) for name in ("gate_proj", "up_proj", "down_proj")],
        [layer.input_layernorm, layer.post_attention_layernorm],
        [own[name] for name in NORMS if name in own],
    )
    linear, norms = parts.projections + parts.gated, parts.norms + parts.head_norms
    if any(type(part) is not FewRowsLinear for part in linear) or any(part.bias is not None for part in parts.gated):
        return None
    width, inner = groups * dim, parts.gated[0].out_features
    shapes: list[tuple[int, ...]] = [(heads * dim, hidden), (width, hidden), (width, hidden), (hidden, heads * dim)]
    shapes += [(inner, hidden), (inner, hidden), (hidden, inner), (hidden,), (hidden,), (dim,), (dim,)]
    fits = all(part.weight.shape == shape for part, shape in zip(linear + norms, shapes, strict=False))
    return parts if fits and all(isinstance(norm, FewRowsNorm) for norm in norms) else None


def plan_of(layer: Any, x: Tensor, cos: Tensor) -> Plan | None:
    """Prepare a decoder layer for tokens x (B, 1, hidden); None where a part is not as the kernel knows it.

    Args:
        layer: a `FewRowsDecoderLayer`.
        x: a token.
        cos: the cosines (B or 1, 1, rotated features) of its place.
    """
    batch, _, hidden = x.shape
    attention, found = layer.self_attn, _groups(layer.self_attn)
    parts = None if found is None else _parts(layer, hidden, len(found[0]))
    if found is None or parts is None:
        return None
    (described, whole), mixer = found, getattr(attention, "mixer", None)
    heads, groups, dim = attention.config.num_attention_heads, len(described), attention.head_dim
    owners = [(part._parameters, name) for kind in parts for part in kind for name in ("weight", "bias")]
    if mixer is not None:
        owners.append((mixer._buffers, "center"))
    center = getattr(mixer, "center", None)
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
            center=None if center is None else center.data_ptr(),
            **{"queries_stride": heads * dim, "keys_stride": groups * dim, "values_stride": groups * dim},
            **{f"{name}_stride": cos.shape[2] if len(cos) > 1 else 0 for name in ("cos", "sin")},
            **{"batch": batch, "length": 1, "heads": heads, "groups": groups, "dim": dim, "turned": cos.shape[2]},
            **{"sinks": mixer.windows[0].sinks if mixer else 0, "centered": whole, "threads": threads, "half": half},
        ),
        projections=(Product * 3)(*map(_product, parts.projections[:3])),
        output=_product(parts.projections[3]),
    )
    for place, (part, count) in enumerate(zip(parts.head_norms, (heads, groups), strict=False)):
        arguments.head_norms[place] = _norm(part, batch * count, half)
    modules = [module._modules for module in (layer, attention, layer.mlp)]
    return Plan(
        arguments,
        tuple(described),
        whole,
        [] if mixer is None else mixer.windows,
        [(owner, name, tensor, 0 if tensor is None else tensor.data_ptr()) for owner, name, tensor in held],
        [(owner, name, part) for owner in modules for name, part in owner.items()],
    )


def whole_layer(attention: Any, cache: Any, mask: Any) -> Roomy | None:
    """Return the cache's layer of heads that attend to all tokens, with room; None where they need more than its keys.

    Args:
        attention: a stock layer's, or a `RecurFormerAttention`.
        cache: has read the tokens before.
        mask: of the attention; without one no cached token is padding.
    """
    plain = mask is None and attention.config._attn_implementation in WITHOUT_WEIGHTS
    return with_room(cache, attention.layer_idx) if plain else None


def whole_step(
    attention: Any, held: Roomy, rows: Sequence[Tensor], positions: tuple[Tensor, Tensor] | None
) -> Tensor | None:
    """Return what heads that attend to all tokens give of a token, (B, 1, heads * head_dim), its key in the cache.

    Args:
        attention: a `RecurFormerAttention`.
        held: its layer of the cache; the token's key and value follow in there.
        rows: queries (B, 1, heads, head_dim), keys and values (B, 1, KV heads, head_dim), not rotated.
        positions: cosines and sines; None in a layer without positions.

    Returns:
        None where no kernel takes the token; nothing has changed then.
    """
    queries, keys, values = rows
    cos, sin = positions or (None, None)
    fits = not attention.training and attention.scaling == attention.head_dim**-0.5 and queries.dtype in ROWS
    rooms = held.rooms(queries) if fits and takes((*rows, cos, sin), (), queries.dtype) else None
    if rooms is None:
        return None
    inputs = WindowStepInputs(
        queries=queries,
        keys=keys,
        values=values.flatten(2),
        cos=cos,
        sin=sin,
        groups=tuple(_whole_groups(attention.layout.group_sizes)),
        seen=torch.full((len(queries), 1), held.tokens),
        whole=rooms,
    )
    output = window_step(inputs)
    held.lengthen()
    return output


class Held(NamedTuple):
    """Where a step finds the tokens before, and where it writes the new one.

    Attributes:
        whole: holds the keys of the heads that attend to all tokens; None without any.
        rooms: its rooms.
        seen: numbers of tokens before, (B, 1).
        slots: of the windows.
    """

    whole: Roomy | None
    rooms: tuple[Tensor, Tensor] | None
    seen: Tensor
    slots: list[Tensor]


def _held(attention: Any, x: Tensor, given: Mapping[str, Any], count: int) -> Held | None:
    """Return where a token x (B, 1, hidden) goes; None where the kernels cannot write there.

    Args:
        attention: of the layer.
        x: the token.
        given: the other arguments of the layer's forward pass.
        count: KV heads that keep all tokens.
    """
    cache, mixer, shape = given["past_key_values"], getattr(attention, "mixer", None), (len(x), 1)
    whole = rooms = None
    if count:
        if mixer is not None and "mixer_positions" in given:  # windows and other heads rotate by different places
            return None
        whole = whole_layer(attention, cache, given.get("attention_mask"))
        rooms = None if whole is None else whole.rooms(x)
        if whole is None or rooms is None or rooms[0].shape[1::2] != (count, attention.head_dim):
            return None
    if mixer is None:
        return None if whole is None else Held(whole, rooms, torch.full(shape, whole.tokens), [])
    seen = mixer.previous(cache, "recurrent")
    slots = None if seen is None else mixer.slots_of_step(x.dtype, cache)
    if slots is None or seen.shape != shape or seen.dtype != torch.int64 or not seen.is_contiguous():
        return None
    return Held(whole, rooms, seen, slots)


class LayerSteps:
    """A decoder layer's step while its model is folded (`recurformer.folded`)."""

    def __init__(self) -> None:
        self.plans: dict[tuple[Any, ...], Plan | None] = {}

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copy of the model is not folded, and what points to weights points to those of this one."""
        return type(None), ()

    def __call__(self, layer: Any, x: Tensor, given: Mapping[str, Any]) -> Tensor | None:
        """Return a layer's outputs (B, 1, hidden) of x (B, 1, hidden), its part of the cache in place.

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
        for turn in (cos, sin):
            if turn.shape != (len(cos), 1, cos.shape[2]) or turn.dtype != x.dtype or not turn.is_contiguous():
                return None
        key = x.shape, x.dtype, cos.shape, torch.get_num_threads()
        plan = self.plans.get(key)
        if key not in self.plans or (plan is not None and not plan.holds(x.dtype)):
            plan = self.plans[key] = plan_of(layer, x, cos)
        held = None if plan is None else _held(attention, x, given, plan.whole)
        if plan is None or held is None:
            return None
        y = torch.empty_like(x)
        token = LayerToken(*(each.data_ptr() for each in (x, cos, sin, y, held.seen)))

        def missing(slots: list[Tensor]) -> bool:
            windows = [window.stored(attention.head_dim, x.itemsize) for window in plan.windows]
            twins = window_slots(slots, windows, len(x), held.rooms)
            return bool(native.call("layer_step", plan.arguments, token, twins, window_groups(plan.groups)))

        if missing(held.slots) and missing(attention.mixer.more_slots(cache, held.seen)):
            raise RuntimeError(f"the cache has no slot for a token after {int(held.seen.max())} others")
        if held.whole is not None:
            held.whole.lengthen()
        elif attention.counts_tokens:
            tick = x[:, :, :1].unsqueeze(1)  # (B, 1, 1, 1)
            cache.update(tick, tick, attention.layer_idx)
        return y
