"""Fetch English Wikipedia articles, clean their markup and split them by article into training and validation."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import SEED, OutputPath, add_block, read_block
from recurformer.files import atomic_path
from recurformer.study import Corpus


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("corpus", type=OutputPath, help="Parquet file to write: title, text, split")
    parser.add_argument("--downloads", required=True, help="folder in which files from wheels are kept")
    parser.add_argument("--seed", type=SEED, default=0, help="seed of the split")
    add_block(parser, Corpus)


def run(args: Namespace) -> None:
    from recurformer.corpora.wikipedia import CORPUS_SOURCES

    settings = read_block(args, Corpus)
    options: dict[str, object] = settings.model_dump(include={"minimum_characters", "validation_share"})
    place: dict[str, dict[str, object]] = {
        "wheel": {"cache_dir": args.downloads},
        "hub": {"revision": settings.revision, "count": settings.articles},
    }
    articles = CORPUS_SOURCES[settings.source](seed=args.seed, **place[settings.source], **options)
    with atomic_path(args.corpus) as path:
        articles.to_parquet(path, index=False)
    for split, texts in articles.groupby("split").text:
        print(f"{split}: {len(texts)} articles, {texts.str.len().sum():,} characters")
