"""Reach of the findings: along a text, to later questions, other HashHop sizes and RA-I settings, in every head, and to
the tasks of lm-eval.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from recurformer.claims.claim import ALLOWED_DROP, Finding, at_most, mean_difference
from recurformer.claims.comparisons import (
    RECURFORMER,
    Comparison,
    comparisons,
    decides,
    judge_comparisons,
    mean_on_same_samples,
    recurformer,
    rows_of,
)
from recurformer.claims.evidence import Evidence, Missing, Undecided, because, labels
from recurformer.data.interval import Estimate, bounded_mean
from recurformer.paper import label
from recurformer.results.frames import by_model, groups, ratio_of_sums, records
from recurformer.results.frontier import TURNS, by_document
from recurformer.results.learned import FALL, largest_fall, why_undecided
from recurformer.results.scores import (
    CONTINUATION,
    HASHHOP,
    HASHHOP_SIZES,
    NEEDLE,
    PAPERS_SELECTOR,
    SIZE_UNITS,
    after_training,
    agreement,
    at_common_setting,
    changed_fraction,
    default_setting,
    identified,
    less,
    method_label,
    of,
    one_unit,
    original,
    scores,
    state_over_tokens,
    why_not_run,
)
from recurformer.study.measurements import LOCAL

MINIMUM_CHOSEN = 10
"""Of fewer chosen heads a single one is more than may change."""
LOOKING_BACK = ("retrieval", "echo", "induction")
"""Scores that replace heads with a long reach last."""
ERROR = 2.0
"""Estimated costs may be off by such a factor."""
FACTOR = 2.01
"""Settings this near to the default are looked at: twice 102 of 1,024 tokens is measured as 205."""


def _growth(rows: pd.DataFrame, original: pd.DataFrame) -> Estimate:
    """Gain of the loss above the original's of the same seed from the first to the second half."""
    keys = ["seed", "window", "position"]
    nats, originals = (ratio_of_sums(side, keys, "negative_log_likelihood", "tokens") for side in (rows, original))
    extra = (nats.unstack("position") - originals.unstack("position")).dropna()
    half = extra.shape[1] // 2
    if not half or extra.index.get_level_values("window").nunique() < 2:
        raise Missing("two windows of two positions at least are needed")
    gains = extra.iloc[:, -half:].mean(axis=1) - extra.iloc[:, :half].mean(axis=1)  # without a middle of its own
    return mean_difference(gains)


def length(evidence: Evidence, allowed: float) -> Finding:
    """Growth of the loss above the original's along a continuation, at every β below 1.

    It may gain `allowed` nats per token from the first to the second half.
    """
    points = evidence.scores(CONTINUATION)
    rows = identified(evidence.rows("continuation"), "continuation")
    gains: dict[tuple[str, float], Estimate] = {}
    used = rows.head(0)
    reasons: list[Missing] = []
    still_open: list[Undecided] = []
    for model, measured in by_model(rows):
        of_model = after_training(measured)
        ours = of(of_model, "mixer", "mamba")
        try:
            if reason := why_not_run(points[points["model"] == model], CONTINUATION):
                raise Undecided(reason)
            for beta, converted in groups(ours[ours["setting"] < 1], "setting"):
                if reason := why_undecided(largest_fall(converted)):
                    still_open.append(Undecided(f"{label(model)} at β {beta:g}: {reason}"))
                    continue
                unchanged = of_model[of_model["family"] == "original"]
                gains[model, beta] = _growth(converted, unchanged)
                used = pd.concat([used, converted, unchanged])
        except Missing as missing:
            reasons.append(missing)
    if not gains:
        raise because([*reasons, *still_open] or [Missing("no continuation measurements of RecurFormer")])
    (model, beta), largest = max(gains.items(), key=lambda item: item[1].mean)
    holds, why = at_most(allowed, gains.values())
    if holds and still_open:  # it is about every β, and some may still fail
        why = str(because(still_open))
    text = (
        f"from the first to the second half of a held-out continuation the loss above the original's grows by at most "
        f"{largest.mean:.3f} [{largest.low:.3f}, {largest.high:.3f}] nats a token ({label(model)}, β {beta:g}); "
        f"{allowed:g} are allowed"
    )
    windows = int(used["window"].nunique())
    return Finding(holds, text, {"continuation": used.index}, windows, why)


def sizes(evidence: Evidence) -> Finding:
    """RecurFormer beside the original at every length and number of hops that it has learned, but the trained size."""
    rows = evidence.rows(HASHHOP_SIZES.kind)
    learned: list[Comparison] = []
    beyond: list[Comparison] = []
    for (hops, size, form), of_size in groups(rows[~rows["as_trained"].astype(bool)], ["hops", "size", "form"]):
        for _, of_model in by_model(scores(of_size, HASHHOP_SIZES)):
            pairs = comparisons(HASHHOP_SIZES, of_model, {"original": []})
            if why_not_run(of_model, HASHHOP_SIZES):
                beyond += pairs
                continue
            learned += [replace(one, other=f"the original ({hops} hops, {size:,} {SIZE_UNITS[form]})") for one in pairs]
    if not learned:
        raise Missing(
            "RecurFormer and an original that has learned the task were not measured at one size that was not trained"
        )
    finding = judge_comparisons(learned, by_beta=True, allowed="printed")
    if not beyond:
        return finding
    least = min(beyond, key=lambda one: one.score.mean)
    most = max(beyond, key=lambda one: one.score.mean)
    text = (
        f"{finding.ours}; where the original itself has not learned the task, RecurFormer scores "
        f"{least.score.mean:.3g} (β {least.beta:g}) to {most.score.mean:.3g} (β {most.beta:g})"
    )
    return replace(finding, ours=text, rows=rows_of([*learned, *beyond]))


def over_length(evidence: Evidence) -> Finding:
    """Change of h_gq with every eviction method, above the original's, from the shortest to the longest prompt that the
    original has learned, at the hops of the training.
    """
    rows = evidence.rows(HASHHOP_SIZES.kind)
    changes: dict[str, Estimate] = {}
    used: list[int] = []
    samples: list[int] = []
    reasons: list[Missing] = []
    for model, of_model in by_model(rows):
        if (of_model["family"] != "eviction").all():
            continue
        hops = of_model.loc[of_model["as_trained"].astype(bool), "hops"]
        of_sizes = groups(of_model[of_model["hops"].isin(hops)], ["size", "form"], sort=True)
        every = [(size, SIZE_UNITS[form], scores(of_size, HASHHOP_SIZES)) for (size, form), of_size in of_sizes]
        learned = [one for one in every if not why_not_run(one[-1], HASHHOP_SIZES)]
        if len(learned) < 2:
            reasons.append(Undecided(f"two prompts are needed that {label(model)} has learned, of as many hops"))
            continue
        (least, _, short), (most, unit, long) = learned[0], learned[-1]
        for _, before in of(short, "eviction").iterrows():
            later = of(long, "eviction", before["method"])
            later = later[later["setting"] == before["setting"]]
            originals = [original(points, trained=True).head(1) for points in (short, long)]
            others = [row for frame in (later, *originals) for _, row in frame.iterrows()]
            if len(others) < 3:
                continue
            after, first, last = others
            change = (after["mean"] - before["mean"]) - (last["mean"] - first["mean"])
            half = math.hypot(*((row["high"] - row["low"]) / 2 for row in (before, *others)))
            name = (
                f"{label(model)}, {method_label('eviction', before['method'])} with {before['ratio']:.2f} of the cache"
            )
            changes[f"{name}, {least:,} to {most:,} {unit}"] = Estimate(change, change - half, change + half)
            used += [row for one in (before, *others) for row in one["rows"]]
            samples.append(int(before["samples"]))
    if not changes:
        raise because(reasons or [Missing("no eviction method was measured with two lengths of the prompt")])
    name, worst = max(changes.items(), key=lambda item: item[1].mean)
    holds, still_open = at_most(0.0, changes.values())
    text = (
        f"h_gq changes by at most {worst.mean:+.3f} [{worst.low:+.3f}, {worst.high:+.3f}] more than the original's "
        f"({name}; {len(changes)} comparisons)"
    )
    return Finding(holds, text, {HASHHOP_SIZES.kind: used}, max(samples), still_open)


def combines(evidence: Evidence) -> Finding:
    """h_gq that eviction from the retained heads costs a converted model, above its cost to the original at the same
    budget.
    """
    points = evidence.scores(HASHHOP)
    extra: dict[str, Estimate] = {}
    used: list[int] = []
    samples: dict[str, int] = {}
    reasons: list[Missing] = []
    for model, of_model in by_model(points):
        if (combined := of(of_model, "combined")).empty:
            continue
        if reason := why_not_run(of_model, HASHHOP):
            reasons.append(Undecided(reason))
            continue
        ours, full = at_common_setting(recurformer(of_model)), original(of_model, trained=True)
        for _, kept in combined.iterrows():
            plain = of(of_model, "eviction", kept["method"])
            plain = plain[plain["setting"] == kept["setting"]]
            four = [row for frame in (ours, full, plain) for _, row in frame.head(1).iterrows()]
            if len(four) < 3:
                raise Missing(f"{label(model)}: {kept['method']} was not measured on all heads at {kept['setting']:g}")
            converted, unchanged, evicted = four
            cost = (converted["mean"] - kept["mean"]) - (unchanged["mean"] - evicted["mean"])
            half = math.hypot(*((row["high"] - row["low"]) / 2 for row in (*four, kept)))
            lost = less(converted["by_sample"], kept["by_sample"], False)
            lost_more = less(lost, less(unchanged["by_sample"], evicted["by_sample"], False), False)
            name = f"{label(model)}, {method_label('eviction', kept['method'])}, {kept['setting']:g} of the tokens"
            extra[name] = (
                mean_on_same_samples(lost_more, HASHHOP, most=2.0)
                if decides(lost_more, HASHHOP, trained=True)
                else Estimate(cost, cost - half, cost + half)
            )
            used += [*kept["rows"], *(row for one in four for row in one["rows"])]
            samples[model] = int(of_model["samples"].max())
    if not extra:
        raise because(reasons or [Missing("no eviction method was measured on retained heads")])
    name, worst = max(extra.items(), key=lambda item: item[1].mean)
    holds, still_open = at_most(ALLOWED_DROP, extra.values())
    text = (
        f"at most {worst.mean:+.3f} [{worst.low:+.3f}, {worst.high:+.3f}] of h_gq more than on all heads ({name}; "
        f"{len(extra)} comparisons)"
    )
    return Finding(holds, text, {HASHHOP.kind: used}, max(samples.values()), still_open)


def spared(evidence: Evidence) -> Finding:
    """Rank correlation of RA-I with what heads that look back score, with its interval over the heads."""
    rows = evidence.rows("head_scores", by=[PAPERS_SELECTOR, *LOOKING_BACK])
    agreements = agreement(rows)
    agreements = agreements[agreements["by"].isin(LOOKING_BACK)]
    if agreements.empty:
        raise Missing(f"none of the scores {', '.join(LOOKING_BACK)} was measured")
    # Fisher's transformation
    centre = np.arctanh(agreements["rank_correlation"])
    half = 1.96 / np.sqrt(agreements["heads"] - 3)
    low, high = np.tanh(centre - half), np.tanh(centre + half)
    holds = bool((agreements["rank_correlation"] > 0).all())
    text = "; ".join(
        f"{label(row.model)}, {row.heads} heads: {row.by} {row.rank_correlation:.2f} [{row.low:.2f}, {row.high:.2f}]"
        for row in records(agreements.assign(low=low, high=high))
    )
    decided = bool((low > 0).all() if holds else (high < 0).any())
    still_open = "" if decided else "an interval holds 0"
    return Finding(holds, text, {"head_scores": rows.index}, still_open=still_open)


def _near(values: pd.Series, default: float) -> pd.Series:
    return (values <= FACTOR * default) & (values * FACTOR >= default)


def ra_i(evidence: Evidence, allowed: float) -> Finding:
    """Fraction of the chosen heads that changes when α or k, not both, moves within a factor of two."""
    rows = one_unit(evidence.rows("ra_i_settings"))
    nearby = []
    for _, of_model in groups(rows, "model"):
        window, threshold = default_setting(of_model)
        same_window, same_threshold = of_model["window"] == window, of_model["threshold"] == threshold
        near = _near(of_model["window"], window) & _near(of_model["threshold"], threshold)
        nearby.append(of_model[near & (same_window ^ same_threshold)])
    moved = pd.concat(nearby)
    if moved.empty:
        raise Missing("no other setting of RA-I within a factor of two of the default")
    looked_at = {"ra_i_settings": moved.index}
    enough = moved["selected"] >= MINIMUM_CHOSEN
    holds = bool(changed_fraction(moved).max() <= allowed)
    lost = bool((changed_fraction(moved[enough]) > allowed).any())
    moved = moved[enough] if lost else moved
    decided = bool(enough.any()) if holds else lost
    changed = changed_fraction(moved)
    worst = moved.iloc[int(changed.argmax())]
    text = (
        f"at most {changed.max():.1%} of the chosen heads change ({label(worst['model'])}, β {worst['beta']:g}, "
        f"k {worst['window']:g}, α {worst['threshold']:g}), {changed.mean():.1%} on average"
    )
    reason = "" if decided else f"fewer than {MINIMUM_CHOSEN} chosen heads are too few"
    return Finding(holds, text, looked_at, still_open=reason)


def states(evidence: Evidence) -> Finding:
    """Fraction of the groups of heads in which a Mamba state is priced below tokens and bits of as many bytes, by the
    mean over the seeds of text, lookups and drawn tokens.
    """
    model, rows = by_model(evidence.rows("mixer_prices", mixer="mamba"))[0]
    if "needle_weight" in rows:
        rows = rows[rows["needle_weight"] != 0]  # text alone is another question
    rows = rows.dropna(subset="tokens_cost")
    if rows.empty:
        raise Missing("no price list that counts lookups has a choice of tokens and bits as small as the state")
    times = state_over_tokens(rows).dropna()
    of_group, error = times.mean(axis=1), math.log(ERROR)
    cheaper = bounded_mean((of_group < 0).to_numpy(float))
    mean, low, high = map(math.exp, mean_difference(pd.Series(times.stack())))
    differ = times < -error, times > error
    decided = any(all(bounded_mean(side[seed].to_numpy(float)).low > 0.5 for seed in side) for side in differ)
    text = (
        f"{label(model)}, {rows['tokens'].max():,} tokens: the state is cheaper in {(of_group < 0).sum()} of "
        f"{len(of_group)} groups ({cheaper.mean:.3f} [{cheaper.low:.3f}, {cheaper.high:.3f}]), and costs {mean:.3g} "
        f"[{low:.3g}, {high:.3g}] times as much in the geometric mean (seeds: {times.shape[1]})"
    )
    still_open = "" if decided else f"not in every seed more than half of the groups differ by a factor of {ERROR:g}"
    return Finding(cheaper.mean > 0.5, text, {"mixer_prices": rows.index}, still_open=still_open)


def chosen(evidence: Evidence, nearest: float) -> Finding:
    """By how much further from the original windows in the heads of highest RA-I are than windows by price, on the same
    text, in caches whose sizes differ by at most `nearest` of the original's.
    """
    rows = identified(evidence.rows("continuation"), "continuation")
    rows = rows[~rows["trained"]].dropna(subset="divergence") if "divergence" in rows else rows.head(0)
    further: dict[str, Estimate] = {}
    used: list[pd.DataFrame] = []
    for model, of_model in by_model(rows):
        for (beta, held), ours in groups(of(of_model, "mixer", "window"), ["setting", "ratio"]):
            for ratio, priced in groups(of(of_model, "priced", "windows"), "ratio"):
                if abs(ratio - held) <= nearest:
                    name = f"{label(model)}, β {beta:g}, {held:.3f} of the cache"
                    one, other = (
                        ratio_of_sums(side, ["seed", "window"], "divergence", "tokens") for side in (ours, priced)
                    )
                    further[name] = mean_difference(one - other)
                    used += [ours, priced]
    if not further:
        raise Missing("windows in the heads of highest RA-I and windows by price were not measured at equal bytes")
    name, worst = max(further.items(), key=lambda item: item[1].mean)
    holds, still_open = at_most(0.0, further.values())
    text = (
        f"at most {worst.mean:+.3f} [{worst.low:+.3f}, {worst.high:+.3f}] nats a token further from the original than "
        f"windows by price, whose sizes are chosen too ({name}; {len(further)} comparisons)"
    )
    windows = int(pd.concat(used)["window"].nunique())
    return Finding(holds, text, {"continuation": labels(used)}, windows, still_open)


def turns(evidence: Evidence, least: float) -> Finding:
    """By how much smaller the fraction of later questions is that a model answers with an evicting cache, in documents
    that were read before the questions were known; of originals that answer more than `least` of them.
    """
    rows = TURNS.chosen(identified(evidence.rows("turns"), "turns"))
    lost: dict[str, Estimate] = {}
    methods: dict[str, None] = {}
    used: list[pd.DataFrame] = []
    reasons: list[Missing] = []
    for model, of_model in by_model(rows):
        full = original(of_model, trained=False)
        answered = by_document(full)
        for (method, setting), evicted in groups(of(of_model, "eviction"), ["method", "setting"]):
            fewer = (answered - by_document(evicted)).dropna()
            if len(fewer) < 2:
                reasons.append(Undecided(f"{label(model)}: two documents at least are needed, read by both"))
            elif answered.mean() <= least:
                why = f"{label(model)} answers {answered.mean():.2f} of the questions; more than {least:g} are needed"
                reasons.append(Undecided(why))
            else:
                mean, low, high = (2 * value - 1 for value in bounded_mean((fewer.to_numpy() + 1) / 2))
                methods[shown := method_label("eviction", method)] = None
                lost[f"{label(model)}, {shown} at {setting:g} of the cache"] = Estimate(mean, low, high)
                used += [full, evicted]
    if not lost:
        raise because(reasons or [Missing("no eviction method was asked about documents that it had read before")])
    holds, still_open = at_most(-ALLOWED_DROP, [Estimate(-one.mean, -one.high, -one.low) for one in lost.values()])
    name, one = min(lost.items(), key=lambda item: item[1].mean)
    ours = (
        f"at least {one.mean:.2f} [{one.low:.2f}, {one.high:.2f}] of the questions are lost ({name}; {len(lost)} "
        f"comparisons, of {', '.join(methods)})"
    )
    looked_at = pd.concat(used)
    documents = len(looked_at.groupby(["model", "seed", "document"]))
    return Finding(holds, ours, {"turns": looked_at.index.unique()}, documents, still_open)


LM_EVAL = "ablation_lm_eval"
RIGHT = replace(NEEDLE, kind=LM_EVAL, name="fraction of right answers")
NO_FRACTIONS = ("perplexity", "bits_per_byte")
"""How the names of lm-eval's metrics end that are no fractions."""
SAME = ("word_perplexity", "bits_per_byte")
"""Metrics that say what the perplexity per byte says."""


def _pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """RecurFormer's values at the common β beside those of the original, trained likewise: a row a metric of a task."""
    converted = at_common_setting(recurformer(rows))
    unchanged = original(rows, trained=bool(converted["trained"].any()))
    converted, unchanged = (side.assign(row=side.index) for side in (converted, unchanged))
    both = converted.merge(unchanged, on=["model", "task", "metric", "seed"], suffixes=("", "_original"))
    pairs = both.groupby(["model", "task", "metric", "setting"], sort=False, as_index=False).agg(
        value=("value", "mean"), original=("value_original", "mean"), samples=("samples", "min"),
        values=("value", tuple), originals=("value_original", tuple),
        fall=(FALL, _worst), original_fall=(f"{FALL}_original", _worst),
        rows=("row", tuple), original_rows=("row_original", tuple),
    )  # fmt: skip
    return pairs.assign(rows=pairs["rows"] + pairs["original_rows"])


def _worst(falls: pd.Series) -> float:
    return float(falls.max(skipna=False))


def _fraction(values: Sequence[float], samples: int) -> Estimate:
    """The interval of the mean over seeds of so many answers each, right or wrong; of graded ones it is too wide."""
    right = np.rint(np.multiply(values, samples))[:, None] > np.arange(samples)
    seeds = np.repeat(np.arange(len(values)), samples)
    return bounded_mean(right.ravel(), seeds=seeds)._replace(mean=float(np.mean(values)))


def _is_learned(pair: Any, guessed: Mapping[str, float]) -> bool:
    """Whether the original is surely above guessing, by more than a model may lose: else nothing could be lost."""
    chance = next((fraction for name, fraction in guessed.items() if pair.task.startswith(name)), 0.0)
    return _fraction(pair.originals, pair.samples).low > chance + ALLOWED_DROP


def tasks(
    evidence: Evidence, families: Sequence[str] = (), guessed: Mapping[str, float] = MappingProxyType({})
) -> Finding:
    """Each task's fraction of right answers at β = 0.5 beside the original's, less what is allowed.

    Perplexities stand beside them and decide nothing: lm-eval gives no interval of them.

    Args:
        evidence: with the measurements of lm-eval.
        families: how the names of the tasks that count begin; all of them where none is named.
        guessed: how the names of tasks begin whose answers are chosen -> fraction of right answers by guessing.

    Raises:
        Missing: no task has one that was measured of both, or what was measured says nothing about the question.
        Undecided: the original has learned none of the tasks.
    """
    rows = identified(evidence.rows(LM_EVAL), LM_EVAL)
    rows = rows[rows["task"].str.startswith(tuple(families) or "")]
    if rows.empty:
        raise Missing("they are on the hub and ask for more tokens than this study's models read (config/paper.yaml)")
    pairs = pd.concat([_pairs(of_model) for _, of_model in by_model(rows)])
    is_fraction = (
        pairs["value"].between(0, 1) & pairs["original"].between(0, 1) & ~pairs["metric"].str.endswith(NO_FRACTIONS)
    )
    fractions = list(records(pairs[is_fraction]))
    comparisons = [
        Comparison(RIGHT, one.model, f"the original ({one.task}, {one.metric})", one.setting,
            _fraction(one.values, one.samples), _fraction(one.originals, one.samples), one.samples,
            (one.fall, one.original_fall), one.rows)
        for one in fractions
        if _is_learned(one, guessed)
    ]  # fmt: skip
    if not fractions:
        raise Missing("no task of lm-eval with right answers was measured of RecurFormer and of the original")
    if set(pairs["task"]) <= LOCAL:
        raise Missing(
            "tasks of this project only: lm-eval's own, such as HellaSwag and MMLU, are those of config/paper.yaml; "
            f"measured: {_values_text(fractions)}"
        )
    if not comparisons:
        raise Undecided(f"the original does not do surely better than by guessing: {_values_text(fractions)}")
    finding = judge_comparisons(comparisons, allowed="printed")
    others = [*records(pairs[~is_fraction & ~pairs["metric"].isin(SAME)])]
    others += [one for one in fractions if not _is_learned(one, guessed)]
    text = "; ".join(filter(None, [finding.ours, _values_text(others)]))
    return replace(finding, ours=text, rows={LM_EVAL: sum((one.rows for one in (*comparisons, *others)), ())})


def _values_text(pairs: Sequence[Any]) -> str:
    return "; ".join(
        f"{label(one.model)}, {one.task} {one.metric}: {RECURFORMER} {one.value:.3g}, the original {one.original:.3g}"
        for one in pairs
    )
