"""What the text, Table 3 and Figures 3 and 4 say about quality: HashHop, MQAR, continual training."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from recurformer.claims.caches import query_groups
from recurformer.claims.claim import ALLOWED_DROP, ALLOWED_RATIO, ROUNDING, Finding, at_most, drop
from recurformer.claims.evidence import Evidence, Missing, Rows, Undecided, because, labels
from recurformer.data.interval import Estimate, bounded_mean
from recurformer.paper import TABLE2_BETAS as BETAS
from recurformer.paper import label
from recurformer.results.cells import baseline_scores, over_original, perplexity_values, quality_values
from recurformer.results.frames import by_model, ratio_of_sums, records
from recurformer.results.learned import (
    KNOWS_LANGUAGE,
    LEARNED_MQAR,
    NEAR_PRINTED,
    at_best_rate,
    best_learning_rates,
    largest_fall,
    needed_h_gq,
    why_mqar_not_run,
    why_undecided,
)
from recurformer.results.scores import identified, of
from recurformer.results.words import estimated, number
from recurformer.study.ablations import COMMON_BETA

RECALLED = ("recalled_likelihood", "recalled")
"""Columns of positions: nats, and the tokens that only the text far before tells."""
SAME_STEPS = "trained for the same steps as the original; more were not tried"
DEFAULT_BETA = 0.9

Quality = dict[str, dict[float, Estimate]]
"""h_gq with its interval: model -> beta -> estimate."""


def _hashhop(evidence: Evidence, betas: Mapping[str, float], usual: float) -> tuple[Quality, dict[str, Any]]:
    """h_gq of every model at its own beta, or the usual one, and at 0; all must have learned the task. And a finding's
    samples, the fewest of a model, and rows.
    """
    models = evidence.models("hashhop", variant="official")
    quality: Quality = {}
    looked_at: dict[str, list[pd.DataFrame]] = {"hashhop": [], "baseline": []}
    samples: list[int] = []
    for model in models:
        answers, baseline = (evidence.rows(kind, model=model, variant="official") for kind in looked_at)
        answers = answers[answers["beta"].isin([0.0, betas.get(model, usual)])]
        cells = quality_values(answers)
        learned = baseline_scores(baseline, cells)[model]
        if not learned >= (needed := needed_h_gq(model)):
            raise Undecided(f"{label(model)} reaches h_gq {learned:.3f} before conversion; {needed:.3g} is needed")
        quality[model] = {cell.beta: Estimate(cell.ours, cell.low, cell.high) for cell in records(cells)}
        samples += cells.loc[cells["beta"] > 0, "samples"].tolist()
        looked_at["hashhop"].append(answers)
        looked_at["baseline"].append(baseline)
    rows = {kind: labels(frames) for kind, frames in looked_at.items()}
    return quality, {"rows": rows, "samples": min(samples, default=0)}


def _at(quality: Quality, model: str, beta: float) -> Estimate:
    if beta not in quality[model]:
        raise Missing(f"no h_gq of {label(model)} at beta {beta:g}")
    return quality[model][beta]


def _text(model: str, quality: Estimate) -> str:
    return f"{label(model)} {estimated(*quality, 3)}"


def require_flattened(arms: Iterable[tuple[bool, str]]) -> None:
    """Let no arm that may still learn decide; one that fails at its end decides whatever the others learn. `arms` tell
    of each whether it fails the test, and why it may still learn.

    Raises:
        Undecided: an arm may still learn, and none fails at its end.
    """
    known = list(arms)
    learning = [why for _, why in known if why]
    if learning and not any(fails and not why for fails, why in known):
        raise Undecided(learning[0])


def kept(evidence: Evidence) -> Finding:
    """Loss of h_gq at Table 2's beta against the largest that Table 2 prints."""
    quality, about = _hashhop(evidence, BETAS, DEFAULT_BETA)
    after = {model: _at(quality, model, BETAS.get(model, DEFAULT_BETA)) for model in quality}
    before = {model: _at(quality, model, 0.0) for model in quality}
    drops = {model: drop(before[model], after[model]) for model in quality}
    short = [model for model, lost in drops.items() if lost.mean > ALLOWED_DROP + ROUNDING]
    # who falls short could still learn; who keeps up says nothing beside an original that could
    arms = {model: BETAS.get(model, DEFAULT_BETA) if model in short else 0.0 for model in drops}
    require_flattened(
        (model in short, evidence.still_learning("hashhop", model=model, variant="official", beta=beta))
        for model, beta in arms.items()
    )
    text = ", ".join(f"{_text(model, after[model])} of {before[model].mean:.3f}" for model in quality)
    # The bound is the paper's own largest loss, and any interval around that loss reaches beyond it. So intervals may
    # reach beyond by what a measured h_gq may be off a printed one: else the paper, measured again, would not hold.
    holds, still_open = at_most(ALLOWED_DROP + ROUNDING, drops.values(), beyond=NEAR_PRINTED)
    return Finding(holds, text, **about, still_open=still_open)


def collapse(evidence: Evidence, nothing_left: float, both_kinds: bool = False) -> Finding:
    """What is left of h_gq at beta = 1: nothing where it is at most the fraction `nothing_left` of the original's.
    `both_kinds` needs models of one query head for each key-value head (MHA) and of several (GQA).
    """
    counted: Rows = {}
    if both_kinds:
        sizes, counted = query_groups(evidence, evidence.models("hashhop", variant="official"))
        kinds = {"GQA" if size > 1 else "MHA" for size in sizes.values()}
        if len(kinds) == 1:
            raise Missing(f"models with {kinds.pop()} only: the sentence is about MHA and GQA")
    quality, about = _hashhop(evidence, {}, 1.0)
    left = {model: _at(quality, model, 1.0) for model in quality}
    lost = [model for model, value in left.items() if value.mean <= nothing_left * _at(quality, model, 0.0).mean]
    if lost == list(quality):
        evidence.flattened("hashhop", model=lost, variant="official", beta=1.0)
    text = ", ".join(_text(model, value) for model, value in left.items())
    finding = Finding(lost == list(quality), text, **about, remark=SAME_STEPS)
    return replace(finding, rows={**counted, **finding.rows})


def long_range(evidence: Evidence) -> Finding:
    """How many links between far pairs the model follows at Table 2's beta, beside links between near ones.

    A link is tried once the hashes before it are right. Far: beyond the median distance of the tried links.
    """
    quality, about = _hashhop(evidence, BETAS, DEFAULT_BETA)
    rows = evidence.rows("hashhop", model=list(quality), variant="official")
    texts, drops = [], []
    for model in quality:
        beta = BETAS.get(model, DEFAULT_BETA)
        tried = [
            (row.seed, row.sample, distance, place < row.correct)
            for row in records(rows[(rows["model"] == model) & ((rows["beta"] - beta).abs() < ROUNDING)])
            for place, distance in enumerate(map(int, row.distances.split()[: row.correct]), 1)
        ]
        links = pd.DataFrame(tried, columns=["seed", "sample", "distance", "followed"])
        is_far = links["distance"] > links["distance"].median()
        if is_far.all() or not is_far.any():
            raise Missing(f"{label(model)} at beta {beta:g} comes to no link between far pairs")
        samples = (some.groupby(["seed", "sample"])["followed"].mean() for some in (links[is_far], links[~is_far]))
        far, near = (bounded_mean(of.to_numpy(), seeds=of.index.get_level_values("seed").to_numpy()) for of in samples)
        drops.append(drop(near, far))
        texts.append(f"{_text(model, far)} of the far links, {number(near.mean, 3)} of the near ones")
    holds, still_open = at_most(ALLOWED_DROP + ROUNDING, drops)
    return Finding(holds, ", ".join(texts), **about, still_open=still_open)


def _accuracy(evidence: Evidence, split: str) -> tuple[pd.DataFrame, dict[float, float], Rows]:
    """Accuracy at the best learning rate, (beta, length), on trained lengths; that rate of each beta; and the rows."""
    evidence.rows("mqar", split="validation")
    mqar = evidence.rows("mqar")
    best = best_learning_rates(mqar)
    if reason := why_mqar_not_run(mqar, best):
        raise Undecided(reason)
    rows = mqar[(mqar["split"] == split) & mqar["trained_length"].astype(bool)]
    accuracy = ratio_of_sums(at_best_rate(rows, best), ["beta", "length"], "correct", "queries").unstack("length")
    if 1.0 not in accuracy.index:
        raise Missing("no MQAR run with all heads replaced")
    return accuracy, best, {"mqar": mqar.index}


def _require_last_word(evidence: Evidence, beta: float, best: dict[float, float]) -> str:
    """How long a fraction that fails was trained beside the original.

    Raises:
        Undecided: its loss still falls. Twice the steps may still change much: β = 1 from 0.29 to 0.82, as recorded.
    """
    evidence.flattened("mqar", beta=beta, learning_rate=best[beta])
    return _how_long(evidence, beta, best)


def _how_long(evidence: Evidence, beta: float, best: dict[float, float]) -> str:
    """How long a fraction was trained beside the original."""
    steps, originals = (
        {float(evidence.settings.get(file, {}).get("training_steps", "nan")) for file in rows["file"].unique()}
        for rows in (evidence.rows("mqar", beta=at, learning_rate=best[at]) for at in (beta, 0.0))
    )
    times = min(steps) / max(originals)
    return SAME_STEPS if math.isnan(times) or times == 1 else f"trained for {times:g} times the steps of the original"


def poor_without_attention(evidence: Evidence, poor: float) -> Finding:
    """Accuracy on tested samples of trained lengths when all heads are replaced."""
    accuracy, best, rows = _accuracy(evidence, "test")
    highest = float(accuracy.loc[1.0].to_numpy().max())
    remark = (_require_last_word if highest < poor else _how_long)(evidence, 1.0, best)
    return Finding(highest < poor, f"at most {highest:.2f}", rows, remark=remark)


def recall_without_attention(evidence: Evidence) -> Finding:
    """Perplexity of recalled tokens when all heads are replaced, over that of the original trained likewise, at those
    positions at which the original recalls.
    """
    ratios: dict[str, tuple[float, float]] = {}
    rows: list[pd.DataFrame] = []
    reasons: list[Missing] = []
    for model, of_model in by_model(identified(evidence.rows("positions", trained=True), "positions")):
        original, bare = of(of_model, "original"), of(of_model, "mixer", "mamba")
        bare = bare[bare["setting"] == 1]
        nats = ratio_of_sums(original, "position", *RECALLED).dropna()
        recalls = nats.index[nats <= math.log(KNOWS_LANGUAGE)]
        if bare.empty:
            reasons.append(Missing(f"{label(model)}: no model with all heads replaced"))
        elif nats.empty:
            reasons.append(Missing(f"{label(model)}: no recalled tokens of the original trained likewise"))
        elif recalls.empty:
            reasons.append(Undecided(f"{label(model)} does not recall: perplexity {math.exp(nats.min()):,.0f} at best"))
        elif reason := why_undecided(largest_fall(pd.concat([bare, original]))):
            reasons.append(Undecided(f"{label(model)} at β 0 or 1: {reason}"))
        else:
            both = [part[part["position"].isin(recalls)] for part in (bare, original)]
            ours, theirs = (ratio_of_sums(part, "seed", *RECALLED) for part in both)
            ratios[model] = math.exp(ours.min() - theirs.max()), math.exp(ours.max() - theirs.min())
            rows += both
    if not ratios:
        raise because(reasons)
    text = ", ".join(f"{label(model)} {low:,.1f} to {high:,.1f}" for model, (low, high) in ratios.items())
    holds = min(low for low, _ in ratios.values()) > ALLOWED_RATIO
    fails = any(high <= ALLOWED_RATIO for _, high in ratios.values())
    return Finding(
        holds,
        f"times the original's, from the lowest to the highest pair of trainings: {text}",
        {"positions": labels(rows)},
        still_open="" if holds or fails else "the trainings differ",
    )


def attention_necessary(evidence: Evidence) -> Finding:
    """Some fraction of replaced heads learns all trained lengths, replacing all does not."""
    accuracy, best, rows = _accuracy(evidence, "validation")
    lowest = accuracy.min(axis=1)  # on any trained length
    some, none = lowest[(lowest.index > 0) & (lowest.index < 1)], float(accuracy.loc[1.0].to_numpy().min())
    if some.empty:
        raise Missing("no MQAR run with some heads replaced and some retained")
    retained = float(some.max())
    failed = [] if none >= LEARNED_MQAR else [1.0] if retained >= LEARNED_MQAR else list(some.index)
    reasons = dict.fromkeys(_require_last_word(evidence, beta, best) for beta in failed) or [
        _how_long(evidence, 1.0, best)
    ]
    text = f"lowest accuracy on a trained length: {retained:.2f} with some heads, {none:.2f} with none"
    return Finding(retained >= LEARNED_MQAR > none, text, rows, remark="; ".join(reasons))


def _perplexities(evidence: Evidence, beta: float | None = None) -> tuple[pd.DataFrame, Rows]:
    """Perplexity of converted models at one beta, where none is named at Table 3's, else at any: rows (model, beta),
    columns before, converted, trained and, after training, over_original; and the measurements behind them.
    """
    rows = evidence.rows("perplexity", model=evidence.models("perplexity"), split="validation")
    wide = perplexity_values(rows).pivot(index=["model", "beta"], columns="stage", values="ours")
    if wide["before"].max() > KNOWS_LANGUAGE:
        raise Undecided(f"a perplexity of {wide['before'].max():,.0f} before conversion: not a language model")
    betas = wide.index.get_level_values("beta")
    if 0.0 not in betas or not (betas > 0).any():
        raise Missing("perplexities of the original and of a converted model are needed")
    judged = np.isclose(betas, COMMON_BETA if beta is None else beta)
    chosen = judged if judged.any() or beta is not None else betas > 0
    converted = wide.assign(over_original=over_original(wide["trained"]))[chosen].dropna(subset="over_original")
    if converted.empty:
        raise Missing("no perplexity of a converted model has one of its original beside it")
    # the originals stand beside them
    behind = rows[rows["beta"].isin([0.0, *converted.index.get_level_values("beta")])]
    return converted, {"perplexity": behind.index}


def training_necessary(evidence: Evidence) -> Finding:
    """Perplexity after conversion, before any training, over the original's."""
    perplexities, rows = _perplexities(evidence)
    lowest = float((perplexities["converted"] / perplexities["before"]).min())
    return Finding(lowest > ALLOWED_RATIO, f"at least {lowest:,.1f} times the original's", rows)


def _last_quarter(rows: pd.DataFrame) -> float:
    """Mean training loss over the last quarter of a training."""
    return float(np.array_split(rows.groupby("step")["loss"].mean().to_numpy(), 4)[3].mean())


def converge(evidence: Evidence) -> Finding:
    """Training loss over the last quarter: converted against original, at Figure 3's beta where that was trained."""
    models = evidence.models("metrics")
    rows = evidence.rows("metrics", model=models)
    gaps = {}
    for model in models:
        betas = set(rows.loc[rows["model"] == model, "beta"]) - {0.0}
        for beta in sorted({COMMON_BETA} & betas or betas):
            end, originals = (_last_quarter(evidence.rows("metrics", model=model, beta=at)) for at in (beta, 0.0))
            gaps[model, beta] = end - originals
    if not gaps:
        raise Missing("no training of a converted model")
    allowed = math.log(ALLOWED_RATIO)
    largest, (worst, at_beta) = max((gap, where) for where, gap in gaps.items())
    require_flattened(
        (gap > allowed, evidence.still_learning("metrics", model=model, beta=[0.0, beta]))
        for (model, beta), gap in gaps.items()
    )
    text = f"at most {largest:.2f} nats above the original's ({label(worst)}, β {at_beta:g})"
    return Finding(largest <= allowed, text, {"metrics": rows.index})


def perplexity_comparable(evidence: Evidence, beta: float | None = None) -> Finding:
    """Perplexity over that of the original after the same training, once both have flattened."""
    perplexities, rows = _perplexities(evidence, beta)
    ratios, allowed = perplexities["over_original"], ALLOWED_RATIO + ROUNDING
    where = {"stage": "trained", "split": "validation"}
    require_flattened(
        (ratio > allowed, evidence.still_learning("perplexity", model=model, beta=[0.0, beta], **where))
        for (model, beta), ratio in zip(ratios.index, ratios, strict=True)
    )
    shown = ", ".join(
        f"{label(model)} {ratio:.3f} (β {beta:g})" for (model, beta), ratio in zip(ratios.index, ratios, strict=True)
    )
    return Finding(float(ratios.max()) <= allowed, f"over the original's: {shown}", rows)
