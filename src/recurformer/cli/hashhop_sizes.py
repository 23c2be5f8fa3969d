"""Generation quality on HashHop at other lengths and hops than those that the model was trained on."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from recurformer.cli import identity
from recurformer.cli.arguments import OutputPath, add_block, read_block
from recurformer.cli.progress import progress
from recurformer.files import atomic_path
from recurformer.study import HashHopTask
from recurformer.study.ablations import HashHopSizes

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedConfig, PreTrainedModel

    from recurformer.evaluate.generate import NewCache


def add_arguments(parser: ArgumentParser) -> None:
    identity.add_arguments(parser)
    parser.add_argument("hashhop_sizes", type=OutputPath, help="CSV file to write: one row a sample")
    add_block(parser, HashHopSizes)
    add_block(parser, HashHopTask, "task-")


def run(args: Namespace) -> None:
    import pandas as pd

    from recurformer.cli.checkpoints import open_tokenizer
    from recurformer.evaluate.hashhop import hashhop_rows

    settings = read_block(args, HashHopSizes)
    task = read_block(args, HashHopTask, "task-")
    seed = read_block(args, identity.Identity).seed
    tokenizer = open_tokenizer(args.checkpoint)

    def rows_of(model: "PreTrainedModel", original: "PreTrainedConfig", new_cache: "NewCache | None") -> "pd.DataFrame":
        return pd.concat(
            hashhop_rows(
                model, tokenizer, resized, samples=settings.samples, seed=seed, batch_size=settings.batch_size,
                new_cache=new_cache, original=original, progress=progress("sample"),
            ).assign(size=size, form=task.form, as_trained=resized == task)
            for hops, size in settings.sizes
            for resized in [task.resized(hops, size)]
        )  # fmt: skip

    rows = identity.measure(args, rows_of)
    with atomic_path(args.hashhop_sizes) as path:
        rows.to_csv(path, index=False)
    quality = (rows.correct / rows.hops).groupby([rows.setting, rows.hops, rows["size"], rows.variant]).mean()
    print(quality.rename("h_gq").reset_index().to_string(index=False))
