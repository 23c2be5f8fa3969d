import bz2
import os
from pathlib import Path

import datasets
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recurformer.data import wikipedia
from recurformer.data.fetch import ResourceError, file_sha256
from recurformer.data.wikipedia import (
    WIKIPEDIA_EXCERPT,
    build_articles,
    clean_markup,
    hub_articles,
    read_pages,
    wheel_articles,
)

# ruff: noqa: E501 (one case a line)


LINE = "This sentence is long enough to be kept."


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("'''Bold''' and ''italic'' [[link]]s and [[Target page|labels]] remain in this line.", "Bold and italic links and labels remain in this line."),
        (f"{LINE}<ref name=\"a\">Smith {{{{cite book|title=X}}}}</ref><ref name=\"a\" />", LINE),
        (f"{LINE}<!-- a comment -->", LINE),
        (f"{{{{Infobox country|name=X|capital=[[Y]]}}}}\n{LINE}", LINE),
        (f"{{| class=\"wikitable\"\n|-\n! Year !! Population of the whole country.\n|-\n| 1900 || 5,000,000 people lived here then.\n|}}\n{LINE}", LINE),
        (f"[[File:A.jpg|thumb|300px|A caption with a [[link]] and a full stop.]]\n{LINE}\n\n[[Category:Things]]\n[[fr:Chose]]", LINE),
        (f"== History ==\n{LINE}\n=== Early history of the whole of it. ===\n{LINE}", f"{LINE}\n\n{LINE}"),
        (f"{LINE}\n== References ==\n{{{{reflist}}}}\nSmith, John. A very long reference to a book.\n=== Notes on them ===\n{LINE}\n== After ==\n{LINE}", f"{LINE}\n\n{LINE}"),
        ("The line breaks\nof the source are spaces.\n\nA blank line ends a paragraph here.", "The line breaks of the source are spaces.\n\nA blank line ends a paragraph here."),
        ("* A first item which is a whole sentence.\n* A second item which is one, too.", "A first item which is a whole sentence.\n\nA second item which is one, too."),
        (f"* [[Short]]\n* Items without any stop at their end are a list\n{LINE}", LINE),
        ("It is {{convert|5|km|mi}} long, {{convert|3|to|4|m|ft}} wide and {{convert|2|by|3|cm|in}} thick.", "It is 5 km long, 3 to 4 m wide and 2 by 3 cm thick."),
        ("Achilles ({{lang-grc|Ἀχιλλεύς}}, {{IPAc-en|ə|k}}; ''Akhilleus'') was a hero of the war.", "Achilles (Ἀχιλλεύς, Akhilleus) was a hero of the war."),
        ("Autism ({{IPAc-en|x}}; {{respell|AW}}) is a disorder of the development.", "Autism is a disorder of the development."),
        ("Water is {{chem|H|2|O}}, half is {{frac|1|2}}, and 10<sup>3</sup> is a thousand.", "Water is H2O, half is 1/2, and 103 is a thousand."),
        ("{{As of|2012|3}} it had many people, {{as of|2012|lc=y}} it has few of them.", "As of March 2012 it had many people, as of 2012 it has few of them."),
        ("A dash{{ndash}}like this&nbsp;one &mdash; is a sign &amp; stays in the text.", "A dash – like this one — is a sign & stays in the text."),
        (f"{LINE}<ref>{{{{cite web |title=Broken}} x</ref>", LINE),
        (f"<math>\\frac{{a}}{{b}}</math><gallery>\nFile:A.jpg|A caption, which is a full sentence.\n</gallery>\n{LINE}", LINE),
        ("See [http://example.org the site of this example] or [http://example.org] for what it says.", "See the site of this example or for what it says."),
        (f"{{| class=x\n| a table that nobody closed, with a full stop.\n{LINE}", LINE),
        ("__NOTOC__", ""),
        ("The {{nowrap|{{lang|fr|[[mot]]}}}} {{unknown|text}} is the last word of the line.", "The mot is the last word of the line."),
    ],
)  # fmt: skip
def test_what_each_kind_of_markup_leaves(markup, text):
    assert clean_markup(markup) == text


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab .'[]{}|=<>/ref!*#:\n&;-", max_size=200))
def test_broken_markup_never_fails(markup):
    cleaned = clean_markup(markup)
    assert "[[" not in cleaned and "{{" not in cleaned and "\n\n\n" not in cleaned


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


@pytest.fixture
def wheel(dump, monkeypatch):
    """The excerpt of the wheel is the small dump."""
    monkeypatch.setattr(wikipedia, "fetch_member", lambda package, directory: dump)
    return lambda: wheel_articles("downloads")


def test_builds_a_split_by_article_whatever_the_order_of_the_pages(wheel):
    articles = build_articles(wheel(), 0.25, 3, 500)
    assert list(articles.columns) == ["title", "text", "split"]
    assert articles.title.is_monotonic_increasing and articles.title.is_unique and len(articles) == 20
    assert (articles.split == "validation").sum() == 5 and set(articles.split) == {"train", "validation"}
    assert articles.text.str.len().min() >= 500 and not articles.text.str.contains("'''").any()
    pd.testing.assert_frame_equal(articles, build_articles(reversed([*wheel()]), 0.25, 3, 500))
    assert not build_articles(wheel(), 0.25, 4, 500).split.equals(articles.split)
    assert (build_articles(wheel(), 0.01, 3, 500).split == "validation").sum() == 1


def test_impossible_splits_are_refused(wheel):
    with pytest.raises(ValueError, match=r"validation_share 0\.99 of 20 articles leaves none to train on"):
        build_articles(wheel(), 0.99, 0, 500)
    with pytest.raises(ResourceError, match="no article has 1000000 characters or more"):
        build_articles(wheel(), 0.25, 0, 1_000_000)


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"not bz2", lambda data: b""])
def test_corrupt_dumps_are_one_clear_line(dump, damage):
    dump.write_bytes(damage(dump.read_bytes()))
    with pytest.raises(ResourceError, match=r"dump.xml.bz2 is not a readable Wikipedia dump") as caught:
        list(read_pages(dump))
    assert "\n" not in str(caught.value)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A data set of 300 articles, of 1, 2, 3 … characters, in three files where the library finds those of the hub."""
    rows = [{"id": str(n), "url": f"u{n}", "title": f"T{n:04}", "text": "ä" * (n + 1)} for n in range(300)]
    files = [str(tmp_path / f"train-{part}.parquet") for part in range(3)]
    for part, file in enumerate(files):
        pd.DataFrame(rows[part::3]).to_parquet(file, index=False)
    load = datasets.load_dataset

    def load_here(repo, config, revision, **options):
        assert (repo, config, revision, options["streaming"]) == ("wikimedia/wikipedia", "20231101.en", "0" * 40, True)
        return load("parquet", data_files=files, **options)

    monkeypatch.setattr(datasets, "load_dataset", load_here)
    return files


def test_any_long_article_is_drawn_equally_often(monkeypatch):
    rows = [{"title": str(number), "text": "text"} for number in range(200)] + [{"title": "short", "text": "no"}]
    monkeypatch.setattr(wikipedia, "stream_rows", lambda *_: iter(rows))
    draws = [hub_articles("0" * 40, 50, seed, 4) for seed in range(400)]
    assert draws[0] == hub_articles("0" * 40, 50, 0, 4) != draws[1]
    assert all(len({title for title, _ in drawn}) == 50 for drawn in draws)
    often = pd.Series([title for drawn in draws for title, _ in drawn]).value_counts()
    assert len(often) == 200
    # 400 draws with probability a quarter each: mean 100, standard deviation 8.7
    assert often.min() > 60 and often.max() < 140


def test_what_the_hub_cannot_give_is_one_clear_line(hub):
    assert all(len(text) >= 291 for _, text in hub_articles("0" * 40, 10, 0, 291))
    with pytest.raises(ResourceError, match="only 10 articles are long enough, 11 were asked for"):
        hub_articles("0" * 40, 11, 0, 291)
    Path(hub[1]).write_bytes(Path(hub[1]).read_bytes()[:-100])
    with pytest.raises(
        ResourceError, match=r"cannot read the data set wikimedia/wikipedia at 0{40} of the hub: "
    ) as said:
        hub_articles("0" * 40, 4, 0, 1)
    assert "\n" not in str(said.value)


@pytest.mark.skipif(not RESOURCES, reason="RECURFORMER_RESOURCES names no directory with the downloaded files")
def test_the_real_excerpt():
    dump = Path(RESOURCES) / WIKIPEDIA_EXCERPT.file_name
    assert file_sha256(dump) == WIKIPEDIA_EXCERPT.sha256
    articles = build_articles(wheel_articles(RESOURCES), 0.2, 0, 8_000)
    assert len(articles) == 72 and articles.text.str.len().sum() == pytest.approx(2_606_566, rel=0.01)
    lincoln = articles.set_index("title").text["Abraham Lincoln"]
    assert (lincoln.startswith("Abraham Lincoln") and "sixteenth President" in lincoln[:400]) or "16th" in lincoln[:400]
    for rest in ("[[", "{{", "<ref", "|thumb", "http://", "''"):
        assert not articles.text.str.contains(rest, regex=False).any(), rest
