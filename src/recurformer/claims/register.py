"""All claims: the entries of the YAML files, each with the judge that it names."""

from collections.abc import Callable
from functools import partial
from typing import Any

from recurformer.claims import (
    attention,
    caches,
    cells,
    comparisons,
    language_tasks,
    perplexity,
    quality,
    reach,
    recovered,
)
from recurformer.claims.claim import (
    ALLOWED_DROP,
    ALLOWED_RATIO,
    CLAIMED,
    QUANTITIES,
    QUESTIONS,
    STATEMENTS,
    Claim,
    Entry,
    Finding,
    Judge,
)
from recurformer.paper import CELLS, NUMBERS, PrintedCell, TextNumber, label
from recurformer.results.learned import LEARNED_MQAR

REVIEWER = "reviewer"
"""The kind of what the reviewers asked: no claim of the paper, counted apart from those."""
JUDGES = {
    module.__name__.rpartition(".")[2]: module
    for module in (attention, caches, cells, comparisons, language_tasks, perplexity, quality, reach, recovered)
}
WORDS = {"ALLOWED_DROP": ALLOWED_DROP, "ALLOWED_RATIO": ALLOWED_RATIO, "LEARNED_MQAR": LEARNED_MQAR}
"""What a tolerance may name besides the parameters of its judge."""


def judge_of(entry: Entry, **about: object) -> Judge | None:
    """The test of an entry; None where it names none."""
    if not entry.judge:
        return None
    module, _, name = entry.judge.partition(".")
    judge: Callable[..., Finding] = getattr(JUDGES[module], name)
    given = {**entry.parameters, **about}
    return partial(judge, **given) if given else judge


def _claim(entry: Entry, id: str, place: str, statement: str, kind: str, judge: Judge | None, **words: Any) -> Claim:
    """A claim; `words` are what its tolerance and its needs may name besides parameters."""
    return Claim(
        id=id, place=place, statement=statement, kind=kind, test=entry.test,
        tolerance=entry.tolerance.format(**WORDS, **entry.parameters, **words), needs=entry.needs.format(**words),
        printed=words.get("printed", ""), judge=judge,
    )  # fmt: skip


def _of_cell(cell: PrintedCell) -> Claim:
    entry = QUANTITIES[cell.quantity]
    words = {"printed": cell.printed, "model": label(cell.model)}
    return _claim(entry, cell.id, cell.place, cell.printed, cell.kind, judge_of(entry, cell=cell), **words)


def _of_number(number: TextNumber) -> Claim:
    """A reduction is counted, any other number judged as the cell of Table 2 that it repeats."""
    named = (2, number.model, number.method, number.quantity)
    cell = next(cell for cell in CELLS if (cell.table, cell.model, cell.method, cell.quantity) == named)
    entry = QUANTITIES["reduction" if number.reduction else number.quantity]
    judge = judge_of(entry, cell=number if number.reduction else cell)
    statement = f"{number.printed}{' % less' if number.reduction else ''}"
    words = {"printed": number.printed, "model": label(number.model), "half_digit": number.half_digit}
    return _claim(entry, number.id, number.place, statement, cell.kind, judge, **words)


def all_claims() -> list[Claim]:
    """Every claim: table cells, numbers of the text, sentences and curves; and what the reviewers asked."""
    sentences = [
        _claim(said, name, said.place, f"“{said.quote}”", said.kind, judge_of(said))
        for name, said in STATEMENTS.items()
    ]
    asked = [
        _claim(one, f"reviewer/{name}", one.place, f"{one.claim} (not claimed by the paper)", REVIEWER, judge_of(one))
        for name, one in ((name, QUESTIONS[name]) for name in CLAIMED)
    ]
    return [*map(_of_cell, CELLS), *map(_of_number, NUMBERS), *sentences, *asked]
