"""The most memory that one warm run takes beyond what was there before it, in bytes.

On a processor: the high-water mark of the resident size, in a process of its own that holds nothing but this call and
returns what it frees. The processes fork from a server that has imported torch and run nothing, which saves seconds
each. On CUDA: what torch's allocator counts.
"""

import ctypes
import gc
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.case import Call, Options
from recurformer.measure.device import return_freed_memory

Result = TypeVar("Result")
RESET_PEAK = "5"  # written to clear_refs: forget the high-water mark (Linux, proc(5))
STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _resident(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def _give_back() -> None:
    """Return freed memory to the system, or a run would find it again and look small."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it, only glibc keeps that much
    if trim is not None:
        trim(0)


def in_own_process(function: Callable[..., Result], *given: Any) -> Result:
    """What a function of a module returns, called in a process of its own.

    There freed blocks go back to the system from the beginning: left to itself the allocator keeps some or others of
    them, as their sizes and order have it.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.topics"])
    with ProcessPoolExecutor(1, mp_context=context, initializer=return_freed_memory) as pool:
        return pool.submit(function, *given).result()


def peak_of_process(call: Call) -> int:
    """Peak extra memory of a call in bytes, in a process that has run it before and holds nothing else."""
    call.before()
    _give_back()
    CLEAR_REFS.write_text(RESET_PEAK)
    start = _resident("VmRSS")
    call.run()
    return _resident("VmHWM") - start


def _peak_of_device(call: Call) -> int:
    call.before()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    call.run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - start
    call.after()
    return peak


def _in_child(options: Options, topic: str, case: str, candidate: str) -> int:
    from benchmarks.topics import find

    torch.set_num_threads(options.threads)
    call = find(options, topic, case, candidate).prepare()
    call.before()
    call.run()
    call.after()
    return peak_of_process(call)


def peak_bytes(options: Options, topic: str, case: str, candidate: str, call: Call) -> float:
    """Peak extra memory of a candidate's call, which is warm already; NaN where the system does not tell."""
    if options.device == "cuda":
        return _peak_of_device(call)
    if not CLEAR_REFS.exists():
        return math.nan
    return in_own_process(_in_child, options, topic, case, candidate)
