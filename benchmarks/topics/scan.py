"""The selective scan: our backends, transformers' torch loop, mambapy, mamba-ssm's kernel.

Inputs are drawn as at Mamba's initialisation and laid out as the block hands them over, time before channels;
mamba-ssm's kernel gets its own layout. transformers' loop has a backward of quadratic cost (50 s at 1,024 tokens), so
it is trained at short lengths only.
"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.models.mamba import modeling_mamba

from benchmarks.case import Call, Candidate, Case, Options
from recurformer.model.scan import SCAN_BACKENDS, choose_backend, selective_scan

Shape = tuple[int, int, int, int]  # batch, length, channels, states
Scan = Callable[..., Tensor]

SHAPES: dict[str, tuple[Shape, ...]] = {
    "cpu": ((4, 256, 256, 16), (1, 1024, 1152, 16), (1, 4096, 1152, 16)),
    "cuda": ((1, 1024, 1152, 16), (8, 2048, 4096, 16), (1, 16384, 896, 16)),
}
DTYPES = {"cpu": (torch.float32,), "cuda": (torch.float32, torch.bfloat16)}
QUADRATIC_UP_TO = 256
"""Most tokens at which a loop with a backward of quadratic cost is trained."""


def draw(shape: Shape, options: Options, dtype: torch.dtype, time_last: bool = False) -> list[Tensor]:
    """u, delta, A, B, C, D, z, delta_bias of one scan, in the public function's (B, D, L)."""
    batch, length, channels, states = shape
    generator = torch.Generator().manual_seed(0)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, dtype=torch.float64)

    step = torch.exp(torch.empty(channels, dtype=torch.float64).uniform_(-6.9, -2.3, generator=generator))
    bias = step + torch.log(-torch.expm1(-step))
    rows = torch.arange(1, states + 1, dtype=torch.float64)
    A, D = -rows * torch.exp(0.1 * normal(channels, states)), 1 + 0.1 * normal(channels)
    u, delta, z = (normal(batch, length, channels) for _ in range(3))
    B, C = (normal(batch, length, states) for _ in range(2))
    precise = dtype if dtype == torch.float64 else torch.float32
    moved = [x.to(options.device, dtype).transpose(1, 2) for x in (u, delta, B, C, z)]
    u, delta, B, C, z = (x.contiguous() for x in moved) if time_last else moved
    A, D, bias = (x.to(options.device, precise) for x in (A, D, bias))
    return [u, delta, A, B, C, D, z, bias]


def _ours(backend: str | None, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, *rest: Tensor) -> Tensor:
    D, z, bias = rest
    return selective_scan(u, delta, A, B, C, D=D, z=z, delta_bias=bias, delta_softplus=True, backend=backend)  # type: ignore[return-value]


def _transformers(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, *rest: Tensor) -> Tensor:
    D, z, bias = rest
    decorated = modeling_mamba.mamba_selective_scan
    loop = getattr(decorated, "__wrapped__", decorated)  # the torch path, also where kernels are installed
    return loop(u, delta, A, B, C, D=D, z=z, delta_bias=bias, delta_softplus=True)


def _mambapy(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, *rest: Tensor) -> Tensor:
    from mambapy.pscan import pscan

    D, z, bias = rest
    u, delta, B, C, z = (x.transpose(1, 2) for x in (u, delta, B, C, z))
    step = F.softplus(delta + bias).unsqueeze(-1)
    states = pscan(torch.exp(step * A), step * B.unsqueeze(2) * u.unsqueeze(-1))
    y = (states @ C.unsqueeze(-1)).squeeze(3) + D * u
    return (y * F.silu(z)).transpose(1, 2)


def _backends(shape: Shape, dtype: torch.dtype, options: Options) -> dict[str, str]:
    """Candidate -> our backend. `recurformer` is the package's own choice; the reference is no contender."""
    u, A = torch.empty(1, 1, 2, device=options.device, dtype=dtype), torch.empty(1, shape[-1])
    able = [name for name, backend in SCAN_BACKENDS.items() if backend.refuses(u, A, True) is None]
    named = {f"recurformer {name}": name for name in able if name != "reference"}
    return {"recurformer": choose_backend(u, A, delta_softplus=True), **named}


def _scans(backends: dict[str, str], shape: Shape, direction: str, options: Options) -> dict[str, Scan]:
    """What can run here."""
    ours: dict[str, Scan] = {name: partial(_ours, backend) for name, backend in backends.items()}
    if options.device == "cuda":
        return ours
    if direction == "forward" or shape[1] <= QUADRATIC_UP_TO:
        ours["transformers"] = _transformers
    if find_spec("mambapy"):
        ours["mambapy"] = _mambapy
    return ours


def _baseline(scans: dict[str, Scan], direction: str) -> str:
    first = ["recurformer mamba_ssm", "transformers" if direction == "forward" else "mambapy", "recurformer torch"]
    return next(name for name in first if name in scans)


def forward(scan: Scan, inputs: list[Tensor]) -> Call:
    """The scan without gradients."""
    return Call(torch.no_grad()(lambda: scan(*inputs)))


def both(scan: Scan, inputs: list[Tensor]) -> Call:
    """The scan and the gradients of all its inputs."""
    leaves = [x.requires_grad_() for x in inputs]
    gradient = torch.ones_like(inputs[0])
    return Call(lambda: torch.autograd.grad(scan(*inputs), leaves, gradient))


def backward(scan: Scan, inputs: list[Tensor]) -> Call:
    """The gradients alone."""
    leaves = [x.requires_grad_() for x in inputs]
    gradient, made = torch.ones_like(inputs[0]), list[Tensor]()
    return Call(lambda: torch.autograd.grad(made.pop(), leaves, gradient), before=lambda: made.append(scan(*inputs)))


DIRECTIONS = {
    "cpu": {"forward": forward, "forward+backward": both},
    "cuda": {"forward": forward, "backward": backward},
}


def cases(options: Options) -> Iterator[Case]:
    """One case for each shape, precision and direction."""
    for shape in SHAPES[options.device][: 1 if options.quick else None]:
        for dtype in DTYPES[options.device]:
            for direction in DIRECTIONS[options.device]:
                yield _case(shape, dtype, direction, options)


def _case(shape: Shape, dtype: torch.dtype, direction: str, options: Options) -> Case:
    make = DIRECTIONS[options.device][direction]
    backends = _backends(shape, dtype, options)
    scans = _scans(backends, shape, direction, options)

    def prepare(name: str) -> Call:
        return make(scans[name], draw(shape, options, dtype, time_last=backends.get(name) == "mamba_ssm"))

    def expected() -> Tensor:
        return _ours("reference", *draw(shape, options, torch.float64))

    named = "x".join(map(str, shape))
    precision = str(dtype).removeprefix("torch.")
    candidates = tuple(Candidate(name, partial(prepare, name), {"backend": backends.get(name, "")}) for name in scans)
    sizes = dict(zip(("batch", "tokens", "channels", "states"), shape, strict=True))
    compared = expected if direction == "forward" else None
    return Case(f"{named} {precision} {direction}", _baseline(scans, direction), candidates, sizes, compared)
