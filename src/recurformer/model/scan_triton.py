"""The selective scan as Triton kernels for CUDA, with an initial state and gradients through both ends of a sequence.

The sequence is cut into segments, so many that even one short sequence should fill a GPU. Three kernels run one after
another: the end state of each segment from zero; the state that therefore enters each; the outputs of all. The backward
pass does the same from the end. There are no atomics: every run gives the same bits.
"""

import os

import torch
from torch import Tensor

from . import scan_triton_launch as launch
from .scan_inputs import ScanInputs, scan_operator
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


def _forward(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus):
    """Return y (B, D, L), the last state (B, D, N) and the states at the chunks' starts (B, chunks, N, D)."""
    y, last_state, starts = _empty_outputs(u, delta, A)
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


def _empty_outputs(u, delta, A, *_):
    (batch, channels, length), width = u.shape, A.shape[1]
    y = u.new_empty(batch, length, channels).transpose(1, 2)  # the output projection reads it as (B, L, D)
    last_state = u.new_empty(batch, channels, width, dtype=torch.float32)
    chunks = (length + launch.CHUNK - 1) // launch.CHUNK
    return y, last_state, u.new_empty(batch, chunks, width, channels, dtype=torch.float32)


def _backward(grad_y, grad_last, starts, u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus):
    """Return the gradients of all tensors; empty for an absent one."""
    inputs = (u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus)
    (batch, channels, length), width = u.shape, A.shape[1]
    blocks, chunks, segment_chunks, segments = launch.divide(batch, channels, length, width, launch.BACKWARD_PROGRAMS)
    settings = launch.settings(width, delta_softplus)
    du, ddelta, dA, dB, dC, dD, dz, dbias, dinitial = _empty_gradients(grad_y, grad_last, starts, *inputs)
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


def _empty_gradients(grad_y, grad_last, starts, *inputs):
    tensors = ScanInputs(*inputs)
    sequences = (tensors.u, tensors.delta, tensors.B, tensors.C, tensors.z)  # written as rows (B, L, X)
    return [
        starts.new_empty(0)
        if x is None
        else x.new_empty(len(x), x.shape[2], x.shape[1]).transpose(1, 2)
        if any(x is sequence for sequence in sequences)
        else x.new_empty(x.shape)
        for x in tensors[:-1]
    ]


segmented_scan, segmented_scan_backward = scan_operator(
    __name__, "segmented_scan", (_forward, _backward), (_empty_outputs, _empty_gradients)
)


def refuses(u: Tensor, A: Tensor, delta_softplus: bool) -> str | None:
    """Return why the kernels cannot take these inputs, or None."""
    if (reason := unusable()) is not None:
        return reason
    if not (u.is_cuda or INTERPRETED):
        return f"the Triton kernels take CUDA tensors, the input is on {u.device}"
    if A.shape[1] not in WIDTHS or u.dtype == torch.float64:
        return f"the Triton kernels take up to float32 and N in {WIDTHS}, not {u.dtype} and N={A.shape[1]}"
    return None


def scan_triton(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Run the Triton kernels; see `recurformer.model.scan.selective_scan`."""
    y, last_state, _ = segmented_scan(*inputs)
    return y, last_state
