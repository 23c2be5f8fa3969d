"""Wiki markup to the prose that a reader sees.

mwparserfromhell parses; this module decides what each kind of node leaves behind. Boxes, tables, references, files,
formulas and headings leave nothing, links leave their label, and the few templates that stand inside sentences (a
converted length, a foreign word) leave their words, since dropping them would leave holes in the sentences that a
language model is scored on.

It is used on one file of 98 articles, whose bytes are pinned (`wikipedia.WIKIPEDIA_EXCERPT`): the tables below name
what occurs there and makes a difference.
"""

import re
from collections.abc import Callable

import mwparserfromhell
from mwparserfromhell.nodes import ExternalLink, Heading, HTMLEntity, Tag, Template, Text, Wikilink
from mwparserfromhell.wikicode import Wikicode

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
