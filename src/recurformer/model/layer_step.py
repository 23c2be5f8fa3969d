"""One token's way through a decoder layer as one call of the kernels.

Its heads attend to all tokens or to windows, or have a Mamba block in their place. Heads that attend to all tokens
beside another mixer step by the same kernel.

After few tokens, what Python does between the kernels takes as long as the kernels. So what does not change from token
to token is prepared once.
"""

from collections.abc import Mapping, Sequence
from ctypes import Array, Structure, addressof, c_int64, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import native
from .caches import Roomy, with_room
from .cpp_step import (
    BlockArguments,
    WindowGroup,
    WindowStepArguments,
    WindowStepInputs,
    block_arguments,
    groups_in_order,
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
from .layout import NORMS, HeadLayout, head_layout, rotates
from .mamba import CausalConv, FusedMamba, MambaMixer
from .mixer_window import WindowMixer
from .native import fields
from .prefill import IMPLEMENTATION as CHUNKED

WITHOUT_WEIGHTS = frozenset({"sdpa", CHUNKED})
"""Attention functions that return no weights and read no mask after the last token, so that a kernel gives the same."""


class LayerArguments(Structure):
    """The ctypes twin of a layer's weights and sizes."""

    _fields_ = [
        ("norm", NormArguments),
        ("head_norms", NormArguments * 2),
        *((name, ProductsArguments) for name in ("projecting", "reading", "mixing")),
        ("feed", GatedArguments),
        ("attention", WindowStepArguments),
        ("projections", Product * 3),
        *((name, Product) for name in ("readout", "output")),
        ("block", BlockArguments),
        ("reads", c_void_p),
    ]


class LayerToken(Structure):
    """The ctypes twin of a token."""

    _fields_ = fields("x cos sin y window state seen")


class Plan(NamedTuple):
    """What is prepared for a layer.

    Attributes:
        arguments: of the kernel, which reads them only.
        groups: its KV heads, first those that keep all tokens.
        whole: how many these are.
        windows: of the others; what `WindowStepInputs` names of each.
        weights: the place of every tensor that they point to or do without, the tensor or None, and where it lies.
        parts: the place of every module that they stand for, and the module.
        fused: what the step of a Mamba block computes with; None without a block.
        reads: the KV heads whose values the block is given, kept because the arguments point to them.
    """

    arguments: LayerArguments
    groups: Array[WindowGroup]
    whole: int
    windows: list[tuple[int, int, int]]
    weights: list[tuple[dict[str, Any], str, Tensor | None, int]]
    parts: list[tuple[dict[str, Any], str, nn.Module]]
    fused: FusedMamba | None
    reads: Array[c_int64]

    def holds(self, attention: Any, dtype: torch.dtype) -> bool:
        """Return whether the layer still has these parts and weights."""
        if self.fused is not None and attention.folding(attention) is not self.fused:
            return False
        return all(owner.get(name) is part for owner, name, part in self.parts) and all(
            owner.get(name) is tensor and (tensor is None or (tensor.data_ptr() == place and tensor.dtype is dtype))
            for owner, name, tensor, place in self.weights
        )


def _product(layer: nn.Linear) -> Product:
    bias = None if layer.bias is None else layer.bias.data_ptr()
    return Product(weight=layer.weight.data_ptr(), bias=bias, outputs=layer.out_features)


def _rows(batch: int, layers: list[Any]) -> ProductsArguments:
    """The twin of what several linear layers read."""
    features, half = layers[0].in_features, layers[0].weight.dtype == torch.bfloat16
    threads = threads_of(sum(layer.weight.numel() for layer in layers))
    return ProductsArguments(None, features, batch, features, len(layers), half, threads)


def _norm(norm: Any, rows: int) -> NormArguments:
    weight: Tensor = norm.weight
    return NormArguments(None, weight.data_ptr(), None, rows, len(weight), *norm.terms, weight.dtype == torch.bfloat16)


class Parts(NamedTuple):
    """A decoder layer's parts that have weights."""

    projections: list[Any]
    gated: list[Any]
    norms: list[Any]
    head_norms: list[Any]


class Heads(NamedTuple):
    """How many heads a layer projects."""

    queries: int
    keys: int
    values: int


def _layout(attention: Any) -> HeadLayout:
    """Return the layout of a layer's heads; those of a stock layer all attend."""
    config = attention.config
    return getattr(attention, "layout", None) or head_layout((), config.num_attention_heads, config.num_key_value_heads)


def _groups(layout: HeadLayout, mixer: nn.Module | None) -> tuple[tuple[int, ...], ...] | None:
    """Return the members of `WindowGroup`: first those that keep all tokens. None where no kernel knows the mixer."""
    sizes = layout.group_sizes
    whole = groups_in_order(sizes)
    if mixer is None or type(mixer) is MambaMixer:
        return whole
    if type(mixer) is not WindowMixer or len(sizes) + len(mixer.places) != len(layout.kv_heads):
        return None  # a KV head may serve retained and replaced heads
    shifts = (bool(sizes), 0, len(layout.retained), 0, len(sizes), len(layout.retained))
    return whole + tuple(tuple(map(sum, zip(place, shifts, strict=True))) for place in mixer.places)


def _parts(layer: Any, heads: Heads, hidden: int) -> Parts | None:
    """Return a layer's parts; None where one is not as the kernel knows it."""
    attention, feed = layer.self_attn, layer.mlp
    dim = attention.head_dim
    if attention.scaling != dim**-0.5 or activation_of(feed) is None:
        return None
    own, gated = attention._modules, feed._modules
    names = ("q_proj", "k_proj", "v_proj", "o_proj")[0 if heads.queries else 2 :]
    parts = Parts(
        [own.get(name) for name in names],
        [gated.get(name) for name in ("gate_proj", "up_proj", "down_proj")],
        [layer.input_layernorm, layer.post_attention_layernorm],
        [own[name] for name in NORMS if name in own],
    )
    linear, norms = parts.projections + parts.gated, parts.norms + parts.head_norms
    if any(type(part) is not FewRowsLinear for part in linear) or any(part.bias is not None for part in parts.gated):
        return None
    inner, mixed = parts.gated[0].out_features, attention.config.num_attention_heads * dim
    shapes: list[tuple[int, ...]] = [*((count * dim, hidden) for count in heads if count), (hidden, mixed)]
    shapes += [(inner, hidden), (inner, hidden), (hidden, inner), (hidden,), (hidden,), (dim,), (dim,)]
    fits = all(part.weight.shape == shape for part, shape in zip(linear + norms, shapes, strict=False))
    return parts if fits and all(isinstance(norm, FewRowsNorm) for norm in norms) else None


def _add_block(plan: Plan, attention: Any, x: Tensor) -> bool:
    """Add the step of a layer's Mamba block to its plan; return whether the kernel takes it."""
    mixer, fused, arguments = attention.mixer, plan.fused, plan.arguments
    linear = [mixer._modules.get(name) for name in ("in_proj", "x_proj", "dt_proj", "out_proj")]
    if fused is None or any(type(part) is not FewRowsLinear for part in linear) or type(mixer.conv1d) is not CausalConv:
        return False
    channels, readout = len(fused.A), mixer.out_proj
    # only their shapes count
    token, y = x.new_empty(len(x), mixer.in_proj.in_features), x.new_empty(len(x), channels)
    states = x.new_empty(len(x), channels, mixer.d_conv), fused.A.new_empty(len(x), *fused.A.shape)
    inputs = mixer.step_inputs(token, states, fused)
    fits = readout.weight.shape == (readout.out_features, channels) and takes(
        (), (readout.weight, readout.bias), x.dtype
    )
    if not fits or not inputs.taken():
        return False
    arguments.block = block_arguments(inputs, y)
    arguments.block.x = arguments.block.y = arguments.block.window = arguments.block.state = None
    arguments.reads = addressof(plan.reads)
    if fused.output is None:
        arguments.readout = _product(readout)
        arguments.reading = _rows(len(x), [readout])
    else:
        arguments.output.weight = fused.output.data_ptr()
        arguments.mixing.features = arguments.mixing.x_stride = fused.output.shape[1]
    return True


def plan_of(layer: Any, x: Tensor, cos: Tensor) -> Plan | None:
    """Prepare a decoder layer for tokens x (B, 1, hidden) with cosines (B or 1, 1, rotated features).

    None where a part is not as the kernel knows it.
    """
    batch, _, hidden = x.shape
    attention = layer.self_attn
    layout, mixer, dim = _layout(attention), getattr(attention, "mixer", None), attention.head_dim
    heads = Heads(*map(len, layout.projected_heads(getattr(attention, "reads_keys", False)).values()))
    groups, parts = _groups(layout, mixer), _parts(layer, heads, hidden)
    if groups is None or parts is None:
        return None
    whole, windows = layout.attended_kv_heads, getattr(mixer, "windows", [])
    owners = [(part._parameters, name) for kind in parts for part in kind for name in ("weight", "bias")]
    center = getattr(mixer, "center", None)
    if mixer is not None and windows:
        owners.append((mixer._buffers, "center"))
    held = [(owner, name, owner.get(name)) for owner, name in owners]
    if not takes((), (tensor for _, _, tensor in held), x.dtype):
        return None
    half, threads = x.dtype == torch.bfloat16, torch.get_num_threads()
    nothing = [Product()] * (4 - len(parts.projections))  # of queries and keys, where no head attends
    turned = cos.shape[2] if rotates(attention) else 0
    norm, second = (_norm(norm, batch) for norm in parts.norms)
    arguments = LayerArguments(
        norm=norm,
        projecting=_rows(batch, parts.projections[:-1]),
        mixing=_rows(batch, parts.projections[-1:]),
        feed=GatedArguments(
            **{name: part.weight.data_ptr() for name, part in zip(("gate", "up", "down"), parts.gated, strict=True)},
            **{"norm": second.weight, "epsilon": second.epsilon, "offset": second.offset},
            **{"x_stride": hidden, "residual_stride": hidden, "batch": batch, "features": hidden, "outputs": hidden},
            **{"inner": parts.gated[0].out_features, "threads": threads_of(parts.gated[0].weight.numel())},
            **{"half": half, "tanh": activation_of(layer.mlp)},
        ),
        attention=WindowStepArguments(
            center=None if center is None else center.data_ptr(),
            **{f"{name}_stride": count * dim for name, count in heads._asdict().items()},
            **{f"{name}_stride": cos.shape[2] if len(cos) > 1 else 0 for name in ("cos", "sin")},
            **{"batch": batch, "length": 1, "heads": heads.queries, "groups": heads.keys, "dim": dim, "turned": turned},
            **{"sinks": windows[0].sinks if windows else 0, "centered": whole, "threads": threads, "half": half},
        ),
        projections=(Product * 3)(*nothing, *map(_product, parts.projections[:-1])),
        output=_product(parts.projections[-1]),
    )
    for place, (part, count) in enumerate(zip(parts.head_norms, heads, strict=False)):
        arguments.head_norms[place] = _norm(part, batch * count)
    mixes = type(mixer) is MambaMixer
    modules = [module._modules for module in (layer, attention, layer.mlp, *([mixer] if mixes else []))]
    reads = [place for span in attention.replaced_spans for place in range(*span)] if mixes else []
    plan = Plan(
        arguments,
        window_groups(groups),
        whole,
        [window.stored(dim, x.itemsize) for window in windows],
        [(owner, name, tensor, 0 if tensor is None else tensor.data_ptr()) for owner, name, tensor in held],
        [(owner, name, part) for owner in modules for name, part in owner.items()],
        attention.folding(attention) if mixes and attention.folding is not None else None,
        (c_int64 * len(reads))(*reads),
    )
    return None if mixes and not _add_block(plan, attention, x) else plan


def whole_layer(attention: Any, cache: Any, mask: Any) -> Roomy | None:
    """Return the cache's layer of heads that attend to all tokens, with room; None where they need more than its keys.

    Without a mask no cached token is padding.
    """
    plain = mask is None and attention.config._attn_implementation in WITHOUT_WEIGHTS
    return with_room(cache, attention.layer_idx) if plain else None


def whole_step(
    attention: Any, cache: Any, mask: Any, rows: Sequence[Tensor], positions: tuple[Tensor, Tensor] | None
) -> Tensor | None:
    """Return what heads that attend to all tokens give of a token, (B, 1, heads * head_dim), its key in the cache.

    Args:
        attention: a `RecurFormerAttention`.
        cache: holds the tokens before; the token's key and value follow in there.
        mask: of the attention.
        rows: queries (B, 1, heads, head_dim), keys and values (B, 1, KV heads, head_dim), not rotated.
        positions: cosines and sines; None in a layer without positions.

    Returns:
        None where no kernel takes the token; nothing has changed then.
    """
    held, (queries, keys, values) = whole_layer(attention, cache, mask), rows
    if held is None:
        return None
    cos, sin = positions or (None, None)
    fits = not attention.training and attention.scaling == attention.head_dim**-0.5
    rooms = held.rooms(queries) if fits and takes((*rows, cos, sin), (), queries.dtype) else None
    if rooms is None:
        return None
    inputs = WindowStepInputs(
        queries=queries,
        keys=keys,
        values=values.flatten(2),
        cos=cos,
        sin=sin,
        groups=groups_in_order(attention.layout.group_sizes),
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
        states: window and state of a Mamba block; nothing without one.
    """

    whole: Roomy | None
    rooms: tuple[Tensor, Tensor] | None
    seen: Tensor
    slots: list[Tensor]
    states: tuple[Tensor, ...] = ()


def _states(mixer: MambaMixer, x: Tensor, cache: Any) -> tuple[Tensor, Tensor] | None:
    """Return window and state of a block, for tokens x (B, 1, hidden); None where the kernel cannot write there."""
    states = mixer.states_of_step(cache)
    if states is None:
        return None
    window, state = states
    channels = mixer.conv1d.in_channels
    fits = window.shape == (len(x), channels, mixer.d_conv) and state.shape == (len(x), channels, mixer.d_state)
    return states if fits and takes((), (window,), x.dtype) and takes((), (state,)) else None


def _held(attention: Any, x: Tensor, given: Mapping[str, Any], count: int) -> Held | None:
    """Return where a token x (B, 1, hidden) goes; None where the kernels cannot write there.

    `given` are the other arguments of the layer's forward pass; `count` KV heads keep all tokens.
    """
    cache, mixer, shape = given["past_key_values"], getattr(attention, "mixer", None), (len(x), 1)
    whole = rooms = None
    if count:
        if type(mixer) is WindowMixer and "mixer_positions" in given:  # they and other heads rotate by different places
            return None
        whole = whole_layer(attention, cache, given.get("attention_mask"))
        rooms = None if whole is None else whole.rooms(x)
        if whole is None or rooms is None or rooms[0].shape[1::2] != (count, attention.head_dim):
            return None
    if type(mixer) is WindowMixer:
        seen: Any = mixer.previous(cache, "recurrent")
        fits = seen is not None and seen.shape == shape and seen.dtype == torch.int64 and seen.is_contiguous()
        slots = mixer.slots_of_step(x.dtype, cache) if fits else None
        if slots is None:
            return None
        return Held(whole, rooms, seen, slots)
    states = () if mixer is None else _states(mixer, x, cache)
    seen = torch.full(shape, 0 if whole is None else whole.tokens)
    return None if states is None else Held(whole, rooms, seen, [], states)


class LayerSteps:
    """A decoder layer's step while its model is folded (`recurformer.folded`)."""

    def __init__(self) -> None:
        self.plans: dict[tuple[Any, ...], Plan | None] = {}

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copy of the model is not folded, and what points to weights points to those of this one."""
        return type(None), ()

    def __call__(self, layer: Any, x: Tensor, given: Mapping[str, Any]) -> Tensor | None:
        """Return a layer's outputs (B, 1, hidden) of x (B, 1, hidden), its part of the cache in place.

        None where no kernel takes the token; nothing has changed then. `given` are the other arguments of its forward
        pass.

        Raises:
            RuntimeError: the cache has no slot for the token.
        """
        attention, cache = layer.self_attn, given.get("past_key_values")
        if cache is None or given.get("recurrent_mask") is not None or attention.training or not x.is_contiguous():
            return None
        if attention._forward_hooks or attention._forward_pre_hooks or "forward" in attention.__dict__:
            return None
        own = given.get("mixer_positions") if getattr(attention, "reads_keys", False) else None
        cos, sin = own or given["position_embeddings"]
        for turn in (cos, sin):
            if turn.shape != (len(cos), 1, cos.shape[2]) or turn.dtype != x.dtype or not turn.is_contiguous():
                return None
        key = x.shape, x.dtype, cos.shape, torch.get_num_threads()
        plan = self.plans.get(key)
        if key not in self.plans or (plan is not None and not plan.holds(attention, x.dtype)):
            plan = self.plans[key] = plan_of(layer, x, cos)
        held = None if plan is None else _held(attention, x, given, plan.whole)
        if plan is None or held is None:
            return None
        y = torch.empty_like(x)
        window, state = held.states or (None, None)
        given_to_all = x, cos, sin, y, window, state, held.seen
        token = LayerToken(*(None if each is None else each.data_ptr() for each in given_to_all))

        def missing(slots: list[Tensor]) -> bool:
            twins = window_slots(slots, plan.windows, len(x), held.rooms)
            return bool(native.call("layer_step", plan.arguments, token, twins, plan.groups))

        if missing(held.slots) and missing(attention.mixer.more_slots(cache, held.seen)):
            raise RuntimeError(f"the cache has no slot for a token after {int(held.seen.max())} others")
        if held.whole is not None:
            held.whole.lengthen()
        elif attention.counts_tokens:
            tick = x[:, :, :1].unsqueeze(1)  # (B, 1, 1, 1)
            cache.update(tick, tick, attention.layer_idx)
        return y
