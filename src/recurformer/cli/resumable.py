"""Common parts of the training stages: the state of a run, its outputs, and its processes.

Several processes are started as `torchrun` starts them. Every one runs the command again that was launched.
"""

import json
import logging
import math
import os
import shutil
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recurformer.cli.stage import BETA, NAME, STAGES, InputPath, OutputFolder, OutputPath, argument, seed
from recurformer.digest import code_digest
from recurformer.files import LOCK, alone_in, atomic_path
from recurformer.study import Block

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

UNIMPORTANT = {"record", "threads", "checkpoints", "held_out", "halvings"}
"""Arguments that change no weight."""
METRICS = argument(
    "--metrics", type=OutputPath, required=True, help="JSONL file to write: loss and learning rate by step"
)
CHECKPOINTS = argument(
    "--checkpoints", help="folder from which a killed run resumes, removed at the end (default: beside the output)"
)


TRAINED = (
    argument("trained", type=OutputFolder, help="folder to write"),
    METRICS,
    CHECKPOINTS,
    NAME,
    argument("--beta", type=BETA, default=0.0, help="fraction of heads replaced, for the measurements"),
    argument("--arm", help="name of the recipe in the measurements (default: original where beta is 0, else paper)"),
    seed("the samples"),
)
"""Files and names of a training run."""


def arm_of(args: Namespace) -> str:
    """The name of a training's recipe in the measurements."""
    return args.arm or ("paper" if args.beta else "original")


def _resolved(value: object, start: str) -> object:
    """A path, or each of a list, as it is from `start`, however it was written; anything else as it is."""
    if isinstance(value, list):
        return [_resolved(item, start) for item in value]
    is_path = isinstance(value, OutputPath) or (isinstance(value, InputPath) and os.path.exists(value))
    return os.path.relpath(os.path.realpath(str(value)), start) if is_path else value


def resumable_folder(args: Namespace, output: str) -> Path:
    """The folder of a run's state: another one as soon as its code or any of its settings changes."""
    folder = os.path.realpath(args.checkpoints or f"{os.path.abspath(output)}.checkpoints")
    settings = {key: _resolved(value, folder) for key, value in vars(args).items() if key not in UNIMPORTANT}
    identity = json.dumps([code_digest(STAGES[args.stage].place), settings], sort_keys=True, default=str)
    return Path(folder, sha256(identity.encode()).hexdigest()[:12])


@contextmanager
def resumable_run(args: Namespace, output: str) -> Iterator[Path]:
    """The folder in which a run keeps its state, for it alone, and removed when the block ends well.

    The states of other runs for the same output stay, and the files in a folder that the caller named.

    Raises:
        ValueError: another run for the same output is going on.
    """
    checkpoints = resumable_folder(args, output)
    folder = checkpoints.parent
    with alone_in(folder):
        if not args.checkpoints and not checkpoints.exists() and any(path.is_dir() for path in folder.glob("*")):
            print(f"{folder}: keeps a run by other settings or other code; this one starts anew", file=sys.stderr)
        if checkpoints.exists():
            print(f"{checkpoints}: takes up what an earlier run has finished", file=sys.stderr, flush=True)
        try:
            yield checkpoints
            shutil.rmtree(checkpoints, ignore_errors=True)
        finally:  # a refused command leaves nothing to resume
            if not args.checkpoints and [path.name for path in folder.iterdir()] == [LOCK]:
                shutil.rmtree(folder, ignore_errors=True)


def keep_metrics(
    checkpoints: Path, target: str | Path, learnt: Mapping[str, float], **run: str | float
) -> dict[str, float]:
    """Write the metric log of a finished training, every line with the names of its run; its final metrics.

    The fall of the held-out loss is among those that were `learnt` where it was measured, NaN where it cannot be told;
    else that of the training's own loss is told. No fall is told where the log is too short.
    """
    import numpy as np

    from recurformer.train.trainer import fall_of

    log = (checkpoints / "metrics.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in log.splitlines()]
    own = fall_of(np.array([row["loss"] for row in rows]))
    fall = learnt.get("fall", own) if math.isfinite(own) else math.nan
    known = {"fall": fall} if math.isfinite(fall) else {}
    learnt = {name: value for name, value in learnt.items() if name != "fall"}
    with atomic_path(target) as path:
        path.write_text("".join(json.dumps({**run, **row, **known}) + "\n" for row in rows))
    last = {"loss": rows[-1]["loss"], "tokens_seen": rows[-1]["tokens"]} if rows else {"tokens_seen": 0}
    return {**last, **learnt, **known}


def train_and_keep(
    args: Namespace,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    learn: Callable[[Path], dict[str, float]],
) -> dict[str, float]:
    """Train, then write the model, its tokenizer and the metrics, and drop the checkpoints.

    Of several processes only the first one writes and returns something.

    Args:
        args: those of `TRAINED`.
        model: that `learn` trains in place.
        tokenizer: saved with it.
        learn: trains, given the folder for its state; returns final metrics beside those of the log.
    """
    from recurformer.cli.checkpoints import save_checkpoint
    from recurformer.train.trainer import whole_weights

    if not is_first():
        learn(resumable_folder(args, args.trained))
        whole_weights(model)
        return {}
    with resumable_run(args, args.trained) as checkpoints:
        learnt = learn(checkpoints)
        save_checkpoint(args.trained, model, tokenizer, state_dict=whole_weights(model) if is_launched() else None)
        names = {"model": args.name, "arm": arm_of(args), "beta": args.beta, "seed": args.seed}
        return keep_metrics(checkpoints, args.metrics, learnt, **names)


def is_launched() -> bool:
    """Whether this process is one of those that `launch` started."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return not is_launched() or os.environ["RANK"] == "0"


def described(args: Namespace, settings: Mapping[str, Block]) -> dict[str, str | int | float | None]:
    """A finished training in its record: processes, strategy, and samples per second."""
    recipe, spread = (settings[name].model_dump() for name in ("settings", "distributed"))
    last = json.loads(Path(args.metrics).read_text(encoding="utf-8").splitlines()[-1])
    return {
        "processes": spread["processes"],
        "strategy": spread["strategy"] if spread["processes"] > 1 else None,
        "samples_per_second": round(last["step"] * recipe["batch_size"] / last["seconds"], 3),
    }


def launch(argv: list[str], processes: int) -> None:
    """Run the command `argv` in `processes` processes; when one fails, the others are ended.

    Raises:
        RuntimeError: in one line, which process failed, and why.
        KeyboardInterrupt: the user stopped them all.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in ("torch.distributed", "torch.distributed.elastic"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=processes, run_id="recurformer", rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", max_restarts=0,
    )  # fmt: skip
    try:
        elastic_launch(config, sys.executable)("-m", "recurformer.cli.main", *argv)
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
