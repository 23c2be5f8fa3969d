"""The needs of a job, as formulas of model, sequence length, batch size and precision. Nothing here imports torch.

    memory = libraries + weights (with gradients and moments) + activations + logits + cache
    time   = start + reading the checkpoint + operations / speed + written tokens x weights / bandwidth

Constants of the libraries and of a processor are measured on the recorded default study (tests/workflow holds every
rule's request against them); those of a card are its data sheet's, times a utilisation that is an assumption.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from recurformer.plan.training_memory import BF16, FLOAT32, LOGITS_BYTES, layer_values, training_bytes
from recurformer.plan.work import Work

MB = 2**20
ATTENTION_ROWS = 128
"""Query rows whose explicit weights exist at once where attention is watched (`recurformer.heads.attention`)."""


@dataclass(frozen=True)
class Kind:
    """Constants of a kind of work: megabytes of its libraries, how many forward passes a pass costs, and bytes of
    weights that it opens in a second.
    """

    library_mb: int
    passes: int
    opening: float = 5e8


KINDS = {
    "fetch": Kind(500, 0, opening=2e7),
    "copy": Kind(500, 0),
    "draw": Kind(600, 1, opening=5e9),
    "read": Kind(500, 1),
    "write": Kind(600, 1),
    "train": Kind(850, 3),
}
"""Downloading weights; copying and changing them; drawing them at random, on the device itself, then reading; reading
text; reading and writing it; training, whose backward pass costs two.
"""


@dataclass(frozen=True)
class Device:
    """A machine for jobs: operations a second by bytes of a number, bytes a second, seconds of a layer's fixed cost in
    a forward pass, and what its own libraries take in the host's memory (megabytes).
    """

    name: str
    speed: Mapping[int, float]
    bandwidth: float
    layer_seconds: float
    library_mb: int

    @property
    def is_card(self) -> bool:
        """Whether it has a memory of its own."""
        return self.library_mb > 0


CORE = Device("one processor core", {2: 2e10, 4: 2e10}, 5e9, 0.01, 0)
"""A core of the machine that recorded the default study."""
A100 = Device("A100 80 GB", {2: 0.4 * 312e12, 4: 0.6 * 19.5e12}, 0.6 * 2039e9, 1e-3, 3000)
"""NVIDIA's data sheet: 312 TFLOP/s dense in bfloat16, 19.5 in float32, 2,039 GB/s."""
DEVICES = {"cpu": CORE, "gpu": A100}
ASSUMPTIONS = (
    "formula: operations (2 for each weight and token, thrice that in training, and attention) over the speed of the "
    f"device, {A100.name}: {A100.speed[2] / 1e12:.0f} TFLOP/s in bfloat16 (40 % of its data sheet), "
    f"{A100.speed[4] / 1e12:.0f} in float32 (60 %); {CORE.name}: {CORE.speed[4] / 1e9:.0f} GFLOP/s"
)

SLACK = 1.2  # memory: allocators round, and blocks of both sizes exist while one replaces the other
CONTEXT_MB = 1000  # of a card: CUDA's context and its libraries' workspaces
START_SECONDS = 20  # imports
LIMIT_FACTOR, LIMIT_MINUTES = 3, 10  # a limit stops what hangs: it is no estimate


def _reading_bytes(work: Work) -> float:
    """Weights of all models in memory, one layer's activations at a time, attention where it is watched, logits, and
    the cache of a model that writes, as if no head were replaced.
    """
    weights = work.parameters * work.weight_bytes * work.models
    watched = 3 * FLOAT32 * ATTENTION_ROWS * work.shape.heads if work.kind == "read" else 0
    token = work.weight_bytes * layer_values(work.shape, work.beta) + watched
    logits = LOGITS_BYTES * min(work.scored, work.tokens) * work.shape.vocabulary
    held = (work.tokens + work.written) * work.shape.cache_values * work.weight_bytes if work.kind == "write" else 0
    return weights + work.batch * (work.tokens * token + logits + held) + work.inner_bytes


def computing_bytes(work: Work, device: Device) -> float:
    """All that lies in the memory of each device that computes."""
    if work.filled:
        return work.filled
    if work.kind == "train":
        return work.inner_bytes + training_bytes(work, BF16 if device.is_card else FLOAT32)
    return _reading_bytes(work)


def memory_mb(work: Work, device: Device) -> int:
    """Megabytes of the host for all processes: with a card only its libraries and, on its way there, one copy of the
    weights, where they are not drawn on the card itself.
    """
    read = 0 if work.kind == "draw" else work.parameters * FLOAT32 * work.models
    held = read if device.is_card else computing_bytes(work, device)
    return _rounded(work.processes * (SLACK * (KINDS[work.kind].library_mb + held / MB) + device.library_mb))


def card_mb(work: Work, device: Device) -> int | None:
    """Megabytes of each card, None without one."""
    if device.is_card and work.filled:
        return ceil(work.filled / MB)
    return _rounded(SLACK * computing_bytes(work, device) / MB + CONTEXT_MB) if device.is_card else None


def operations(work: Work) -> float:
    """Floating-point operations of the whole job, attention's causal half among them."""
    shape = work.shape
    attention = 2 * shape.layers * shape.width * work.tokens * (1 - work.beta)
    token = 2 * shape.multiplied_parameters(work.beta) + attention
    return KINDS[work.kind].passes * token * work.tokens * work.sequences


def minutes(work: Work, device: Device, threads: int = 1) -> float:
    """Expected minutes, without waiting; `threads` are the cores of a job without a card."""
    share = work.processes if device.is_card else threads
    speed = device.speed[2 if work.kind == "train" else work.weight_bytes] * share
    batches = ceil(work.sequences / (work.batch * work.processes))
    passes = batches * (KINDS[work.kind].passes + work.written)
    weights = work.parameters * work.weight_bytes
    seconds = START_SECONDS + work.models * weights / KINDS[work.kind].opening
    seconds += operations(work) / speed + passes * work.shape.layers * device.layer_seconds
    return (seconds + batches * work.written * weights / device.bandwidth) / 60


def limit_minutes(expected: float) -> int:
    """When a job that should take `expected` minutes is stopped."""
    return 10 * ceil((LIMIT_MINUTES + LIMIT_FACTOR * expected) / 10)


def _rounded(megabytes: float) -> int:
    return 100 * ceil(megabytes / 100)
