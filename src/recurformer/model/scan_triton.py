"""The selective scan as Triton kernels for CUDA, with an initial state and gradients through both ends of a sequence.

The sequence is cut into segments, so many that even one short sequence should fill a GPU. Three kernels run one after
another: what each segment leaves if it starts from zero; what therefore enters each; the outputs of all. The backward
pass does the same from the end. There are no atomics: every run gives the same bits.
"""

import os

import torch
from torch import Tensor

from . import scan_triton_launch as launch
from .scan_torch import operator_name
from .scan_triton_backward import gradients, segment_adjoints
from .scan_triton_forward import outputs, segment_ends
from .scan_triton_lanes import LANES, triton
from .scan_triton_launch import carry_over, paired_rows, rows, single

WIDTHS = (4, 8, 16, 32, 64)
"""The numbers of states per channel that the kernels can divide among lanes."""
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def unusable() -> str | None:
    """Return why the kernels cannot run on this machine; None if they can."""
    if triton is None:
        return "Triton is not installed"
    return None if INTERPRETED or torch.cuda.is_available() else "there is no CUDA device"


@torch.library.custom_op(operator_name(__name__, "segmented_scan"), mutates_args=())
def segmented_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y (B, D, L), the last state (B, D, N) and the states at the chunks' starts (B, chunks, N, D)."""
    y, last_state, starts = _empty_outputs(u, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state)
    (batch, channels, length), width = u.shape, A.shape[1]
    blocks, chunks, segment_chunks, segments = launch.divide(batch, channels, length, width, launch.FORWARD_PROGRAMS)
    settings = launch.settings(width, delta_softplus)
    elapsed = starts.new_empty(batch, segments, channels)
    rows_u, rows_delta, rows_z, rows_B, rows_C = rows(u), rows(delta), rows(z), paired_rows(B), paired_rows(C)
    transition, skip, bias = A.float().contiguous(), single(D), single(delta_bias)
    with torch.cuda.device_of(u):
        if segments > 1:
            segment_ends[blocks, segments - 1, batch](
                rows_u, rows_delta, transition, rows_B, bias, starts, elapsed,
                channels, length, segments, chunks, segment_chunks, **settings,
            )  # fmt: skip
        carry_over(starts, elapsed, transition, single(initial_state), segment_chunks, reverse=False)
        outputs[blocks, segments, batch](
            rows_u, rows_delta, rows_z, transition, rows_B, rows_C, skip, bias, starts, y, last_state,
            channels, length, chunks, segment_chunks, **settings,
        )  # fmt: skip
    return y, last_state, starts


@segmented_scan.register_fake
def _empty_outputs(u, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state):
    (batch, channels, length), width = u.shape, A.shape[1]
    y = u.new_empty(batch, length, channels).transpose(1, 2)  # the output projection reads it as (B, L, D)
    last_state = u.new_empty(batch, channels, width, dtype=torch.float32)
    chunks = (length + launch.CHUNK - 1) // launch.CHUNK
    return y, last_state, u.new_empty(batch, chunks, width, channels, dtype=torch.float32)


@torch.library.custom_op(operator_name(__name__, "segmented_scan_backward"), mutates_args=())
def segmented_scan_backward(
    grad_y: Tensor | None,
    grad_last: Tensor | None,
    starts: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
    initial_state: Tensor | None,
) -> list[Tensor]:
    """Return the gradients of u, delta, A, B, C, D, z, delta_bias, initial_state; empty for an absent input."""
    inputs = (u, delta, A, B, C, D, z, delta_bias, initial_state)
    (batch, channels, length), width = u.shape, A.shape[1]
    blocks, chunks, segment_chunks, segments = launch.divide(batch, channels, length, width, launch.BACKWARD_PROGRAMS)
    settings = launch.settings(width, delta_softplus)
    du, ddelta, dA, dB, dC, dD, dz, dbias, dinitial = _empty_gradients(
        grad_y, grad_last, starts, *inputs[:-1], delta_softplus, initial_state
    )
    adjoints, sums_A = (starts.new_empty(batch, segments, width, channels) for _ in range(2))
    elapsed, sums_D, sums_bias = (starts.new_empty(batch, segments, channels) for _ in range(3))
    sums_BC = starts.new_empty(2, blocks, batch, length, width)
    scratch = starts.new_empty(batch, segments, blocks, launch.CHUNK // launch.STEPS, settings["STATES"], LANES)
    rows_grad = rows(torch.zeros_like(u) if grad_y is None else grad_y)
    rows_u, rows_delta, rows_z, rows_B, rows_C = rows(u), rows(delta), rows(z), paired_rows(B), paired_rows(C)
    transition, skip, bias = A.float().contiguous(), single(D), single(delta_bias)
    with torch.cuda.device_of(u):
        if segments > 1:
            segment_adjoints[blocks, segments - 1, batch](
                rows_grad, rows_delta, rows_z, transition, rows_C, bias, adjoints, elapsed,
                channels, length, segments, chunks, segment_chunks, **settings,
            )  # fmt: skip
        carry_over(adjoints, elapsed, transition, single(grad_last), 1, reverse=True)
        gradients[blocks, segments, batch](
            rows_grad, rows_u, rows_delta, rows_z, transition, rows_B, rows_C, skip, bias, starts, adjoints, scratch,
            du, ddelta, dz if dz.numel() else None, sums_A, sums_BC, sums_D, sums_bias,
            dinitial if dinitial.numel() else None, channels, length, segments, chunks, segment_chunks, **settings,
        )  # fmt: skip
    dA.copy_(sums_A.sum((0, 1)).t())
    for grad, sums in ((dB, sums_BC[0]), (dC, sums_BC[1])):
        grad.copy_(sums.sum(0).transpose(1, 2))
    for grad, sums in ((dD, sums_D), (dbias, sums_bias)):
        if grad.numel():
            grad.copy_(sums.sum((0, 1)))
    return [du, ddelta, dA, dB, dC, dD, dz, dbias, dinitial]


@segmented_scan_backward.register_fake
def _empty_gradients(grad_y, grad_last, starts, u, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state):
    sequences = (u, delta, B, C, z)  # written as rows (B, L, X)
    return [
        u.new_empty(0)
        if x is None
        else x.new_empty(len(x), x.shape[2], x.shape[1]).transpose(1, 2)
        if any(x is sequence for sequence in sequences)
        else x.new_empty(x.shape)
        for x in (u, delta, A, B, C, D, z, delta_bias, initial_state)
    ]


def _save_inputs(ctx, inputs, output):
    *tensors, ctx.delta_softplus, initial_state = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, initial_state, output[2])


def _backward(ctx, grad_y, grad_last, _grad_starts):
    *tensors, initial_state, starts = ctx.saved_tensors
    grads = segmented_scan_backward(grad_y, grad_last, starts, *tensors, ctx.delta_softplus, initial_state)
    *grads, grad_initial = (
        None if x is None else grad for x, grad in zip((*tensors, initial_state), grads, strict=True)
    )
    return *grads, None, grad_initial


segmented_scan.register_autograd(_backward, setup_context=_save_inputs)


def refuses(u: Tensor, A: Tensor, delta_softplus: bool) -> str | None:
    """Return why the kernels cannot take these inputs, or None."""
    if (reason := unusable()) is not None:
        return reason
    if not (u.is_cuda or INTERPRETED):
        return f"the Triton kernels take CUDA tensors, the input is on {u.device}"
    if A.shape[1] not in WIDTHS or u.dtype == torch.float64:
        return f"the Triton kernels take up to float32 and N in {WIDTHS}, not {u.dtype} and N={A.shape[1]}"
    return None


def scan_triton(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run the Triton kernels; see `recurformer.model.scan.selective_scan`."""
    y, last_state, _ = segmented_scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state)
    return y, last_state
