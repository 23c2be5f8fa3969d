"""Which heads RA-I chooses with another window k and another threshold alpha than the default ones."""

from argparse import ArgumentParser, Namespace
from dataclasses import replace

from recurformer.cli.arguments import SEED, InputPath, OutputPath, add_block, read_block
from recurformer.cli.progress import progress
from recurformer.files import atomic_path
from recurformer.study import Profiling, RecencySettings


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=InputPath, help="folder of the model")
    parser.add_argument("settings", type=OutputPath, help="CSV file to write")
    parser.add_argument("--articles", type=InputPath, required=True, help="Parquet file of articles")
    parser.add_argument("--name", required=True, help="name of the backbone in the measurements")
    parser.add_argument("--seed", type=SEED, default=0, help="seed of the choice of windows")
    add_block(parser, Profiling)
    add_block(parser, RecencySettings)


def run(args: Namespace) -> None:
    from recurformer.cli.checkpoints import open_model, open_texts, open_tokenizer
    from recurformer.corpora.windows import windows
    from recurformer.heads.profiling import profile_windows
    from recurformer.heads.recency_settings import recency_settings

    usual, others = read_block(args, Profiling), read_block(args, RecencySettings)
    texts = open_texts(args.articles, split="train").text.tolist()
    input_ids = windows(texts, open_tokenizer(args.checkpoint), usual.tokens, usual.samples, args.seed)
    profiles = profile_windows(
        open_model(args.checkpoint),
        input_ids,
        sorted({usual.window, *others.windows}),
        threshold=usual.threshold,
        progress=progress("window"),
    )
    profiles = [replace(profile, model=args.name) for profile in profiles]
    (default,) = (profile for profile in profiles if profile.window == usual.window)
    thresholds = sorted({usual.threshold, *others.thresholds})
    frame = recency_settings(profiles, default, thresholds, others.betas, others.units)
    with atomic_path(args.settings) as path:
        frame.to_csv(path, index=False)
