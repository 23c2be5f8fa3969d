"""Texts of others within Markdown, which would else take them for markup."""

import re

_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def plain(text: str) -> str:
    """A text that Markdown shows as it stands on one line: without tags of HTML.

    >>> plain("<img src=x> 0 < 1")
    '&lt;img src=x> 0 < 1'
    """
    return _TAG.sub("&lt;", text.replace("\n", " "))


def cell(text: str) -> str:
    """The same within a cell of a table."""
    return plain(text).replace("|", r"\|")
