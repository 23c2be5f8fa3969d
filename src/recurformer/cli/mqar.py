"""Train a small Transformer with replaced heads on multi-query associative recall, and test it (Figure 4)."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import BETA, RATE, SEED, OutputPath, add_block, read_block
from recurformer.cli.training import keep_metrics, resumable_run
from recurformer.files import atomic_path
from recurformer.study import Mamba, MqarTask
from recurformer.tracking.live import tracked


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("mqar", type=OutputPath, help="CSV file to write: one row a tested slice")
    parser.add_argument(
        "--metrics", type=OutputPath, required=True, help="JSONL file to write: loss and learning rate by step"
    )
    parser.add_argument(
        "--checkpoints", help="folder from which a killed run resumes, removed at the end (default: beside the output)"
    )
    parser.add_argument("--beta", type=BETA, required=True, help="share of heads replaced")
    parser.add_argument("--rate", type=RATE, required=True, help="learning rate")
    parser.add_argument("--seed", type=SEED, default=0, help="seed of weights and samples")
    add_block(parser, MqarTask)
    add_block(parser, Mamba, "mamba-")


def run(args: Namespace) -> None:
    from recurformer.cli.checkpoints import device
    from recurformer.evaluate.mqar import run_mqar

    with resumable_run(args, args.mqar) as checkpoints:
        with tracked(args, checkpoints) as on_log:
            rows = run_mqar(
                args.beta,
                args.rate,
                args.seed,
                read_block(args, MqarTask),
                output_dir=checkpoints,
                mamba=read_block(args, Mamba, "mamba-").model_dump(),
                device=device(),
                on_log=on_log,
            )
        keep_metrics(checkpoints, args.metrics, model="mqar", beta=args.beta, peak_rate=args.rate, seed=args.seed)
        with atomic_path(args.mqar) as path:
            rows.to_csv(path, index=False)
    shown = rows.assign(accuracy=rows.correct / rows.queries)[["split", "length", "pairs", "accuracy"]]
    print(shown.to_string(index=False))
