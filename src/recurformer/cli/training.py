"""What the two training stages share: where a run keeps its state, and what it leaves."""

import json
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from recurformer.cli.arguments import BETA, SEED, OutputPath
from recurformer.digest import code_digest
from recurformer.files import alone_in, atomic_path
from recurformer.tracking.live import tracked

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


UNIMPORTANT = {"record", "threads", "checkpoints", "held_out", "halvings"}
"""Arguments that change no weight."""


def add_training_arguments(parser: ArgumentParser) -> None:
    """Files and names of a training run."""
    parser.add_argument("trained", type=OutputPath, help="folder to write")
    parser.add_argument(
        "--metrics", type=OutputPath, required=True, help="JSONL file to write: loss and learning rate by step"
    )
    parser.add_argument(
        "--checkpoints", help="folder from which a killed run resumes, removed at the end (default: beside the output)"
    )
    parser.add_argument("--name", required=True, help="name of the backbone in the measurements")
    parser.add_argument("--beta", type=BETA, default=0.0, help="share of heads replaced, for the measurements")
    parser.add_argument("--seed", type=SEED, default=0, help="seed of the samples")


def resumable_folder(args: Namespace, output: str) -> Path:
    """Where a run keeps its state: another folder as soon as its code or any of its settings is another one."""
    settings = {key: value for key, value in vars(args).items() if key not in UNIMPORTANT}
    identity = json.dumps([code_digest(f"recurformer.cli.{args.stage}"), settings], sort_keys=True, default=str)
    return Path(args.checkpoints or f"{output}.checkpoints") / sha256(identity.encode()).hexdigest()[:12]


@contextmanager
def resumable_run(args: Namespace, output: str) -> Iterator[Path]:
    """The folder in which a run keeps its state, for it alone, and removed when the block ends well.

    Raises:
        ValueError: another run for the same output is going on.
    """
    checkpoints = resumable_folder(args, output)
    with alone_in(checkpoints.parent):
        yield checkpoints
        shutil.rmtree(checkpoints.parent)


def keep_metrics(checkpoints: Path, target: str | Path, **run: str | float) -> None:
    """Write the metric log of a finished training, every line with the names of its run."""
    lines = (checkpoints / "metrics.jsonl").read_text().splitlines()
    with atomic_path(target) as path:
        path.write_text("".join(json.dumps({**run, **json.loads(line)}) + "\n" for line in lines))


Rows = Callable[[dict[str, float]], None]


def train_and_keep(
    args: Namespace,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    learn: Callable[[Path, Rows | None], object],
) -> None:
    """Train, then write the model, its tokenizer and the metrics, and drop the checkpoints.

    Args:
        args: with those of `add_training_arguments`.
        model: what `learn` trains in place.
        tokenizer: saved with it.
        learn: trains, given the folder for its state and what takes the rows of its log.
    """
    from recurformer.cli.checkpoints import save_checkpoint

    with resumable_run(args, args.trained) as checkpoints:
        with tracked(args, checkpoints) as on_log:
            learn(checkpoints, on_log)
        save_checkpoint(args.trained, model, tokenizer)
        keep_metrics(checkpoints, args.metrics, model=args.name, beta=args.beta, seed=args.seed)
