"""Merge key-value heads by their mean: another way to a smaller cache (arXiv 2305.13245)."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import COUNT, InputPath, OutputPath


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=InputPath, help="folder of the backbone")
    parser.add_argument("pooled", type=OutputPath, help="folder to write")
    parser.add_argument("--kv-heads", type=COUNT, required=True, help="key-value heads of a layer that remain")


def run(args: Namespace) -> None:
    from recurformer.baselines.pooling import pool_kv_heads
    from recurformer.cli.checkpoints import open_model, open_tokenizer, save_checkpoint

    model = pool_kv_heads(open_model(args.checkpoint), args.kv_heads)
    save_checkpoint(args.pooled, model, open_tokenizer(args.checkpoint))
