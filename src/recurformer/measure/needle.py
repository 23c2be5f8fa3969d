"""Needles in a haystack, over depth and length: the model reads a long text and writes the keys hidden in it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import product

import pandas as pd
import torch
from transformers import Cache, DynamicCache, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from recurformer.data.datasets import item_generator, pad_token, samples_per_batch
from recurformer.data.passkey import NEEDLE_TASKS, TURNS, PasskeyTask, Turn, score_passkey, starts_with_key
from recurformer.measure.cache import held_bytes, held_ratio
from recurformer.measure.generate import MORE_TOKENS, NewCache, generate_greedily, write_answers

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
        size = samples_per_batch(model.device.type, length)
        written, bytes_per_token = write_answers(
            model, prompts, limits, pad_token(tokenizer), size, new_cache, progress, len(rows), total
        )
        texts_written = tokenizer.batch_decode(written, skip_special_tokens=True)
        ratio = held_ratio(bytes_per_token, original, model.dtype)
        rows += [
            (task, length, depth, sample, score_passkey(text, problem.keys), len(problem.keys), ratio)
            for (task, depth, sample), problem, text in zip(cells, problems, texts_written, strict=True)
        ]
    return pd.DataFrame(rows, columns=COLUMNS)


@torch.no_grad()
def turns_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    original: PreTrainedConfig,
    texts: Sequence[str],
    *,
    lengths: Iterable[int],
    documents: int,
    seed: int = 0,
    new_cache: NewCache | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Read each document once and ask several questions about it, each from a copy of its cache.

    So is the cache of a prefix shared (the paper's section 1). What is dropped of the document is dropped before any
    question is known; a method that evicts whenever several tokens come may drop more as it reads a question. With
    `new_cache`, which may choose by what it reads, one question of each document is asked again within the prompt.

    Args:
        model: a causal language model, in evaluation mode.
        tokenizer: its tokenizer.
        original: of the model before anything was changed.
        texts: the hay.
        lengths: of the documents, in tokens without those that begin a text.
        documents: number at each length.
        seed: of the documents.
        new_cache: makes the cache of a document; None: the model makes its own.
        progress: called with (documents done, documents).

    Returns:
        One row a question: length, document, depth (fraction of the hay before the needle), known (whether the question
        was read with the document), correct and queries (keys found of one), ratio (see `held_ratio`; of the
        documents of that length).

    Raises:
        ValueError: a length too short for the needles.
    """
    rows: list[tuple[int, int, float, bool, int, int]] = []
    bytes_per_token: dict[int, list[float]] = {}
    tasks = [PasskeyTask(tokenizer, length, filler=texts, **TURNS) for length in lengths]
    for place, (task, number) in enumerate(product(tasks, range(documents))):
        document = task.sample(item_generator(seed, number, "test"))
        text = tokenizer(document.prompt, return_tensors="pt", verbose=False).input_ids
        cache: Cache = DynamicCache(config=model.config) if new_cache is None else new_cache()
        model(text.to(model.device), past_key_values=cache, use_cache=True, logits_to_keep=1)
        bytes_per_token.setdefault(task.tokens, []).append(held_bytes(cache, text.numel(), model.dtype))
        asked: list[tuple[Turn, bool, NewCache]] = [(turn, False, partial(deepcopy, cache)) for turn in document.turns]
        if new_cache is not None:
            asked.append((document.turns[number % len(document.turns)], True, new_cache))
        for turn, known, used in asked:
            question, answer = (tokenizer(part, add_special_tokens=False).input_ids for part in turn[:2])
            prompt = torch.cat([text[0], torch.tensor(question)])
            limit = len(answer) + MORE_TOKENS
            (written,), _ = generate_greedily(model, [prompt], [limit], pad_token(tokenizer), used)
            said = str(tokenizer.decode(written, skip_special_tokens=True))
            correct = starts_with_key(said, turn.answer.strip())
            rows.append((task.tokens, number, turn.depth, known, int(correct), 1))
        if progress is not None:
            progress(place + 1, len(tasks) * documents)
    ratios = {length: held_ratio(held, original, model.dtype) for length, held in bytes_per_token.items()}
    frame = pd.DataFrame(rows, columns=["length", "document", "depth", "known", "correct", "queries"])
    return frame.assign(ratio=frame["length"].map(ratios))
