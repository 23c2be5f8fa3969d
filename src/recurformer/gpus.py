"""One process, its own GPUs: those of this machine are given out by file locks, so that no two processes share one.

A lock is the kernel's (flock): it falls when its holder ends, however it ends. If CUDA_VISIBLE_DEVICES is set, by a
scheduler such as SLURM, a launcher of several processes or a user, it is respected.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle
from pathlib import Path

from filelock import FileLock, Timeout

VISIBLE = "CUDA_VISIBLE_DEVICES"
STUDY_DEVICE = "RECURFORMER_DEVICE"
"""The device of the study whose job this process is (`workflow/rules/common.smk`)."""
SECONDS_OF_A_TRY = 0.05


def machine_gpus() -> list[str]:
    """Ids of the NVIDIA GPUs that this process may see, in the driver's order; none without the driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.split() if answer.returncode == 0 else []


def refuse_a_processor() -> None:
    """Refuse to compute without a GPU for a study that asks for GPUs.

    Raises:
        ValueError: torch finds no GPU.
    """
    if os.environ.get(STUDY_DEVICE) != "gpu":
        return
    import torch  # slow, and most commands of this module's importers do without

    if not torch.cuda.is_available():
        raise ValueError(
            "the study's device is gpu, but torch finds no GPU here: run it on a node with a GPU, with a build of"
            " torch for it, or give --config device=cpu study=NAME"
        )


@contextmanager
def own_gpus(count: int) -> Iterator[None]:
    """Run the block with `count` GPUs that no other process has, waiting for them if need be; with 0, without any.

    Nothing happens where CUDA_VISIBLE_DEVICES is set already, or where there are no GPUs.

    Raises:
        ValueError: the machine has fewer GPUs.
    """
    decided = VISIBLE in os.environ
    gpus = machine_gpus() if count and not decided else []
    if decided or (count and not gpus):
        yield
        return
    if count > len(gpus):
        raise ValueError(f"{count} GPUs are asked for, this machine has {len(gpus)}: ask for fewer")
    with ExitStack() as held:
        os.environ[VISIBLE] = ",".join(_take(gpus, count, held) if count else [])
        held.callback(os.environ.pop, VISIBLE)
        yield


def _take(gpus: list[str], count: int, held: ExitStack) -> list[str]:
    """Lock `count` of the GPUs. One process at a time chooses, so that two never wait for each other's."""
    folder = Path(tempfile.gettempdir(), f"recurformer-gpus-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    taken: list[str] = []
    with FileLock(folder / "choosing"):
        tried = cycle(gpus)
        while len(taken) < count:
            gpu = next(tried)
            with suppress(Timeout):
                held.enter_context(FileLock(folder / gpu, timeout=SECONDS_OF_A_TRY))
                taken.append(gpu)
    return taken
