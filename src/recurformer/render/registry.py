"""Which tables and figures there are: `registry.yaml`, the one place that the workflow and the report read."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recurformer.files import read_yaml


@dataclass(frozen=True)
class Entry:
    """One table or figure.

    Args:
        part: of a study; a study without the part does not make it.
        kinds: of measurements, the names of its function's parameters.
        label: in the report's list.
        caption: what is seen and what it means.
    """

    part: Literal[
        "paper", "tasks", "recovery", "equal_bytes", "prices", "positions", "tradeoff", "speed", "long_inputs",
        "ablations", "priced_positions",
    ]  # fmt: skip
    kinds: list[str]
    label: str
    caption: str


_GROUPS = read_yaml(Path(__file__).with_suffix(".yaml"))
REGISTRY: dict[str, dict[str, Entry]] = {
    group: {name: Entry(**entry) for name, entry in entries.items()} for group, entries in _GROUPS.items()
}
"""`tables` and `figures`, by name."""


def heading(name: str) -> str:
    """How a table or figure is called: by the number that the paper gives it, if any.

    >>> heading("table4"), heading("equal_bytes"), heading("lm_eval")
    ('Table 4', 'Equal bytes', 'lm-eval')
    """
    return "lm-eval" if name == "lm_eval" else re.sub(r"(?=\d)", " ", name).replace("_", " ").capitalize()
