"""The work of jobs that read HashHop's prompts and write their answers."""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from recurformer.plan.work import Work
from recurformer.plan.work_common import Names, Study, changed, measured_model, reading, work_of
from recurformer.study import HashHopEvaluation, HashHopTask

TOKENS_OF_A_CHARACTER = 0.8  # of random letters, by SmolLM2's tokenizer: 4,800 tokens of 6,144 characters


def hashhop_tokens(task: Mapping[str, Any]) -> int:
    """Tokens of a prompt with its answer."""
    if task["form"] == "tokens":
        return 2 * task["pairs"] + task["hops"] + 4
    return ceil(TOKENS_OF_A_CHARACTER * task["characters"]) + answer_tokens(task)


def answer_tokens(task: Mapping[str, Any]) -> int:
    """Tokens of an answer; in letters, three separate two hashes."""
    characters = task["hops"] * (task["hash_length"] + 3)
    return task["hops"] if task["form"] == "tokens" else ceil(TOKENS_OF_A_CHARACTER * characters)


@work_of("profile_hashhop")
def profile_hashhop(study: Study, names: Names) -> Work:
    """Prompts that are only read."""
    return reading(study, names, hashhop_tokens(study["hashhop"]["task"]), study["hashhop"]["profiling"]["samples"])


@work_of("hashhop", "baseline")
def hashhop(study: Study, names: Names) -> Work:
    """Prompts of all layouts, and their answers."""
    return _answered(study, names, study["hashhop"]["task"], study["hashhop"]["evaluation"])


@work_of("ablation_hashhop")
def ablation_hashhop(study: Study, names: Names) -> Work:
    """HashHop of changed models."""
    return changed(study, names, "hashhop", hashhop(study, names))


@work_of("hashhop_sizes")
def hashhop_sizes(study: Study, names: Names) -> Work:
    """Every size as if it were the longest: that one decides on memory."""
    settings, task = study["ablations"]["sizes"], HashHopTask(**study["hashhop"]["task"])
    usual = HashHopEvaluation(samples=settings["samples"], batch_size=settings["batch_size"]).model_dump()
    resized = [task.resized(hops, size).model_dump() for hops, size in settings["sizes"]]
    works = [_answered(study, names, other, usual) for other in resized]
    longest = max(works, key=lambda work: work.tokens)
    return replace(longest, sequences=len(works) * longest.sequences)


def _answered(study: Study, names: Names, task: Mapping[str, Any], settings: Mapping[str, Any]) -> Work:
    return Work(
        "write",
        tokens=hashhop_tokens(task),
        sequences=settings["samples"] * len(settings["variants"]),
        batch=settings["batch_size"],
        written=answer_tokens(task),
        **measured_model(study, names),
    )
