"""The work of trainings, in one process or shared among several."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from recurformer.plan.shapes import Shape
from recurformer.plan.training_memory import FLOAT32
from recurformer.plan.work import Work
from recurformer.plan.work_common import Names, Study, model_of, work_of
from recurformer.plan.work_hashhop import hashhop_tokens


def train(task: str, recipe: str = "training") -> Callable[[Study, Names], Work]:
    """Training by a recipe of a task, `language` or `hashhop`."""

    def work(study: Study, names: Names) -> Work:
        settings = study[task][recipe]
        tokens = study["language"]["tokens"] if task == "language" else hashhop_tokens(study["hashhop"]["task"])
        sizes: dict[str, Any] = {"tokens": tokens, "sequences": settings["steps"] * settings["batch_size"]}
        shared = _sharing(study.get("distributed", {}).get(names["backbone"]), settings["batch_size"])
        return Work("train", **model_of(study, names, learned=True), **sizes, **shared)

    return work


work_of("pretrain_hashhop")(train("hashhop", "pretraining"))
work_of("train_hashhop", "train_changed_on_hashhop")(train("hashhop"))
work_of("train_changed_on_text")(train("language"))


def _measured(study: Study, work: Work) -> Work:
    """A training with the original in memory, and its predictions on the held-out windows of a curve."""
    recovery = study["language"]["recovery"]
    if recovery is None:
        return work
    predicted = recovery["held_out"] * work.tokens * work.shape.vocabulary
    return replace(work, inner_bytes=FLOAT32 * (work.shape.parameters() + predicted))


@work_of("train_text")
def train_text(study: Study, names: Names) -> Work:
    """The paper's training, with the curve of the study that asks for one."""
    return _measured(study, train("language")(study, names))


@work_of("recover")
def recover(study: Study, names: Names) -> Work:
    """The same by another recipe, which reads the text with the original too."""
    work = _measured(study, train("language")(study, names))
    language = study["language"]
    arms = language["recovery"]["arms"] if language["recovery"] else {}
    steps = arms.get(names.get("arm"), {}).get("steps") or language["training"]["steps"]
    return replace(work, sequences=4 / 3 * steps * language["training"]["batch_size"])


def _sharing(distributed: Mapping[str, Any] | None, batch_size: int) -> dict[str, Any]:
    """The processes of a training."""
    if distributed is None:
        return {"batch": batch_size}
    passes = distributed["processes"] * distributed["gradient_accumulation"]
    return {
        "batch": ceil(batch_size / passes),
        "processes": distributed["processes"],
        "strategy": distributed["strategy"],
        "checkpointing": distributed["activation_checkpointing"],
    }


@work_of("mqar")
def mqar(study: Study, names: Names) -> Work:
    """Training of the small model; its tests take little beside it."""
    task, training = study["mqar"]["task"], study["mqar"]["task"]["training"]
    sizes = {name: task[name] for name in ("hidden_size", "layers", "heads", "kv_heads", "head_dim", "vocabulary")}
    shape = Shape(**sizes, intermediate_size=4 * task["hidden_size"], **study["mamba"])
    tokens, batch = max(length for length, _ in task["train"]), training["batch_size"]
    beta = float(names["beta"])
    sequences = training["steps"] * batch * (2 if beta in study["mqar"]["doubled"] else 1)
    return Work("train", shape, tokens, sequences, batch, beta=beta)
