"""The model card of an adapted model: README.md with the front matter that the model hub reads."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from recurformer.render.adaptation.summary import COMPARED, MIXERS, STEPS, compared, notes, replaced_share, steps
from recurformer.render.markdown import cell

LOADING = """\
```python
import recurformer  # lets the auto classes know the model
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
inputs = tokenizer("Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=40)[0]))
```

`recurformer export FOLDER OUT` adds the code that the model needs, for machines without the package."""


def card(found: Mapping[str, Any]) -> str:
    """Markdown: what the model is, its numbers, its origin, and how to load it.

    Args:
        found: the content of adaptation.json.
    """
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
        "The cache is smaller; the numbers below say what that cost. Pictures are in `adaptation.html`, all numbers in "
        "`adaptation.json`.",
        f"## Origin\n\n{_origin(base)}",
        "## Before and after",
        _table(COMPARED, compared(found)),
        "## Step by step",
        _table(STEPS, steps(found)),
        "\n".join(f"- {note}" for note in notes(found)),
        f"## Loading\n\nFOLDER is the folder of this file.\n\n{LOADING}",
    ]
    return "\n\n".join(parts) + "\n"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] + ["---:"] * (len(headings) - 1), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)


def _origin(base: Mapping[str, Any]) -> str:
    said = [f"Base model: {cell(base['name'])}"]
    if base["revision"]:
        said.append(f"commit {cell(base['revision'])} of the model hub")
    if base["configured_name"] and base["configured_name"] != base["name"]:
        said.append(f"which its configuration calls “{cell(base['configured_name'])}”")
    licence = (
        f"Its licence: {cell(base['license'])}."
        if base["license"]
        else "Its files name no licence; whatever terms it has hold for this model too."
    )
    return f"{', '.join(said)}. {licence}"
