"""The subjects of a study: the name of a model, which is the path below which it and its measurements lie."""

import re
from dataclasses import asdict, dataclass
from typing import Any, Self

FORMS = {
    "original": "original",
    "original_trained": "original/trained",
    "evicted": "evicted/{name}",
    "combined": "combined/beta-{beta}/{name}",
    "replaced": "replaced/{by}-{unit}-{choice}/{name}",
    "heads": "heads/{by}-{unit}-{choice}/beta-{beta}/{name}",
    "recovered": "recovered/{name}/beta-{beta}",
    "pooled": "pooled/{name}",
    "priced": "priced/{name}",
}
"""Kind -> path: the model itself, before and after the usual training; its cache cut by an eviction method, or that
of a converted model's retained heads; heads replaced by a mixer, without training and at every fraction of heads, or
trained; another recipe than the paper's; fewer key-value heads; for each group of heads what a budget buys."""
FAMILIES = {"original_trained": "original", "evicted": "eviction", "replaced": "mixer", "heads": "mixer"}
"""Kind -> family in the measurements, where it has another name; mixers of whole layers are the family `layers`, and
those of single heads, which free no keys before the last head of a group is replaced, the family `single`."""
BY_UNIT = {"layer": "layers", "head": "single"}
PARTS = {"name": r"[\w.-]+", "by": r"\w+", "unit": r"\w+", "choice": r"\d+", "beta": r"\d\.\d+"}


@dataclass(frozen=True)
class Subject:
    """A model as it is measured.

    Attributes:
        kind: a key of `FORMS`.
        name: of the eviction method, mixer or recipe; of a pooled model its key-value heads; of a priced
            one what may be bought.
        by: the ranking of the replaced heads.
        unit: in which heads were replaced.
        choice: seed of a random ranking.
        beta: fraction of heads replaced.
    """

    kind: str
    name: str = ""
    by: str = ""
    unit: str = "kv_group"
    choice: int = 0
    beta: float = 0.0

    @classmethod
    def parse(cls, path: str) -> Self:
        """The subject of a path.

        Raises:
            ValueError: no subject has such a path.
        """
        for kind, form in FORMS.items():
            pattern = re.sub(r"\{(\w+)\}", lambda part: f"(?P<{part[1]}>{PARTS[part[1]]})", form)
            if match := re.fullmatch(pattern, path):
                parts: dict[str, Any] = match.groupdict()
                numbers = {"choice": int(parts.get("choice", 0)), "beta": float(parts.get("beta", 0))}
                return cls(kind, **parts | numbers)
        forms = ", ".join(FORMS.values())
        raise ValueError(f"--subject {path}: not a subject; there are {forms}")

    def __str__(self) -> str:
        return FORMS[self.kind].format(**asdict(self))

    @property
    def is_trained(self) -> bool:
        """Whether it was trained after the change, and so has a model of its own."""
        return self.kind in {"original_trained", "heads", "recovered", "pooled"}

    def columns(self, recovered_by: str = "") -> dict[str, Any]:
        """The columns of its measurements; where one job measures several settings, `setting` is still the default.

        Args:
            recovered_by: ranking of the heads of a model that recovered.
        """
        family = FAMILIES.get(self.kind, self.kind)
        if family == "mixer":
            family = BY_UNIT.get(self.unit, family)
        return {
            "family": family,
            "method": "full" if family == "original" else "mean" if self.kind == "pooled" else self.name,
            "setting": self.beta if self.kind in {"heads", "recovered"} else 1.0,
            "by": recovered_by if self.kind == "recovered" else self.by,
            "trained": self.is_trained or self.kind == "combined",
        }
