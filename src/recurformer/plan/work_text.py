"""The work of jobs that read text."""

from collections.abc import Callable
from math import ceil

from recurformer.plan.resources import Work
from recurformer.plan.work_common import Names, Study, measured_model, reading, usual_batch
from recurformer.plan.work_hashhop import hashhop_tokens

TOKENS_OF_AN_ARTICLE = 5000  # 8,000 characters and more
LOGITS = 2**29  # numbers that a perplexity holds at once (`recurformer.evaluate.perplexity`)
SCORED_TOKENS = 5000  # of lm-eval's tasks that ask for the likelihood of a text; longer prompts are answered in writing
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


def maps(length: str) -> Callable[[Study, Names], Work]:
    """Windows as long as the key `length` of the maps says."""

    def work(study: Study, names: Names) -> Work:
        settings = study["language"]["maps"]
        return reading(study, names, settings[length], settings["samples"])

    return work


def influence(study: Study, names: Names) -> Work:
    """In float64 what the scan reads of all samples and the weights of each token in it, and the decays of one sample
    at every state of a channel, with two intermediate results.
    """
    settings, beta = study["language"]["maps"], max(study["language"]["betas"])
    model = measured_model(study, names) | {"beta": beta}
    tokens, samples, shape = settings["sink_tokens"], settings["samples"], model["shape"]
    unrolled = 8 * tokens * shape.channels * (4 * samples + 3 * shape.d_state)
    return reading(study, names, tokens, samples, **model, models=2, inner_bytes=unrolled)


def profile_text(study: Study, names: Names) -> Work:
    """Windows over which heads are profiled."""
    profiling = study["language"]["profiling"]
    return reading(study, names, profiling["tokens"], profiling["samples"])


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


def lm_eval(study: Study, names: Names) -> Work:
    """The longest prompt, cut to what the model takes, decides on memory, the sum of all on time."""
    settings, model = study["language"]["tasks"], measured_model(study, names)
    usual = settings["tokens"]
    articles = _validation_articles(study) * ceil(TOKENS_OF_AN_ARTICLE / usual)
    sizes = TASKS | {
        "passkey": (100, usual),
        "wikipedia": (articles, usual),
        "hashhop": (100, hashhop_tokens(study["hashhop"]["task"])),
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
