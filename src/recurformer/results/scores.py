"""The scores of everything that was done to an original model: what is measured, how well, in which cache.

A measure's score is the higher the better: h_gq, accuracy, or minus the nats per token. A model that has not learned a
measure's task, before anything was done to it, says nothing about the methods: `why_not_run`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from recurformer.data.interval import Estimate, bounded_mean, mean_interval
from recurformer.paper import label
from recurformer.results.frames import groups, in_order, ratio_of_sums, require, require_values
from recurformer.results.learned import FALL, KNOWS_LANGUAGE, LEARNED, largest_fall, needed_h_gq
from recurformer.study.ablations import COMMON_BETA
from recurformer.study.subject import Subject

METHODS: dict[str, dict[str, str]] = {
    "original": {"full": "original"},
    "mixer": {
        "mamba": "Mamba (RecurFormer)",
        "window": "sliding window",
        "linear": "linear attention",
        "gated": "gated recurrence",
        "retention": "gated linear attention",
        "window_state": "window and state",
        "mean": "mean of the window",
        "zero": "zero (heads removed)",
    },
    "recovered": {
        "calibrated": "Mamba, from closed form",
        "plus": "Mamba, plus recipe",
        "state": "window and state, closed form",
    },
    "layers": {
        "mamba": "whole layers by Mamba",
        "window": "whole layers by window",
        "linear": "whole layers by linear",
        "gated": "whole layers by gated",
    },
    "single": {"mamba": "single heads by Mamba", "window": "single heads by window"},
    "pooled": {"mean": "pooled KV heads"},
    "priced": {
        "windows": "windows by price",
        "bits": "bits by price",
        "windows_bits": "windows and bits by price",
        "mamba": "Mamba, heads by its price",
    },
    "chosen": {
        "kvzip": "window, heads by KVzip's score",
        "gates": "window, heads by DuoAttention's gates",
    },
    "eviction": {
        "streaming_llm": "StreamingLLM",
        "h2o": "H2O",
        "snapkv": "SnapKV",
        "scissorhands": "Scissorhands",
        "pyramidinfer_paper": "PyramidInfer (paper)",
        "pyramidinfer_official": "PyramidInfer (code)",
        "razor_attention": "RazorAttention",
        "citrus": "CItruS",
        "big_bird": "BigBird",
    },
}
"""Family -> method -> its name in print; in this order they are drawn and listed."""
PAPERS_SELECTOR = "ra_i"
PASSKEY = "passkey"


def method_label(family: str, method: str) -> str:
    """The printed name of a method; its name where it has none."""
    return METHODS.get(family, {}).get(method, method)


def by_method(points: pd.DataFrame) -> list[tuple[tuple[str, str], pd.DataFrame]]:
    """The rows of each family and method, in the order in which these are drawn and listed: family by family."""
    by_name = dict(groups(points, ["family", "method"]))
    known = [(family, name) for family, names in METHODS.items() for name in names]
    return [(method, by_name[method]) for method in in_order(sorted(by_name), known)]


def subject_of(arm: str) -> Subject:
    """The subject that an arm of recovery is: the paper's, another recipe's, or that whose path names it."""
    named = {"original": Subject("original_trained"), "paper": Subject("heads", "mamba", PAPERS_SELECTOR)}
    return named.get(arm) or (Subject.parse(arm) if "/" in arm else Subject("recovered", arm))


def identified(frame: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The rows of a kind, checked; no selector is the empty string, and a fall of the loss that is not known NaN."""
    rows = require(frame, kind)
    by = rows["by"].astype(object).where(rows["by"].notna(), "")
    fall = rows.get(FALL, np.nan)
    return rows.assign(by=by, trained=rows["trained"].astype(bool), **{FALL: fall}).round({"setting": 6})


def _nats(rows: pd.DataFrame) -> Estimate:
    """Minus the nats per token, with the t interval over the seeds, or of one seed over the windows of text."""
    rows = rows[rows["tokens"] > 0]
    by = "seed" if rows["seed"].nunique() > 1 else "window"
    sums = rows.groupby(by)[["negative_log_likelihood", "tokens"]].sum()
    mean = -float(sums["negative_log_likelihood"].sum() / sums["tokens"].sum())
    unweighted = mean_interval((sums["negative_log_likelihood"] / sums["tokens"]).to_numpy())
    half = unweighted.high - unweighted.mean
    return Estimate(mean, mean - half, mean + half)


def _divergence(rows: pd.DataFrame) -> Estimate:
    """Minus the divergence from the original a token, with the t interval as of `_nats`."""
    by = "seed" if rows["seed"].nunique() > 1 else "window"
    mean, low, high = mean_interval(ratio_of_sums(rows, by, "divergence", "tokens").to_numpy())
    return Estimate(-mean, -high, -low)


def over_windows(values: pd.Series) -> pd.DataFrame:
    """Mean and 95 % interval over windows of values by place and window: mean, low and high of each place."""
    of_places = {place: mean_interval(of_windows.to_numpy()) for place, of_windows in values.groupby(level=0)}
    return pd.DataFrame.from_dict(of_places, orient="index", columns=list(Estimate._fields))


def _range_of_windows(rows: pd.DataFrame) -> Estimate:
    """Minus the divergence from the original a token, with those of the windows where it is the most and the least."""
    values = -ratio_of_sums(rows, "window", "divergence", "tokens")
    return Estimate(values.mean(), values.min(), values.max())


def _changed(rows: pd.DataFrame) -> pd.DataFrame:
    """What may diverge from the untouched original, as far as its divergence was measured."""
    same = (rows["family"] == "original") & ~rows["trained"]
    return rows[~same & rows.get("divergence", pd.Series(index=rows.index)).notna()]


def estimate_quality(rows: pd.DataFrame, asked: str = "hops", right: str = "correct") -> Estimate:
    """Mean of one column over another one; 95 % interval over seeds and samples together."""
    return bounded_mean((rows[right] / rows[asked]).to_numpy(), seeds=rows["seed"].to_numpy())


def papers_method(hashhop: pd.DataFrame) -> pd.DataFrame:
    """The rows of the paper's method and of the original trained likewise, with `beta`. Of each model these are the
    heads that RA-I chooses; where none are, those that the study chooses; or else whole layers.

    Raises:
        ValueError: a sample has two rows, such as of whole query groups and of single heads.
    """
    trained, heads = hashhop["trained"].astype(bool), hashhop["family"] == "mixer"
    mamba = trained & (hashhop["method"] == "mamba")
    ours, models = mamba & heads & (hashhop["by"] == PAPERS_SELECTOR), hashhop["model"]
    for others in (mamba & heads, mamba):
        ours |= others & ~models.isin(models[ours])
    original = trained & (hashhop["family"] == "original")
    rows = hashhop[original | ours].assign(beta=hashhop["setting"].where(ours, 0.0).round(6))
    doubled = rows[rows.duplicated(["model", "beta", "seed", "variant", "sample"])]
    if len(doubled):
        model, beta, seed = doubled.iloc[0][["model", "beta", "seed"]]
        raise ValueError(
            f"hashhop measurements have several rows for a sample of model {model}, beta {beta}, seed {seed}: "
            "these are different choices of heads; keep the rows of one"
        )
    return rows


def compared_subjects(hashhop: pd.DataFrame) -> pd.DataFrame:
    """The rows of the models of which other subjects than the paper's method were measured, at the seeds and the
    fractions of heads of these; of originals those trained likewise, which the others are made of.
    """
    rows = hashhop.round({"setting": 6})
    rows = rows[rows["trained"].astype(bool) | (rows["family"] != "original")]
    other = ~rows.index.isin(papers_method(rows).index) & (rows["family"] != "original")
    kept = other.copy()
    for model, others in groups(rows[other], "model"):
        mixers = others[others["family"] == "mixer"]
        alike = rows["model"] == model
        if (chosen := others[others["by"] != "random"]).size:  # the seed of a random choice is no training's
            alike &= rows["seed"].isin(chosen["seed"])
        if len(mixers):
            alike &= rows["setting"].isin(mixers["setting"]) | (rows["family"] != "mixer")
        kept |= alike
    return hashhop.loc[rows.index[kept]]


def _one_layout(rows: pd.DataFrame) -> pd.DataFrame:
    """HashHop in the official layout, where it was measured in it."""
    official = rows[rows["variant"] == "official"]
    return rows if official.empty else official


def _learned_tasks(rows: pd.DataFrame) -> pd.DataFrame:
    """The needle tasks that each original has learned; the passkey alone where it has not learned even that."""
    original = rows[rows["family"] == "original"]
    fraction = (original["correct"] / original["queries"]).groupby([original["model"], original["task"]]).mean()
    learned = set(fraction[fraction >= LEARNED].index)
    kept = [
        task == PASSKEY or {(model, PASSKEY), (model, task)} <= learned
        for model, task in zip(rows["model"], rows["task"], strict=True)
    ]
    return rows[kept]


def _several_keys(rows: pd.DataFrame) -> pd.DataFrame:
    """Of the tasks with several keys those that each original has learned; all where it has learned none."""
    learned = _learned_tasks(rows)
    several = learned[learned["task"] != PASSKEY]
    return rows[rows["task"] != PASSKEY] if several.empty else several


def _longest(rows: pd.DataFrame) -> pd.DataFrame:
    """The needles in each model's longest texts, of the tasks that its original has learned."""
    learned = _learned_tasks(rows)
    return learned[learned["length"] == learned.groupby("model")["length"].transform("max")]


def _level(rows: pd.DataFrame) -> pd.DataFrame:
    """Continuations without what makes one window of text harder than another: the original's own difference.

    The means stay; the intervals become those of a paired comparison on the same text, not of the choice of texts.
    """
    original = rows[rows["family"] == "original"]
    first = original.groupby("model")["trained"].transform("min")
    columns = ["negative_log_likelihood", "tokens"]
    sums = original[original["trained"] == first].groupby(["model", "window"])[columns].sum()
    hardness = sums["negative_log_likelihood"] / sums["tokens"]
    of_models = sums.groupby("model").transform("sum")
    above = (hardness - of_models["negative_log_likelihood"] / of_models["tokens"]).rename("above")
    levelled = rows.join(above, on=["model", "window"])
    spared = levelled["tokens"] * levelled.pop("above").fillna(0.0)
    return levelled.assign(negative_log_likelihood=levelled["negative_log_likelihood"] - spared)


def _recall(rows: pd.DataFrame) -> pd.DataFrame:
    """The recalled tokens of continuations, of the models of whose original they were measured."""
    if "recalled" not in rows:
        return rows.iloc[:0]
    known = rows[rows["recalled"].notna()]
    known = known[known["model"].isin(known.loc[known["family"] == "original", "model"])]
    of_windows = known["recalled"].groupby([known["model"], known["window"]]).transform("sum")
    some = known[of_windows > 0]
    return _level(some.assign(tokens=some["recalled"], negative_log_likelihood=some["recalled_likelihood"]))


@dataclass(frozen=True)
class Measure:
    """One way to measure quality by a kind of measurement, with its name in a sentence and on an axis.

    Attributes:
        estimate: rows of one subject -> score with its interval, the higher the better.
        chosen: rows -> those that count.
        shown: score -> the number that readers see.
        needed: model -> lowest score of its original at which comparisons with it are shown.
        samples: the columns that tell samples apart.
        parts: the columns whose ratio is a sample's score, or minus its score where that is in nats. What is scored in
            nats is text, the same for every seed; all other samples are drawn by the seed.
        interval: what the interval of a score is.
    """

    kind: str
    name: str
    axis: str
    estimate: Callable[[pd.DataFrame], Estimate]
    chosen: Callable[[pd.DataFrame], pd.DataFrame]
    shown: Callable[[float], float]
    needed: Callable[[str], float]
    samples: tuple[str, ...]
    parts: tuple[str, str]
    interval: str = "95 % intervals"

    @property
    def in_nats(self) -> bool:
        """Whether the score is minus nats a token, and not a fraction."""
        return self.parts[0] in {"negative_log_likelihood", "divergence"}

    def by_sample(self, rows: pd.DataFrame) -> pd.Series:
        """The score of each sample, by `samples` and seed."""
        scores = ratio_of_sums(rows, [*self.samples, "seed"], *self.parts)
        return -scores if self.in_nats else scores


HASHHOP = Measure("compared_hashhop", "h_gq on HashHop", "h_gq (fraction of hops)", estimate_quality, _one_layout,
    float, needed_h_gq, ("variant", "sample"), ("correct", "hops"))  # fmt: skip
NEEDLE = Measure("needle", "needle accuracy", "accuracy on needles", partial(estimate_quality, asked="queries"),
    _learned_tasks, float, lambda _: LEARNED, ("task", "length", "depth", "sample"),
    ("correct", "queries"))  # fmt: skip
CONTINUATION = Measure("continuation", "perplexity", "perplexity", _nats, _level,
    lambda score: float(np.exp(-score)), lambda _: -float(np.log(KNOWS_LANGUAGE)), ("window",),
    ("negative_log_likelihood", "tokens"))  # fmt: skip
DIVERGENCE = Measure("continuation", "divergence from the original", "KL, nats a token", _divergence, _changed,
    lambda score: -score, lambda _: -float("inf"), ("window",), ("divergence", "tokens"))  # fmt: skip
LONG = replace(DIVERGENCE, kind="long_continuation", estimate=_range_of_windows, interval="lowest and highest window")
"""After long prompts, of which a short study has few windows: too few for an interval of their mean."""
RECALL = replace(CONTINUATION, name="perplexity of recalled tokens", axis="perplexity, recalled tokens", chosen=_recall)
"""Of rare pairs of tokens that stood far back in the text (`recurformer.measure.language.recalled`). An original that
predicts them no better than one that does not know the language has not learned to recall."""
AGREEMENT = Measure("written", "agreement with what the original writes", "fraction before one differs",
    partial(estimate_quality, asked="tokens", right="agreed"), lambda rows: rows, float, lambda _: 0.0, ("window",),
    ("agreed", "tokens"))  # fmt: skip
"""A judgement by likelihood would be won by a text that repeats itself: that is likely to any model."""
HASHHOP_SIZES = replace(HASHHOP, kind="hashhop_sizes")
PASSKEYS = replace(NEEDLE, name="passkeys found", chosen=lambda rows: rows[rows["task"] == PASSKEY])
SEVERAL_KEYS = replace(NEEDLE, name="several keys found", chosen=_several_keys)
LONGEST = replace(NEEDLE, name="needles found in the longest texts", chosen=_longest)
MEASURES = {
    "hashhop": HASHHOP, "needle": NEEDLE, "continuation": CONTINUATION, "passkeys": PASSKEYS,
    "several_keys": SEVERAL_KEYS, "longest": LONGEST, "recall": RECALL, "written": AGREEMENT,
}  # fmt: skip
"""Under the names that questions have for them."""

METHOD = ["model", "family", "method"]
SUBJECT = [*METHOD, "setting", "by", "trained"]


def scores(frame: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """One row a subject: `SUBJECT`, ratio, mean, low and high of the score, samples, fall of its training's loss,
    by_sample (`Measure.by_sample`), rows (labels in `frame` of what it rests on).
    """
    chosen = measure.chosen(identified(frame, measure.kind))
    distinct = chosen[[*SUBJECT, "seed", *measure.samples]].drop_duplicates().groupby(SUBJECT, sort=False).size()
    rows = [
        (
            *key,
            of_subject["ratio"].mean(),
            *measure.estimate(of_subject),
            distinct[key],
            largest_fall(of_subject),
            measure.by_sample(of_subject),
            tuple(of_subject.index),
        )
        for key, of_subject in groups(chosen, SUBJECT)
    ]
    return pd.DataFrame(rows, columns=[*SUBJECT, "ratio", "mean", "low", "high", "samples", FALL, "by_sample", "rows"])


def after_training(points: pd.DataFrame) -> pd.DataFrame:
    """The trained ones of every method that was trained, and the methods that were not."""
    trained = points["trained"].groupby([points[key] for key in ("model", "family", "method", "by")]).transform("any")
    return points[points["trained"] | ~trained]


def of(points: pd.DataFrame, family: str, *methods: str) -> pd.DataFrame:
    """The points of a family, of some or all of its methods, that choose as the paper does where they choose at all."""
    chosen = points[(points["family"] == family) & points["by"].isin([PAPERS_SELECTOR, ""])]
    return chosen[chosen["method"].isin(methods)] if methods else chosen


def at_common_setting(points: pd.DataFrame) -> pd.DataFrame:
    """The points of every method of a model at its setting nearest to `COMMON_BETA`."""
    distance = (points["setting"] - COMMON_BETA).abs()
    nearest = points[distance == distance.groupby([points[key] for key in METHOD]).transform("min")]
    return nearest[nearest["setting"] == nearest.groupby(METHOD)["setting"].transform("min")]  # of two the lower one


def as_paper_does(points: pd.DataFrame) -> pd.DataFrame:
    """The original as it came and trained likewise; all else by the paper's choice, trained where it was trained."""
    changed = pd.concat([of(points, family) for family in METHODS if family != "original"])
    return pd.concat([of(points, "original"), after_training(changed)])


def original(points: pd.DataFrame, trained: bool) -> pd.DataFrame:
    """The original, trained likewise where it was measured so."""
    originals = points[points["family"] == "original"]
    alike = originals[originals["trained"] == trained]
    return originals if alike.empty else alike


def why_not_run(points: pd.DataFrame, measure: Measure) -> str:
    """Why nothing can be said about the methods of one model; empty when its original has learned the task."""
    model = points["model"].iloc[0]
    original = points[points["family"] == "original"]
    if original.empty:
        return f"{label(model)}'s {measure.name} before any change is not known"
    reached, needed = float(original["mean"].max()), measure.needed(model)
    if reached >= needed:
        return ""
    task = "passkeys" if measure.kind == NEEDLE.kind and measure is not SEVERAL_KEYS else measure.name
    return (
        f"the original {label(model)} reaches {measure.shown(reached):.3g} ({task}); a comparison needs "
        f"{measure.shown(needed):.3g}"
    )


def less(ours: pd.Series, theirs: pd.Series, same_for_seeds: bool) -> pd.Series:
    """Scores by sample and seed less those of another subject on the same samples; empty where these differ.

    Where samples are the same for all seeds (`same_for_seeds`), the only seed of a subject stands beside each of the
    other's; else each seed beside itself.
    """
    wide, others = pd.DataFrame(ours.unstack("seed")), pd.DataFrame(theirs.unstack("seed"))
    if not wide.index.equals(others.index):
        return ours.iloc[:0]
    if same_for_seeds and others.shape[1] == 1:
        differences = wide.sub(others.iloc[:, 0], axis=0)
    elif same_for_seeds and wide.shape[1] == 1:
        differences = -others.sub(wide.iloc[:, 0], axis=0)
    else:
        differences = wide - others
    return pd.Series(differences.stack()).dropna()


def at_cache(points: pd.DataFrame, ratio: float) -> pd.Series | None:
    """The point at a fraction of the cache, linear between its neighbours: mean, low, high, fall, trained and rows of
    both, by_sample where both have the same samples and seeds; None outside what the points span.
    """
    below = points.loc[points["ratio"] <= ratio, "ratio"].max()
    above = points.loc[points["ratio"] >= ratio, "ratio"].min()
    if pd.isna(below) or pd.isna(above):
        return None
    near = points[points["ratio"].isin([below, above])].sort_values("ratio")
    score = {name: float(np.interp(ratio, near["ratio"], near[name])) for name in Estimate._fields}
    upper = (ratio - below) / (above - below) if above > below else 1.0
    first, last = near["by_sample"].iloc[0], near["by_sample"].iloc[-1]
    by_sample = (1 - upper) * first + upper * last if first.index.equals(last.index) else last.iloc[:0]
    about = {FALL: largest_fall(near), "trained": near["trained"].any(), "by": near["by"].iloc[-1]}
    return pd.Series({**score, **about, "by_sample": by_sample, "rows": sum(near["rows"], ())})


UNITS = {"kv_group": "whole query groups", "head": "single heads"}
"""Unit of selection -> its name in print; the first that a model was measured with is looked at."""
SIZE_UNITS = {"tokens": "chains", "text": "characters"}
"""Form of HashHop -> what the size of a prompt counts."""


def agreement(head_scores: pd.DataFrame) -> pd.DataFrame:
    """How far each selector agrees with RA-I: model, by, seed, rank_correlation (Spearman), overlap, heads.

    Overlap is the fraction of the `COMMON_BETA` of heads that a selector puts first which RA-I puts first too.

    Raises:
        ValueError: a model has no RA-I.
    """
    rows = []
    for model, of_model in groups(head_scores, "model"):
        require_values(of_model, f"head_scores ({model})", "by", [PAPERS_SELECTOR])
        keyed = of_model.set_index(["by", "seed", "layer", "head"])["score"]
        tables = keyed.unstack(["layer", "head"])
        first = round(COMMON_BETA * tables.shape[1])
        ranks = tables.rank(axis=1)
        chosen = {key: set(np.argsort(-row.to_numpy(), kind="stable")[:first]) for key, row in tables.iterrows()}
        ours = next(key for key in tables.index if key[0] == PAPERS_SELECTOR)
        for by, seed in tables.index:
            correlation = float(np.corrcoef(ranks.loc[ours], ranks.loc[by, seed])[0, 1])
            overlap = len(chosen[by, seed] & chosen[ours]) / first
            rows.append((model, by, seed, correlation, overlap, tables.shape[1]))
    return pd.DataFrame(rows, columns=["model", "by", "seed", "rank_correlation", "overlap", "heads"])


def state_over_tokens(mixer_prices: pd.DataFrame) -> pd.DataFrame:
    """Logarithm of what one mixer costs over tokens and bits of no more bytes: a line a group, a column a seed."""
    costs = mixer_prices.set_index(["layer", "group", "seed"])
    return (costs["cost"] / costs["tokens_cost"]).unstack().apply(np.log)


def ra_i(profile: pd.DataFrame) -> pd.Series:
    """RA-I over the samples: the fraction of them in which a head's recency ratio exceeds the threshold, (layer, head);
    NaN for no head.
    """
    exceeds = (profile["rr"] > profile["threshold"]).astype(float).where(profile["rr"].notna())
    return exceeds.groupby([profile["layer"], profile["head"]]).mean()


def one_unit(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of each model in its first unit of `UNITS`."""
    place = rows["unit"].map({unit: number for number, unit in enumerate(UNITS)}).fillna(len(UNITS))
    return rows[place == place.groupby(rows["model"]).transform("min")]


def changed_fraction(rows: pd.DataFrame) -> pd.Series:
    """Fraction of the chosen units that the default setting does not choose; 0 where none is chosen."""
    return (1 - rows["shared"] / rows["selected"]).where(rows["selected"] > 0, 0.0)


def default_setting(rows: pd.DataFrame) -> tuple[float, float]:
    """Window and threshold that one model's others are compared with.

    Raises:
        ValueError: no row, or rows of several settings, are marked as the default.
    """
    marked = rows.loc[rows["default"].astype(bool), ["window", "threshold"]].drop_duplicates()
    if len(marked) != 1:
        raise ValueError(f"ra_i_settings measurements mark {len(marked)} settings as the default; needed: one")
    window, threshold = marked.iloc[0]
    return float(window), float(threshold)
