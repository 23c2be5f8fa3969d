"""Choose the heads to replace: the share beta with the highest RA-I (section 3.1)."""

import json
from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import BETA, SEED, InputPath, OutputPath, add_block, read_block
from recurformer.files import atomic_path
from recurformer.study import Selection


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("profile", type=InputPath, help="Parquet file written by a profiling stage")
    parser.add_argument("heads", type=OutputPath, help="JSON file to write: replaced query heads per layer")
    parser.add_argument("--beta", type=BETA, required=True, help="share of heads to replace, from 0 to 1")
    parser.add_argument("--seed", type=SEED, default=0, help="seed of a random ranking")
    parser.add_argument(
        "--scores", type=InputPath, help="Parquet file written by head-scores, for rankings it measures"
    )
    add_block(parser, Selection)


def chosen_heads(profile: str, scores: str | None, settings: Selection, beta: float, seed: int) -> list[list[int]]:
    """The replaced query heads of each layer.

    Raises:
        ValueError: the ranking needs scores and there are none.
    """
    from recurformer.heads.profile import HeadProfile
    from recurformer.heads.score_file import read_scores
    from recurformer.heads.select import MEASURED, select_heads

    measured = read_scores(scores, settings.by) if scores and settings.by in MEASURED else None
    return select_heads(HeadProfile.load(profile), beta, seed=seed, measured=measured, **settings.model_dump())


def run(args: Namespace) -> None:
    settings = read_block(args, Selection)
    heads = chosen_heads(args.profile, args.scores, settings, args.beta, args.seed)
    with atomic_path(args.heads) as path:
        path.write_text(json.dumps({"beta": args.beta, **settings.model_dump(), "heads": heads}) + "\n")
