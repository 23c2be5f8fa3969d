"""English Wikipedia articles: a real excerpt of the dump from the wheel of gensim, or the whole from the model hub.

Both give the same table, one row per article: title, text (prose only, see `clean_markup`), split ("train" or
"validation"). Articles are never divided between the splits, so no validation window shares an article with the
training text.

mwparserfromhell parses the markup; the tables below decide what each kind of node leaves behind. Boxes, tables,
references, files, formulas and headings leave nothing, links leave their label, and the few templates that stand inside
sentences (a converted length, a foreign word) leave their words, since dropping them would leave holes in the sentences
that a language model is scored on. The tables name what occurs in one file of 98 articles, whose bytes are pinned
(`WIKIPEDIA_EXCERPT`), and makes a difference.
"""

import bz2
import heapq
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import mwparserfromhell
import numpy as np
import pandas as pd
from mwparserfromhell.nodes import ExternalLink, Heading, HTMLEntity, Tag, Template, Text, Wikilink
from mwparserfromhell.wikicode import Wikicode

from recurformer.data.fetch import PackageMember, ResourceError, fetch_member, stream_rows

DROPPED_SECTIONS = {
    *("bibliography", "external links", "filmography", "further reading", "gallery", "publications", "references"),
    *("see also", "sources"),
}
"""Sections that hold lists of references and links instead of prose."""
DROPPED_TAGS = {"ref", "table", "gallery", "math", "source", "code"}
LINE_TAGS = {"br", "li", "dt", "dd", "blockquote"}
NOT_PROSE_LINKS = ("file:", "image:")
SHORTEST_LINE = 30  # characters; shorter lines are list items, captions and labels, not sentences
LIST_END = re.compile(r"^([*#:;].*)\n(?=[^*#:;\s])", re.MULTILINE)  # the line after a list starts a paragraph
CLOSING = frozenset(".!?:;\"'”)")


def _words(template: Template) -> list[str]:
    """The positional arguments, as text."""
    return [to_text(parameter.value).strip() for parameter in template.params if not parameter.showkey]


def _first(template: Template) -> str:
    return to_text(template.get(1).value).strip() if template.has(1) else ""


def _joined(template: Template) -> str:
    return "".join(_words(template))


def _last(template: Template) -> str:
    """The last positional argument: templates for foreign words put the word there."""
    return "".join(_words(template)[-1:])


def _convert(template: Template) -> str:
    """`{{convert|5|to|6|km|mi}}` reads "5 to 6 km" (the conversion in brackets is left out)."""
    words = _words(template)
    if len(words) >= 4 and words[1] in CONVERT_JOINTS:
        return f"{words[0]} {CONVERT_JOINTS[words[1]]} {words[2]} {words[3]}"
    return " ".join(words[:2])


def _as_of(template: Template) -> str:
    year, *month = _words(template)
    start = "as of" if template.has("lc") else "As of"
    return " ".join([start, *(MONTHS[int(number) - 1] for number in month[:1] if number.isdigit()), year])


def _fraction(template: Template) -> str:
    words = _words(template)
    return "/".join(words if len(words) > 1 else ["1", *words])


CONVERT_JOINTS = {"to": "to", "-": "to", "–": "to", "and": "and", "by": "by"}
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
TEMPLATES: dict[str, str | Callable[[Template], str]] = {
    "convert": _convert,
    **dict.fromkeys(("lang", "transl", "vanchor", "angbr"), _last),
    **dict.fromkeys(("nowrap", "small", "smaller", "big", "nihongo", "val", "vr", "flag", "sc", "railgauge"), "$1"),
    **dict.fromkeys(("quote", "bquote", "quotation"), "$1"),
    "as of": _as_of,
    "chem": _joined,
    **dict.fromkeys(("frac", "sfrac"), _fraction),
    **dict.fromkeys(("ndash", "spaced ndash", "snd"), " – "),
    "mdashb": "—",
    **dict.fromkeys(("nbsp", "spaces", "dot"), " "),
    "'": "'",
    "'s": "'s",
    "uss": "USS $1",
    "carbon": "C",
    "hydrogen": "H",
}
"""Name of a template -> what it reads as, $1 being its first argument. All others leave nothing."""


def _template(node: Template) -> str:
    name = to_text(node.name).strip().lower()
    reads = "$1" if name.startswith("lang-") else TEMPLATES.get(name, "")
    return reads.replace("$1", _first(node)) if isinstance(reads, str) else reads(node)


def _wikilink(node: Wikilink) -> str:
    target = str(node.title).strip().lower()
    if target.startswith(NOT_PROSE_LINKS):
        return ""
    return to_text(node.title if node.text is None else node.text)


def _tag(node: Tag) -> str:
    name = str(node.tag).strip().lower()
    if name in DROPPED_TAGS:
        return ""
    inner = to_text(node.contents)
    return f"\n\n{inner}" if name in LINE_TAGS else inner


NODES: dict[type, Callable] = {
    Text: lambda node: str(node.value),
    HTMLEntity: lambda node: node.normalize(),
    ExternalLink: lambda node: to_text(node.title) if node.title is not None else "",
    Template: _template,
    Wikilink: _wikilink,
    Tag: _tag,
}


def to_text(code: Wikicode | str) -> str:
    """Text of parsed markup, not yet tidied; kinds of nodes that NODES does not name leave nothing."""
    if isinstance(code, str):
        code = mwparserfromhell.parse(code)
    return "".join(NODES.get(type(node), lambda _: "")(node) for node in code.nodes)


def _kept_sections(code: Wikicode) -> list[str]:
    """Texts of the nodes outside DROPPED_SECTIONS; a dropped section ends at the next heading of its level or above."""
    kept: list[str] = []
    dropped_level: int | None = None
    for node in code.nodes:
        if isinstance(node, Heading) and (dropped_level is None or node.level <= dropped_level):
            dropped_level = node.level if to_text(node.title).strip().lower() in DROPPED_SECTIONS else None
        if dropped_level is None:
            kept.append(NODES.get(type(node), lambda _: "")(node))
    return kept


# (pattern, replacement), in this order: what dropped nodes leave inside a sentence.
TIDY = [
    # References and tags that the parser left as text because their markup is broken.
    (re.compile(r"<ref\b[^<>]*/>|<ref\b.{0,2000}?</ref>", re.DOTALL | re.IGNORECASE), ""),
    (re.compile(r"</?blockquote\b[^<>]*>", re.IGNORECASE), ""),
    (re.compile(r"__[A-Z]+__"), ""),
    (re.compile(r"\{\||\|\}|\}\}|\{\{|\[\[|\]\]|'{2,}"), ""),
    (re.compile(r"^\s*(?:\{\||\|[-+}]?|!).*$", re.MULTILINE), ""),  # rows of tables that the parser could not close
    (re.compile(r"\u00a0|(?<!\n)\n(?!\n)"), " "),  # a single line break is a space in wiki markup
    (re.compile(r"\(\s*(?:[;,:/–-]\s*)+"), "("),
    (re.compile(r"(?:\s*[;,:])+\s*\)"), ")"),
    (re.compile(r"\s*[(\[]\s*[)\]]"), ""),
    (re.compile(r"([;,])(?:\s*[;,])+"), r"\1"),
    (re.compile(r" +([,.;:!?)])"), r"\1"),
    (re.compile(r"\( +"), "("),
    (re.compile(r" {2,}"), " "),
]


def _is_prose(line: str) -> bool:
    return len(line) >= SHORTEST_LINE and line[-1] in CLOSING and "|thumb" not in line


def clean_markup(markup: str) -> str:
    """Prose of one page in wiki markup: paragraphs separated by one blank line, no headings, no tables, no references.

    Lines shorter than SHORTEST_LINE characters or without closing punctuation are dropped: they are list entries and
    captions.
    """
    text = "".join(_kept_sections(mwparserfromhell.parse(LIST_END.sub(r"\1\n\n", markup))))
    for pattern, replacement in TIDY:
        text = pattern.sub(replacement, text)
    lines = (line.strip() for line in text.split("\n"))
    return "\n\n".join(line for line in lines if line and _is_prose(line))


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
    articles: Iterable[tuple[str, str]], validation_share: float, seed: int, minimum_characters: int
) -> pd.DataFrame:
    """Table (title, text, split) of the articles that are long enough, sorted by title.

    Args:
        articles: pairs of title and clean text.
        validation_share: fraction of the articles that only validation sees; rounded, but at least one.
        seed: decides which ones.
        minimum_characters: shorter articles are left out.

    Raises:
        ResourceError: no article is long enough.
        ValueError: `validation_share` leaves no article to train on.
    """
    kept = sorted((title, text) for title, text in articles if len(text) >= minimum_characters)
    if not kept:
        raise ResourceError(
            f"no article has {minimum_characters} characters or more: lower minimum_characters or give more text"
        )
    held_out = max(1, round(validation_share * len(kept)))
    if held_out >= len(kept):
        raise ValueError(f"validation_share {validation_share} of {len(kept)} articles leaves none to train on")
    validation = np.random.default_rng(seed).permutation(len(kept))[:held_out]
    frame = pd.DataFrame(kept, columns=["title", "text"])
    frame["split"] = "train"
    frame.loc[validation, "split"] = "validation"
    return frame


def wheel_articles(cache_dir: str | Path) -> Iterator[tuple[str, str]]:
    """Title and text of each article of the excerpt, downloaded to `cache_dir` unless it is there (28 MB; 1.7 MB are
    kept). Cleaning takes about five seconds.
    """
    for title, markup in read_pages(fetch_member(WIKIPEDIA_EXCERPT, cache_dir)):
        yield title, clean_markup(markup)


def hub_articles(revision: str, count: int, seed: int, minimum_characters: int) -> list[tuple[str, str]]:
    """Title and text of `count` long articles of the hub's Wikipedia (already clean text), any choice equally likely.

    All of it is read, and no more than these are kept in memory: its files follow the age of the articles, so that
    some files would be no random sample.

    Raises:
        ResourceError: it cannot be read (`stream_rows`), or has too few long articles.
    """
    rows = stream_rows("wikimedia/wikipedia", DUMP, revision)
    lots = np.random.default_rng(seed)
    long = ((lots.random(), row["title"], row["text"]) for row in rows if len(row["text"]) >= minimum_characters)
    drawn = heapq.nsmallest(count, long)
    if len(drawn) < count:
        raise ResourceError(f"only {len(drawn)} articles are long enough, {count} were asked for: lower one of the two")
    return [(title, text) for _, title, text in drawn]
