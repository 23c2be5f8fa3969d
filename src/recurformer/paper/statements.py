"""What the text, the captions and the curves state, sentence by sentence, as `statements.yaml` quotes them."""

from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Statement:
    """One checkable sentence.

    Attributes:
        id: its name in the ledger.
        place: section, caption or appendix.
        kind: one of `recurformer.paper.cells.KINDS`.
        quote: the words of the paper.
    """

    id: str
    place: str
    kind: str
    quote: str


_FILE = Path(__file__).with_name("statements.yaml")
STATEMENTS = {name: Statement(name, **entry) for name, entry in yaml.safe_load(_FILE.read_text("utf-8")).items()}
"""Every checkable sentence: id -> statement."""
