"""The claims that sentences, captions and curves make: which test decides each of them."""

from collections.abc import Callable

from recurformer.paper import STATEMENTS
from recurformer.render.claims import attention, caches, quality
from recurformer.render.claims.claim import Claim, Finding
from recurformer.render.claims.evidence import Evidence

Judge = Callable[[Evidence], Finding]
WEIGHTS = "the published weights of the paper's three models and a card of 80 GB (config/paper.yaml)"
SHAPES = "counting on the published shapes"
EXACT = "none: counted"
SIGN = "none: the sign of a difference"
HALF = "half: more than all other tokens together"
SPEED = "timings of prefill and decoding beside the original's on a card: `speed` of config/gpu.yaml, not yet run"
OTHER_METHODS = "PyramidInfer in the paper's models; the ablations run it in small ones (`reviewer/pareto`)"
KEPT = (
    "h_gq at Table 2's β is at most so much lower than the original's",
    f"{quality.ALLOWED_DROP:.3f}: the largest loss in Table 2, which the text calls both matching and no compromise",
)
"""The one test of kept quality, whichever word the paper has for it, and its tolerance."""

TESTS: dict[str, tuple[Judge | None, str, str, str]] = {
    "text/recency-aware-heads": (attention.judge_recency_aware,
        "at least a tenth of the heads exceed the threshold α in most windows",
        "a tenth is what “certain” is read as", WEIGHTS),
    "text/contextual-retrieval-heads": (attention.judge_contextual_retrieval,
        "at least a tenth of the heads do not exceed α in most windows",
        "a tenth is what “others” is read as", WEIGHTS),
    "figure5/high": (attention.judge_figure5_high,
        "of its attention on recent tokens, which RA-I counts alike, high RA-I gives the nearer half a larger share "
        "than low RA-I", SIGN, WEIGHTS),
    "figure5/low": (attention.judge_figure5_low,
        "low RA-I gives the first token a larger share of the attention than high RA-I", SIGN, WEIGHTS),
    "figure5/samples": (None, "–", "–", "nothing: Figure 5's caption gives another number"),
    "figure5/caption-samples": (None, "–", "–", "nothing: section 4.4 gives another number"),
    "figure6/qwen2-more-recency-aware": (attention.judge_figure6,
        "mean RA-I of both Qwen2 models exceeds Llama2-7B's", SIGN, WEIGHTS),
    "appendix/alpha": (None, "–", "–", "nothing: it is no ratio"),
    "text/attention-sink": (attention.judge_sink,
        "the head shown in Figure 2 gives the first token most of its attention", HALF, WEIGHTS),
    "figure2/value-norm": (attention.judge_value_norm,
        "both norms of the first token's value are below the mean of the others'", SIGN, WEIGHTS),
    "figure2/limited-contribution": (attention.judge_limited_contribution,
        "over all heads the first token's mean contribution to a query is below that of the other tokens, both norms",
        SIGN, WEIGHTS),
    "text/fixed-first-value": (None, "the first token's value varies less over samples than others' values", SIGN,
        "the spread of value vectors over samples, which no stage measures"),
    "text/input-gate": (None, "the gated first value comes near the others' norm", SIGN,
        "norms behind the trained input gate, which no stage measures"),
    "text/first-contributes-less": (attention.judge_first_contributes_less,
        "the first token's mean contribution is below the others' under both norms, paired t-test",
        f"p < {attention.SIGNIFICANT:g}", WEIGHTS),
    "text/first-contributes-less-qwen2-7b": (attention.judge_less_in_qwen2_7b,
        "the first token's mean contribution is below the others' under both norms", SIGN, WEIGHTS),
    "text/non-overlapping": (None, "–", "–", "nothing: Table 5's own intervals decide it"),
    "text/no-eviction": (caches.judge_no_eviction,
        "a retained key-value head holds all tokens at every β below 1 and every length", EXACT, SHAPES),
    "text/cache-growth": (caches.judge_cache_growth,
        "at every β the cache gains fewer bytes with the length than the original's, whole query groups replaced", SIGN,
        SHAPES),
    "text/constant-cache": (caches.judge_constant_cache, "the growth exponent of Mamba's cache is 0",
        f"{caches.EXPONENT_TOLERANCE:g}: that of a fit", SHAPES),
    "text/smaller-cache": (caches.judge_smaller_cache,
        "Mamba's counted peak and cache are below attention's in both phases at every measured length beyond that at "
        "which the caches are equal", EXACT, SHAPES),
    "text/equation-3": (caches.judge_equation_3,
        "Llama2-7B's counted states at β = 1 are equation 3 times the layers", EXACT, SHAPES),
    "text/attention-kinds": (caches.judge_attention_kinds,
        "one query head for each key-value head in Llama2-7B, several in the Qwen2 models", EXACT, SHAPES),
    "text/models-of-the-cache-runs": (None, "–", "–", "nothing: Table 2 has other models"),
    "text/longer-inputs": (caches.judge_longer_inputs, "measured l_m at Table 2's β exceeds the original's", SIGN,
        WEIGHTS),
    "text/quality-kept": (quality.judge_quality_kept, *KEPT, WEIGHTS),
    "text/collapse-at-one": (quality.judge_collapse, "h_gq at β = 1 is a trace of the original's",
        f"{quality.NOTHING_LEFT:.0%} of the original's: a chance hit", WEIGHTS),
    "text/collapse-in-mha-and-gqa": (quality.judge_collapse_everywhere,
        "the same in every model measured, of which one has MHA and one GQA",
        f"{quality.NOTHING_LEFT:.0%} of the original's: a chance hit", WEIGHTS),
    "figure4/poor-without-attention": (quality.judge_poor_without_attention,
        "accuracy at β = 1 is poor on every tested trained length", f"poor: below {quality.POOR:g}",
        "config/gpu.yaml: the paper's sizes"),
    "figure4/attention-necessary": (quality.judge_attention_necessary,
        "a model that keeps some heads learns every trained length, one that keeps none does not",
        f"learned: {quality.NEEDED_ACCURACY:g}", "config/gpu.yaml: the paper's sizes"),
    "text/long-range-kept": (None, "h_gq does not depend on the distance between linked pairs", SIGN,
        "answers by distance over long inputs, which no stage measures; config/paper.yaml has the inputs"),
    "text/similar-reductions": (None, "both counted caches are near each other", SIGN, OTHER_METHODS),
    "appendix/eviction-ratio": (None, "–", "–", "nothing: the printed caches follow from the opposite reading"),
    "text/eviction-degrades": (None, "h_gq of PyramidInfer falls at the same cache", SIGN, OTHER_METHODS),
    "text/training-necessary": (quality.judge_training_necessary,
        "converted and not yet trained, perplexity is above what the text calls comparable",
        f"{quality.ALLOWED_RATIO:.3f} times the original's: the largest ratio in Table 3", WEIGHTS),
    "text/weights-reused": (None, "the same training from random weights ends at a higher perplexity", SIGN,
        "that training beside the one from reused weights; no stage runs it yet"),
    "figure3/converge": (quality.judge_converge,
        "over the last quarter of a converged training the loss is near the original's",
        f"the logarithm of {quality.ALLOWED_RATIO:.3f}, the largest ratio in Table 3", WEIGHTS),
    "text/perplexity-comparable": (quality.judge_perplexity_comparable,
        "after a converged training perplexity is near the original's",
        f"{quality.ALLOWED_RATIO:.3f} times: the largest ratio in Table 3", WEIGHTS),
    "text/masked-prediction": (None, "–", "–", "nothing: causal models do not predict masked tokens"),
    "text/inference-efficiency": (None, "prefill and decoding are faster than the original's", SIGN, SPEED),
    "text/parallel-branches": (None, "at batch 1 the two branches take longer one after the other than side by side",
        SIGN, SPEED),
    "text/complexity": (None, "operations of a Mamba block are fewer than attention's at every length", SIGN, SPEED),
    "text/without-compromising": (quality.judge_quality_kept, *KEPT, WEIGHTS),
    "text/combines": (None, "an eviction method on the retained heads loses no more than on all heads", SIGN,
        OTHER_METHODS),
}  # fmt: skip
"""Id of a statement -> its test, the test in words, its tolerance, and what it needs at the paper's scale."""


def statement_claims() -> list[Claim]:
    """One claim for every checkable sentence."""
    claims = []
    for statement in STATEMENTS.values():
        judge, test, tolerance, needs = TESTS[statement.id]
        claims.append(
            Claim(
                id=statement.id,
                place=statement.place,
                statement=f"“{statement.quote}”",
                kind=statement.kind,
                test=test,
                tolerance=tolerance,
                needs=needs,
                judge=judge,
            )
        )
    return claims
