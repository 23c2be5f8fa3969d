"""Adapt a user's model: profile, select, convert, calibrate, transfer, distil, and measure after each step."""

import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from recurformer.data.documents import Documents
from recurformer.heads.select import replaced_count
from recurformer.measure.cache import meta_twin
from recurformer.model.config import MODEL_TYPE_PREFIX
from recurformer.model.convert import check_weights, convert
from recurformer.model.families import FAMILIES, refusal
from recurformer.model.layout import sliding_layers
from recurformer.recover.adapt_measures import cache_bytes_of, speed_of
from recurformer.recover.adapt_steps import AdaptationSteps, Progress, text_windows
from recurformer.recover.kept import KeptSteps
from recurformer.recover.recipe import RECIPES, Recipe
from recurformer.train.checkpoints import fingerprint


def adapt(
    original: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    documents: Documents,
    *,
    folder: str | Path,
    beta: float = 0.5,
    minutes: float = 30,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    recipe: Recipe | None = None,
    progress: Progress = lambda name: None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Replace heads by a mixer and recover the quality, within the given time.

    After an interruption, a call with the same arguments resumes: `folder` keeps each finished step and the checkpoints
    of the trainings. The steps are those of the first call. On a CPU the weights are too, bit for bit.

    Args:
        original: a causal language model of a family that converts, float32, in evaluation mode; not changed.
        tokenizer: its tokenizer.
        documents: texts to train on and texts to measure on.
        folder: for the state; the caller removes it.
        beta: share of the heads to replace, by whole key-value groups.
        minutes: time for everything. If measuring and the closed form need all of it, nothing is trained.
        seed: seed of the choice of windows, the mixers' initial weights and the order of training.
        dtype: type of the saved weights, to which they are rounded; None: the original's.
        recipe: all other settings; None: the first of `RECIPES`.
        progress: gets the name of a step, and returns a function of (done, all), or None.
        say: called with a line after each step.

    Returns:
        The adapted model, float32, in evaluation mode, and the measurements as JSON (`recurformer.render.adaptation`
        shows them).

    Raises:
        ValueError: the model is converted already or of another family, no head would be replaced, or there is too
            little text.
    """
    recipe, dtype = recipe or next(iter(RECIPES.values())), dtype or original.dtype
    _refuse(original, beta, recipe)
    train_ids, held_out_ids = text_windows(documents, tokenizer, recipe, seed)
    about = {
        "original": fingerprint(original),
        "windows": [zlib.crc32(ids.numpy().data) for ids in (train_ids, held_out_ids)],
        "settings": [beta, minutes, seed, str(dtype), asdict(recipe)],
    }
    kept = KeptSteps(folder, about)
    run = AdaptationSteps(original, tokenizer, kept, recipe, seed, train_ids, held_out_ids, progress, say)
    choice = run.choose(beta)
    before = run.measure("original", original, 0)
    passkeys = {"original": run.passkeys("original", original, documents.held_out)}
    converted = run.convert(choice["heads"])
    stages = [before, run.measure("converted", converted, 0)]
    calibration = run.calibrate(converted)
    learnt_tokens = run.calibrated_on.numel()
    stages.append(run.measure("calibrated", converted, learnt_tokens))
    speed = kept.result("speed", lambda: speed_of(original, converted, held_out_ids[:1], recipe, progress("speed")))
    cache = kept.result("cache", lambda: cache_bytes_of(original, converted, dtype, recipe.cache_lengths))
    plan = run.plan(converted, minutes)
    remark = "" if plan.distil_steps else "; the minutes or the texts were too few to train more"
    say(f"plan: {plan.transfer_steps} steps of transfer, {plan.distil_steps} of distillation{remark}")
    trainings = {}
    for name, steps in (("transfer", plan.transfer_steps), ("distil", plan.distil_steps)):
        trainings[name] = run.train(name, converted, plan) if steps else []
        learnt_tokens += steps * recipe.batch_size * recipe.tokens
        if name == "transfer" and steps:
            stages.append(run.measure("transferred", converted, learnt_tokens))
    with torch.no_grad():
        for parameter in converted.parameters():
            parameter.copy_(parameter.to(dtype))
    stages.append(run.measure("adapted", converted, learnt_tokens))
    passkeys["adapted"] = run.passkeys("adapted", converted, documents.held_out)
    config = original.config
    return converted, {
        "beta": beta, "minutes": minutes, "seed": seed, "dtype": str(dtype).removeprefix("torch."),
        "recipe": asdict(recipe), "plan": asdict(plan), "tokens": [train_ids.numel(), held_out_ids.numel()],
        "documents": [len(documents.train), len(documents.held_out)],
        "attention_heads": config.num_attention_heads, "kv_heads": config.num_key_value_heads, **choice,
        "parameters": [sum(p.numel() for p in model.parameters()) for model in (original, converted)],
        "stages": stages, "calibration": calibration, "trainings": trainings,
        "passkeys": passkeys, "cache": cache, "speed": speed, "seconds": kept.seconds,
    }  # fmt: skip


def _refuse(original: PreTrainedModel, beta: float, recipe: Recipe) -> None:
    """Refuse at once arguments that would fail after minutes."""
    if recipe.mixer not in RECIPES:
        raise ValueError(f"mixer {recipe.mixer!r} has no recipe; there are {', '.join(RECIPES)}")
    if original.dtype in {torch.float16, torch.bfloat16}:
        raise ValueError(f"original: its weights are {original.dtype}; load it by dtype='float32'")
    config = original.config
    if config.model_type.startswith(MODEL_TYPE_PREFIX):
        raise ValueError("the model is already converted; give the model that it was converted from")
    if config.model_type not in FAMILIES:
        raise ValueError(refusal(config.model_type))
    groups = (config.num_hidden_layers - len(sliding_layers(config))) * config.num_key_value_heads
    if not groups:
        raise ValueError("every layer of the model attends through a sliding window: there is no head to replace")
    if not replaced_count(groups, beta):
        raise ValueError(f"beta={beta:g} of {groups} groups of heads replaces none; the least is {1 / groups:.3f}")
    check_weights(original)
    first = min(set(range(config.num_hidden_layers)) - set(sliding_layers(config)))
    group = range(config.num_attention_heads // config.num_key_value_heads)
    convert(meta_twin(original), [list(group) if layer == first else [] for layer in range(config.num_hidden_layers)])
