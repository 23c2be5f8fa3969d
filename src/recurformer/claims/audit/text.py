"""The paper's sentences against each other and against what its words can mean."""

import re

from recurformer.claims.audit.tables import Audited
from recurformer.claims.claim import STATEMENTS
from recurformer.paper import BACKBONE_LABELS, CELLS, label

TESTED = "text/models-of-the-cache-runs"
NAME = re.compile(r"(?:Qwen2|Llama2)-[\d.]+B")


def _numbers(quote: str) -> list[str]:
    """The whole numbers of a quote, in their order."""
    return re.findall(r"\d+", quote)


def models_named() -> Audited:
    """The models of the cache runs, in the text and in Table 2's cache columns."""
    named = set(NAME.findall(STATEMENTS[TESTED].quote))
    shown = {label(cell.model) for cell in CELLS if cell.table == 2}
    only_text, only_table = sorted(named - shown), sorted(shown - named)
    return Audited(
        "audit/models-named", "the models that the text says were tested are those of the table",
        "Section 4.1 and Table 2",
        (f"text: {', '.join(sorted(named))}", f"Table 2: {', '.join(sorted(shown))}",
         f"in the text only: {', '.join(only_text) or 'none'}; in the table only: {', '.join(only_table) or 'none'}"),
        named == shown, (TESTED,),
    )  # fmt: skip


def threshold() -> Audited:
    """Alpha is compared with a recency ratio."""
    quote = STATEMENTS["appendix/alpha"].quote
    alpha, tokens = float(quote.rpartition(" ")[2]), int(_numbers(quote)[0])
    return Audited(
        "audit/alpha", "a threshold on a ratio between 0 and 1 lies between 0 and 1", "Appendix B and equation 1",
        (f"α = {alpha:g}; RR = local weights / all weights ≤ 1, so no RR exceeds α",
         f"{alpha:g} / {tokens} tokens = {alpha / tokens:.3f}: a tenth of the sample, it reads as k of equation 1"),
        0 <= alpha <= 1, ("appendix/alpha",),
    )  # fmt: skip


def masked_prediction() -> Audited:
    """Masked prediction needs bidirectional attention."""
    task = "text/masked-prediction"
    return Audited(
        "audit/masked-prediction", "a training task suits the models that are trained on it", "Sections 3.1 and 4.2",
        (f"trained: {', '.join(BACKBONE_LABELS.values())}, all with causal attention",
         "masked prediction reads what follows the mask; causal attention does not"),
        "masked prediction" not in STATEMENTS[task].quote, (task,),
    )  # fmt: skip


def figure5_samples() -> Audited:
    """The samples of Figure 5, in the text and in its caption."""
    text, caption = (STATEMENTS[name].quote for name in ("figure5/samples", "figure5/caption-samples"))
    return Audited(
        "audit/figure5-samples", "text and caption of a figure give the same number of samples",
        "Section 4.4 and Figure 5",
        (f"section 4.4: “{text}”", f"caption of Figure 5: “{caption}”"),
        _numbers(text)[-1] == _numbers(caption)[-1], ("figure5/samples", "figure5/caption-samples"),
    )  # fmt: skip


def prefill_symbol() -> Audited:
    """Table 1's cache of the prefill phase in terms of the generated length."""
    cell = next(c for c in CELLS if c.id == "table1/prefill/attention/cache_size")
    return Audited(
        "audit/prefill-symbol", "the cache after prefilling grows with the length of the prompt, l_p", cell.place,
        (f"printed: {cell.printed}; section 3.2: “l_g the length of generated tokens”, of which a prefill has none",
         "the cache peak beside it, O(l_p^2 + l_p · d), uses l_p; O(l_p · d) is meant"),
        "l_g" not in cell.printed, (cell.id,),
    )  # fmt: skip
