"""Generation quality on HashHop: the model writes the chain by itself, greedily, with its own cache."""

from collections.abc import Callable, Sequence

import pandas as pd
import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from recurformer.data import IGNORED
from recurformer.data.datasets import Item
from recurformer.data.hashhop import hashhop_dataset
from recurformer.measure.cache import held_ratio
from recurformer.measure.generate import MORE_TOKENS, NewCache, write_answers
from recurformer.study import HashHopTask


def hashhop_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    task: HashHopTask,
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
        original: of the model before anything was changed; with it the cache is measured too.
        progress: called with (samples done, samples of all variants).

    Returns:
        One row a sample: variant, sample, correct (leading hashes), hops, distances (of the linked pairs, separated by
        spaces: see `link_distances`), and with `original` ratio (see `held_ratio`).
    """
    more = MORE_TOKENS if task.form == "text" else 0
    bytes_per_token: list[float] = []
    rows: list[tuple[str, int, int, int, str]] = []
    total = samples * len(variants)
    for variant in variants:
        dataset = hashhop_dataset(task, tokenizer, seed=seed, variant=variant, stream="test")
        ids, lengths = zip(*(_prompt(dataset[index]) for index in range(samples)), strict=True)
        limits = [length + more for length in lengths]
        answers, batches = write_answers(
            model, ids, limits, dataset.pad_token_id, batch_size, new_cache, progress, len(rows), total
        )
        bytes_per_token += batches
        rows += [
            (variant, index, dataset.correct(index, answer), task.hops, " ".join(map(str, dataset.distances(index))))
            for index, answer in enumerate(answers)
        ]
    frame = pd.DataFrame(rows, columns=["variant", "sample", "correct", "hops", "distances"])
    if original is None:
        return frame
    return frame.assign(ratio=held_ratio(bytes_per_token, original, model.dtype))


def _prompt(item: Item) -> tuple[torch.Tensor, int]:
    """The prompt that the model continues, and the number of tokens of the right answer."""
    labelled = item["labels"] != IGNORED
    first = int(labelled.nonzero()[0])
    return item["input_ids"][:first], len(labelled) - first
