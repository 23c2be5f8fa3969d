"""Replace the chosen heads by one Mamba block, or by another mixer, in each layer (Algorithm 1)."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import SEED, InputPath, OutputPath, add_block, read_block
from recurformer.study import Mamba, Window


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=InputPath, help="folder of the backbone")
    parser.add_argument("converted", type=OutputPath, help="folder to write")
    parser.add_argument("--heads", type=InputPath, required=True, help="JSON file written by `recurformer select`")
    parser.add_argument("--seed", type=SEED, default=0, help="seed of the mixers' initial weights")
    parser.add_argument("--mixer", default="mamba", help="a name in recurformer.model.mixers (default: mamba)")
    add_block(parser, Mamba)
    add_block(parser, Window)


def run(args: Namespace) -> None:
    from transformers import set_seed

    from recurformer.cli.checkpoints import open_model, open_tokenizer, read_heads, save_checkpoint
    from recurformer.model.convert import convert

    set_seed(args.seed)
    sizes = read_block(args, Mamba).model_dump() | read_block(args, Window).model_dump()
    model = convert(open_model(args.checkpoint), read_heads(args.heads), args.mixer, **sizes)
    save_checkpoint(args.converted, model, open_tokenizer(args.checkpoint))
