"""The page of an adaptation: what was gained and lost, the steps, and the pictures."""

import tempfile
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from recurformer.render.adaptation.figures import head_map, recovery_curve
from recurformer.render.adaptation.summary import COMPARED, MIXERS, STEPS, compared, notes, replaced_share, steps
from recurformer.render.page import render_page
from recurformer.render.style import save_figure


def adaptation_page(found: Mapping[str, Any]) -> str:
    """A self-contained HTML page; its pictures lie inside it.

    Args:
        found: the content of adaptation.json.
    """
    pictures = {
        "Recovery: how near the model came to its original": recovery_curve(found),
        "Heads: which ones were replaced": head_map(found),
    }
    return render_page(
        "adaptation.html.j2",
        name=found["base"]["name"],
        mixer=MIXERS[found["recipe"]["mixer"]],
        share=f"{100 * replaced_share(found):.0f} %",
        tables={"Before and after": (COMPARED, compared(found)), "Step by step": (STEPS, steps(found))},
        notes=notes(found),
        pictures={caption: _source(figure) for caption, figure in pictures.items()},
    )


def _source(figure: Figure) -> str:
    """A picture as the address of an image that holds it."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "picture.svg")
        save_figure(figure, file)
        return f"data:image/svg+xml;base64,{b64encode(file.read_bytes()).decode()}"
