"""The work of jobs that read text."""

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from recurformer.plan.work import Work
from recurformer.plan.work_common import Names, Study, changed, measured_model, model_of, reading, usual_batch, work_of
from recurformer.plan.work_hashhop import answer_tokens, hashhop_tokens
from recurformer.study import Needle

TOKENS_OF_AN_ARTICLE = 5000  # 8,000 characters and more
LOGITS = 2**29  # numbers that a perplexity holds at once (`recurformer.measure.language`)
ANSWER_TOKENS = 16  # of a needle
SCORED_TOKENS = 5000  # of lm-eval's tasks that ask for the likelihood of a text; longer prompts are answered in writing


@dataclass(frozen=True)
class Asked:
    """Sizes of a task: samples, answers of each whose likelihood is wanted (choices), tokens of a request,
    tokens that are written instead, and tasks of the group, each of which a limit bounds.
    """

    samples: int
    tokens: int
    choices: int = 1
    written: int = 0
    tasks: int = 1

    def requests(self, limit: int | None) -> int:
        """Passes, with at most `limit` samples of each task."""
        return self.choices * min(self.samples, self.tasks * (limit or self.samples))


TASKS = {
    "hellaswag": Asked(10_042, 150, choices=4),
    "piqa": Asked(1_838, 60, choices=2),
    "arc_easy": Asked(2_376, 60, choices=4),
    "arc_challenge": Asked(1_172, 60, choices=4),
    "winogrande": Asked(1_267, 40, choices=2),
    "lambada_openai": Asked(5_153, 100),
    "mmlu": Asked(14_042, 120, choices=4, tasks=57),
    "wikitext": Asked(62, 5_000),
    "longbench": Asked(4_750, 12_000, written=128, tasks=21),
    "infinitebench": Asked(3_946, 100_000, written=100, tasks=12),
}
"""lm-eval's test sets: published numbers of samples, rounded lengths, about half of the longest answers."""


def _windows(study: Study, names: Names, length: str) -> Work:
    settings = study["language"]["maps"]
    return reading(study, names, settings[length], settings["samples"])


@work_of("sink")
def sink(study: Study, names: Names) -> Work:
    """Short windows, whose attention is kept."""
    return _windows(study, names, "shown_tokens")


@work_of("contribution", "attention_map")
def maps(study: Study, names: Names) -> Work:
    """Windows over which attention is averaged."""
    return _windows(study, names, "tokens")


@work_of("influence")
def influence(study: Study, names: Names) -> Work:
    """All samples in one pass; in float64 what the scan reads of them and the weights of each token in it, with copies
    six numbers a channel, and the decays of one sample at every state of a channel, with two intermediate results.
    """
    settings, beta = study["language"]["maps"], max(study["language"]["betas"])
    model = measured_model(study, names) | {"beta": beta}
    tokens, samples, shape = settings["shown_tokens"], settings["samples"], model["shape"]
    unrolled = 8 * tokens * shape.channels * (6 * samples + 3 * shape.d_state)
    return reading(study, names, tokens, samples, **model, models=2, batch=samples, inner_bytes=unrolled)


@work_of("profile_text", "ra_i_settings")
def profile_text(study: Study, names: Names) -> Work:
    """Windows over which heads are profiled."""
    profiling = study["language"]["profiling"]
    return reading(study, names, profiling["tokens"], profiling["samples"])


@work_of("perplexity")
def perplexity(study: Study, names: Names) -> Work:
    """Three models, one after the other: a card holds the next before the last is let go, a processor maps its file."""
    settings, model = study["language"]["perplexity"], measured_model(study, names)
    windows = settings["windows"] or ceil(TOKENS_OF_AN_ARTICLE / settings["tokens"])
    batch = min(
        usual_batch(study, settings["tokens"]),
        max(LOGITS // (settings["tokens"] * model["shape"].vocabulary), 1),
    )
    samples = 3 * windows * _validation_articles(study)
    sizes = {"models": 2 if study["device"] == "gpu" else 1, "batch": batch, "scored": settings["tokens"]}
    return reading(study, names, settings["tokens"], samples, **model | sizes)


def _validation_articles(study: Study) -> int:
    corpus = study["corpus"]
    return ceil(corpus["validation_share"] * (corpus["articles"] or 78))  # in gensim's wheel


@work_of("ablation_lm_eval")
def lm_eval(study: Study, names: Names) -> Work:
    """The prompts of one task, cut to what the model takes."""
    settings, model = study["language"]["tasks"], measured_model(study, names)
    name, usual, hashes = names["evaluated"], settings["tokens"], study["hashhop"]["task"]
    articles = _validation_articles(study) * ceil(TOKENS_OF_AN_ARTICLE / usual)
    ruler = Asked(500, settings["ruler_length"], written=128)
    sizes = TASKS | {
        "passkey": Asked(100, usual, written=16),
        "wikipedia": Asked(articles, usual),
        "hashhop": Asked(100, hashhop_tokens(hashes), written=answer_tokens(hashes)),
        "ruler": replace(ruler, samples=6_500, written=64, tasks=13),
    }
    one = sizes.get(name, ruler if name.startswith(("ruler_", "niah_")) else Asked(10_000, usual))
    asked = one.requests(dict(settings["limits"]).get(name, settings["samples"]))
    tokens = min(one.tokens * (1 + dict(settings["num_fewshot"]).get(name, 0)), model["shape"].positions)
    scored = min(tokens, max(usual, SCORED_TOKENS))
    sizes_of_it = {"tokens": tokens, "sequences": asked, "written": one.written, "scored": scored}
    return Work("write", batch=settings["batch_size"], **sizes_of_it, **model)


@work_of("needle")
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
    return changed(study, names, "language", Work("write", **measured_model(study, names), **sizes))


@work_of("continuation")
def continuation(study: Study, names: Names) -> Work:
    """Prompts, and the likelihood of what follows them."""
    settings = study["ablations"]["continuation"]
    sizes: dict[str, Any] = {"tokens": settings["prompt"] + settings["tokens"], "scored": settings["tokens"]}
    sizes |= {"batch": settings["batch_size"], "sequences": settings["windows"]}
    return changed(study, names, "language", Work("write", **measured_model(study, names), **sizes))


@work_of("head_scores")
def head_scores(study: Study, names: Names) -> Work:
    """Each head on all lookups and windows, from its own layer on: half the layers on average."""
    settings, shape = study["ablations"]["scores"], model_of(study, names)["shape"]
    passes = shape.layers * shape.heads * (settings["samples"] + settings["windows"]) // 2
    tokens = max(settings["tokens"], settings["repeated_tokens"] * settings["repetitions"])
    return reading(study, names, tokens, passes, scored=tokens)
