"""The C++ kernels of `kernels/`: compiled on first use, kept, and called through ctypes.

The instruction set is chosen when the library is loaded, by what torch sees in the processor, and a library of its own
is built for it: a cache that several machines share never hands AVX-512 code to an older one. Without a compiler there
is no library; its callers then have torch to fall back on, and `load_library` says why.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock

CACHE_VARIABLE = "RECURFORMER_CACHE"
FOLDER = Path(__file__).parent / "kernels"
SOURCES = ("scan.cpp", "convolution.cpp", "step.cpp")
HEADER = "mamba.h"
OPTIMISE = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-shared", "-fPIC")
# torch's wheels carry libgomp under the name that -fopenmp links to, so that both share one pool of threads.
OPENMP = ("-fopenmp",)
INSTRUCTION_SETS = {"AVX512": ("-march=x86-64-v4", "-mprefer-vector-width=512"), "AVX2": ("-march=x86-64-v3",)}
COMPILERS = ("c++", "g++", "clang++")
LONGEST_COMPILATION = 300  # seconds


@dataclass(frozen=True)
class Library:
    """The loaded library, or why there is none.

    Attributes:
        functions: the library's C functions, or None.
        instruction_set: what it was compiled for, in torch's words: AVX512, AVX2, DEFAULT.
        remark: its file, or in one sentence why it could not be had.
    """

    functions: ctypes.CDLL | None
    instruction_set: str
    remark: str


def structure(name: str, pointers: str, sizes: str = "", counts: str = "") -> type[ctypes.Structure]:
    """Return the ctypes twin of a C struct: pointers first, then int64, then int32 members, names split by blanks."""
    kinds = ((pointers, ctypes.c_void_p), (sizes, ctypes.c_int64), (counts, ctypes.c_int32))
    fields = [(field, kind) for names, kind in kinds for field in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def cache_folder() -> Path:
    """Return where compiled libraries are kept: $RECURFORMER_CACHE, else recurformer/ in the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "recurformer"


def _compiler() -> str | None:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
    return next((path for name in names if (path := shutil.which(name))), None)


def _compile(compiler: str, flags: tuple[str, ...], target: Path) -> None:
    """Write the library to `target`, whole or not at all; without OpenMP where the compiler has none."""
    sources = [str(FOLDER / name) for name in SOURCES]
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        unfinished = str(Path(folder) / target.name)
        for threads in (OPENMP, ()):
            command = [compiler, *OPTIMISE, *flags, *threads, *sources, "-o", unfinished]
            done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_COMPILATION, check=False)
            if done.returncode == 0:
                os.replace(unfinished, target)
                return
    message = next((line for line in done.stderr.splitlines() if "error" in line), f"exit status {done.returncode}")
    raise OSError(f"{compiler} failed: {message.strip()}")


def build(instruction_set: str) -> Path:
    """Return the library for an instruction set, compiled unless it is kept already.

    Raises:
        OSError: there is no compiler, it fails, or the cache folder cannot be written to.
    """
    compiler = _compiler()
    if compiler is None:
        raise OSError(f"no C++ compiler ({', '.join(COMPILERS)}); install one or name it by CXX")
    flags = INSTRUCTION_SETS.get(instruction_set, ())
    texts = [(FOLDER / name).read_bytes() for name in (HEADER, *SOURCES)]
    key = hashlib.sha256(
        b"\0".join([*texts, repr((OPTIMISE, OPENMP, flags, compiler, platform.machine())).encode()])
    ).hexdigest()[:16]
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"mamba-{instruction_set.lower().replace(' ', '-')}-{key}.so"
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
    except (OSError, subprocess.TimeoutExpired) as error:
        return Library(None, instruction_set, str(error))


@torch.compiler.assume_constant_result  # a graph need not look into the building of a library
def missing() -> str | None:
    """Return why there is no library, or None."""
    library = load_library()
    return None if library.functions is not None else f"no C++ kernels: {library.remark}"


def call(function: str, *arguments: ctypes.Structure | int) -> int:
    """Call a function of the library, structures by reference and addresses as pointers; returns its exit status.

    Raises:
        ValueError: there is no library.
    """
    functions = load_library().functions
    if functions is None:
        raise ValueError(missing())
    passed = (ctypes.byref(x) if isinstance(x, ctypes.Structure) else ctypes.c_void_p(x) for x in arguments)
    return getattr(functions, function)(*passed)
