"""Answers that the model writes by itself, greedily, with its own cache: needles in a haystack, and HashHop."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import pandas as pd
import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from recurformer.batching import samples_per_batch
from recurformer.data import IGNORED
from recurformer.data.passkey import NEEDLE_TASKS, PasskeyTask, score_passkey
from recurformer.measure.cache import held_ratio
from recurformer.measure.generate import MORE_TOKENS, NewCache, write_answers
from recurformer.study import HashHopTask as HashHopSettings
from recurformer.train.data import Item, item_generator, pad_token
from recurformer.train.hashhop_data import hashhop_dataset

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
        depths: shares of the hay before the needles of the question; their mean if there are several.
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


def hashhop_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    task: HashHopSettings,
    *,
    variants: Sequence[str] = ("official", "paper"),
    samples: int = 256,
    seed: int = 0,
    batch_size: int = 32,
    new_cache: NewCache | None = None,
    original: PreTrainedConfig | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Generate and score the answers to test samples of every variant of HashHop.

    h_gq counts the leading hashes that are right. Teacher forcing, which shows the model the right hash after each
    error, is not the metric. The model writes as many tokens as the right answer has with its end. In the form "text"
    it writes `MORE_TOKENS` more. In the form "tokens" a hash is one token, so no more are needed.

    Args:
        model: a causal language model, in evaluation mode.
        tokenizer: its tokenizer; not used by the form "tokens".
        task: the sizes.
        variants: layouts.
        samples: of each variant.
        seed: of the samples; they differ from the training samples of the same seed.
        batch_size: answers generated together; changes the speed, not the result.
        new_cache: makes the cache of each batch; None: the model makes its own.
        original: of the model before anything was changed; with it the cache is measured.
        progress: called with (samples done, samples of all variants).

    Returns:
        One row a sample: variant, sample, correct (leading hashes), hops; without `original` distances (of the linked
        pairs, separated by spaces: see `link_distances`), with it ratio (see `held_ratio`).
    """
    more = MORE_TOKENS if task.form == "text" else 0
    bytes_per_token: list[float] = []
    rows: list[tuple[str, int, int, int, str]] = []
    for variant in variants:
        dataset = hashhop_dataset(task, tokenizer, seed=seed, variant=variant, stream="test")
        ids, lengths = zip(*(_prompt(dataset[index]) for index in range(samples)), strict=True)
        limits = [length + more for length in lengths]

        def done(count: int, before: int = len(rows)) -> None:
            if progress is not None:
                progress(before + count, samples * len(variants))

        answers, batches = write_answers(model, ids, limits, dataset.pad_token_id, batch_size, new_cache, done)
        bytes_per_token += batches
        rows += [
            (variant, index, dataset.correct(index, answer), task.hops, " ".join(map(str, dataset.distances(index))))
            for index, answer in enumerate(answers)
        ]
    frame = pd.DataFrame(rows, columns=["variant", "sample", "correct", "hops", "distances"])
    if original is None:
        return frame
    return frame.drop(columns="distances").assign(ratio=held_ratio(bytes_per_token, original, model.dtype))


def _prompt(item: Item) -> tuple[torch.Tensor, int]:
    """The prompt that the model continues, and the number of tokens of the right answer."""
    labelled = item["labels"] != IGNORED
    first = int(labelled.nonzero()[0])
    return item["input_ids"][:first], len(labelled) - first
