"""What the text, Table 3 and Figure 3 say about continual training."""

import math
from typing import Any

import numpy as np
import pandas as pd

from recurformer.claims.claim import ALLOWED_RATIO, ROUNDING, Finding
from recurformer.claims.evidence import Evidence, Missing, Undecided
from recurformer.claims.quality import require_flattened
from recurformer.results.learned import KNOWS_LANGUAGE


def _perplexities(evidence: Evidence) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Perplexity of converted models: rows (model, beta > 0), columns before, converted, trained, original; and for a
    finding: whether the models are the paper's, and the rows.
    """
    models, papers = evidence.models("perplexity")
    rows = evidence.rows("perplexity", model=models, split="validation")
    sums = rows.pivot_table(
        index=["model", "beta"], columns="stage", values=["negative_log_likelihood", "tokens"], aggfunc="sum"
    )
    wide = (sums["negative_log_likelihood"] / sums["tokens"]).map(math.exp)
    if not {"before", "converted", "trained"} <= set(wide):
        raise Missing("perplexities before conversion, after it and after training are needed")
    original = wide.xs(0.0, level="beta")["trained"] if 0.0 in wide.index.get_level_values("beta") else None
    if wide["before"].max() > KNOWS_LANGUAGE:
        raise Undecided(f"a perplexity of {wide['before'].max():,.0f} before conversion: not a language model")
    converted = wide[wide.index.get_level_values("beta") > 0]
    if original is None or converted.empty:
        raise Missing("perplexities of the original and of a converted model are needed")
    found = converted.assign(original=original.reindex(converted.index.get_level_values("model")).to_numpy())
    return found, {"at_scale": papers, "rows": {"perplexity": rows.index}}


def training_necessary(evidence: Evidence) -> Finding:
    """Perplexity after conversion, before any training, over the original's."""
    found, about = _perplexities(evidence)
    lowest = float((found["converted"] / found["before"]).min())
    return Finding(lowest > ALLOWED_RATIO, f"at least {lowest:,.1f} times the original's", **about)


def _last_quarter(rows: pd.DataFrame) -> float:
    """Mean training loss over the last quarter of a training."""
    return float(np.array_split(rows.groupby("step")["loss"].mean().to_numpy(), 4)[3].mean())


def converge(evidence: Evidence) -> Finding:
    """Training loss over the last quarter: converted against original."""
    models, papers = evidence.models("metrics")
    rows = evidence.rows("metrics", model=models)
    gaps = {}
    for model in models:
        for beta in sorted(set(rows.loc[rows["model"] == model, "beta"]) - {0.0}):
            ours, theirs = (evidence.rows("metrics", model=model, beta=share) for share in (beta, 0.0))
            gaps[model, beta] = _last_quarter(ours) - _last_quarter(theirs)
    if not gaps:
        raise Missing("no training of a converted model")
    allowed, largest = math.log(ALLOWED_RATIO), max(gaps.values())
    require_flattened(
        (gap > allowed, evidence.still_learning("metrics", model=model, beta=[0.0, beta]))
        for (model, beta), gap in gaps.items()
    )
    text = f"at most {largest:.2f} nats above the original's"
    return Finding(largest <= allowed, text, papers, {"metrics": rows.index})


def perplexity_comparable(evidence: Evidence) -> Finding:
    """Perplexity over that of the original after the same training, once both have flattened."""
    found, about = _perplexities(evidence)
    ratios, allowed = found["trained"] / found["original"], ALLOWED_RATIO + ROUNDING
    where = {"stage": "trained", "split": "validation"}
    require_flattened(
        (ratio > allowed, evidence.still_learning("perplexity", model=model, beta=[0.0, beta], **where))
        for model, beta, ratio in zip(*map(found.index.get_level_values, ("model", "beta")), ratios, strict=True)
    )
    ratio = float(ratios.max())
    return Finding(ratio <= allowed, f"at most {ratio:.3f} of the original's", **about)
