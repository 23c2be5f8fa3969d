"""What all jobs share of which a study and their wildcards say how large their work is."""

from collections.abc import Mapping
from typing import Any

from recurformer.batching import samples_per_batch
from recurformer.plan.resources import Work
from recurformer.plan.shapes import Shape
from recurformer.plan.training_memory import BF16, FLOAT32

Study = Mapping[str, Any]
"""As `Study.model_dump` gives it."""
Names = Mapping[str, str]
"""Wildcards of a job."""
DTYPES = {"float32": FLOAT32, "bfloat16": BF16}


def model_of(study: Study, names: Names, learned: bool = False) -> dict[str, Any]:
    """Shape, converted as far as the wildcards say, and bytes of a weight: the hub's are bfloat16 until trained."""
    backbone = study["backbones"][names["backbone"]]
    beta = names.get("beta") or next((part[5:] for part in parts_of(names) if part.startswith("beta-")), "0")
    return {
        "shape": Shape.of(backbone, study["mamba"]),
        "beta": float(beta),
        "weight_bytes": 2 if backbone["source"] == "hub" and not learned else 4,
    }


def measured_model(study: Study, names: Names) -> dict[str, Any]:
    """A trained model, or what it is compared with, as it is opened to be measured."""
    dtype = study["evaluation_dtype"]
    return model_of(study, names, learned=True) | ({"weight_bytes": DTYPES[dtype]} if dtype else {})


def parts_of(names: Names) -> list[str]:
    """Of a subject of the ablations, or of its change."""
    return (names.get("subject") or names.get("change") or "").split("/")


def usual_batch(study: Study, tokens: int) -> int:
    """Samples of so many tokens that go through a model at once where nobody said so."""
    return samples_per_batch("cuda" if study["device"] == "gpu" else "cpu", tokens)


def reading(study: Study, names: Names, tokens: int, samples: int, **more: Any) -> Work:
    """Samples that are read in batches as large as the device takes well; `more` overrides."""
    batch = min(usual_batch(study, tokens), samples)
    return Work("read", tokens=tokens, sequences=samples, **{**model_of(study, names), "batch": batch, **more})
