"""The result of `recurformer adapt` for people: a model card, and a page with pictures, from one measurement file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recurformer.render.adaptation.card import card
from recurformer.render.adaptation.page import adaptation_page

MEASURED = "adaptation.json"
"""What was measured: all that card and page show."""


def write_adaptation(folder: str | Path, found: Mapping[str, Any]) -> None:
    """Write adaptation.json, adaptation.html and README.md beside a model.

    Args:
        folder: of the model.
        found: what `recurformer.recover.adapt.adapt` measured, and under "base" the facts of its original
            (`recurformer.backbones.card.base_facts`).
    """
    folder = Path(folder)
    (folder / MEASURED).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (folder / "adaptation.html").write_text(adaptation_page(found), encoding="utf-8")
    (folder / "README.md").write_text(card(found), encoding="utf-8")
