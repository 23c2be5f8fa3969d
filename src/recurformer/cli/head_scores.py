"""Scores of every head by other selectors than RA-I: lookups without it, echo and induction, and its sensitivity."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import SEED, InputPath, OutputPath, add_block, read_block
from recurformer.cli.progress import progress
from recurformer.files import atomic_path
from recurformer.study import HashHopTask, HeadScores


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=InputPath, help="folder of the model, before any head is replaced")
    parser.add_argument("scores", type=OutputPath, help="Parquet file to write")
    parser.add_argument("--articles", type=InputPath, help="Parquet file of articles; without it, HashHop of the task")
    parser.add_argument("--profile", type=InputPath, help="head profile, whose rankings are written too")
    parser.add_argument("--name", required=True, help="name of the backbone in the measurements")
    parser.add_argument("--seed", type=SEED, default=0, help="seed of all samples")
    parser.add_argument("--random-seeds", nargs="+", type=SEED, default=[0], help="of the random rankings (default: 0)")
    add_block(parser, HeadScores)
    add_block(parser, HashHopTask, "task-")


def run(args: Namespace) -> None:
    import pandas as pd

    from recurformer.cli.checkpoints import open_model, open_texts, open_tokenizer
    from recurformer.heads.probes import HashHopProbes, Probes, TextProbes
    from recurformer.heads.profile import HeadProfile
    from recurformer.heads.score_file import profile_rows, score_rows
    from recurformer.heads.scores import SCORES

    settings = read_block(args, HeadScores)
    tokenizer = open_tokenizer(args.checkpoint)
    probes: Probes
    if args.articles is None:
        probes = HashHopProbes(tokenizer, read_block(args, HashHopTask, "task-"), settings, args.seed)
    else:
        texts = open_texts(args.articles, split="train").text.tolist()
        probes = TextProbes(tokenizer, texts, settings, args.seed)
    frames = []
    if args.profile:
        frames.append(profile_rows(HeadProfile.load(args.profile), args.name, args.seed, args.random_seeds))
    model = open_model(args.checkpoint)
    for by in settings.by:
        scores = SCORES[by](model, probes, settings, progress(by))
        frames.append(score_rows(args.name, by, args.seed, scores))
    with atomic_path(args.scores) as path:
        pd.concat(frames, ignore_index=True).to_parquet(path, index=False)
