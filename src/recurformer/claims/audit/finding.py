"""One rule of the audit applied to one place of the paper."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Audited:
    """What a rule found.

    Attributes:
        id: "audit/RULE" or "audit/RULE/PLACE".
        rule: what must hold if the paper agrees with itself, one sentence.
        place: where it was applied.
        arithmetic: every step, as a reader would write it.
        consistent: whether the rule holds there.
        claims: ids of the printed cells and statements that cannot stand where it does not hold.
    """

    id: str
    rule: str
    place: str
    arithmetic: tuple[str, ...]
    consistent: bool
    claims: tuple[str, ...] = ()
