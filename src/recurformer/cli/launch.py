"""Launching a training over several processes, by `accelerate launch`, and reporting which of them failed and why.

Every process runs the command again that was launched. It knows no training.
"""

import json
import logging
import os
import signal
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recurformer.study import Block, Distributed


def is_launched() -> bool:
    """Whether this process is one of those that `launch` started."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return not is_launched() or os.environ["RANK"] == "0"


def described(
    args: Namespace, settings: Mapping[str, Block], spread: Distributed
) -> dict[str, str | int | float | None]:
    """A finished training in its record: processes, strategy, and samples per second."""
    batch_size = settings["settings"].model_dump()["batch_size"]
    last = json.loads(Path(args.metrics).read_text(encoding="utf-8").splitlines()[-1])
    return {
        "processes": spread.processes,
        "strategy": spread.strategy if spread.processes > 1 else None,
        "samples_per_second": round(last["step"] * batch_size / last["seconds"], 3),
    }


def launch(argv: list[str], processes: int) -> None:
    """Run the command `argv` in `processes` processes; when one fails, the others are ended.

    Raises:
        RuntimeError: in one line, which process failed, and why.
        KeyboardInterrupt: the user stopped them all.
    """
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # all options without a default, which accelerate would read from this user's configuration
    options = {
        "num_processes": processes,
        "num_machines": 1,
        "gpu_ids": "all",
        "main_process_port": 0,
        "mixed_precision": "no",
        "dynamo_backend": "no",
        "num_cpu_threads_per_process": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    for name in ("torch.distributed", "torch.distributed.elastic"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        launch_command(
            launch_command_parser().parse_args(["--multi_gpu", *words, "--module", "recurformer.cli.main", *argv])
        )
    except ChildFailedError as error:
        rank, failure = min(error.failures.items(), key=lambda item: _order(item[1]))
        raise RuntimeError(f"process {rank} of {processes}: {_reason(failure)}; the others were ended") from None
    except SignalException as error:
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise RuntimeError(f"ended by {error.sigval.name}, with all {processes} processes") from None


def _order(failure: Any) -> tuple[bool, bool, int]:
    """The cause first: a killed process makes others lose their connection to it, and the launcher ends the rest."""
    return failure.exitcode == -signal.SIGTERM, failure.exitcode >= 0, failure.timestamp


def _reason(failure: Any) -> str:
    if failure.exitcode < 0:
        return f"killed by {failure.signal_name()}"
    return failure.message or f"exit code {failure.exitcode}"


def tell_launcher(message: str) -> None:
    """Have `launch` give `message` as the reason why this process fails."""
    failure = {"message": message, "timestamp": int(time.time())}
    Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps(failure))
