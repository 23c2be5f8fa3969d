"""lm-eval tasks of a model that was changed and trained, or of its original."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from recurformer.cli import identity
from recurformer.cli.arguments import OutputPath
from recurformer.cli.lm_eval import add_tasks, run_tasks
from recurformer.files import atomic_path

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedConfig, PreTrainedModel

    from recurformer.evaluate.generate import NewCache


def add_arguments(parser: ArgumentParser) -> None:
    identity.add_arguments(parser)
    parser.add_argument("lm_eval", type=OutputPath, help="CSV file to write: one row a metric")
    add_tasks(parser)


def run(args: Namespace) -> None:
    def rows_of(model: "PreTrainedModel", original: "PreTrainedConfig", new_cache: "NewCache | None") -> "pd.DataFrame":
        if new_cache is not None:
            raise ValueError("--evict: lm-eval makes the cache itself; measure an eviction by needle or continuation")
        return run_tasks(args, model)

    rows = identity.measure(args, rows_of)
    with atomic_path(args.lm_eval) as path:
        rows.to_csv(path, index=False)
    print(rows[["method", "setting", "task", "metric", "value", "stderr"]].to_string(index=False))
