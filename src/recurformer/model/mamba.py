"""The Mamba block (S6, arXiv 2312.00752) that takes the place of a layer's recency-aware heads.

Parameter names and shapes are mamba_ssm's; the state dict of transformers' `MambaMixer` loads as it is. Unlike it,
the block continues a cached sequence by any number of tokens, keeps its state in float32, and trains at linear cost.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache
from transformers import initialization as init

from . import cpp, cpp_step
from .cpp_step import BlockInputs, StepInputs
from .layout import HeadLayout
from .masks import Packing
from .mixer import FusedWeights
from .scan import selective_scan

STEP_SIZE_RANGE = (1e-3, 1e-1)  # of delta at initialisation, log-uniform, as published
STEP_SIZE_FLOOR = 1e-4
NO_STEP = -1e4  # before the softplus: delta is 0, the state neither decays nor takes in anything


def initial_step_bias(like: Tensor) -> Tensor:
    """Return biases of such a shape and device, whose softplus is log-uniform in `STEP_SIZE_RANGE`."""
    low, high = (math.log(size) for size in STEP_SIZE_RANGE)
    step = torch.rand(like.shape, device=like.device, dtype=torch.float32)
    step = torch.exp(step * (high - low) + low).clamp(min=STEP_SIZE_FLOOR)
    return step + torch.log(-torch.expm1(-step))  # the inverse of softplus


@dataclass(frozen=True, eq=False)
class FusedMamba(FusedWeights):
    """Those of a layer with a Mamba block.

    Attributes:
        selection: weight (D + 2 N, D) and bias of step size, input and output matrix at once; None: not fused.
        A: -exp(A_log) in the precision of the states.
        D: the skip weights, likewise.
    """

    selection: tuple[Tensor, Tensor] | None
    A: Tensor
    D: Tensor


def causal_conv(rows: Tensor, history: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    """Return silu(convolution) of every row with the rows before it; half precision is added up in float32.

    Args:
        rows: (B, L, D); strided rows, such as a part of a larger projection, are fine.
        history: the rows before the first, channels first (B, D, taps - 1), or None for zeros.
        weight: (D, taps); the last tap is the row itself.
        bias: (D,).
    """
    if cpp.refuses_convolution(rows, weight, bias, history) is None:
        return cpp.convolve_rows(rows, weight, bias, history)
    length, taps = rows.shape[1], weight.shape[1]
    before = rows.new_zeros(len(rows), taps - 1, rows.shape[2]) if history is None else history.transpose(1, 2)
    rows = torch.cat([before, rows], 1)
    result = bias.to(torch.promote_types(bias.dtype, torch.float32))
    for tap in range(taps):
        result = torch.addcmul(result, rows[:, tap : tap + length], weight[:, tap])
    return F.silu(result).to(rows.dtype)


def conv_step(x: Tensor, window: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Shift x (B, D) into the window (B, D, taps), the oldest row first, in place; return silu(convolution), (B, D).

    The weight is (D, taps), the bias (D,).
    """
    if cpp_step.takes((x,), (window, weight, bias)):
        return cpp_step.conv_step(x, window, weight, bias)
    window.copy_(torch.cat([window[..., 1:], x.unsqueeze(-1)], -1))
    wide = torch.promote_types(x.dtype, torch.float32)
    return F.silu((window.to(wide) * weight).sum(-1) + bias).to(x.dtype)


def state_step(inputs: StepInputs) -> Tensor:
    """Advance the selective scan by one step, its state in place; returns y (B, D) in u's dtype."""
    u, delta, A, B, C, D, z, state = inputs
    if cpp_step.takes((u, delta, B, C, z), (A, D, state)):
        return cpp_step.state_step(inputs)
    values, delta, B, C, gate = (x.to(state.dtype) for x in (u, delta, B, C, z))
    delta = F.softplus(delta)
    state.mul_(torch.exp(delta.unsqueeze(-1) * A)).add_((delta * values).unsqueeze(-1) * B.unsqueeze(1))
    y = torch.addcmul(torch.bmm(state, C.unsqueeze(-1)).squeeze(-1), D, values)
    return (y * F.silu(gate)).to(u.dtype)


class CausalConv(nn.Conv1d):
    """`causal_conv` with the parameters of a depthwise `nn.Conv1d`.

    Raises:
        ValueError: more arguments, with which PEFT would build an adapter of this class.
    """

    def __init__(self, channels: int, taps: int, *more: Any, **settings: Any):
        if more or settings:
            raise ValueError("a CausalConv takes no adapter: leave conv1d out of target_modules")
        super().__init__(channels, channels, taps, groups=channels)

    def forward(self, rows: Tensor, history: Tensor | None = None, window: Tensor | None = None) -> Tensor:
        """Convolve rows (B, L, D) after `history`, or one row (B, D) that enters the `window` (B, D, taps) in place."""
        weight, bias = self.weight.squeeze(1), self.get_parameter("bias")
        return causal_conv(rows, history, weight, bias) if window is None else conv_step(rows, window, weight, bias)


class MambaBlock(nn.Module):
    """in_proj -> causal depthwise convolution -> SiLU -> selective scan -> gate -> out_proj.

    Args:
        width: features of the input and the output; here heads * head_dim of the replaced heads.
        d_state: states N per channel.
        d_conv: taps of the convolution.
        expand: channels D = expand * width.
        dt_rank: rank of the step-size projection.
        layer_index: the layer's place in the cache.
        copies: how many of the replaced heads read each head of the input, side by side; the input then holds every
            head once. (3, 2): five heads, of which three read the first of two. One input of all features by default.
    """

    def __init__(
        self,
        width: int,
        d_state: int,
        d_conv: int,
        expand: int,
        dt_rank: int,
        layer_index: int,
        copies: Sequence[int] = (1,),
    ):
        super().__init__()
        self.layer_index, self.d_state, self.d_conv, self.dt_rank = layer_index, d_state, d_conv, dt_rank
        channels = expand * width
        self.copies = tuple(copies)
        self.in_proj = nn.Linear(width * len(copies) // sum(copies), 2 * channels, bias=False)
        self.conv1d = CausalConv(channels, d_conv)
        self.x_proj = nn.Linear(channels, dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(dt_rank, channels)
        self.A_log = nn.Parameter(torch.empty(channels, d_state))
        self.D = nn.Parameter(torch.empty(channels))
        self.out_proj = nn.Linear(channels, width, bias=False)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialise as mamba_ssm does: S4D-real A, D = 1, softplus(dt bias) log-uniform, PyTorch's default elsewhere.

        Written with transformers' `init` functions, which leave parameters alone that a checkpoint has filled.
        """
        init.copy_(self.in_proj.weight, self._initial_in_proj())
        for layer in (self.conv1d, self.x_proj, self.out_proj):
            init.kaiming_uniform_(layer.weight, a=math.sqrt(5))
        bound = self.d_conv**-0.5
        init.uniform_(self.conv1d.get_parameter("bias"), -bound, bound)
        init.copy_(self.A_log, torch.arange(1, self.d_state + 1, device=self.A_log.device).log().expand_as(self.A_log))
        init.ones_(self.D)
        init.uniform_(self.dt_proj.weight, -(self.dt_rank**-0.5), self.dt_rank**-0.5)
        init.copy_(self.dt_proj.bias, initial_step_bias(self.dt_proj.bias))

    def _initial_in_proj(self) -> Tensor:
        """Draw a weight for every copy of a head, and add up those of one head: W_1 v + W_2 v = (W_1 + W_2) v.

        So the block starts as one whose input repeats the heads, on a CPU by the same random numbers.
        """
        weight, width = self.in_proj.weight, self.out_proj.out_features
        weight.new_empty(len(weight), width - weight.shape[1]).normal_()  # the library drew as many for the copies
        drawn = weight.new_empty(len(weight), width)
        nn.init.kaiming_uniform_(drawn, a=math.sqrt(5))
        heads = drawn.unflatten(1, (sum(self.copies), -1)).split(self.copies, 1)
        return torch.stack([copies.sum(1) for copies in heads], 1).flatten(1)

    @property
    def readout(self) -> nn.Linear:
        """The linear layer that ends the block, as `recurformer.recover.calibrate` solves for it."""
        return self.out_proj

    def whole_readout(self) -> Tensor:
        """Return the matrix (width, D) from the channels to the block's outputs."""
        return self.out_proj.weight

    def transition(self) -> tuple[Tensor, Tensor]:
        """Return A = -exp(A_log) and D in the precision of the states."""
        dtype = torch.promote_types(self.A_log.dtype, torch.float32)
        return -torch.exp(self.A_log.to(dtype)), self.D.to(dtype)

    def forward(
        self,
        x: Tensor,
        cache: Cache | None = None,
        padding_mask: Tensor | None = None,
        fused: FusedMamba | None = None,
    ) -> Tensor:
        """Mix along L; returns (B, L, width), or where `out_proj` is fused, the channels (B, L, D) before it.

        Args:
            x: inputs (B, L, features of `in_proj`).
            cache: a transformers cache; this layer's states are continued and updated in place.
            padding_mask: (B, L), 0 at padding tokens, which then neither enter the convolution nor the state.
            fused: weights that take the place of the parameters.
        """
        layer: Any = None if cache is None else cache.layers[self.layer_index]
        if x.shape[1] == 1 and cache is not None and (states := self.states_of_step(cache)) is not None:
            return self._leave(self._step(x.squeeze(1), states, padding_mask, fused).unsqueeze(1), fused)
        packing = None if padding_mask is None else Packing(padding_mask)
        if packing is not None:
            x = packing.pack(x)
        rows, gate = self.in_proj(x).chunk(2, dim=-1)  # (B, L, D) each
        history = state = None
        if layer is not None and layer.has_previous_state[0]:
            past, state = layer.conv_states[0], layer.recurrent_states[0]
            history = past[..., past.shape[-1] + 1 - self.d_conv :]  # (B, D, taps - 1)
            if torch.is_grad_enabled():  # the cache updates in place tensors that autograd has to keep
                history, state = history.clone(), state.clone()
        values = self.conv1d(rows, history)  # (B, L, D)
        if cache is not None:
            if packing is None:
                newest = rows[:, -self.d_conv :].transpose(1, 2)  # (B, D, taps)
            else:
                newest = packing.newest(rows, history, self.d_conv)
            cache.update_conv_state(newest, self.layer_index, conv_kernel_size=self.d_conv)
        step, write, read = self._selection(values, fused)  # (B, L, D), (B, L, N), (B, L, N)
        if packing is not None:
            step = step.masked_fill(~packing.real.unsqueeze(-1), NO_STEP)
        A, D = self.transition() if fused is None else (fused.A, fused.D)  # (D, N), (D,)
        y, state = selective_scan(
            values.transpose(1, 2),
            step.transpose(1, 2),
            A,
            write.transpose(1, 2),
            read.transpose(1, 2),
            D=D,
            z=gate.transpose(1, 2),
            delta_softplus=True,
            initial_state=state,
            return_last_state=True,
        )  # (B, D, L), (B, D, N)
        if cache is not None:
            # contiguous, because the cache copies the layout of its first state, and steps write to that copy
            cache.update_recurrent_state(state.contiguous(), self.layer_index)
        y = y.transpose(1, 2)  # (B, L, D)
        return self._leave(y if packing is None else packing.unpack(y), fused)

    def _leave(self, channels: Tensor, fused: FusedMamba | None) -> Tensor:
        return channels if fused is not None and fused.output is not None else self.out_proj(channels)

    def _selection(self, values: Tensor, fused: FusedMamba | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return step size (..., D), input and output matrix (..., N) of the convolved values (..., D)."""
        sizes = [self.dt_rank, self.d_state, self.d_state]
        if fused is not None and fused.selection is not None:
            sizes[0] = values.shape[-1]
            step, write, read = F.linear(values, *fused.selection).split(sizes, dim=-1)
            return step, write, read
        step, write, read = self.x_proj(values).split(sizes, dim=-1)
        return self.dt_proj(step), write, read

    def states_of_step(self, cache: Any) -> tuple[Tensor, Tensor] | None:
        """Return the convolution's window (B, D, taps) and the state (B, D, N), which one token updates in place.

        None where it cannot: with gradients, before the first input, and in a cache that records the past, whose
        window is longer.
        """
        layer = cache.layers[self.layer_index]
        if torch.is_grad_enabled() or not layer.has_previous_state[0]:
            return None
        window: Tensor = layer.conv_states[0]
        return (window, layer.recurrent_states[0]) if window.shape[-1] == self.d_conv else None

    def _step(
        self, x: Tensor, states: tuple[Tensor, Tensor], padding_mask: Tensor | None, fused: FusedMamba | None
    ) -> Tensor:
        """Mix one token (B, features); returns the channels (B, D). Rows of padding, 0 in (B, 1), keep their states."""
        if padding_mask is not None:
            kept = [state.clone() for state in states]
            channels = self._step(x, states, None, fused)
            for state, before in zip(states, kept, strict=True):
                state.copy_(torch.where(padding_mask.bool().unsqueeze(-1), state, before))
            return channels
        if fused is not None and (inputs := self.step_inputs(x, states, fused)).taken():
            return cpp_step.block_step(inputs)
        window, state = states
        row, gate = self.in_proj(x).chunk(2, dim=-1)
        values = self.conv1d(row, window=window)
        step, write, read = self._selection(values, fused)
        A, D = self.transition() if fused is None else (fused.A, fused.D)
        return state_step(StepInputs(values, step, A, write, read, D, gate, state))

    def step_inputs(self, x: Tensor, states: tuple[Tensor, Tensor], fused: FusedMamba) -> BlockInputs:
        """Return what the kernel of a step is given: a token (B, features), window and state."""
        selection, bias = fused.selection or (self.x_proj.weight, None)
        step = self.dt_proj if fused.selection is None else None
        return BlockInputs(
            x=x,
            in_proj=self.in_proj.weight,
            weight=self.conv1d.weight,
            bias=self.conv1d.get_parameter("bias"),
            selection=selection,
            selection_bias=bias,
            step_weight=None if step is None else step.weight,
            step_bias=None if step is None else step.bias,
            window=states[0],
            A=fused.A,
            D=fused.D,
            state=states[1],
        )


class MambaMixer(MambaBlock):
    """The paper's mixer: one Mamba block over the values of all replaced heads of a layer, side by side (Algorithm 1).

    Its sizes are those that a RecurFormer config names; arguments as of `Mixer`.
    """

    reads_keys: ClassVar[bool] = False

    def __init__(self, config: Any, layout: HeadLayout, head_dim: int, layer_index: int):
        super().__init__(
            len(layout.replaced) * head_dim,
            d_state=config.mamba_d_state,
            d_conv=config.mamba_d_conv,
            expand=config.mamba_expand,
            dt_rank=config.mamba_dt_rank,
            layer_index=layer_index,
            copies=list(layout.replaced_value_heads.values()),
        )
