"""Fetch or build a pretrained Transformer and keep it as an ordinary Hugging Face checkpoint."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import add_block, read_block
from recurformer.files import atomic_path
from recurformer.study import Backbone


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="folder to write")
    parser.add_argument("--downloads", required=True, help="folder in which downloads are kept")
    parser.add_argument("--vocabulary", type=int, help="for --tokenizer hashes: different hashes")
    add_block(parser, Backbone)


def run(args: Namespace) -> None:
    from recurformer.backbones import BACKBONE_SOURCES

    settings = read_block(args, Backbone).model_dump(exclude_none=True)
    settings |= {"downloads": args.downloads, "vocabulary": args.vocabulary}
    model, tokenizer = BACKBONE_SOURCES[settings["source"]](settings)
    with atomic_path(args.checkpoint, directory=True) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    print(f"{model.config.model_type}, {model.num_parameters():,} parameters")
