"""A limit to the memory that this process can take, and the test whether it was reached."""

import ctypes
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "std::bad_alloc")
STATUS = Path("/proc/self/status")
SHOWN = 0.98  # a card of 80 GB shows 79.1 to 79.3 of its 80 GiB: the driver keeps the rest
MMAP_THRESHOLD, SMALL = -3, 2**17  # of glibc's mallopt, and bytes: larger blocks go back to the system


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that an allocation failed."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(text in str(error) for text in OUT_OF_MEMORY)


def _data_bytes() -> int:
    """Memory that this process may write to, resident or not."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) * 1024


def return_freed_memory() -> None:
    """From now on large blocks go back to the system when they are freed.

    glibc keeps more of them the larger its freed blocks are, and kept blocks count as taken.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:  # only glibc keeps that much
        mallopt(MMAP_THRESHOLD, SMALL)


@contextmanager
def memory_limit(device: torch.device, memory_bytes: int, held_bytes: int) -> Iterator[None]:
    """Inside, an allocation fails that would take this process beyond a limit.

    Args:
        device: whose memory is limited.
        memory_bytes: for all that this process allocates there, as much as a card sold with it shows; on a processor,
            whose memory also holds the program, for the `held_bytes` and all that comes on top of them.
        held_bytes: taken already.

    Raises:
        ValueError: the card is smaller, or the processor's system (not Linux) knows no such limit.
    """
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        if SHOWN * memory_bytes > total:
            gib = 2**30
            raise ValueError(f"memory_gib={memory_bytes / gib:g}: the GPU has {total / gib:.1f} GiB; give no more")
        torch.cuda.set_per_process_memory_fraction(min(1.0, memory_bytes / total))
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        return
    if not STATUS.exists():
        raise ValueError("on a CPU the longest input can only be measured under Linux, which can limit a process")
    return_freed_memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + memory_bytes - held_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
