"""One process of a training over several. The first one writes the files of a run in one process."""

import ctypes
import os
import signal
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from recurformer.cli.launch import LAUNCHER, is_first, is_launched
from recurformer.cli.resumable import keep_metrics, resumable_folder, resumable_run
from recurformer.study import Distributed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from recurformer.train.data import ItemDataset

PR_SET_PDEATHSIG = 1
"""Of Linux's prctl: the signal that this process is to get when its parent ends."""


def run(args: Namespace, settings: Mapping[str, Any], spread: Distributed) -> dict[str, float]:
    """The training of a stage; the first process returns its final metrics."""
    from recurformer.cli.checkpoints import open_model, open_tokenizer, save_checkpoint
    from recurformer.train.distributed import train_distributed
    from recurformer.train.sharded import whole_weights

    if is_launched():
        _end_with_launcher()
    recipe = settings["settings"]
    tokenizer = open_tokenizer(args.checkpoint)
    dataset = DATASETS[args.stage](args, settings, tokenizer)
    # not the folder of a run in one process: its checkpoints are of another kind
    run = Namespace(**{**vars(args), "stage": "distributed", "task": args.stage})
    checkpoints = resumable_folder(run, args.trained)
    with resumable_run(run, args.trained) if is_first() else nullcontext():
        with _process_group():
            model = open_model(args.checkpoint, dtype="float32")
            train_distributed(model, dataset, recipe, spread, output_dir=checkpoints)
            weights = whole_weights(model)
        if is_first():
            save_checkpoint(args.trained, model, tokenizer, state_dict=weights)
            return keep_metrics(checkpoints, args.metrics, model=args.name, beta=args.beta, seed=args.seed)
    return {}


def _windows(args: Namespace, settings: Mapping[str, Any], tokenizer: "PreTrainedTokenizerBase") -> "ItemDataset":
    from recurformer.cli.texts import text_windows
    from recurformer.train.data import WindowDataset

    if args.recovery:
        raise ValueError("--recovery: several processes measure no curve; leave it out, or distributed")
    return WindowDataset(text_windows(args, args.tokens, seed=args.seed), seed=args.seed)


def _hashhop(args: Namespace, settings: Mapping[str, Any], tokenizer: "PreTrainedTokenizerBase") -> "ItemDataset":
    from recurformer.train.hashhop_data import hashhop_dataset

    recipe = settings["settings"]
    return hashhop_dataset(settings["task"], tokenizer, size=recipe.steps * recipe.batch_size, seed=args.seed)


DATASETS: dict[str, Callable[..., "ItemDataset"]] = {"train": _windows, "train_hashhop": _hashhop}


@contextmanager
def _process_group() -> Iterator[None]:
    """The processes that were launched as a group of torch's; a process alone is a group of one.

    Raises:
        ValueError: there are GPUs, but fewer than processes.
    """
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available():
        processes, cards = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
        if processes > cards:
            raise ValueError(f"--settings distributed.processes = {processes}: there are only {cards} GPUs for them")
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if is_launched():
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _end_with_launcher() -> None:
    """End this process soon after the one that launched it: nobody else would, and a new run writes the same files.

    On Linux the kernel does it. A thread cannot while native code holds the interpreter, nor once that is shut down;
    but it sees also that the launcher was gone before this was called.
    """
    launcher = int(os.environ.get(LAUNCHER, os.getppid()))

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(0.5)
        os._exit(1)

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=watch, daemon=True).start()
