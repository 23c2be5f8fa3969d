"""Which work each rule of the workflow has, read off the study and the job's wildcards, and what it asks for.

The workflow asks here for `resources:`, and a plan for estimates of jobs that never ran.
"""

from collections.abc import Callable
from dataclasses import dataclass

from recurformer.plan.resources import DEVICES, Work, card_mb, limit_minutes, memory_mb, minutes
from recurformer.plan.work_ablations import ablation_hashhop, continuation, head_scores, needle
from recurformer.plan.work_common import Names, Study, model_of
from recurformer.plan.work_device import cache_peak, longest_input, speed_minutes
from recurformer.plan.work_hashhop import hashhop, hashhop_sizes, profile_hashhop
from recurformer.plan.work_text import influence, lm_eval, maps, perplexity, profile_text
from recurformer.plan.work_training import mqar, recover, train, train_text


@dataclass(frozen=True)
class Request:
    """What a job asks for and is expected to take: megabytes of the host and, with one, of the card; minutes."""

    memory_mb: int
    card_mb: int | None
    minutes: float
    limit_minutes: int
    gpus: int


@dataclass(frozen=True)
class Light:
    """Work that no model's size decides. Megabytes, minutes, and whether it runs on a card where a study has one."""

    memory_mb: int
    minutes: float = 1.0
    on_card: bool = False


def _fetch(study: Study, names: Names) -> Work:
    return Work("fetch", **model_of(study, names), models=2)


def _copy(study: Study, names: Names) -> Work:
    return Work("copy", **model_of(study, names), models=2)


def _corpus(study: Study, names: Names) -> Light:
    return Light(300 + (study["corpus"]["articles"] or 0) // 10, 2 + (study["corpus"]["articles"] or 0) / 1000)


def _speed(study: Study, names: Names) -> Light:
    return Light(64_000, speed_minutes(study, names), on_card=True)


WORKS: dict[str, Light | Callable[[Study, Names], Work | Light]] = {
    "corpus": _corpus,
    "backbone": _fetch,
    "profile_text": profile_text,
    "profile_hashhop": profile_hashhop,
    "select": Light(600),
    "convert": _copy,
    "sink": maps("sink_tokens"),
    "contribution": maps("tokens"),
    "attention_map": maps("tokens"),
    "influence": influence,
    "train_text": train_text,
    "recover": recover,
    "perplexity": perplexity,
    "lm_eval": lm_eval,
    "pretrain_hashhop": train("hashhop", "pretraining"),
    "baseline": hashhop,
    "train_hashhop": train("hashhop"),
    "hashhop": hashhop,
    "mqar": mqar,
    "cache": Light(700, 2),
    "memory": Light(700, 2),
    "longest_input": longest_input,
    "complexity": Light(700),
    "pyramidinfer": Light(700),
    "device_tests": Light(16_000, 5, on_card=True),
    "cache_peak": cache_peak,
    "speed": _speed,
    "table": Light(400),
    "figure": Light(300),
    "claims": Light(400),
    "crate": Light(400),
    "head_scores": head_scores,
    "ra_i_settings": profile_text,
    "select_other": Light(600),
    "convert_to_mixer": _copy,
    "pool_kv": _copy,
    "train_changed_on_text": train("language"),
    "train_changed_on_hashhop": train("hashhop"),
    "needle": needle,
    "continuation": continuation,
    "ablation_hashhop": ablation_hashhop,
    "hashhop_sizes": hashhop_sizes,
    "ablation_lm_eval": lm_eval,
    "ablation_claims": Light(400),
}
"""Rule -> its work."""


def request(rule: str, study: Study, names: Names, threads: int = 1) -> Request:
    """What a job of `rule` asks for in a study, as `Study.model_dump` gives it; `names` are the job's wildcards.

    Raises:
        KeyError: the rule has no work here, so that nothing is known of it.
    """
    known = WORKS[rule]
    work = known(study, names) if callable(known) else known
    if isinstance(work, Light):
        cards = int(work.on_card and study["device"] == "gpu")
        return Request(work.memory_mb, None, work.minutes, limit_minutes(work.minutes), cards)
    device = DEVICES["cpu" if work.kind in {"fetch", "copy"} else study["device"]]
    expected = minutes(work, device, threads)
    host = memory_mb(work, device)
    return Request(host, card_mb(work, device), expected, limit_minutes(expected), work.processes * device.is_card)
