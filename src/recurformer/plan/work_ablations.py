"""The work of jobs that only the ablations have."""

from dataclasses import replace
from math import ceil
from typing import Any

from recurformer.plan.resources import Work
from recurformer.plan.work_common import Names, Study, measured_model, model_of, parts_of, reading, usual_batch
from recurformer.plan.work_hashhop import hashhop
from recurformer.study import Needle

ANSWER_TOKENS = 16  # of a needle


def _changed(study: Study, names: Names, task: str, work: Work) -> Work:
    """Several budgets, those matched to trained models among them, or shares in one job; replacing heads on the spot
    holds the original and two changed models.
    """
    kind, ablations = parts_of(names)[0], study["ablations"]
    budgets = [*ablations["budgets"], *ablations[task]["matched"]]
    settings = {"evicted": budgets, "replaced": ablations["betas"]}.get(kind, [0])
    return replace(work, sequences=work.sequences * len(settings), models=3 if kind == "replaced" else 1)


def ablation_hashhop(study: Study, names: Names) -> Work:
    """HashHop of changed models."""
    return _changed(study, names, "hashhop", hashhop(study, names))


def needle(study: Study, names: Names) -> Work:
    """Prompts of several lengths; the longest decides on memory, the sum of all on time: shorter ones are read more at
    once.
    """
    settings = Needle(**study["ablations"]["needle"])
    grid = settings.grid()
    longest = max(grid)
    tokens = len(settings.depths) * sum(length * sum(asked.values()) for length, asked in grid.items())
    sizes: dict[str, Any] = {"tokens": longest, "sequences": ceil(tokens / longest), "written": ANSWER_TOKENS}
    sizes["batch"] = usual_batch(study, longest)
    return _changed(study, names, "language", Work("write", **measured_model(study, names), **sizes))


def continuation(study: Study, names: Names) -> Work:
    """Prompts, and the likelihood of what follows them."""
    settings = study["ablations"]["continuation"]
    sizes: dict[str, Any] = {"tokens": settings["prompt"] + settings["tokens"], "scored": settings["tokens"]}
    sizes |= {"batch": settings["batch_size"], "sequences": settings["windows"]}
    return _changed(study, names, "language", Work("write", **measured_model(study, names), **sizes))


def head_scores(study: Study, names: Names) -> Work:
    """Each head on all lookups and windows, from its own layer on: half the layers on average."""
    settings, shape = study["ablations"]["scores"], model_of(study, names)["shape"]
    passes = shape.layers * shape.heads * (settings["samples"] + settings["windows"]) // 2
    tokens = max(settings["tokens"], settings["repeated_tokens"] * settings["repetitions"])
    return reading(study, names, tokens, passes, scored=tokens)
