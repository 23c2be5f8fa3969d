"""Multi-query associative recall as datasets: samples slice by slice, and whole batches for a curriculum."""

from collections.abc import Sequence

import numpy as np
import torch

from recurformer.data import IGNORED
from recurformer.data.recall import mqar_batch
from recurformer.data.sizes import check_mqar
from recurformer.train.data import BlockDataset, Item, item_generator


class MQARDataset(BlockDataset):
    """Multi-query associative recall over several slices: batch b is drawn from slice b modulo their number.

    A batch has one length, so that nothing is padded; the slices get the same number of batches.

    Args:
        slices: (length, pairs) of each slice.
        vocabulary: number of tokens; the lower half are keys, the upper half values.
        batch_size: items of the same slice in a row.
        seed: of all items.
        stream: a name in `STREAMS`.
    """

    def __init__(
        self,
        slices: Sequence[tuple[int, int]],
        vocabulary: int,
        batch_size: int,
        seed: int,
        stream: str = "train",
    ) -> None:
        super().__init__(seed, stream)
        if not slices:
            raise ValueError("mqar: the list of slices is empty; give at least one (length, pairs)")
        for length, pairs in slices:
            check_mqar(vocabulary, length, pairs)
        self.slices, self.vocabulary, self.block = list(slices), vocabulary, batch_size

    def draw(self, number: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """See `BlockDataset.draw`."""
        length, pairs = self.slices[number % len(self.slices)]
        return self._draw_slice(rng, self.block, length, pairs)

    def _draw_slice(
        self, rng: np.random.Generator, samples: int, length: int, pairs: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        input_ids, labels = mqar_batch(rng, samples, self.vocabulary, length, pairs)
        return input_ids, unshift(labels)


class MQARBatches(MQARDataset):
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
        super().__init__(slices, vocabulary, batch_size, seed)
        self.curriculum = curriculum

    def __getitem__(self, index: int) -> Item:
        joined = len(self.slices)
        if index < self.curriculum:
            joined = 1 + index * len(self.slices) // self.curriculum
        length, pairs = self.slices[index % joined]
        samples = self.block * max(length for length, _ in self.slices) // length
        input_ids, labels = self._draw_slice(item_generator(self.seed, index, self.stream), samples, length, pairs)
        return {"input_ids": input_ids, "labels": labels}

    def collate(self, items: Sequence[Item]) -> Item:
        """The one batch of `items`."""
        (batch,) = items
        return batch


def unshift(labels: torch.Tensor) -> torch.Tensor:
    """Labels (B, L) whose position i holds the token predicted at i, as the library wants them: at i + 1.

    Raises:
        ValueError: a last position has a label, which would fall off the end.
    """
    if (labels[:, -1] != IGNORED).any():
        raise ValueError(
            "labels: a last position predicts a token beyond the sample; make the samples one token longer"
        )
    return torch.cat([torch.full_like(labels[:, :1], IGNORED), labels[:, :-1]], dim=1)
