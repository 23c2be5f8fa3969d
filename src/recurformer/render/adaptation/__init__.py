"""The result of `recurformer adapt` for people: a model card, and a page with pictures, from one measurement file."""

import json
import tempfile
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure

from recurformer.render.adaptation.figures import head_map, recovery_curve
from recurformer.render.adaptation.summary import MIXERS, Found, notes, replaced_share, tables
from recurformer.render.page import render_page
from recurformer.render.style import save_figure
from recurformer.render.tables.cell_text import cell

MEASURED = "adaptation.json"
"""What was measured: all that card and page show."""
LOADING = """\
```python
import recurformer  # makes the model known to the auto classes
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
inputs = tokenizer("Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=40)[0]))
```

`recurformer export FOLDER OUT` adds the code that the model needs, for machines without the package."""


def write_adaptation(folder: str | Path, found: Found) -> None:
    """Write adaptation.json, adaptation.html and README.md beside a model.

    Args:
        folder: of the model.
        found: what `recurformer.recover.adapt.adapt` measured, and under "base" the facts of its original
            (`recurformer.backbones.base_facts`).
    """
    folder = Path(folder)
    (folder / MEASURED).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (folder / "adaptation.html").write_text(adaptation_page(found), encoding="utf-8")
    (folder / "README.md").write_text(card(found), encoding="utf-8")


def card(found: Found) -> str:
    """Markdown with the front matter that the model hub reads: description, numbers, loading."""
    base = found["base"]
    front: dict[str, Any] = {"library_name": "transformers", "tags": ["recurformer", found["recipe"]["mixer"]]}
    if base["license"]:
        front["license"] = base["license"]
    if base["hub"]:
        front["base_model"] = base["name"]
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        f"# {cell(base['name'])}, adapted",
        f"{100 * replaced_share(found):.0f} % of the attention heads of {cell(base['name'])} are replaced by "
        f"{MIXERS[found['recipe']['mixer']]} ([RecurFormer](https://arxiv.org/abs/2410.12850) uses Mamba blocks). "
        "The cache is smaller. The numbers below show the cost. Pictures are in `adaptation.html`, all numbers in "
        "`adaptation.json`.",
        f"## Origin\n\n{_origin(base)}",
        *(f"## {title}\n\n{_table(*table)}" for title, table in tables(found).items()),
        "\n".join(f"- {note}" for note in notes(found)),
        f"## Loading\n\nFOLDER is the folder of this file.\n\n{LOADING}",
    ]
    return "\n\n".join(parts) + "\n"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] + ["---:"] * (len(headings) - 1), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def _origin(base: Mapping[str, Any]) -> str:
    said = [f"Base model: {cell(base['name'])}"]
    if base["revision"]:
        said.append(f"commit {cell(base['revision'])} of the model hub")
    if base["configured_name"] and base["configured_name"] != base["name"]:
        said.append(f"which its configuration calls “{cell(base['configured_name'])}”")
    licence = (
        f"Its licence: {cell(base['license'])}."
        if base["license"]
        else "Its files name no licence. The base model's terms also apply to this model."
    )
    return f"{', '.join(said)}. {licence}"


def adaptation_page(found: Found) -> str:
    """A self-contained HTML page: the comparison, the steps, and the embedded pictures."""
    pictures = {
        "Recovery: distance from the original after each step": recovery_curve(found),
        "The replaced heads": head_map(found),
    }
    return render_page(
        "adaptation.html.j2",
        name=found["base"]["name"],
        mixer=MIXERS[found["recipe"]["mixer"]],
        share=f"{100 * replaced_share(found):.0f} %",
        tables=tables(found),
        notes=notes(found),
        pictures={caption: _source(figure) for caption, figure in pictures.items()},
    )


def _source(figure: Figure) -> str:
    """A picture as the address of an image that holds it."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "picture.svg")
        save_figure(figure, file)
        return f"data:image/svg+xml;base64,{b64encode(file.read_bytes()).decode()}"
