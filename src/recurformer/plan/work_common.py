"""The registry of what each rule's jobs work through, and what all formulas share."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from recurformer.batching import samples_per_batch
from recurformer.plan.shapes import Shape
from recurformer.plan.training_memory import BF16, FLOAT32
from recurformer.plan.work import Light, Work
from recurformer.study.subject import Subject

Study = Mapping[str, Any]
"""A study, as `Study.model_dump` gives it."""
Names = Mapping[str, str]
"""Wildcards of a job."""
DTYPES = {"float32": FLOAT32, "bfloat16": BF16}


Formula = Callable[[Study, Names], Work | Light]
F = TypeVar("F", bound=Formula)
WORKS: dict[str, Light | Formula] = {}
"""Rule -> its work."""


def work_of(*rules: str) -> Callable[[F], F]:
    """Declare a function as the work of some rules."""

    def declare(formula: F) -> F:
        WORKS.update(dict.fromkeys(rules, formula))
        return formula

    return declare


def model_of(study: Study, names: Names, learned: bool = False) -> dict[str, Any]:
    """Shape, converted as far as the wildcards say, and bytes of a weight: the hub's are bfloat16 until trained."""
    backbone = study["backbones"][names["backbone"]]
    subject = subject_of(names)
    beta = names.get("beta") or (subject.beta if subject else 0)
    return {
        "shape": Shape.of(backbone, study["mamba"]),
        "beta": float(beta),
        "weight_bytes": 2 if backbone["source"] == "hub" and not learned else 4,
    }


def measured_model(study: Study, names: Names) -> dict[str, Any]:
    """A trained model, or what it is compared with, as it is opened to be measured."""
    dtype = study["evaluation_dtype"]
    return model_of(study, names, learned=True) | ({"weight_bytes": DTYPES[dtype]} if dtype else {})


def subject_of(names: Names) -> Subject | None:
    """The subject of a job of the ablations."""
    path = names.get("subject") or names.get("change")
    return Subject.parse(path) if path else None


def usual_batch(study: Study, tokens: int) -> int:
    """Samples of so many tokens that go through a model at once where nobody said so."""
    return samples_per_batch("cuda" if study["device"] == "gpu" else "cpu", tokens)


def reading(study: Study, names: Names, tokens: int, samples: int, **more: Any) -> Work:
    """Samples that are read in batches as large as the device takes well; `more` overrides."""
    batch = min(usual_batch(study, tokens), samples)
    return Work("read", tokens=tokens, sequences=samples, **{**model_of(study, names), "batch": batch, **more})


def changed(study: Study, names: Names, task: str, work: Work) -> Work:
    """Several budgets, those matched to trained models among them, or shares in one job; replacing heads on the spot
    holds the original and two changed models.
    """
    subject, ablations = subject_of(names), study["ablations"]
    kind = subject.kind if subject else ""
    budgets = [*ablations["budgets"], *ablations[task]["matched"]]
    settings = {"evicted": budgets, "replaced": ablations["betas"]}.get(kind, [0])
    return replace(work, sequences=work.sequences * len(settings), models=3 if kind == "replaced" else 1)
