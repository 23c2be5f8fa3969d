"""Resources of the jobs of each rule, computed from the study and the job's wildcards.

The workflow asks here for `resources:`, and a plan for estimates of jobs that never ran.
"""

from dataclasses import dataclass

from recurformer.plan import work_device, work_hashhop, work_text, work_training  # noqa: F401  they declare theirs
from recurformer.plan.resources import DEVICES, card_mb, limit_minutes, memory_mb, minutes
from recurformer.plan.work import Light, Work
from recurformer.plan.work_common import WORKS, Names, Study, model_of, work_of


@dataclass(frozen=True)
class Request:
    """Requested resources and expected cost of a job: megabytes of the host and, with one, of the card; minutes."""

    memory_mb: int
    card_mb: int | None
    minutes: float
    limit_minutes: int
    gpus: int


WORKS |= {
    "select": Light(600),
    "select_other": Light(600),
    "cache": Light(700, 2),
    "memory": Light(700, 2),
    "complexity": Light(700),
    "pyramidinfer": Light(1000),
    "table": Light(400),
    "figure": Light(300),
    "claims": Light(400),
    "ablation_claims": Light(400),
}


@work_of("corpus")
def _corpus(study: Study, names: Names) -> Light:
    return Light(300 + (study["corpus"]["articles"] or 0) // 10, 2 + (study["corpus"]["articles"] or 0) / 1000)


@work_of("backbone")
def _fetch(study: Study, names: Names) -> Work:
    return Work("fetch", **model_of(study, names), models=2)


@work_of("convert", "convert_to_mixer", "pool_kv")
def _copy(study: Study, names: Names) -> Work:
    return Work("copy", **model_of(study, names), models=2)


def request(rule: str, study: Study, names: Names, threads: int = 1) -> Request:
    """Resources of a job of `rule` in a study, as `Study.model_dump` gives it; `names` are the job's wildcards.

    Raises:
        KeyError: the rule has no work here, so that nothing is known of it.
    """
    # a workflow that imports this one may put a prefix before the names of its rules
    names_of_ours = sorted((name for name in WORKS if f"_{rule}".endswith(f"_{name}")), key=len)
    known = WORKS[names_of_ours[-1] if names_of_ours else rule]
    work = known(study, names) if callable(known) else known
    if isinstance(work, Light):
        cards = int(work.on_card and study["device"] == "gpu")
        return Request(work.memory_mb, None, work.minutes, limit_minutes(work.minutes), cards)
    device = DEVICES["cpu" if work.kind in {"fetch", "copy"} else study["device"]]
    expected = minutes(work, device, threads)
    host = memory_mb(work, device)
    return Request(host, card_mb(work, device), expected, limit_minutes(expected), work.processes * device.is_card)
