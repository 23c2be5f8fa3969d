"""Needles in a haystack, over depth and length: the model reads a long text and writes the keys hidden in it."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import pandas as pd
import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from recurformer.data.datasets import item_generator, pad_token, samples_per_batch
from recurformer.data.passkey import NEEDLE_TASKS, PasskeyTask, score_passkey
from recurformer.measure.cache import held_ratio
from recurformer.measure.generate import MORE_TOKENS, NewCache, write_answers

COLUMNS = ["task", "length", "depth", "sample", "correct", "queries", "ratio"]


def needle_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    original: PreTrainedConfig,
    texts: Sequence[str],
    *,
    grid: Mapping[int, Mapping[str, int]],
    depths: Sequence[float] = (0, 0.25, 0.5, 0.75, 1),
    seed: int = 0,
    batch_size: int | None = None,
    new_cache: NewCache | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Hide needles in a haystack, ask for them and score, over depth and length.

    A prompt begins as the tokenizer itself begins a text. The model writes as many tokens as the right answer has, and
    `MORE_TOKENS`.

    Args:
        model: a causal language model, in evaluation mode.
        tokenizer: its tokenizer.
        original: of the model before anything was changed.
        texts: the hay.
        grid: length of the prompts, in tokens without those that begin a text -> task, of `NEEDLE_TASKS` -> samples at
            each depth.
        depths: fractions of the hay before the needles of the question; their mean if there are several.
        seed: of the samples.
        batch_size: prompts of one length read together; None: see `samples_per_batch`.
        new_cache: makes the cache of each batch; None: the model makes its own.
        progress: called with (prompts done, prompts).

    Returns:
        One row a sample: task, length, depth (both as in the arguments), sample, correct and queries (right keys of so
        many in the question), ratio (see `held_ratio`; of the prompts of that length).

    Raises:
        ValueError: an unknown task, a length too short for its needles, a depth outside [0, 1].
    """
    if unknown := {task for samples_of in grid.values() for task in samples_of} - set(NEEDLE_TASKS):
        raise ValueError(f"tasks: {min(unknown)!r} is unknown; there are {', '.join(NEEDLE_TASKS)}")
    rows: list[tuple[str, int, float, int, int, int, float]] = []
    total = sum(samples for samples_of in grid.values() for samples in samples_of.values()) * len(depths)
    for length, samples_of in grid.items():
        settings = list(product(samples_of, depths))
        cells = [(task, depth, sample) for task, depth in settings for sample in range(samples_of[task])]
        generators = {
            (task, depth): PasskeyTask(tokenizer, length, depth, filler=texts, **NEEDLE_TASKS[task])
            for task, depth in settings
        }
        problems = [
            generators[task, depth].sample(item_generator(seed, number, "test"))
            for number, (task, depth, _) in enumerate(cells)
        ]
        prompts = [torch.tensor(tokenizer(problem.prompt, verbose=False).input_ids) for problem in problems]
        answers = [tokenizer(problem.answer, add_special_tokens=False).input_ids for problem in problems]
        limits = [len(answer) + MORE_TOKENS for answer in answers]
        size = batch_size or samples_per_batch(model.device.type, length)

        def done(count: int, before: int = len(rows)) -> None:
            if progress is not None:
                progress(before + count, total)

        written, bytes_per_token = write_answers(model, prompts, limits, pad_token(tokenizer), size, new_cache, done)
        texts_written = tokenizer.batch_decode(written, skip_special_tokens=True)
        ratio = held_ratio(bytes_per_token, original, model.dtype)
        rows += [
            (task, length, depth, sample, score_passkey(text, problem.keys), len(problem.keys), ratio)
            for (task, depth, sample), problem, text in zip(cells, problems, texts_written, strict=True)
        ]
    return pd.DataFrame(rows, columns=COLUMNS)
