"""The ledger: every claim with its judge and its verdict, weighed from all evidence; what the reviewers asked, with
answers; and what the runs behind the evidence cost, on which machines and with which versions of everything they ran.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import Any

import pandas as pd

from recurformer.claims import attention, caches, comparisons, numbers, quality, reach, recovered
from recurformer.claims.claim import (
    ALLOWED_DROP,
    ALLOWED_RATIO,
    EQUAL,
    EQUAL_NATS,
    FINDINGS,
    INCONSISTENCIES,
    QUANTITIES,
    QUESTIONS,
    STATEMENTS,
    Claim,
    Entry,
    Finding,
    Judge,
    Question,
    fact_of,
)
from recurformer.claims.evidence import THIS_STUDY, Evidence, Missing, Undecided
from recurformer.paper import BACKBONE_LABELS, CELLS, NUMBERS, PrintedCell, label
from recurformer.records import ancestors, read_record, record_of
from recurformer.results.frames import require
from recurformer.results.learned import LEARNED_MQAR, NEAR_PRINTED
from recurformer.results.words import (
    CONSISTENT,
    CONTRADICTED,
    FAILS_SMALL,
    MARKS,
    NOT_RUN,
    PAPER_INCONSISTENT,
    REPRODUCED,
    UNDECIDED,
)

REVIEWER = "reviewer"
"""The kind of what the reviewers asked: no claim of the paper, counted apart from those."""
JUDGES = {
    module.__name__.rpartition(".")[2]: module
    for module in (attention, caches, comparisons, numbers, quality, reach, recovered)
}
WORDS = {
    "ALLOWED_DROP": ALLOWED_DROP, "ALLOWED_RATIO": ALLOWED_RATIO, "LEARNED_MQAR": LEARNED_MQAR,
    "NEAR_PRINTED": NEAR_PRINTED, "EQUAL": EQUAL, "EQUAL_NATS": EQUAL_NATS,
}  # fmt: skip
"""What a tolerance may name besides the parameters of its judge."""


def judge_of(entry: Entry, **about: object) -> Judge | None:
    """The test of an entry; None where it names none."""
    if not entry.judge:
        return None
    module, _, name = entry.judge.partition(".")
    judge: Callable[..., Finding] = getattr(JUDGES[module], name)
    return partial(judge, **entry.parameters, **about)


def _claim(entry: Entry, id: str, place: str, statement: str, kind: str, **words: Any) -> Claim:
    """A claim; `words` are what its tolerance and its needs may name besides parameters."""
    return Claim(
        id=id, place=place, statement=statement, kind=kind, test=entry.test,
        tolerance=entry.tolerance.format(**WORDS, **entry.parameters, **words), needs=entry.needs.format(**words),
        printed=words.get("printed", ""), judge=judge_of(entry), only_at_paper_sizes=entry.only_at_paper_sizes,
        models=tuple(entry.parameters.get("models", BACKBONE_LABELS)),
    )  # fmt: skip


def _of_cell(cell: PrintedCell) -> Claim:
    """The claim that a printed number makes."""
    entry = QUANTITIES["reduction" if cell.reduction else cell.quantity]
    words = {"printed": cell.printed, "model": label(cell.model), "half_digit": cell.half_digit}
    statement = f"{cell.printed}{' % less' if cell.reduction else ''}"
    claim = _claim(entry, cell.id, cell.place, statement, cell.kind, **words)
    return replace(claim, judge=judge_of(entry, cell=cell), models=(cell.model,))


def all_claims() -> list[Claim]:
    """Every claim: table cells, numbers of the text, sentences and curves; and what the reviewers asked."""
    sentences = [_claim(said, name, said.place, f"“{said.quote}”", said.kind) for name, said in STATEMENTS.items()]
    asked = [
        _claim(one, f"reviewer/{name}", one.place, f"{one.claim} (not claimed by the paper)", REVIEWER)
        for name, one in QUESTIONS.items()
        if one.claim
    ]
    return [*map(_of_cell, (*CELLS, *NUMBERS)), *sentences, *asked]


COLUMNS = ["id", "place", "statement", "kind", "verdict", "ours", "reason", "source", "scale", "seeds", "samples"]


@dataclass(frozen=True)
class Decision:
    """What the strongest evidence says about one claim: a verdict of `recurformer.results.words.MARKS`, what was
    found in which measurements, the reason, where the verdict needs one, and whether these are at the paper's scale.
    Measurements that leave a claim undecided may have no finding; without measurements of it there is neither.
    """

    claim: Claim
    verdict: str
    finding: Finding | None = None
    evidence: Evidence | None = None
    reason: str = ""
    at_scale: bool = False

    @property
    def recording(self) -> str:
        """The recording that the verdict is about; empty where it is about this study's measurements, or about none."""
        source = self.evidence.source if self.evidence else THIS_STUDY
        return "" if source == THIS_STUDY or self.verdict == PAPER_INCONSISTENT else source

    @property
    def is_own(self) -> bool:
        """Whether the verdict is about this study's measurements."""
        return self.finding is not None and not self.recording and self.verdict != PAPER_INCONSISTENT

    @property
    def borrowed(self) -> tuple[str, str]:
        """That recording, and the ids of the runs that the verdict is about, as far as they are known."""
        found = self.evidence.runs(self.finding.rows) if self.recording and self.evidence and self.finding else []
        return self.recording, " ".join(found)

    @property
    def files(self) -> list[str]:
        """The measurement files that it rests on."""
        return self.evidence.files(self.finding.rows) if self.evidence and self.finding else []

    @property
    def seeds(self) -> int:
        """How many seeds the trainings or choices of heads behind it had; 0 without any."""
        return self.evidence.seeds(self.finding.rows) if self.evidence and self.finding else 0


HELD, FAILED = {True: REPRODUCED, False: CONSISTENT}, {True: CONTRADICTED, False: FAILS_SMALL}
"""Whether it was tested at the paper's scale -> the verdict on a test that holds, and on one that fails."""


_Found = tuple[bool, Finding, Evidence]
"""Whether a finding is at the paper's scale, the finding, and where it comes from."""


def _rank(found: _Found) -> tuple[bool, int, bool]:
    """The lower, the stronger."""
    at_scale, finding, _ = found
    return not at_scale, -finding.tokens, not finding.decided


def _opposed(recorded: _Found, findings: Iterable[_Found]) -> dict[str, bool]:
    """What other sources of the same scale say against the finding of a recording, and whether they are as strong."""
    at_scale, finding, evidence = recorded
    said: dict[str, _Found] = {}
    for one in findings if evidence.source != THIS_STUDY else ():
        if one[0] == at_scale and one[1].holds != finding.holds:
            said.setdefault(f"{one[1].ours} ({one[1].outcome})", one)  # a study may be one of the recordings
    return {f"otherwise in {one[2].source}: {text}": _rank(one) == _rank(recorded) for text, one in said.items()}


def decide(claim: Claim, sources: Iterable[Evidence]) -> Decision:
    """Weigh the evidence for a claim.

    The strongest source decides: one at the paper's scale before any smaller one, and among equals the study's own run
    before a recording. Equal recordings that decide it differently leave it open; weaker ones of the same scale that
    say otherwise are named beside the verdict. Where the paper contradicts itself no measurement can help. What rests
    on a single training seed is consistent at most. `sources` are as of `make_ledger`.
    """
    findings: list[_Found] = []
    unanswered: list[tuple[Missing, Evidence]] = []
    for source in sources if claim.judge else ():
        try:
            judged = claim.judge(source)  # type: ignore[misc]  # not None: checked in the loop's head
            if claim.only_at_paper_sizes and not source.at_paper_sizes(judged.rows):
                raise Missing("measured at other sizes than the paper's")
            findings.append((source.at_paper_scale(judged.rows, claim.models, judged.samples or 0), judged, source))
        except Missing as missing:
            unanswered.append((missing, source))
    at_scale, finding, evidence = min(findings, key=_rank, default=(False, None, None))
    if broken := [one for one in INCONSISTENCIES.values() if claim.id in one.claims]:
        reason = "; ".join(one.reason for one in broken)
        return Decision(claim, PAPER_INCONSISTENT, finding, evidence, reason, at_scale)
    if finding is None or evidence is None:
        measured = [answer for answer in unanswered if isinstance(answer[0], Undecided)]
        why, left_open_by = next(iter(measured or unanswered), ("no stage measures it", None))
        reason = f"{str(why).rstrip('.')}; it needs {claim.needs}"
        if not measured:
            return Decision(claim, NOT_RUN, reason=reason)
        return Decision(claim, UNDECIDED, evidence=left_open_by, reason=reason)
    opposed = _opposed((at_scale, finding, evidence), findings)
    if still_open := finding.still_open or next((text for text, equal in opposed.items() if equal), ""):
        more = "" if finding.samples is None else "more samples or training, or "
        why = f"{still_open}; it needs {more}{claim.needs}"
        return Decision(claim, UNDECIDED, finding, evidence, why, at_scale)
    verdict = (HELD if finding.holds else FAILED)[at_scale]
    reason = "; ".join(filter(None, [finding.reason, *opposed]))
    decision = Decision(claim, verdict, finding, evidence, reason, at_scale)
    if decision.verdict == REPRODUCED and decision.seeds == 1:
        why = "; ".join(filter(None, [reason, "one seed only"]))
        return replace(decision, verdict=HELD[False], reason=why)
    return decision


@dataclass(frozen=True)
class Ledger:
    """All decisions of one study."""

    study: str
    decisions: tuple[Decision, ...]

    def counts(self, reviewers: bool = False, borrowed: bool = False) -> dict[str, int]:
        """The paper's claims by verdict, every verdict named; or else what the reviewers asked and no paper claims.

        Of them all, or those alone whose verdict is about a recording (`borrowed`).
        """
        asked = [decision for decision in self.decisions if (decision.claim.kind == REVIEWER) == reviewers]
        counted = Counter(decision.verdict for decision in asked if decision.recording or not borrowed)
        return {verdict: counted[verdict] for verdict in MARKS}

    def findings(self) -> list[dict[str, Any]]:
        """The distinct facts that the paper states: each with its claims, and their number by verdict."""
        by_fact: dict[str, list[Decision]] = {}
        for decision in self.decisions:
            if decision.claim.kind != REVIEWER:
                by_fact.setdefault(fact_of(decision.claim.id), []).append(decision)
        return [
            {
                "fact": fact,
                "verdicts": _counted(d.verdict for d in by_fact[fact]),
                "claims": [d.claim.id for d in by_fact[fact]],
            }
            for fact in FINDINGS
            if fact in by_fact
        ]

    def by_definition(self) -> int:
        """Claims that are reproduced because the paper defines them so: they say nothing about the method."""
        return sum(bool(d.finding and d.finding.by_definition) for d in self.decisions if d.verdict == REPRODUCED)

    def frame(self) -> pd.DataFrame:
        """One row a claim, for tables: `COLUMNS`."""
        rows = pd.DataFrame([_row(decision) for decision in self.decisions], columns=COLUMNS)
        return rows.astype({"seeds": "Int64", "samples": "Int64"})

    def to_dict(self) -> dict[str, Any]:
        """Everything: study, counts, claims with their evidence, the audit of the paper against itself, and cost and
        environment of all the runs behind.
        """
        runs = runs_beneath(sorted({file for decision in self.decisions for file in decision.files}))
        return {
            "study": self.study,
            "counts": self.counts(),
            "reviewers": self.counts(reviewers=True),
            "by_definition": self.by_definition(),
            "findings": self.findings(),
            "claims": [_claim_dict(decision) for decision in self.decisions],
            "audit": [{"id": name} | asdict(one) for name, one in INCONSISTENCIES.items()],
            "cost": {"runs": len(runs), **total_minutes(runs)},
            "environment": environment(runs),
        }


def make_ledger(study: str, sources: Sequence[Evidence], claims: Sequence[Claim] | None = None) -> Ledger:
    """Decide some claims or all of them; `sources` are the study's own measurements first, then recordings."""
    chosen = all_claims() if claims is None else claims
    return Ledger(study, tuple(decide(claim, sources) for claim in chosen))


def _row(decision: Decision) -> dict[str, Any]:
    claim, finding, evidence = decision.claim, decision.finding, decision.evidence
    return {
        "id": claim.id, "place": claim.place, "statement": claim.statement, "paper": claim.printed, "kind": claim.kind,
        "test": claim.test, "tolerance": claim.tolerance, "needs": claim.needs, "verdict": decision.verdict,
        "ours": finding.ours if finding else "", "reason": decision.reason,
        "source": evidence.source if finding and evidence else "",
        "scale": "" if finding is None else "paper" if decision.at_scale else "smaller",
        "seeds": decision.seeds or None,
        "samples": finding.samples if finding else None,
    }  # fmt: skip


@lru_cache
def _measured_by(files: tuple[str, ...]) -> dict[str, Any]:
    """Runs, hardware and cost behind some measurement files."""
    runs = runs_beneath(files)
    return {
        "files": list(files),
        "runs": list(dict.fromkeys(read_record(record)["run"] for record in map(record_of, files) if record)),
        "rests_on": list(runs),
        "hardware": hardware_of(runs),
        **total_minutes(runs),
    }


def _claim_dict(decision: Decision) -> dict[str, Any]:
    shown = _row(decision)
    about = {name: shown.pop(name) for name in ("source", "scale", "seeds", "samples")}
    return shown | {"evidence": about | _measured_by(tuple(decision.files)) if decision.finding else None}


def from_recordings(decisions: Iterable[Decision]) -> list[str]:
    """How many verdicts are about a recording, one line for each."""
    counted = Counter(decision.recording for decision in decisions if decision.recording)
    return [f"Verdicts from earlier measurements, in {source}: {count}." for source, count in sorted(counted.items())]


YES, NO = "yes", "no"


_ANSWERS = {REPRODUCED: YES, CONSISTENT: YES, CONTRADICTED: NO, FAILS_SMALL: NO}


def _answer(question: Question, sources: Sequence[Evidence]) -> tuple[str, str, str, int | None, str]:
    """What the data say: a sentence, the verdict, the recording that it is about, the samples behind it, and the runs
    that measured them.
    """
    decision = decide(_claim(question, "", question.place, question.question, REVIEWER), sources)
    finding, evidence, verdict = decision.finding, decision.evidence, decision.verdict
    if decision.claim.judge is None:
        return question.unanswered, verdict, "", None, ""
    text = "; ".join(filter(None, [finding.ours if finding else "", decision.reason]))
    samples, runs = (finding.samples, evidence.runs(finding.rows)) if finding and evidence else (None, [])
    return text, _ANSWERS.get(verdict, verdict), decision.recording, samples, " ".join(runs)


def reviewer_questions(
    compared_hashhop: pd.DataFrame | None = None,
    hashhop_sizes: pd.DataFrame | None = None,
    needle: pd.DataFrame | None = None,
    written: pd.DataFrame | None = None,
    continuation: pd.DataFrame | None = None,
    positions: pd.DataFrame | None = None,
    ablation_lm_eval: pd.DataFrame | None = None,
    ra_i_settings: pd.DataFrame | None = None,
    head_scores: pd.DataFrame | None = None,
    mixer_prices: pd.DataFrame | None = None,
    recovery: pd.DataFrame | None = None,
    recordings: Sequence[Evidence] = (),
) -> pd.DataFrame:
    """What the reviewers asked, with the answer of the measurements there are and of recordings, or why there is none:
    id, question, asked_by, figure, answer, verdict, recording, samples, runs.

    Raises:
        ValueError: missing columns, or no rows in what was given.
    """
    given = {kind: frame for kind, frame in locals().items() if isinstance(frame, pd.DataFrame)}
    measured = Evidence(THIS_STUDY, {kind: require(frame, kind) for kind, frame in given.items()}, {})
    sources = [measured, *recordings]
    rows = [(name, one.question, one.asked_by, one.figure, *_answer(one, sources)) for name, one in QUESTIONS.items()]
    columns = ["id", "question", "asked_by", "figure", "answer", "verdict", "recording", "samples", "runs"]
    return pd.DataFrame(rows, columns=columns).astype({"samples": "Int64"})


Runs = Mapping[str, Mapping[str, Any]]
"""Id of a run -> its record."""


def runs_beneath(files: Iterable[str]) -> Runs:
    """All runs that a set of files rests on, those that wrote them first."""
    records = (record for file in files if (place := record_of(file)) for _, record in ancestors(place))
    return {record["run"]: record for record in records}


def minutes_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Minutes of a run times the cores that it held, and minutes of an accelerator."""
    minutes, argv = record["seconds"] / 60, record["argv"]
    threads = int(argv[argv.index("--threads") + 1]) if "--threads" in argv[:-1] else 1
    return {"core_minutes": minutes * threads, "gpu_minutes": minutes if record["accelerator"] else 0.0}


def total_minutes(runs: Runs) -> dict[str, float]:
    """Core minutes and GPU minutes of several runs."""
    minutes = [minutes_of(record) for record in runs.values()]
    return {kind: round(sum(one[kind] for one in minutes), 3) for kind in ("core_minutes", "gpu_minutes")}


def hardware_of(runs: Runs) -> str:
    """The machines of some runs, each once."""
    machines = []
    for record in runs.values():
        host, accelerator = record["host"], record["accelerator"]
        machines.append(accelerator["name"] if accelerator else f"{host['processor']}, {host['cores']} cores")
    return "; ".join(dict.fromkeys(machines))


def _counted(values: Iterable[str | None]) -> dict[str, int]:
    """Each value with how often it occurs, the most frequent first; a run outside of a repository knows none."""
    return dict(Counter(value or "unknown" for value in values).most_common())


def environment(runs: Runs) -> dict[str, Any]:
    """What a ledger of claims says about the runs that it rests on.

    Returns:
        hosts: processor, cores, system, accelerator (name or None) and number of runs, the most used first;
        versions: package -> version -> number of runs;
        commits: commit -> number of runs;
        locks: SHA-256 of requirements.lock -> number of runs;
        dirty: number of runs whose working tree differed from its commit, as far as they know one;
        runs: id -> stage, core_minutes, gpu_minutes.
    """
    about, records = ("processor", "cores", "system", "accelerator"), runs.values()
    accelerators = (record["accelerator"]["name"] if record["accelerator"] else None for record in records)
    hosts = Counter(
        (*(record["host"][name] for name in about[:-1]), accelerator)
        for record, accelerator in zip(records, accelerators, strict=True)
    )
    packages = sorted({package for record in records for package in record["versions"]})
    return {
        "hosts": [dict(zip(about, host, strict=True)) | {"runs": count} for host, count in hosts.most_common()],
        "versions": {
            package: _counted(record["versions"][package] for record in records if package in record["versions"])
            for package in packages
        },
        "commits": _counted(record["git"]["commit"] for record in records),
        "locks": _counted(record["lock"] for record in records),
        "dirty": sum(bool(record["git"]["dirty"]) for record in records),
        "runs": {run: {"stage": record["stage"]} | minutes_of(record) for run, record in runs.items()},
    }
