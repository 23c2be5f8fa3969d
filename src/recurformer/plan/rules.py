"""Which work each rule of the workflow has, read off the study and the job's wildcards, and what it asks for.

The workflow asks here for `resources:`, and a plan for estimates of jobs that never ran. A rule that is not named here
asks for constants of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from recurformer.batching import samples_per_batch
from recurformer.plan.resources import DEVICES, Work, card_mb, limit_minutes, memory_mb, minutes
from recurformer.plan.shapes import Shape
from recurformer.study import HashHopEvaluation, HashHopTask

Study = Mapping[str, Any]
Names = Mapping[str, str]

TOKENS_OF_A_CHARACTER = 0.8  # of HashHop's random letters, by SmolLM2's tokenizer: 4,800 tokens of 6,144 characters
TOKENS_OF_AN_ARTICLE = 5000  # 8,000 characters and more
LOGITS = 2**29  # numbers that a perplexity holds at once (`recurformer.evaluate.perplexity`)
SCORED_TOKENS = 5000  # of lm-eval's tasks that ask for the likelihood of a text; longer prompts are answered in writing
ANSWER_TOKENS = 16  # of a needle or a passkey
TASKS = {
    "hellaswag": (40_168, 150),
    "piqa": (3_676, 60),
    "arc_easy": (9_504, 60),
    "arc_challenge": (4_688, 60),
    "winogrande": (2_534, 40),
    "lambada_openai": (5_153, 100),
    "mmlu": (56_168, 120),
    "wikitext": (62, 5_000),
    "longbench": (4_750, 12_000),
    "infinitebench": (3_946, 100_000),
}
"""Requests (samples times choices) and tokens of each, of lm-eval's test sets: published sizes, rounded lengths."""


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
    """Work without a model's weights: what it takes does not depend on their size. Megabytes, minutes."""

    memory_mb: int
    minutes: float = 1.0


def _model(study: Study, names: Names, learned: bool = False) -> dict[str, Any]:
    """Shape, converted as far as the wildcards say, and bytes of a weight: the hub's are bfloat16 until trained."""
    backbone = study["backbones"][names["backbone"]]
    beta = names.get("beta") or next((part[5:] for part in _parts(names) if part.startswith("beta-")), "0")
    return {
        "shape": Shape.of(backbone, study["mamba"]),
        "beta": float(beta),
        "weight_bytes": 2 if backbone["source"] == "hub" and not learned else 4,
    }


def _parts(names: Names) -> list[str]:
    """Of a subject of the ablations, or of its change."""
    return (names.get("subject") or names.get("change") or "").split("/")


def _read(study: Study, names: Names, tokens: int, samples: int, **more: Any) -> Work:
    batch = min(samples_per_batch("cuda" if study["device"] == "gpu" else "cpu", tokens), samples)
    return Work("read", tokens=tokens, sequences=samples, **{**_model(study, names), "batch": batch, **more})


def _maps(length: str) -> Callable[[Study, Names], Work]:
    def work(study: Study, names: Names) -> Work:
        maps = study["language"]["maps"]
        return _read(study, names, maps[length], maps["samples"])

    return work


def _influence(study: Study, names: Names) -> Work:
    """Decays of all samples, channels and states at once, in float64 and with two intermediate results."""
    maps, beta = study["language"]["maps"], max(study["language"]["betas"])
    model = _model(study, names, learned=True) | {"beta": beta}
    unrolled = 3 * 8 * maps["samples"] * maps["sink_tokens"] * model["shape"].channels * model["shape"].d_state
    return _read(study, names, maps["sink_tokens"], maps["samples"], **model, models=2, inner_bytes=unrolled)


def _profile_text(study: Study, names: Names) -> Work:
    profiling = study["language"]["profiling"]
    return _read(study, names, profiling["tokens"], profiling["samples"])


def _profile_hashhop(study: Study, names: Names) -> Work:
    return _read(study, names, _hashhop_tokens(study["hashhop"]["task"]), study["hashhop"]["profiling"]["samples"])


def _perplexity(study: Study, names: Names) -> Work:
    """Three models, one after the other: a card holds the next before the last is let go, a processor maps its file."""
    settings, model = study["language"]["perplexity"], _model(study, names, learned=True)
    windows = settings["windows"] or ceil(TOKENS_OF_AN_ARTICLE / settings["tokens"])
    batch = min(
        samples_per_batch("cuda" if study["device"] == "gpu" else "cpu", settings["tokens"]),
        max(LOGITS // (settings["tokens"] * model["shape"].vocabulary), 1),
    )
    samples = 3 * windows * _validation_articles(study)
    sizes = {"models": 2 if study["device"] == "gpu" else 1, "batch": batch, "scored": settings["tokens"]}
    return _read(study, names, settings["tokens"], samples, **model | sizes)


def _validation_articles(study: Study) -> int:
    corpus = study["corpus"]
    return ceil(corpus["validation_share"] * (corpus["articles"] or 78))  # in gensim's wheel


def _lm_eval(study: Study, names: Names) -> Work:
    """The longest prompt, cut to what the model takes, decides on memory, the sum of all on time."""
    settings, model = study["language"]["tasks"], _model(study, names, learned=True)
    usual = settings["tokens"]
    articles = _validation_articles(study) * ceil(TOKENS_OF_AN_ARTICLE / usual)
    sizes = TASKS | {
        "passkey": (100, usual),
        "wikipedia": (articles, usual),
        "hashhop": (100, _hashhop_tokens(study["hashhop"]["task"])),
        "ruler": (13 * 500 * len(settings["ruler_lengths"]), max(settings["ruler_lengths"])),
    }
    asked = [sizes.get(name, (10_000, usual)) for name in settings["names"]] or [(1, usual)]
    asked = [
        (min(requests, settings["samples"] or requests), min(tokens, model["shape"].positions))
        for requests, tokens in asked
    ]
    longest = max(tokens for _, tokens in asked)
    sequences = ceil(sum(requests * tokens for requests, tokens in asked) / longest)
    scored = min(longest, max(usual, SCORED_TOKENS))
    return Work("write", tokens=longest, sequences=sequences, batch=settings["batch_size"], scored=scored, **model)


def _train(task: str, recipe: str = "training") -> Callable[[Study, Names], Work]:
    def work(study: Study, names: Names) -> Work:
        settings = study[task][recipe]
        tokens = study["language"]["tokens"] if task == "language" else _hashhop_tokens(study["hashhop"]["task"])
        sizes = {"tokens": tokens, "sequences": settings["steps"] * settings["batch_size"]}
        shared = _sharing(study.get("distributed", {}).get(names["backbone"]), settings["batch_size"])
        return Work("train", **_model(study, names, learned=True), **sizes, **shared)

    return work


def _sharing(distributed: Mapping[str, Any] | None, batch_size: int) -> dict[str, Any]:
    """How a training lies on its processes."""
    if distributed is None:
        return {"batch": batch_size}
    passes = distributed["processes"] * distributed["gradient_accumulation"]
    return {
        "batch": ceil(batch_size / passes),
        "processes": distributed["processes"],
        "strategy": distributed["strategy"],
        "checkpointing": distributed["activation_checkpointing"],
    }


def _hashhop_tokens(task: Mapping[str, Any]) -> int:
    """Of a prompt with its answer."""
    if task["form"] == "tokens":
        return 2 * task["pairs"] + task["hops"] + 4
    return ceil(TOKENS_OF_A_CHARACTER * task["characters"]) + _answer_tokens(task)


def _answer_tokens(task: Mapping[str, Any]) -> int:
    return task["hops"] if task["form"] == "tokens" else ceil(TOKENS_OF_A_CHARACTER * task["hops"] * 11)


def _hashhop(study: Study, names: Names) -> Work:
    return _answered(study, names, study["hashhop"]["task"], study["hashhop"]["evaluation"])


def _hashhop_sizes(study: Study, names: Names) -> Work:
    """Every size as if it were the longest: that one decides on memory."""
    settings, task = study["ablations"]["sizes"], HashHopTask(**study["hashhop"]["task"])
    usual = HashHopEvaluation(samples=settings["samples"]).model_dump()
    resized = [task.resized(hops, size).model_dump() for hops, size in settings["sizes"]]
    works = [_answered(study, names, other, usual) for other in resized]
    longest = max(works, key=lambda work: work.tokens)
    return replace(longest, sequences=len(works) * longest.sequences)


def _answered(study: Study, names: Names, task: Mapping[str, Any], settings: Mapping[str, Any]) -> Work:
    return Work(
        "write",
        tokens=_hashhop_tokens(task),
        sequences=settings["samples"] * len(settings["variants"]),
        batch=settings["batch_size"],
        written=_answer_tokens(task),
        **_model(study, names, learned=True),
    )


def _changed(study: Study, names: Names, work: Work) -> Work:
    """Several budgets or shares in one job; replacing heads on the spot holds the original and two changed models."""
    kind = _parts(names)[0]
    settings = {"evicted": study["ablations"]["budgets"], "replaced": study["ablations"]["betas"]}.get(kind, [0])
    return replace(work, sequences=work.sequences * len(settings), models=3 if kind == "replaced" else 1)


def _ablation_hashhop(study: Study, names: Names) -> Work:
    return _changed(study, names, _hashhop(study, names))


def _needle(study: Study, names: Names) -> Work:
    settings = study["ablations"]["needle"]
    prompts = len(settings["tasks"]) * len(settings["lengths"]) * len(settings["depths"]) * settings["samples"]
    sizes = {"tokens": max(settings["lengths"]), "sequences": prompts, "written": ANSWER_TOKENS}
    return _changed(study, names, Work("write", **_model(study, names, learned=True), **sizes))


def _continuation(study: Study, names: Names) -> Work:
    settings = study["ablations"]["continuation"]
    sizes = {"tokens": settings["prompt"] + settings["tokens"], "scored": settings["tokens"]}
    sizes |= {"batch": settings["batch_size"], "sequences": settings["windows"]}
    return _changed(study, names, Work("write", **_model(study, names, learned=True), **sizes))


def _head_scores(study: Study, names: Names) -> Work:
    """Each head on all lookups and windows, from its own layer on: half the layers on average."""
    settings, shape = study["ablations"]["scores"], _model(study, names)["shape"]
    passes = shape.layers * shape.heads * (settings["samples"] + settings["windows"]) // 2
    tokens = max(settings["tokens"], settings["repeated_tokens"] * settings["repetitions"])
    return _read(study, names, tokens, passes, scored=tokens)


def _mqar(study: Study, names: Names) -> Work:
    task, training = study["mqar"]["task"], study["mqar"]["task"]["training"]
    sizes = {name: task[name] for name in ("hidden_size", "layers", "heads", "kv_heads", "head_dim", "vocabulary")}
    shape = Shape(**sizes, intermediate_size=4 * task["hidden_size"], **study["mamba"])
    tokens, batch = max(length for length, _ in task["train"]), training["batch_size"]
    sequences = training["steps"] * batch
    return Work("train", shape, tokens, sequences, batch, beta=float(names["beta"]))


def _copy(study: Study, names: Names) -> Work:
    return Work("copy", **_model(study, names), models=2)


def _corpus(study: Study, names: Names) -> Light:
    return Light(300 + (study["corpus"]["articles"] or 0) // 10, 2 + (study["corpus"]["articles"] or 0) / 1000)


WORKS: dict[str, Callable[[Study, Names], Work | Light]] = {
    "corpus": _corpus,
    "backbone": _copy,
    "profile_text": _profile_text,
    "profile_hashhop": _profile_hashhop,
    "select": lambda study, names: Light(600),
    "convert": _copy,
    "sink": _maps("sink_tokens"),
    "contribution": _maps("tokens"),
    "attention_map": _maps("tokens"),
    "influence": _influence,
    "train_text": _train("language"),
    "perplexity": _perplexity,
    "lm_eval": _lm_eval,
    "pretrain_hashhop": _train("hashhop", "pretraining"),
    "baseline": _hashhop,
    "train_hashhop": _train("hashhop"),
    "hashhop": _hashhop,
    "mqar": _mqar,
    "cache": lambda study, names: Light(700, 2),
    "memory": lambda study, names: Light(700, 2),
    "complexity": lambda study, names: Light(700),
    "pyramidinfer": lambda study, names: Light(700),
    "table": lambda study, names: Light(400),
    "figure": lambda study, names: Light(300),
    "claims": lambda study, names: Light(400),
    "crate": lambda study, names: Light(400),
    "head_scores": _head_scores,
    "ra_i_settings": _profile_text,
    "select_other": lambda study, names: Light(600),
    "convert_to_mixer": _copy,
    "pool_kv": _copy,
    "train_changed_on_text": _train("language"),
    "train_changed_on_hashhop": _train("hashhop"),
    "needle": _needle,
    "continuation": _continuation,
    "ablation_hashhop": _ablation_hashhop,
    "hashhop_sizes": _hashhop_sizes,
    "ablation_claims": lambda study, names: Light(400),
}
"""Rule -> its work."""


def request(rule: str, study: Study, names: Names, threads: int = 1) -> Request:
    """What a job of `rule` asks for in a study, as `Study.model_dump` gives it; `names` are the job's wildcards.

    Raises:
        KeyError: the rule asks for constants of its own.
    """
    work = WORKS[rule](study, names)
    if isinstance(work, Light):
        return Request(work.memory_mb, None, work.minutes, limit_minutes(work.minutes), 0)
    device = DEVICES["cpu" if work.kind == "copy" else study["device"]]
    expected = minutes(work, device, threads)
    host = memory_mb(work, device)
    return Request(host, card_mb(work, device), expected, limit_minutes(expected), work.processes * device.is_card)
