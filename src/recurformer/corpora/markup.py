"""Wiki markup to the prose that a reader sees.

mwparserfromhell parses; this module decides what each kind of node leaves behind. Boxes, tables, references, files,
categories, formulas and headings leave nothing, links leave their label, and the few templates that stand inside
sentences (a converted length, a foreign word) leave their words, since dropping them would leave holes in the sentences
that a language model is scored on.
"""

import re
from collections.abc import Callable

import mwparserfromhell
from mwparserfromhell.nodes import Comment, ExternalLink, Heading, HTMLEntity, Tag, Template, Text, Wikilink
from mwparserfromhell.wikicode import Wikicode

# Sections that hold lists of references and links instead of prose.
DROPPED_SECTIONS = frozenset(
    {
        "awards and nominations",
        "bibliography",
        "citations",
        "discography",
        "external links",
        "filmography",
        "footnotes",
        "further reading",
        "gallery",
        "notes",
        "notes and references",
        "publications",
        "references",
        "references and notes",
        "references and sources",
        "see also",
        "selected bibliography",
        "sources",
        "works cited",
    }
)
DROPPED_TAGS = frozenset(
    {
        "ref",
        "references",
        "table",
        "gallery",
        "math",
        "source",
        "syntaxhighlight",
        "timeline",
        "score",
        "hiero",
        "imagemap",
        "code",
        "pre",
    }
)
LINE_TAGS = frozenset({"br", "li", "dt", "dd", "hr", "p", "div", "blockquote", "center", "poem"})
NOT_PROSE_LINKS = ("file:", "image:", "category:", "media:", "wikt:", "special:")
INTERWIKI = re.compile(r"^:?[a-z]{2,3}(-[a-z-]+)?:\S")
SHORTEST_LINE = 30  # characters; shorter lines are list items, captions and labels, not sentences
LIST_END = re.compile(r"^([*#:;].*)\n(?=[^*#:;\s])", re.MULTILINE)  # the line after a list starts a paragraph
CLOSING = frozenset(".!?:;\"”'’)…")


def _words(template: Template) -> list[str]:
    """The positional arguments, as text."""
    return [to_text(parameter.value).strip() for parameter in template.params if not parameter.showkey]


def _argument(template: Template, position: int) -> str:
    return to_text(template.get(position).value).strip() if template.has(position) else ""


def _nth(position: int) -> Callable[[Template], str]:
    return lambda template: _argument(template, position)


def _literal(text: str) -> Callable[[Template], str]:
    return lambda template: text


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
    start = "as of" if template.has("lc") else "As of"
    words = _words(template)
    month = (
        MONTHS[int(words[1]) - 1] + " " if len(words) > 1 and words[1].isdigit() and 1 <= int(words[1]) <= 12 else ""
    )
    return f"{start} {month}{words[0]}" if words else ""


def _chemical(template: Template) -> str:
    return "".join(_words(template))


def _fraction(template: Template) -> str:
    words = _words(template)
    return {1: "1/{0}", 2: "{0}/{1}", 3: "{0} {1}/{2}"}.get(len(words), "").format(*words)


CONVERT_JOINTS = {"to": "to", "-": "to", "–": "to", "and": "and", "or": "or", "x": "by", "by": "by"}
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
TEMPLATES: dict[str, Callable[[Template], str]] = {
    **dict.fromkeys(("convert", "cvt"), _convert),
    **dict.fromkeys(("lang", "transl", "transliteration", "unicode", "vanchor", "visible anchor", "angbr"), _last),
    **dict.fromkeys(
        ("nowrap", "nobr", "small", "smaller", "big", "abbr", "tooltip", "sub", "sup", "nihongo", "val"), _nth(1)
    ),
    **dict.fromkeys(
        ("quote", "blockquote", "cquote", "quotation", "bquote", "noitalic", "sc", "smallcaps", "keypress"), _nth(1)
    ),
    **dict.fromkeys(("nobold", "vr", "math", "mvar", "gaps", "sic", "flag", "flagcountry", "nts"), _nth(1)),
    **dict.fromkeys(("as of", "asof"), _as_of),
    **dict.fromkeys(("chem", "chem2"), _chemical),
    **dict.fromkeys(("frac", "fraction", "sfrac"), _fraction),
    **dict.fromkeys(("circa", "c.", "ca."), lambda template: f"c. {_argument(template, 1)}".strip()),
    **dict.fromkeys(("ndash", "–", "spaced ndash", "snd"), _literal(" – ")),
    **dict.fromkeys(("mdash", "mdashb", "em dash", "emdash"), _literal("—")),
    **dict.fromkeys(("nbsp", "spaces", "·", "dot"), _literal(" ")),
    "'": _literal("'"),
    "'s": _literal("'s"),
    "uss": lambda template: f"USS {_argument(template, 1)}",
    "simplenuclide2": lambda template: f"{_argument(template, 1)}-{_argument(template, 2)}",
    "railgauge": _nth(1),
    "carbon": _literal("C"),
    "hydrogen": _literal("H"),
}


def _template(node: Template) -> str:
    name = to_text(node.name).strip().lower()
    if name.startswith("lang-"):
        return _argument(node, 1)
    return TEMPLATES[name](node) if name in TEMPLATES else ""


def _wikilink(node: Wikilink) -> str:
    target = str(node.title).strip().lower()
    if target.startswith(NOT_PROSE_LINKS) and not (target.startswith("wikt:") and node.text is not None):
        return ""
    if node.text is not None:
        return to_text(node.text)
    return "" if INTERWIKI.match(target) else to_text(node.title)


def _tag(node: Tag) -> str:
    name = str(node.tag).strip().lower()
    if name in DROPPED_TAGS:
        return ""
    inner = "" if node.contents is None else to_text(node.contents)
    return f"\n\n{inner}" if name in LINE_TAGS else inner


NODES: dict[type, Callable] = {
    Text: lambda node: str(node.value),
    HTMLEntity: lambda node: node.normalize(),
    Comment: lambda node: "",
    Heading: lambda node: "\n\n",
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
    (
        re.compile(
            r"</?(?:ref|br|small|sub|sup|div|span|center|blockquote|p|i|b|u|li|ul|ol|nowiki|gallery)\b[^<>]*>", re.I
        ),
        "",
    ),
    (re.compile(r"__[A-Z]+__"), ""),
    (re.compile(r"\{\||\|\}|\}\}|\{\{|\[\[|\]\]|'{2,}"), ""),
    (re.compile(r"^\s*(?:\{\||\|[-+}]?|!).*$", re.MULTILINE), ""),  # rows of tables that the parser could not close
    (re.compile(r"[\u00a0\u2009\u202f\t]|(?<!\n)\n(?!\n)"), " "),  # a single line break is a space in wiki markup
    (re.compile(r"[\u200b\u200e\u200f\ufeff]"), ""),
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
