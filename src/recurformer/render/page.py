"""Pages from the templates: HTML in one look, that of a ledger of claims among it, without script, style, font or
picture from elsewhere; the ledger and the card of an adapted model in Markdown.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from tabulate import tabulate

from recurformer.results.words import MARKS, MEANINGS, cell, counted, number, plain


def render_page(template: str, **values: Any) -> str:
    """The page of one of the templates beside this module. Every value of an HTML page is shown as text, never read as
    markup; a template of Markdown says which are texts of others, by the filter `cell`.
    """
    environment = Environment(
        loader=PackageLoader("recurformer.render", "templates"),
        autoescape=".html" in template,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"cell": cell, "plain": plain}
    environment.globals["pipe"] = pipe
    return environment.get_template(template).render(values)


def pipe(headings: Iterable[str], rows: Iterable[Sequence[str]], align: Sequence[str] | None = None) -> str:
    """A table in Markdown; its columns are aligned to the "left" or the "right"."""
    headings, *cells = [[cell(text) for text in row] for row in (headings, *rows)]
    return tabulate(cells, headings, tablefmt="pipe", disable_numparse=True, colalign=align)


Claim = Mapping[str, Any]


def _group(claim: Claim) -> str:
    """The table, figure or section that a claim stands in: its place up to the first comma."""
    return str(claim["place"]).partition(",")[0]


def _plain_number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def difference(claim: Claim) -> str:
    """Ours minus the paper's, with as many decimals as the longer of both; empty unless both are plain numbers.

    >>> difference({"ours": "0.1028", "paper": "0.103"}), difference({"ours": "not-run", "paper": "71,680"})
    ('−0.0002', '')
    """
    ours, paper = _plain_number(claim["ours"]), _plain_number(claim["paper"])
    if ours is None or paper is None:
        return ""
    decimals = max(len(claim[key].partition(".")[2]) for key in ("ours", "paper"))
    return number(ours - paper, decimals, signed=True)


def _minutes(value: float) -> str:
    return number(value, 1 if value >= 10 else 2) if value else "0"


def _cost(name: str, claims: Iterable[Claim], runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """One line of the cost ledger, in which every run counts once."""
    claims = list(claims)
    behind = {run for claim in claims if claim["evidence"] for run in claim["evidence"]["rests_on"]}
    return {
        "name": name,
        "claims": len(claims),
        "with_evidence": sum(claim["evidence"] is not None for claim in claims),
        "runs": len(behind),
        **{kind: sum(runs[run][kind] for run in behind) for kind in ("core_minutes", "gpu_minutes")},
    }


PARTS = {
    "Tables": ("table",),
    "Figures": ("figure",),
    "Text": ("text", "appendix"),
    "Questions of the reviewers": ("reviewer",),
}
"""Parts of the claims in Markdown -> how the ids in them begin."""


def _marked(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{MARKS[name]} {name} {count}" for name, count in counts.items() if count)


def _evidence(claim: Claim) -> str:
    if (evidence := claim["evidence"]) is None:
        return ""
    scale = {"paper": "paper's scale"}.get(evidence["scale"], evidence["scale"])
    numbers = (counted(evidence[f"{noun}s"], noun) for noun in ("seed", "sample") if evidence[f"{noun}s"])
    return ", ".join([evidence["source"], scale, *numbers])


def _claim_row(claim: Claim) -> list[str]:
    verdict = f"{MARKS[claim['verdict']]} {claim['verdict']}"
    why = claim["reason"] or claim["test"]
    return [claim["place"], claim["statement"], claim["ours"], verdict, _evidence(claim), why, claim["id"]]


def claims_markdown(ledger: Mapping[str, Any], recorded: Sequence[str] = ()) -> str:
    """The content of claims.json in Markdown: counts, every claim with its verdict, and the paper's contradictions; and
    the lines `recorded`, which say how many verdicts rest on recordings.
    """
    parts = {
        heading: [_claim_row(claim) for claim in ledger["claims"] if claim["id"].startswith(prefixes)]
        for heading, prefixes in PARTS.items()
    }
    found = [
        [one["fact"], _marked(one["verdicts"]), ", ".join(one["claims"][:2]) + ", …" * (len(one["claims"]) > 2)]
        for one in ledger["findings"]
    ]
    asked = _marked(ledger["reviewers"])
    return render_page(
        "claims.md.j2",
        **ledger,
        parts=parts,
        found=found,
        asked=asked,
        recorded=recorded,
        marks=MARKS,
        meanings=MEANINGS,
    )


def claims_page(ledger: Mapping[str, Any]) -> str:
    """A self-contained HTML page of the content of claims.json."""
    claims, runs = ledger["claims"], ledger["environment"]["runs"]
    names = dict.fromkeys(map(_group, claims))
    groups = {name: [claim for claim in claims if _group(claim) == name] for name in names}
    return render_page(
        "claims.html.j2",
        **ledger,
        groups=groups,
        verdicts={verdict: (mark, MEANINGS[verdict]) for verdict, mark in MARKS.items()},
        difference=difference,
        minutes=_minutes,
        costs=[_cost(name, members, runs) for name, members in groups.items()],
        total=_cost("All claims", claims, runs),
    )
