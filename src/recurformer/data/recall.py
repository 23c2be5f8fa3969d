"""Multi-query associative recall (MQAR): return the value of each key that was shown earlier.

Protocol of zoology (https://github.com/HazyResearch/zoology, `multiquery_ar`; the paper's appendix A.2 and figure 4).
"""

from collections.abc import Sequence

import numpy as np
import torch

from recurformer.data import IGNORED
from recurformer.data.datasets import Item, ItemDataset, draw_distinct, item_generator


def draw_weighted(rng: np.random.Generator, weights: np.ndarray, batch: int, count: int) -> np.ndarray:
    """Ordered draws without replacement where each next index is drawn in proportion to its weight among those left.

    Exponential clocks with these rates ring in exactly such an order, so sorting one clock per index draws a whole row.

    Returns:
        int64 (batch, count).
    """
    clocks = rng.standard_exponential((batch, len(weights))) / weights
    return np.argsort(clocks, axis=1)[:, :count]


def mqar_batch(
    rng: np.random.Generator,
    batch: int,
    vocabulary: int,
    length: int,
    pairs: int,
    power: float = 0.01,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Independent samples of multi-query associative recall, fast enough to be drawn during training.

    The context lists `k1 v1 k2 v2 …`, then every key comes once more, at a gap that follows a power law, and is to be
    answered with its value.

               key val key val         query                   query
        input:  2   8   4   7   0   0   4   0   0   0   0   0   2   0
        label:  ·   ·   ·   ·   ·   ·   ·   7   ·   ·   ·   ·   ·   8

    Labels stand one place after their queries, as transformers expects: the model shifts them back itself.

    Args:
        rng: the only source of randomness.
        batch: number of samples.
        vocabulary: token ids; 0 is filler, keys come from 1 … vocabulary/2 - 1, values from vocabulary/2 … vocabulary -
            1.
        length: tokens of a sample.
        pairs: key-value pairs, each queried once.
        power: exponent a of the gaps' law p(i) ∝ i^(a-1), in places of two tokens; 1 is uniform. With pairs = length /
            4, every place is used.

    Returns:
        input_ids (batch, length) and labels (batch, length), int64; labels are -100 but after queries.
    """
    half = vocabulary // 2
    keys = 1 + draw_distinct(rng, half - 1, batch, pairs)  # (batch, pairs)
    values = half + draw_distinct(rng, vocabulary - half, batch, pairs)  # (batch, pairs)
    places = (length - 2 * pairs) // 2
    weights = np.arange(1, places + 1, dtype=np.float64) ** (power - 1)
    positions = 2 * pairs + 2 * draw_weighted(rng, weights, batch, pairs)  # (batch, pairs)

    input_ids = np.zeros((batch, length), dtype=np.int64)
    labels = np.full((batch, length), IGNORED, dtype=np.int64)
    input_ids[:, 0 : 2 * pairs : 2] = keys
    input_ids[:, 1 : 2 * pairs : 2] = values
    np.put_along_axis(input_ids, positions, keys, axis=1)
    np.put_along_axis(labels, positions + 1, values, axis=1)
    return torch.from_numpy(input_ids), torch.from_numpy(labels)


class MQARBatches(ItemDataset):
    """Whole batches of recall samples as items, all of the same number of tokens, and a curriculum.

    Small models find the lookup in many short lists and keep it in longer ones, where they would not find it: so the
    slices join one after the other, in their order, and a batch of a shorter slice has more samples.

    Args:
        slices: (length, pairs) of each slice.
        vocabulary: number of tokens.
        batch_size: samples of the longest slice in a batch.
        seed: of all batches.
        curriculum: batches over which the slices join; 0: all are there from the first.
    """

    def __init__(
        self, slices: Sequence[tuple[int, int]], vocabulary: int, batch_size: int, seed: int, curriculum: int = 0
    ) -> None:
        super().__init__(seed)
        self.slices, self.vocabulary, self.batch_size, self.curriculum = slices, vocabulary, batch_size, curriculum

    def __getitem__(self, index: int) -> Item:
        joined = len(self.slices)
        if index < self.curriculum:
            joined = 1 + index * len(self.slices) // self.curriculum
        length, pairs = self.slices[index % joined]
        samples = self.batch_size * max(length for length, _ in self.slices) // length
        rng = item_generator(self.seed, index, self.stream)
        input_ids, labels = mqar_batch(rng, samples, self.vocabulary, length, pairs)
        return {"input_ids": input_ids, "labels": labels}

    def collate(self, items: Sequence[Item]) -> Item:
        """The one batch of `items`."""
        (batch,) = items
        return batch
