"""What the reviewers asked and the paper does not claim: tests on the measurements of the ablations."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pandas as pd

from recurformer.paper import QUESTIONS
from recurformer.render.ablations import (
    CONTINUATION,
    HASHHOP,
    LONGEST,
    MEASURES,
    NEEDLE,
    PASSKEYS,
    SEVERAL_KEYS,
    Measure,
    method_label,
)
from recurformer.render.claims.claim import Claim, Finding, Missing
from recurformer.render.claims.comparisons import comparisons, judge_comparisons
from recurformer.render.claims.evidence import Evidence
from recurformer.render.claims.language_tasks import LONG_TASKS, judge_tasks
from recurformer.render.claims.pairings import (
    Comparison,
    at_same_cache,
    beside_layers,
    beside_mixers,
    beside_original,
    chosen_otherwise,
)
from recurformer.render.claims.reach import (
    ALLOWED_CHANGE,
    ALLOWED_GROWTH,
    judge_length,
    judge_ra_i,
    judge_sizes,
    judge_spared,
)
from recurformer.render.claims.recovered import WITHIN, judge_equal_bytes, judge_recovered, judge_tokens
from recurformer.render.claims.smallest import with_smallest
from recurformer.render.claims.tolerances import ALLOWED_DROP, ALLOWED_RATIO

REVIEWER = "reviewer"
"""The kind of what the reviewers asked: no claim of the paper, counted apart from those."""
NEEDS = "the ablation study (`snakemake ablations`) on the paper's models (config/paper.yaml)"
MIXERS = ("window", "linear")


def judge_pareto(evidence: Evidence) -> Finding:
    """h_gq of RecurFormer beside every eviction method's at the same cache, at every β."""
    finding = judge_comparisons(comparisons(evidence, [HASHHOP], at_same_cache("eviction")), by_beta=True)
    return with_smallest(evidence, finding)


def judge_granularity(evidence: Evidence) -> Finding:
    """Heads beside whole layers replaced by the same mixer, at equal β and about the same cache."""
    return judge_comparisons(comparisons(evidence, MEASURES, beside_layers))


def judge_selectors(evidence: Evidence) -> Finding:
    """Heads chosen by RA-I beside heads chosen at random, the mean over the seeds, at equal β by the same mixer."""
    return judge_comparisons(comparisons(evidence, MEASURES, chosen_otherwise("random")))


def judge_mixers(evidence: Evidence, others: tuple[str, ...] = MIXERS) -> Finding:
    """Mamba beside other mixers on the same heads, all of them trained, at equal β.

    Raises:
        Missing: one of them was not trained, or only at β at which the model does as well without the heads.
    """
    found = []
    for other in others:
        try:
            found += comparisons(evidence, MEASURES, beside_mixers(other))
        except Missing as missing:
            where = "on the same heads, at a β at which the model misses them"
            raise type(missing)(f"{method_label('mixer', other)} {where}: {missing}") from None
    return with_smallest(evidence, judge_comparisons(found))


def with_plus(evidence: Evidence, judge: Callable[[Evidence, str], Finding]) -> Finding:
    """What the paper's recipe gave decides; what the plus recipe gave is told besides.

    Args:
        evidence: what is looked at; what the plus recipe gave is not counted.
        judge: of an arm of recovery, "" for the paper's.

    Raises:
        Missing: nothing was measured of the paper's recipe.
    """
    told = ""
    with suppress(Missing):
        plus = judge(evidence.fresh(), "plus")
        told = f"; not counted: {plus.ours} ({'holds' if plus.holds else 'fails'}{'' if plus.decided else ', open'})"
    try:
        finding = judge(evidence, "")
    except Missing as missing:
        raise type(missing)(f"{missing}{told}") from None
    return replace(finding, ours=f"{finding.ours}{told}")


def judge_needle(evidence: Evidence) -> Finding:
    """Needles found at β = 0.5 beside every eviction method's at the same cache."""

    def judge(evidence: Evidence, arm: str) -> Finding:
        return judge_comparisons(comparisons(evidence, [NEEDLE], at_same_cache("eviction", common=True, arm=arm)))

    return with_plus(evidence, judge)


def judge_window(evidence: Evidence) -> Finding:
    """Mamba beside a sliding window on the same heads after the same training, and beside RazorAttention at the same
    cache.
    """
    pairings = beside_mixers("window"), at_same_cache("eviction", "razor_attention")

    def pair(points: pd.DataFrame, measure: Measure) -> list[Comparison]:
        return [one for pairing in pairings for one in pairing(points, measure)]

    return with_smallest(evidence, judge_comparisons(comparisons(evidence, MEASURES, pair)))


def judge_pooled(evidence: Evidence) -> Finding:
    """RecurFormer beside pooled KV heads at the same cache."""
    return with_smallest(evidence, judge_comparisons(comparisons(evidence, MEASURES, at_same_cache("pooled"))))


def judge_kept(evidence: Evidence, measures: tuple[Measure, ...], allowed: float) -> Finding:
    """RecurFormer at β = 0.5 beside the original, less what is allowed."""

    def judge(evidence: Evidence, arm: str) -> Finding:
        pair = partial(beside_original, arm=arm)
        return judge_comparisons(comparisons(evidence, measures, pair), allowed=allowed)

    return with_plus(evidence, judge)


Judge = Callable[[Evidence], Finding]
NO_LESS = "none: no less, in the mean"
TESTS: dict[str, tuple[Judge, str, str, str]] = {
    "pareto": (judge_pareto, "At equal cache RecurFormer scores on HashHop at least what every eviction method scores",
        "at every β h_gq is no less than each method's that can hold as little, interpolated to RecurFormer's cache",
        NO_LESS),
    "granularity": (judge_granularity, "Replacing heads keeps at least the quality of replacing whole layers",
        "at equal β and about the same cache, by the same mixer, each measure of heads is no worse than that of layers",
        NO_LESS),
    "selectors": (judge_selectors, "The heads that RA-I chooses can be replaced at no more loss than random ones",
        "at equal β, in the mean over the measured β, each measure is no worse than the mean of the random choices",
        NO_LESS),
    "mixers": (judge_mixers, "On the same heads Mamba is no worse than a sliding window and linear attention",
        "at equal β and after the same training each measure is no worse, in the mean over the measured β at which the "
        "model misses the heads where they are removed", NO_LESS),
    "length": (judge_length, "The loss of quality does not grow with the generated length",
        "at every β below 1 the loss above the original's gains no more from the first to the second half",
        f"{ALLOWED_GROWTH:g} nats per token"),
    "sizes": (judge_sizes, "RecurFormer's quality on HashHop holds at other lengths and hops than were trained",
        "at every β, at every size at which the original scores 0.95 or more, h_gq falls short of it by no more",
        f"{ALLOWED_DROP:g}"),
    "needle": (judge_needle, "RecurFormer at β = 0.5 finds needles at least as often as eviction at the same cache",
        "accuracy is no less than each method's, interpolated to the cache that RecurFormer held", NO_LESS),
    "head_maps": (judge_spared, "RA-I replaces last the heads that look back",
        "its rank correlation with the retrieval, the echo and the induction score is above 0",
        "none: above 0, in the mean"),
    "ra_i": (judge_ra_i, "The choice of heads hardly depends on the threshold α and the window k",
        "no β has more of its chosen heads change when α or k moves within a factor of two",
        f"{ALLOWED_CHANGE:.0%} of the chosen heads"),
    "recovery": (judge_recovered, "What the plus recipe reaches: it brings a converted model back to its original",
        "at β = 0.5 the perplexity on held-out windows is at most the original's, times what Table 3 calls comparable",
        f"{ALLOWED_RATIO:.3f} of the perplexity"),
    "tokens": (judge_tokens, "A converted model is back within the tokens that were run",
        "at β = 0.5 some point of a recovery curve has a perplexity within 5 % of the untouched original's",
        f"{WITHIN:g} of the perplexity"),
    "equal_bytes": (judge_equal_bytes, "A Mamba state keeps at least the quality of a window of equal bytes",
        "on the same heads and after the same tokens the divergence from the original is no larger", NO_LESS),
}  # fmt: skip
"""Id of a question -> its test, the statement that is tested, the test in words, its tolerance: one a figure."""

ANSWERS: dict[str, Judge] = {
    **{name: test[0] for name, test in TESTS.items()},
    "lm-eval": judge_tasks,
    "real-world": partial(judge_tasks, families=LONG_TASKS),
    "several-keys": partial(judge_kept, measures=(SEVERAL_KEYS,), allowed=ALLOWED_DROP),
    "passkey": partial(judge_kept, measures=(PASSKEYS,), allowed=ALLOWED_DROP),
    "perplexity-gap": partial(judge_kept, measures=(CONTINUATION,), allowed=math.log(ALLOWED_RATIO)),
    "synthetic": partial(judge_kept, measures=(NEEDLE,), allowed=ALLOWED_DROP),
    "long-context": partial(judge_kept, measures=(LONGEST,), allowed=ALLOWED_DROP),
    "mqa": judge_pooled,
    "window": judge_window,
    "linear": partial(judge_mixers, others=("linear",)),
}
"""Id of a question -> what answers it."""


def reviewer_claims() -> list[Claim]:
    """One claim for each figure of the ablations. The paper makes none of them: the reviewers asked."""
    return [
        Claim(
            id=f"reviewer/{name}", place=QUESTIONS[name].place, statement=f"{statement} (not claimed by the paper)",
            kind=REVIEWER, test=test, tolerance=tolerance, needs=NEEDS, judge=judge,
        )
        for name, (judge, statement, test, tolerance) in TESTS.items()
    ]  # fmt: skip
