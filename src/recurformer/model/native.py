"""The C++ kernels of `kernels/`: compiled on first use, kept, and called through ctypes.

Loading the library chooses the instruction set by the processor that torch sees, and each instruction set has a library
of its own: a cache that several machines share never hands AVX-512 code to an older one. Without a compiler there
is no library; its callers then have torch to fall back on, and `load_library` says why.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from filelock import FileLock
from torch import Tensor

CACHE_VARIABLE = "RECURFORMER_CACHE"
FOLDER = Path(__file__).parent / "kernels"
OPTIMISE = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-shared", "-fPIC")
# torch's Linux wheels carry libgomp under the name that g++'s -fopenmp links to: both share one pool of threads.
OPENMP = ("-fopenmp",)
# Tuned for the processor that compiles (a tenth of the scan's time); its instructions stay the level's.
INSTRUCTION_SETS = {
    "AVX512": ("-march=x86-64-v4", "-mprefer-vector-width=512", "-mtune=native"),
    "AVX2": ("-march=x86-64-v3", "-mtune=native"),
}
COMPILERS = ("g++", "c++", "clang++")
LONGEST_COMPILATION = 300  # seconds
TILE_STEPS = 32  # time steps of a tile, and between two states that the scan keeps for its backward pass
PAGE, GAP, COLLAPSE = 2**21, 2**16, 25  # bytes of a large page, bytes between neighbours, Linux's MADV_COLLAPSE


@dataclass(frozen=True)
class Library:
    """The loaded library, or why there is none.

    Attributes:
        functions: the library's C functions, or None.
        instruction_set: the one that it was compiled for, in torch's words: AVX512, AVX2, DEFAULT.
        remark: its file, or in one sentence why there is none.
    """

    functions: ctypes.CDLL | None
    instruction_set: str
    remark: str


def fields(pointers: str = "", sizes: str = "", numbers: str = "", counts: str = "") -> list[tuple[str, Any]]:
    """Return the `_fields_` of a C struct's twin: pointers, int64, float, int32 members, by names that blanks split."""
    kinds = ((pointers, ctypes.c_void_p), (sizes, ctypes.c_int64), (numbers, ctypes.c_float), (counts, ctypes.c_int32))
    return [(name, kind) for names, kind in kinds for name in names.split()]


class TensorOf(NamedTuple):
    """What a kernel knows of a tensor: whether it may be missing or have gaps between rows, its sizes, its type."""

    name: str
    optional: bool
    gaps: bool
    sizes: tuple[str, ...]
    half: bool
    """Whether it has the type of the rows, which may be another one than float32."""


class Arguments(ctypes.Structure):
    """The ctypes twin of a C struct: pointers to tensors, then sizes; `structure` makes its kinds."""

    tensors: ClassVar[list[TensorOf]]
    own: ClassVar[list[str]]
    """The sizes that are members."""

    @classmethod
    def of(
        cls, tensors: Mapping[str, Tensor | None], sizes: Mapping[str, int], rows: torch.dtype = torch.float32
    ) -> Self:
        """Return the struct of tensors on the CPU. The kernels trust it, so all that they index by is checked here.

        Args:
            tensors: by name; None for a missing one. An empty one is a null pointer, too.
            sizes: the members, and those that the shapes name beside them.
            rows: the type of tensors that may be of another one than float32.

        Raises:
            RuntimeError: a tensor is missing, or of another shape, type, device or layout than the kernel reads.
        """
        members: dict[str, int | None] = {name: sizes[name] for name in cls.own}
        for name, optional, gaps, dims, half in cls.tensors:
            x, dtype = tensors[name], rows if half else torch.float32
            if x is None and optional:
                continue
            shape = tuple([sizes[dim] for dim in dims])
            if x is None or x.shape != shape or x.dtype != dtype or not x.is_cpu:
                actual = None if x is None else f"{tuple(x.shape)} in {x.dtype} on {x.device}"
                raise RuntimeError(f"C++ kernels: {name} must be {shape} in {dtype} on cpu, but it is {actual}")
            if not x.is_contiguous() and not (gaps and x.stride(-1) == 1):
                raise RuntimeError(f"C++ kernels: {name} has gaps (strides {x.stride()}): hand in a contiguous tensor")
            members[name] = x.data_ptr() if x.numel() else None
        return cls(**members)


def structure(name: str, shapes: Mapping[str, str], sizes: str = "", counts: str = "") -> type[Arguments]:
    """Return the twin of a C struct: pointers, then int64 and then int32 members.

    Args:
        name: of the struct.
        shapes: by tensor, names of sizes, split by blanks; "?" in front where it may be missing, "half" at the end
            where it has the type of the rows. Rows of a tensor whose stride is a member, as `<tensor>_stride`, may have
            gaps between them.
        sizes: names of the int64 members, split by blanks.
        counts: names of the int32 members.
    """
    own = [*sizes.split(), *counts.split()]
    tensors = [
        TensorOf(
            field,
            shape.startswith("?"),
            f"{field}_stride" in own,
            tuple(shape.removeprefix("?").removesuffix(" half").split()),
            shape.endswith(" half"),
        )
        for field, shape in shapes.items()
    ]
    members = {"_fields_": fields(" ".join(shapes), sizes, counts=counts), "own": own, "tensors": tensors}
    return type(name, (Arguments,), members)


def cache_folder() -> Path:
    """Return where compiled libraries are kept: $RECURFORMER_CACHE, else recurformer/ in the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    folder = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "recurformer"
    return folder.expanduser().resolve()


def _compiler() -> list[str]:
    """The command that calls the compiler."""
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [[name] for name in COMPILERS]:
        if shutil.which(command[0]):
            return command
    reason = f"CXX={os.environ['CXX']!r} is not there" if named else f"none of {', '.join(COMPILERS)} is there"
    raise OSError(f"no C++ compiler: {reason}; install one or name it by CXX")


def _compile(compiler: list[str], flags: tuple[str, ...], target: Path) -> None:
    """Write the library to `target`, whole or not at all; without OpenMP where the compiler has none."""
    sources = sorted(map(str, FOLDER.glob("*.cpp")))
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        unfinished = str(Path(folder) / target.name)
        for threads in (OPENMP, ()):
            command = [*compiler, *OPTIMISE, *flags, *threads, *sources, "-o", unfinished]
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=LONGEST_COMPILATION, check=False
            )
            if done.returncode == 0:
                os.replace(unfinished, target)
                return
    message = next((line for line in done.stderr.splitlines() if "error" in line), f"exit status {done.returncode}")
    raise OSError(f"{compiler[0]} failed: {message.strip()}")


def build(instruction_set: str) -> Path:
    """Return the library for an instruction set, compiled unless it is kept already.

    One that is kept needs neither a compiler nor a folder that can be written to.

    Raises:
        OSError: there is no compiler, it fails, or the cache folder cannot be written to.
    """
    flags = (*INSTRUCTION_SETS.get(instruction_set, ()), f"-DTILE_STEPS={TILE_STEPS}")
    texts = [file.read_bytes() for file in sorted(FOLDER.iterdir()) if file.suffix in (".cpp", ".h")]
    key = hashlib.sha256(
        b"\0".join([*texts, repr((OPTIMISE, OPENMP, flags, sys.platform, platform.machine())).encode()])
    ).hexdigest()[:16]
    folder = cache_folder()
    target = folder / f"mamba-{instruction_set.lower().replace(' ', '-')}-{key}.so"
    if not target.exists():
        compiler = _compiler()
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not target.exists():
                _compile(compiler, flags, target)
    return target


@functools.cache
def load_library() -> Library:
    """Build and load the library for this processor; a failure is reported in `remark`, never raised."""
    instruction_set = torch.backends.cpu.get_cpu_capability()
    try:
        path = build(instruction_set)
        return Library(ctypes.CDLL(str(path)), instruction_set, str(path))
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:  # Path.expanduser raises RuntimeError
        return Library(None, instruction_set, str(error))


@torch.compiler.assume_constant_result  # a graph need not look into the building of a library
def refuses() -> str | None:
    """Return why nothing can run here, or None: there is no library."""
    library = load_library()
    return None if library.functions is not None else f"no C++ kernels: {library.remark}"


def call(function: str, *arguments: ctypes.Structure | ctypes.Array | int) -> int:
    """Call a function of the library, structures by reference and addresses as pointers; returns its exit status.

    Raises:
        ValueError: there is no library.
    """
    functions = load_library().functions
    if functions is None:
        raise ValueError(refuses())
    passed = (
        ctypes.byref(x) if isinstance(x, ctypes.Structure | ctypes.Array) else ctypes.c_void_p(x) for x in arguments
    )
    return getattr(functions, function)(*passed)


def use_large_pages(tensors: Iterable[Tensor]) -> None:
    """Ask the system to put tensors into large pages: long weights are then read faster, as fewer addresses are sought.

    Weights in a mapped file, and other systems than Linux from 6.1 on, stay as they are.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None
    if madvise is None:
        return
    spans: list[list[int]] = []
    for start, end in sorted({(x.data_ptr(), x.data_ptr() + x.nbytes) for x in tensors if x.is_cpu}):
        if spans and start - spans[-1][1] < GAP:
            spans[-1][1] = max(end, spans[-1][1])
        else:
            spans.append([start, end])
    for start, end in spans:
        first, last = -(-start // PAGE) * PAGE, end // PAGE * PAGE
        if first < last:
            madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), COLLAPSE)
