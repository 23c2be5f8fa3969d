"""Inputs of the selective scan, its definition in float64, and how far a backend is from it."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch.nn import functional as F

from recurformer.model import scan_cuda
from recurformer.model.scan import selective_scan


def make_inputs(batch, channels, length, width, dtype=torch.float64, without=(), seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs = {
        "u": normal(batch, channels, length),
        "delta": normal(batch, channels, length) - 1,
        "A": -torch.exp(normal(channels, width)),
        "B": normal(batch, width, length),
        "C": normal(batch, width, length),
        "D": normal(channels),
        "z": normal(batch, channels, length),
        "delta_bias": normal(channels),
        "initial_state": normal(batch, channels, width),
    }
    return {name: x.to(dtype).requires_grad_() for name, x in inputs.items() if name not in without}


def definition(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, initial_state=None):
    """The recurrence, spelled out in float64."""
    u, delta, A, B, C, D, z, delta_bias, h = (
        None if x is None else x.double() for x in (u, delta, A, B, C, D, z, delta_bias, initial_state)
    )
    if delta_bias is not None:
        delta = delta + delta_bias[:, None]
    if delta_softplus:
        delta = torch.log1p(torch.exp(-delta.abs())) + delta.clamp(min=0)
    h = u.new_zeros(u.shape[0], *A.shape) if h is None else h
    columns = []
    for t in range(u.shape[2]):
        h = torch.exp(delta[:, :, t, None] * A) * h + (delta[:, :, t] * u[:, :, t])[..., None] * B[:, None, :, t]
        columns.append(torch.einsum("bdn,bn->bd", h, C[:, :, t]))
    y = torch.stack(columns, 2)
    y = y if D is None else y + D[:, None] * u
    return (y if z is None else y * z * torch.sigmoid(z)), h


def deviation(result, expected):
    return float(
        (result.detach().double() - expected.detach()).abs().max() / expected.detach().abs().max().clamp(min=1e-3)
    )


def compare(inputs, backend, delta_softplus=True, tolerance=2e-6, weights=(1.0, 1.0)):
    """Forward, last state and all gradients of one backend against the definition."""
    exact = {name: x.detach().double().requires_grad_() for name, x in inputs.items()}
    generator = torch.Generator().manual_seed(1)
    results = []
    for arguments, run in ((inputs, None), (exact, definition)):
        if run is None:
            y, last = selective_scan(
                **arguments, delta_softplus=delta_softplus, return_last_state=True, backend=backend
            )
        else:
            y, last = run(**arguments, delta_softplus=delta_softplus)
        generator.manual_seed(1)
        directions = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x) for x in (y, last)]
        loss = sum(w * (x * d).sum() for w, x, d in zip(weights, (y, last), directions, strict=True) if w)
        grads = torch.autograd.grad(loss, list(arguments.values()), allow_unused=True)
        results.append([y, last, *grads])
    for name, result, expected in zip(["y", "last", *inputs], *results, strict=True):
        if expected is None or result is None:
            assert expected is None or not expected.any(), name
            continue
        assert deviation(result, expected) <= tolerance, (name, deviation(result, expected))


class KernelDouble:
    """Stands in for the CUDA extension: its calling convention and limits, computed by the definition."""

    @staticmethod
    def fwd(u, delta, A, B, C, D, z, delta_bias, delta_softplus):
        assert B.dim() == C.dim() == 4 and A.dtype == torch.float32
        assert u.dtype == delta.dtype == B.dtype == C.dtype and all(x.stride(-1) == 1 for x in (u, delta, B, C))
        y, h = definition(u, delta, A, B[:, 0], C[:, 0], D, None, delta_bias, delta_softplus)
        chunks = torch.full((*u.shape[:2], (u.shape[2] + 2047) // 2048, 2 * A.shape[1]), float("nan"))
        chunks[:, :, -1, 1::2] = h.float()
        y = y.to(u.dtype)
        return [y, chunks] if z is None else [y, chunks, (y * F.silu(z)).to(u.dtype)]

    @staticmethod
    def bwd(u, delta, A, B, C, D, z, delta_bias, grad_y, chunks, out, dz, delta_softplus, recompute):
        assert grad_y.stride(-1) == 1 and (out is None) == (z is None) and dz is None and not recompute
        given_inputs = (u, delta, A, B[:, 0], C[:, 0], D, z, delta_bias)
        leaves = [None if x is None else x.detach().double().requires_grad_() for x in given_inputs]

        def differentiate():
            y, _ = definition(*leaves, delta_softplus)
            return torch.autograd.grad(y, [x for x in leaves if x is not None], grad_y.double())

        with ThreadPoolExecutor(1) as other:  # this thread is inside an operator, where nothing is recorded
            grads = iter(other.submit(differentiate).result())
        du, ddelta, dA, dB, dC, dD, dz, dbias = (None if x is None else next(grads).float() for x in leaves)
        result = [du, ddelta, dA, dB.unsqueeze(1), dC.unsqueeze(1), dD, dbias]
        return result if dz is None else [*result, dz]


def load_double(monkeypatch):
    """Have mamba-ssm's kernel there, as a double."""
    extension = scan_cuda.Extension("a double", KernelDouble.fwd, KernelDouble.bwd)
    monkeypatch.setattr(scan_cuda, "load_extension", lambda: extension)
