"""The `recurformer` command: a table of stages. A stage's module is imported only when it is called."""

import gc
import os
import sys
from argparse import ArgumentParser, Namespace
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from types import ModuleType
from typing import Any

from recurformer import __version__
from recurformer.cards import own_cards
from recurformer.cli import launch
from recurformer.cli.arguments import COUNT, InputPath, OneLineParser, OutputPath, paths_of
from recurformer.records import run_record
from recurformer.study import Distributed

STAGES = {
    "plan": "list the jobs of a run, with their reasons, times and resources",
    "study": "check a study's configuration and print it in full",
    "adapt": "make a model's cache smaller: replace heads, and bring the model back, in one command",
    "corpus": "fetch and clean the Wikipedia articles",
    "backbone": "fetch or build a pretrained Transformer",
    "profile": "recency ratios of every head on text",
    "profile-hashhop": "recency ratios of every head on HashHop",
    "head-scores": "scores of every head by other selectors, measured on the model",
    "ra-i-settings": "how far the choice of heads depends on k and alpha",
    "select": "choose the heads to replace",
    "convert": "replace heads by Mamba blocks, or by another mixer",
    "export": "write a converted model with its code, for machines without this package",
    "pool-kv": "merge key-value heads by their mean",
    "train": "continual training on text",
    "recover": "conversion and recovery by another recipe than the paper's",
    "train-hashhop": "training on HashHop",
    "perplexity": "perplexity on held-out articles",
    "hashhop": "generation quality h_gq on HashHop",
    "mqar": "train and test on multi-query associative recall",
    "needle": "keys hidden in a long text, over depth and length, from a full or a smaller cache",
    "continuation": "likelihood of what follows a prompt, from a full or a smaller cache",
    "ablation-hashhop": "generation quality h_gq on HashHop, from a full or a smaller cache",
    "hashhop-sizes": "generation quality h_gq on HashHop at other lengths and hops than trained",
    "lm-eval": "evaluate by lm-eval tasks",
    "ablation-lm-eval": "evaluate by lm-eval tasks what was changed and trained, and its original",
    "sink": "value norms, attention and contributions of a sink head",
    "contribution": "what the first token contributes",
    "attention-map": "averaged attention maps",
    "influence": "weights that attention and Mamba give to earlier tokens",
    "cache": "cache sizes, counted",
    "cache-peak": "cache sizes and peaks of full-size models, measured on a device",
    "memory": "the longest input by a memory model",
    "longest-input": "the longest input, measured on a card",
    "pyramidinfer": "the cache sizes of the PyramidInfer baseline",
    "complexity": "growth of cache peak and cache size",
    "table": "render one table of the paper",
    "figure": "render one figure of the paper",
    "claims": "decide every claim of the paper on the measurements there are",
    "trace": "the runs behind a figure, a table, a claim or a file",
    "track": "import finished trainings into a tracker",
    "keep": "copy what a study measured into one folder",
    "crate": "pack a finished run into a Workflow Run RO-Crate",
    "compare": "how far two results trees agree",
    "backends": "which implementations of the selective scan there are, and which is used",
}

BEFORE = ("plan", "study")
"""What is called before a study runs."""
COMPUTING = {
    "adapt", "profile", "profile-hashhop", "head-scores", "ra-i-settings", "train", "recover", "train-hashhop",
    "perplexity", "hashhop", "mqar", "needle", "continuation", "ablation-hashhop", "hashhop-sizes", "lm-eval",
    "ablation-lm-eval", "sink", "contribution", "attention-map", "influence", "longest-input", "cache-peak",
}  # fmt: skip
"""Stages that have a GPU for themselves where there are any."""
COPYING = {"convert", "export", "pool-kv"}
"""Stages that only change weights, and leave GPUs to others."""
COUNTING = {"backbone", "cache", "complexity", "memory", "pyramidinfer"}
"""Stages that make models or go through them without computing."""

MORE = "recurformer STAGE --help says more."
NOT_SETTINGS = {"record", "threads", "stage"}


def _usage() -> str:
    width = max(map(len, STAGES))
    lines = {name: f"  {name:<{width}}  {text}" for name, text in STAGES.items()}
    first = [lines.pop(name) for name in BEFORE]
    usage = ["usage: recurformer STAGE … | --help | --version", "", "Before a study runs:", *first, ""]
    return "\n".join([*usage, "Its stages, and what is done with its results:", *lines.values(), "", MORE])


def _parser(stage: str) -> tuple[ArgumentParser, ModuleType]:
    module = import_module(f"recurformer.cli.{stage.replace('-', '_')}")
    parser = OneLineParser(prog=f"recurformer {stage}", description=module.__doc__)
    module.add_arguments(parser)
    parser.set_defaults(stage=stage.replace("-", "_"))
    if parser.get_default("stage") in launch.STAGES:
        launch.add_arguments(parser)
    parser.add_argument("--record", help="write a run record (JSON) to this file")
    parser.add_argument("--threads", type=COUNT, help="processor threads to use (default: torch's choice)")
    return parser, module


def _cards(stage: str, processes: int) -> AbstractContextManager[None]:
    """A card for each process of a stage that computes, none for one that only changes weights."""
    return own_cards(processes * (stage in COMPUTING)) if stage in COMPUTING | COPYING else nullcontext()


def import_libraries() -> None:
    """Torch and transformers, with no garbage collection among their many objects: not now, and not at exit.

    Only in a fresh process: what is frozen is never collected, and that must not be a caller's own garbage.
    """
    if "transformers.modeling_utils" in sys.modules or not gc.isenabled():
        return
    gc.disable()
    try:
        import_module("transformers.modeling_utils")
        gc.freeze()
    finally:
        gc.enable()


def _run(module: ModuleType, args: Namespace, argv: list[str]) -> None:
    settings = {key: value for key, value in vars(args).items() if key not in NOT_SETTINGS and value is not None}
    spread = launch.take_spread(args)
    processes = spread.processes if spread else 1
    if args.threads:
        # Before torch is imported, so that its OpenMP pool has this size from the start.
        os.environ["OMP_NUM_THREADS"] = str(max(1, args.threads // processes))
    with _cards(argv[0], processes):
        if processes > 1 and not launch.is_launched():
            launch.launch(argv, processes)
        else:
            _run_recorded(module, args, argv, settings, spread)


def _run_recorded(
    module: ModuleType, args: Namespace, argv: list[str], settings: dict[str, Any], spread: Distributed | None
) -> None:
    """The stage in this process, which writes the record unless another one of the same training does."""
    path = args.record if launch.is_first() else None
    inputs, outputs = paths_of(args, InputPath), paths_of(args, OutputPath)
    with run_record(path, argv[0], argv, settings, inputs=inputs, outputs=outputs) as found:
        if argv[0] in COMPUTING | COPYING | COUNTING:
            import_libraries()
        if spread:
            import_module("recurformer.cli.distributed").run(args, spread)
        else:
            module.run(args)
        if path and args.stage in launch.STAGES:
            found["training"] = launch.described(args, spread)


def _said(error: Exception) -> str:
    """The message; of a file that the system refuses its name first, without the system's number of the error."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def main(argv: list[str] | None = None) -> int:
    """Run one stage. Exit codes: 0 done, 1 refused or failed (one line on standard error), 2 wrong usage."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in {"-h", "--help"}:
        print(_usage())
        return 0
    if argv[0] == "--version":
        print(f"recurformer {__version__}")
        return 0
    stage, *rest = argv
    if stage not in STAGES:
        print(f"recurformer: no stage {stage!r}; there are: {', '.join(STAGES)}", file=sys.stderr)
        return 2
    parser, module = _parser(stage)
    args = parser.parse_args(rest)
    try:
        _run(module, args, argv)
    except (ValueError, OSError, ArithmeticError, RuntimeError) as error:
        if os.environ.get("RECURFORMER_DEBUG"):
            raise
        lines = _said(error).splitlines() or [type(error).__name__]
        if launch.is_launched():
            launch.tell_launcher(lines[0])
        else:
            print(f"recurformer {stage}: {lines[0]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
