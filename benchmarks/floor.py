"""The floor: a reference for a call's time, from three rates that are measured in the rounds of the same case.

    floor = max(bytes / read rate, flops / GEMM rate + exponentials / exp rate)

Arithmetic and exponentials share the processor's vector units, so their times add up; reading and writing overlap with
both. The rates are those of torch's own fastest operators: a square matrix product (float32 on a processor, bfloat16
on a GPU), a matrix-vector product of a matrix that no cache holds, and `torch.exp` on a vector that the second-level
cache holds. On a GPU exponentials count as free.

The achieved share of the floor is floor / time: 1 would be perfect. A hand-written kernel can have a faster exp than
torch and so a share above 1; the work counted is that of the method, so folded weights raise the share too.
"""

from collections.abc import Mapping

import torch

from benchmarks.case import Call, Options, Work

GEMM_SIZE = {"cpu": 1024, "cuda": 8192}
READ_SIZE = 8192
EXP_SIZE = 2**17


def _exponentials() -> Call:
    values, out = torch.randn(EXP_SIZE), torch.empty(EXP_SIZE)
    return Call(lambda: torch.exp(values, out=out), Work(exponentials=EXP_SIZE))


def probes(options: Options) -> dict[str, Call]:
    """The calls that measure the rates, named after the field of `Work` that each of them consists of."""
    size = GEMM_SIZE[options.device]

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, device=options.device, dtype=options.dtype)

    left, right, product = (normal(size, size) for _ in range(3))
    matrix, vector = normal(READ_SIZE, READ_SIZE), normal(READ_SIZE)
    found = {
        "flops": Call(lambda: torch.mm(left, right, out=product), Work(flops=2 * size**3)),
        "bytes": Call(lambda: torch.mv(matrix, vector), Work(bytes=matrix.numel() * matrix.element_size())),
    }
    return found if options.device == "cuda" else found | {"exponentials": _exponentials()}


def floor_seconds(work: Work, probed: Mapping[str, Call], seconds: Mapping[str, float]) -> float:
    """The floor of `work`, in seconds, when the probes took `seconds`."""

    def at_rate(kind: str) -> float:
        if kind not in probed:
            return 0.0
        return getattr(work, kind) / getattr(probed[kind].work, kind) * seconds[kind]

    return max(at_rate("bytes"), at_rate("flops") + at_rate("exponentials"))
