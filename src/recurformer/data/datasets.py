"""Training and test data as map-style datasets without an end: item i depends on the seed and on i alone.

So a run can be resumed at any step without a random state, and a test stream never meets the training stream of the
same seed. Items are input_ids and labels, both (L,); labels are not shifted (the model does that), -100 where
no token is predicted.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from recurformer.data import IGNORED

Item = dict[str, torch.Tensor]

STREAMS = {"train": 0, "test": 1, "validation": 2}


def item_generator(seed: int, index: int, stream: str = "train") -> np.random.Generator:
    """The generator of item (or block) `index`."""
    # three words always: numpy's SeedSequence takes [1] and [1, 0] for the same
    return np.random.default_rng([seed, STREAMS[stream], index])


def draw_distinct(rng: np.random.Generator, population: int, batch: int, count: int) -> np.ndarray:
    """Uniform ordered draws without replacement from 0 … population-1, one independent draw a row.

    The first `count` steps of a Fisher-Yates shuffle, done on all rows at once: exact, and far cheaper than one
    `choice` a row.

    Returns:
        int64 (batch, count).
    """
    deck = np.tile(np.arange(population), (batch, 1))  # (batch, population)
    rows = np.arange(batch)
    for step in range(count):
        chosen = rng.integers(step, population, size=batch)
        deck[rows, chosen], deck[:, step] = deck[:, step].copy(), deck[rows, chosen]
    return deck[:, :count]


def samples_per_batch(device: str, tokens: int) -> int:
    """Number of samples of `tokens` tokens that suits a forward pass on a device of this type, at least one."""
    # more do not fit a processor's caches: 4,096 made a forward pass slower by a twentieth
    most = 1024 if device == "cpu" else 16384
    return max(most // tokens, 1)


def pad_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id that fills batches: the tokenizer's own padding, its end of a text, or 0."""
    return next((token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if token is not None), 0)


def pad_batch(items: Sequence[Item], pad_token_id: int, side: str) -> Item:
    """Items as a batch (B, L), padded "left" or "right"; with attention_mask (B, L) only if any is padded."""
    lengths = [len(item["input_ids"]) for item in items]
    longest = max(lengths)
    if min(lengths) == longest:
        return {key: torch.stack([item[key] for item in items]) for key in items[0]}
    fill = {"input_ids": pad_token_id, "labels": IGNORED}
    batch = {key: torch.full((len(items), longest), fill[key], dtype=torch.long) for key in items[0]}
    batch["attention_mask"] = torch.zeros(len(items), longest, dtype=torch.long)
    for row, (item, length) in enumerate(zip(items, lengths, strict=True)):
        place = slice(longest - length, None) if side == "left" else slice(0, length)
        for key, value in item.items():
            batch[key][row, place] = value
        batch["attention_mask"][row, place] = 1
    return batch


class ItemDataset(Dataset[Item]):
    """Common base of the datasets: items of a seed and a stream, in batches that are padded at the end."""

    pad_token_id = 0

    def __init__(self, seed: int, stream: str = "train") -> None:
        self.seed, self.stream = seed, stream

    def collate(self, items: Sequence[Item]) -> Item:
        """One batch: input_ids and labels (B, L), and attention_mask (B, L) when the lengths differ."""
        return pad_batch(items, self.pad_token_id, side="right")


class Curriculum(ItemDataset):
    """Whole batches of a synthetic task as items, all of the same number of tokens, and a curriculum.

    Small models find a lookup in short samples and keep it in longer ones, where they would not find it: so the sizes
    join one after the other, in their order, and a batch of shorter samples has more of them.

    Args:
        draw: (generator, samples, *size) -> input_ids and labels, (samples, length).
        sizes: of samples: their length, and what else `draw` takes.
        batch_size: samples of the longest size in a batch.
        seed: of all batches.
        curriculum: batches over which the sizes join; 0: all are there from the first.
    """

    def __init__(
        self,
        draw: Callable[..., tuple[torch.Tensor, torch.Tensor]],
        sizes: Sequence[tuple[int, ...]],
        batch_size: int,
        seed: int,
        curriculum: int = 0,
    ) -> None:
        super().__init__(seed)
        self.draw, self.sizes, self.curriculum = draw, sizes, curriculum
        self.tokens = batch_size * max(length for length, *_ in sizes)

    def __getitem__(self, index: int) -> Item:
        joined = len(self.sizes)
        if index < self.curriculum:
            joined = 1 + index * len(self.sizes) // self.curriculum
        size = self.sizes[index % joined]
        rng = item_generator(self.seed, index, self.stream)
        input_ids, labels = self.draw(rng, self.tokens // size[0], *size)
        return {"input_ids": input_ids, "labels": labels}

    def collate(self, items: Sequence[Item]) -> Item:
        """The one batch of `items`."""
        (batch,) = items
        return batch


class WindowDataset(ItemDataset):
    """Windows of text for causal language modelling, each once in every round, in a new order each round.

    Args:
        input_ids: (windows, tokens).
        seed: of the orders.
    """

    def __init__(self, input_ids: torch.Tensor, seed: int = 0) -> None:
        if input_ids.ndim != 2 or not len(input_ids):
            raise ValueError(
                f"windows: expected (windows, tokens) with at least one window, got {tuple(input_ids.shape)}"
            )
        super().__init__(seed)
        self.input_ids = input_ids
        self._round, self._order = -1, np.empty(0, dtype=np.int64)

    def __getitem__(self, index: int) -> Item:
        number, place = divmod(index, len(self.input_ids))
        if number != self._round:
            self._order = item_generator(self.seed, number).permutation(len(self.input_ids))
            self._round = number
        input_ids = self.input_ids[self._order[place]]
        labels = input_ids.clone()
        labels[0] = IGNORED  # never predicted; versions of the library differ in whether it counts in the mean
        return {"input_ids": input_ids, "labels": labels}
