"""Self-contained HTML pages in one look, that of a ledger of claims among them: no script, style, font or picture from
elsewhere.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from recurformer.results.words import MARKS, MEANINGS, number


def render_page(template: str, **values: Any) -> str:
    """The page of one of the templates beside this module. Every value is shown as text, never read as markup."""
    environment = Environment(
        loader=PackageLoader("recurformer.render", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(values)


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


def claims_page(ledger: Mapping[str, Any]) -> str:
    """A self-contained HTML page of the content of claims.json and, under "environment", of its runs' records.

    Raises:
        ValueError: the environment knows nothing of a run that a claim rests on.
    """
    claims, runs = ledger["claims"], ledger["environment"]["runs"]
    for claim in claims:
        for run in claim["evidence"]["rests_on"] if claim["evidence"] else ():
            if run not in runs:
                raise ValueError(f"{claim['id']}: its evidence names run {run}, of which the environment has no record")
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
