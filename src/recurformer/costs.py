"""Cost of a run, from its record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cost:
    """Costs of one run: minutes, minutes times the cores that it held, minutes of an accelerator, peak memory in
    megabytes, and that of tensors on the accelerator; of an estimate, its source.
    """

    minutes: float
    core_minutes: float
    gpu_minutes: float
    megabytes: float | None
    card_megabytes: float | None
    source: str = ""


def option(argv: Sequence[str], name: str) -> str | None:
    """The value of a command-line option, None where it is not given."""
    return argv[argv.index(name) + 1] if name in argv[:-1] else None


def cost_of(record: Mapping[str, Any]) -> Cost:
    """The cost of the run with this record."""
    minutes, card = record["seconds"] / 60, record["accelerator"]
    threads = int(option(record["argv"], "--threads") or 1)
    on_card = (minutes, card["peak_memory_bytes"] / 2**20) if card else (0.0, None)
    return Cost(minutes, minutes * threads, on_card[0], record["peak_memory_bytes"] / 2**20, on_card[1])
