"""The machine: the peak of tensor memory, and a limit to memory."""

import ctypes
import resource
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """Count the bytes of every tensor storage that is made while the block runs, and remember the largest sum alive
    at once.

        with PeakMemory() as memory:
            model(input_ids)
        memory.peak      # bytes

    Storages are counted, not tensors: a view costs nothing, a storage lives until its last tensor dies. Tensors that
    existed before the block count as nothing, also when the block writes into them, unless they are named in
    `include`. Memory that one operator takes and frees inside itself (a fused attention kernel's workspace, for
    example) is not seen: the peak is that of the tensors that the code itself holds. Allocators' rounding
    and fragmentation come on top on a real device.

    Args:
        include: tensors from before the block that count from its start until they die, such as a cache that the
            block grows.

    Attributes:
        current: bytes alive now that were made in the block or included.
        peak: largest value of `current` so far.
    """

    def __init__(self, include: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.current = 0
        self.peak = 0
        # id of storage -> bytes; -1 for storages from before the block. Entries go when the storage dies, so ids are
        # not reused.
        self._sizes: dict[int, int] = {}
        self._finalizers: dict[int, Any] = {}
        for tensor in include:
            self._meet(tensor, counts=True)
        self.peak = self.current

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor):
                self._meet(leaf, counts=False)
        result = func(*args, **kwargs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._meet(leaf, counts=True)
        self.peak = max(self.peak, self.current)
        return result

    def _meet(self, tensor: Tensor, counts: bool) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = 0 if counts else -1
            self._finalizers[key] = weakref.finalize(storage, self._forget, key)
        if (before := self._sizes[key]) >= 0:
            self._sizes[key] = storage.nbytes()  # a known one may have another size by now
            self.current += self._sizes[key] - before

    def _forget(self, key: int) -> None:
        self._finalizers.pop(key, None)
        self.current -= max(self._sizes.pop(key, 0), 0)

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        for finalizer in list(self._finalizers.values()):
            finalizer.detach()
        self._finalizers.clear()


class AllocatorPeak:
    """The same as CUDA's allocator counts it: with its rounding, and with the kernels' own allocations.

    Attributes:
        peak: most bytes that were allocated at once beyond those from before the block, known when it ends.
    """

    def __init__(self) -> None:
        self.peak = 0
        self._before = 0

    def __enter__(self) -> Self:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self._before = torch.cuda.memory_allocated()
        return self

    def __exit__(self, *exception: Any) -> None:
        torch.cuda.synchronize()
        self.peak = torch.cuda.max_memory_allocated() - self._before


OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "std::bad_alloc")
STATUS = Path("/proc/self/status")
GIB = 2**30
SHOWN = 0.98  # a GPU of 80 GB shows 79.1 to 79.3 of its 80 GiB: the driver keeps the rest
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


def memory_fraction(memory_bytes: int, total: float) -> float:
    """Return `memory_bytes` as a fraction, at most 1, of the `total` bytes that a GPU shows, a little less than sold.

    Raises:
        ValueError: the GPU is smaller.
    """
    if SHOWN * memory_bytes > total:
        raise ValueError(f"memory_gib={memory_bytes / GIB:g}: the GPU has {total / GIB:.1f} GiB; give no more")
    return min(1.0, memory_bytes / total)


@contextmanager
def memory_limit(device: torch.device, memory_bytes: int, held_bytes: int) -> Iterator[None]:
    """Inside, an allocation fails that would take this process beyond a limit.

    Args:
        device: whose memory is limited.
        memory_bytes: for all that this process allocates there, as much as a GPU sold with it shows; on a processor,
            whose memory also holds the program, for the `held_bytes` and all that comes on top of them.
        held_bytes: taken already.

    Raises:
        ValueError: the GPU is smaller, or the processor's system (not Linux) knows no such limit.
    """
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(memory_fraction(memory_bytes, total))
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
