"""Adapt a user's model: choose heads, convert, calibrate, transfer, distil, and measure after each step.

Each group of heads keeps the tokens and the bits that a budget of bytes allows by their price; or heads are chosen by
RA-I, and all get one mixer. Measured beside the original are likelihood and divergence, passkeys, cache and speed.
"""

import math
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from recurformer.data.datasets import WindowDataset
from recurformer.data.documents import Documents
from recurformer.data.interval import mean_interval
from recurformer.data.windows import encode_text, text_prefix, windows
from recurformer.digest import code_digest
from recurformer.heads.attention import Progress
from recurformer.heads.profile import profile_heads
from recurformer.heads.select import replaced_count, select_heads
from recurformer.measure.cache import count_cache, meta_twin
from recurformer.measure.needle import needle_rows
from recurformer.measure.speed import SPREAD, speed_rows
from recurformer.model.config import MODEL_TYPE_PREFIX
from recurformer.model.convert import check_weights, convert
from recurformer.model.families import FAMILIES, refusal
from recurformer.paper import CACHE_LENGTHS
from recurformer.recover.budget import (
    PRICED,
    choose_windows,
    default_budget,
    free_layers,
    price_list,
    refuse_budget,
    sizes_of,
)
from recurformer.recover.kept import KeptSteps
from recurformer.recover.learn import TRAINED
from recurformer.recover.pair import quality_rows
from recurformer.recover.recipe import BY_PRICE, RECIPES, TOKENS, TRAINING, Plan, plan_steps
from recurformer.recover.run import NamedProgress, Recovered, RecoveryCurve, converted_by, learn, recover
from recurformer.study import Recipe

PROFILE_WINDOWS = 64
"""Windows, at most, on which heads are profiled."""
RECENCY_WINDOW = 0.1
"""k of the recency ratio, as a share of a window: 102 of 1,024 tokens in the paper's appendix."""
HELD_OUT_WINDOWS, HELD_OUT_TOKENS = 24, 32_768
"""Windows, at most, and about as many tokens, on which quality is measured; never trained on."""
MINIMUM_WINDOWS = {"training": 8, "held-out": 2}
"""Fewer are refused; where nothing is trained, fewer than `MINIMUM_PRICED` are."""
MINIMUM_PRICED = {"training": 2, "held-out": 2}
TIMED_STEPS = 3
"""Steps on a throw-away copy, of which the first is not timed."""
BETA, MINUTES = 0.5, 30.0
"""Fraction of heads that are replaced, and minutes for everything, where beta or a recipe is given."""
RESERVED = 0.05
"""Share of the minutes that opening and writing take."""
PASSKEYS = {256: 2, 512: 2}
"""Length of a prompt in tokens -> prompts at each of five depths."""
LENGTHS = (512, 2048, 4096, 8192)
"""Tokens at which a model with a budget is measured, as far as it is adapted for them."""
FAR_PASSKEYS = 4
"""Prompts at each of five depths, at each of these lengths."""
DECODED = 32
"""Tokens, at most, over which the speed of decoding is measured."""
REPETITIONS = 9
"""Repetitions of each measurement of speed."""


def adapt(
    original: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    documents: Documents,
    *,
    folder: str | Path,
    beta: float | None = None,
    cache: float | None = None,
    loss: float | None = None,
    minutes: float | None = None,
    tokens: int = TOKENS,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    recipe: Recipe | None = None,
    progress: NamedProgress = lambda name: None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Make the cache smaller: by a budget of bytes, or by a mixer in the place of heads, whose quality is recovered.

    After an interruption, a call with the same arguments resumes: `folder` keeps each finished step and the checkpoints
    of the trainings. The steps are those of the first call. On a CPU the weights are too, bit for bit.

    Args:
        original: a causal language model of a family that converts, float32, in evaluation mode; not changed.
        tokenizer: its tokenizer.
        documents: texts to train on and texts to measure on.
        folder: for the state; the caller removes it.
        beta: share of the heads to replace, by whole key-value groups; `BETA` where `recipe` is given.
        cache: instead of `beta` and `recipe`: fraction of the original's cache that may be left at `tokens` tokens;
            `default_budget` where none of these is given. Each group keeps tokens and bits by their price
            (`recurformer.heads.price`).
        loss: instead of `cache`: the divergence from the original, in nats a token, below which the least cache stays.
        minutes: time for everything; `MINUTES` where `beta` or `recipe` is given. If measuring and the closed form need
            all, nothing is trained. By a budget, nothing is trained without it.
        tokens: length of a window.
        seed: seed of the choice of windows, the mixers' initial weights and the order of training.
        dtype: type of the saved weights, to which they are rounded; None: the original's.
        recipe: of `recurformer.recover.recipe.RECIPES`, or another one; None: the first. Its windows and steps of
            transfer are the most that are used; the minutes decide on all steps.
        progress: gets the name of a step, and returns a function of (done, all), or None.
        say: called with a line after each step.

    Returns:
        The adapted model, float32, in evaluation mode, and the measurements as JSON (`recurformer.render.adaptation`
        shows them).

    Raises:
        ValueError: the model is converted already or of another family, the recipe is one for a study, no head would be
            replaced, or there is too little text.
    """
    dtype = dtype or original.dtype
    recipe, beta, minutes, prompts = _asked(beta, cache, loss, minutes, recipe, tokens)
    lengths = list(prompts if beta is None else CACHE_LENGTHS.values())  # of counted caches
    edges = lengths[:-1] if beta is None else []  # at which held-out windows are parted
    _refuse(original, recipe, beta)
    if beta is None:
        cache = default_budget(original, tokens) if cache is loss is None else cache
        refuse_budget(original, tokens, cache=cache, loss=loss)
    least = MINIMUM_PRICED if minutes is None else MINIMUM_WINDOWS
    train_ids, held_out_ids = text_windows(documents, tokenizer, tokens, seed, least, say)
    if minutes is None:
        train_ids = train_ids[:PRICED]
    recipe = recipe.model_copy(update={"calibrate_windows": min(recipe.calibrate_windows, len(train_ids))})
    settings = {
        "settings": [beta, cache, loss, minutes, seed, str(dtype)],
        "recipe": recipe.model_dump(),
        "code": code_digest(f"{__name__}:{adapt.__name__}"),  # another version has other choices
    }
    kept = KeptSteps(folder, [original], [train_ids, held_out_ids], **settings)

    def measure(stage: str, model: PreTrainedModel, learnt_tokens: int) -> dict[str, Any]:
        shown = progress(f"{stage}: window")
        quality = kept.result(
            f"quality-{stage}",
            lambda: quality_of(quality_rows(original, model, held_out_ids, shown, edges)),
        )
        say(f"{stage}: perplexity {quality['perplexity']:.4g}, divergence {quality['divergence']:.4g}")
        return {"stage": stage, "tokens": learnt_tokens, **quality}

    def passkeys(stage: str, model: PreTrainedModel) -> list[dict[str, Any]]:
        counts: list[dict[str, Any]] = []
        for length, samples in prompts.items():  # a step each: of long texts they are most of the work
            shown = progress(f"{stage}: prompts of {length:,} tokens asked")
            ask = partial(
                passkeys_of, model, tokenizer, original.config, documents.held_out, length, samples, seed, shown
            )
            counts.append(kept.result(f"passkeys-{stage}-{length}", ask))
        return counts

    choose: Callable[[], dict[str, Any]]
    if beta is None:
        prices = price_list(original, tokenizer, train_ids, seed, progress("price: sample"), kept.result)
        choose = partial(choose_windows, original, prices, train_ids, cache, loss, progress("budget: window"))
    else:
        choose = partial(_choose, original, train_ids[:PROFILE_WINDOWS], beta, progress)
    choice = kept.result("heads", choose)
    if loss is not None:
        say(f"budget: {choice['budget']:.3f} of the cache")
    before = measure("original", original, 0)
    found_by_original = passkeys("original", original)
    converted = converted_by(recipe, original, choice["heads"], seed, **sizes_of(choice, original.config))
    choice.pop("centers", None)  # they are among the weights
    speed = kept.result("speed", lambda: speed_of(original, converted, held_out_ids[:1], progress("speed")))
    held = kept.result("cache", lambda: cache_bytes_of(original, converted, dtype, lengths))
    recovered = Recovered(Plan(0, 0, 1), pd.DataFrame(), {"transfer": [], "distil": []})
    stages: list[dict[str, Any]] = []
    if minutes is not None:
        curve = RecoveryCurve(original, converted, held_out_ids, kept, halvings=0, progress=progress, say=say)
        recovered, stages = _learn(original, converted, train_ids, recipe, curve, minutes, seed, progress, measure)
    with torch.no_grad():
        for tensor in converted.state_dict().values():
            tensor.copy_(tensor.to(dtype))
    after = measure("adapted", converted, stages[-1]["tokens"] if stages else 0)
    distilled = {"distil": recovered.losses["distil"][-1]["seconds"]} if recovered.losses["distil"] else {}
    config = original.config
    return converted, {
        "beta": beta, "loss": loss, "minutes": minutes, "seed": seed,
        "dtype": str(dtype).removeprefix("torch."),
        "recipe": {
            "tokens": tokens, **({} if minutes is None else TRAINING.model_dump(exclude={"steps"})),
            **recipe.model_dump(exclude_none=True),
        },
        "plan": asdict(recovered.plan),
        "tokens": [train_ids.numel(), held_out_ids.numel()],
        "documents": [len(documents.train), len(documents.held_out)],
        "attention_heads": config.num_attention_heads, "kv_heads": config.num_key_value_heads, **choice,
        "parameters": [sum(p.numel() for p in model.parameters()) for model in (original, converted)],
        "stages": [before, *stages, after], "calibration": recovered.errors.to_dict("records"),
        "trainings": {name: [{"step": row["step"], "loss": row["loss"]} for row in rows]
                      for name, rows in recovered.losses.items()},
        "passkeys": {"original": found_by_original, "adapted": passkeys("adapted", converted)},
        "cache": held, "speed": speed,
        "seconds": kept.seconds | distilled,
    }  # fmt: skip


def _learn(
    original: PreTrainedModel,
    converted: PreTrainedModel,
    train_ids: Tensor,
    recipe: Recipe,
    curve: RecoveryCurve,
    minutes: float,
    seed: int,
    progress: NamedProgress,
    measure: Callable[[str, PreTrainedModel, int], dict[str, Any]],
) -> tuple[Recovered, list[dict[str, Any]]]:
    """Recover `converted` in place within the minutes, and return what that left and the quality after each step.

    The weights from before the training come back where it did not lower the divergence.
    """
    kept, solved = curve.kept, dict[str, Tensor]()
    learns = TRAINED["all" if recipe.trained == "lora" else recipe.trained]  # LoRA is merged into other weights

    def without_training() -> float:
        """Seconds of what is done, and of what remains to be measured."""
        spent = kept.seconds
        passkeys = sum(seconds for name, seconds in spent.items() if name.startswith("passkeys-original"))
        return sum(spent.values()) + 3 * spent[f"point-{curve.tokens}"] + passkeys

    def time_steps() -> dict[str, Any]:
        seconds_left = 60 * minutes * (1 - RESERVED) - without_training()
        if seconds_left <= 0:
            return asdict(Plan(0, 0, 1))
        pace, timing = {}, kept.folder / "timing"
        dataset, options = WindowDataset(train_ids, seed=seed), {"steps": TIMED_STEPS, "output_dir": timing}
        for step in ("transfer", "distil") if recipe.transfer_steps else ("distil",):
            seconds = learn(step, original, deepcopy(converted), dataset, recipe, TRAINING, **options).seconds
            pace[step] = (seconds.iloc[-1] - seconds.iloc[0]) / (TIMED_STEPS - 1)
            seconds_left -= seconds.iloc[-1]
            shutil.rmtree(timing)
        return asdict(plan_steps(seconds_left, pace, len(train_ids), recipe))

    def plan() -> Plan:
        solved.update({name: tensor.clone() for name, tensor in converted.state_dict().items() if learns(name)})
        planned = Plan(**kept.result("plan", time_steps))
        alone = math.ceil(without_training() / 60 / (1 - RESERVED))
        remark = "" if planned.distil_steps else f"; without any training this takes {alone} min"
        curve.say(f"plan: {planned.transfer_steps} steps of transfer, {planned.distil_steps} of distillation{remark}")
        return planned

    recovered = recover(
        original, converted, train_ids, recipe, curve,
        training=TRAINING, folder=kept.folder / "learning", seed=seed, plan=plan, progress=progress,
    )  # fmt: skip
    stages = [
        {"stage": rows.stage.iloc[0], "tokens": int(rows.tokens.iloc[0]), **quality_of(rows)}
        for _, rows in curve.rows.groupby("tokens")
    ]
    if recovered.losses["distil"]:
        stages.append(measure("distilled", converted, curve.tokens))
    before = "calibrated" if recipe.calibrate_windows else "converted"
    begun = next(row for row in stages if row["stage"] == before)
    if not stages[-1]["divergence"] <= begun["divergence"]:
        curve.say("the training did not lower the divergence: the result has the weights from before it")
        converted.load_state_dict(solved, strict=False)
        stages.append({**begun, "stage": "taken back"})
    return recovered, stages


def _asked(
    beta: float | None,
    cache: float | None,
    loss: float | None,
    minutes: float | None,
    recipe: Recipe | None,
    tokens: int,
) -> tuple[Recipe, float | None, float | None, Mapping[int, int]]:
    """The recipe; beta, None where each group keeps a window by its price; the minutes, None where nothing is trained;
    and the prompts with passkeys, at each of five depths, by their length in tokens.
    """
    chosen = {"cache": cache, "loss": loss, "beta": beta, "recipe": recipe}
    given = [name for name, value in chosen.items() if value is not None]
    if len(given) > 1 and given[0] in {"cache", "loss"}:
        raise ValueError(f"{given[0]} and {given[1]}: give one of them; a budget chooses heads and windows by itself")
    if given and given[0] in {"beta", "recipe"}:
        recipe = recipe or next(iter(RECIPES.values()))
        return recipe, BETA if beta is None else beta, minutes or MINUTES, PASSKEYS
    lengths = [*(length for length in LENGTHS if length < tokens), tokens]
    return BY_PRICE, None, minutes, dict.fromkeys(lengths, FAR_PASSKEYS)


def text_windows(
    documents: Documents,
    tokenizer: PreTrainedTokenizerBase,
    tokens: int,
    seed: int,
    least: Mapping[str, int] = MINIMUM_WINDOWS,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Tensor, Tensor]:
    """Windows (windows, tokens) for training and for measuring, of these as many as `HELD_OUT_WINDOWS` says. `say` gets
    a line about the documents.

    Raises:
        ValueError: there are fewer than `least`; says how many tokens there are, and the longest window that works.
    """
    parts = []
    lengths = [[len(encode_text(tokenizer, text)) for text in texts] for texts in documents]
    prefix = len(text_prefix(tokenizer))
    for (name, count), texts, known in zip(least.items(), documents, lengths, strict=True):
        try:
            parts.append(windows(texts, tokenizer, tokens, seed=seed))
        except ValueError:
            parts.append(torch.empty(0, tokens, dtype=torch.long))
        if len(parts[-1]) < count:
            raise ValueError(
                f"the texts are too short: the {len(texts)} {name} documents have {sum(known):,} tokens, which give "
                f"{len(parts[-1])} windows of {tokens}; {count} are needed; the longest windows that these texts allow "
                f"have {_longest(lengths, least) + prefix} tokens"
            )
    used = [sum(length + prefix >= tokens for length in known) for known in lengths]
    short = sum(map(len, lengths)) - sum(used)
    say(f"text: {sum(used)} documents of at least {tokens:,} tokens, {used[1]} held out; {short} shorter ones left out")
    train, held_out = parts
    return train, held_out[: min(HELD_OUT_WINDOWS, max(least["held-out"], HELD_OUT_TOKENS // tokens))]


def _longest(lengths: Sequence[Sequence[int]], least: Mapping[str, int]) -> int:
    """The longest window of which documents of these lengths have enough, without what stands before a text."""

    def too_long(body: int) -> bool:
        counts = (sum(length // body for length in of_part) for of_part in lengths)
        return any(count < needed for count, needed in zip(counts, least.values(), strict=True))

    bodies = range(1, 1 + max(map(max, lengths), default=0))
    return bisect_left(bodies, True, key=too_long)


def _choose(original: PreTrainedModel, ids: Tensor, beta: float, progress: NamedProgress) -> dict[str, Any]:
    """Share of windows in which each head looks at recent tokens, and the heads that are replaced."""
    k = max(1, int(RECENCY_WINDOW * ids.shape[1]))
    profile = profile_heads(original, ids, window=k, progress=progress("profile: window"))
    return {"ra_i": (profile.ra_i / len(ids)).tolist(), "heads": select_heads(profile, beta)}


def _refuse(original: PreTrainedModel, recipe: Recipe, beta: float | None) -> None:
    """Refuse at once arguments that would fail after minutes; beta is None where windows are chosen by price."""
    if recipe.steps or recipe.betas or recipe.seeds:
        raise ValueError(
            "recipe: steps, betas and seeds belong to a study; leave them out and give minutes, beta, seed"
        )
    if original.dtype in {torch.float16, torch.bfloat16}:
        raise ValueError(f"original: its weights are {original.dtype}; load it by dtype='float32'")
    config = original.config
    if config.model_type.startswith(MODEL_TYPE_PREFIX):
        raise ValueError("the model is already converted; give the model that it was converted from")
    if config.model_type not in FAMILIES:
        raise ValueError(refusal(config.model_type))
    groups = len(free_layers(original)) * config.num_key_value_heads
    if not groups:
        raise ValueError("every layer of the model attends through a sliding window: there is no head to replace")
    if beta is not None and not replaced_count(groups, beta):
        raise ValueError(f"beta={beta:g} of {groups} groups of heads replaces none; the least is {1 / groups:.3f}")
    check_weights(original)
    heads: list[list[int]] = [[] for _ in range(config.num_hidden_layers)]
    heads[free_layers(original)[0]] = list(range(config.num_attention_heads // config.num_key_value_heads))
    convert(meta_twin(original), heads)


def quality_of(rows: pd.DataFrame) -> dict[str, Any]:
    """Perplexity and divergence of `quality_rows`, each with its 95 % interval over windows; also of their parts."""
    values = ["negative_log_likelihood", "divergence"]
    sums = rows[values].mul(rows.predicted, axis=0).groupby(rows.window).sum()
    of_windows = sums.div(rows.groupby("window").predicted.sum(), axis=0)
    likelihood, distance = (mean_interval(of_windows[name].to_numpy()) for name in values)
    divergence, low, high = (max(value, 0.0) for value in distance)  # rounding leads below 0 where nothing changed
    quality = {
        "windows": len(of_windows),
        "perplexity": math.exp(likelihood.mean),
        "perplexity_interval": [math.exp(likelihood.low), math.exp(likelihood.high)],
        "divergence": divergence,
        "divergence_interval": [low, high],
    }
    if "stop" in rows:
        quality["parts"] = [
            {"stop": int(part["stop"].iloc[0]), **quality_of(part.drop(columns="stop"))}
            for _, part in rows.groupby("stop")
        ]
    return quality


def passkeys_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    original: PreTrainedConfig,
    texts: Sequence[str],
    length: int,
    samples: int,
    seed: int,
    progress: Progress,
) -> dict[str, Any]:
    """Length of the prompts, keys found and keys asked; or the length and the reason why there is no such prompt."""
    grid = {length: {"passkey": samples}}
    try:
        rows = needle_rows(model, tokenizer, original, texts, grid=grid, seed=seed, progress=progress)
    except ValueError as error:  # a tokenizer of small pieces needs more tokens for the bare question
        return {"length": length, "reason": str(error)}
    return {"length": length, "found": int(rows.correct.sum()), "asked": int(rows.queries.sum())}


def cache_bytes_of(
    original: PreTrainedModel,
    converted: PreTrainedModel,
    dtype: torch.dtype,
    lengths: Iterable[int],
) -> list[dict[str, int]]:
    """Cache bytes of both models after so many tokens, counted from the cache objects of models of type `dtype`."""
    before, after = (meta_twin(model).to(dtype) for model in (original, converted))  # type: ignore[arg-type]

    def size(model: PreTrainedModel, length: int) -> int:
        return int(count_cache(model, length).bytes.sum())

    return [{"length": length, "original": size(before, length), "adapted": size(after, length)} for length in lengths]


def speed_of(
    original: PreTrainedModel, converted: PreTrainedModel, window: Tensor, progress: Progress = None
) -> list[dict[str, Any]]:
    """For prefill and decode: phase, tokens, median tokens per second of both, and the median ratio of a round with its
    `SPREAD`.
    """
    decoded = min(DECODED, window.shape[1] // 2)
    models = {"original": original, "adapted": converted}
    rows = speed_rows(models, window, decoded=decoded, repetitions=REPETITIONS, progress=progress)
    speeds = []
    for phase, group in rows.groupby("phase", sort=False):
        seconds = group.pivot(index="repetition", columns="model", values="seconds")
        tokens = int(group.tokens.iloc[0])
        medians = {name: tokens / float(seconds[name].median()) for name in models}
        ratios = seconds["original"] / seconds["adapted"]
        spread = ratios.quantile(SPREAD).tolist()
        speeds.append(
            {"phase": phase, "tokens": tokens, **medians, "ratio": float(ratios.median()), "ratio_interval": spread}
        )
    return speeds
