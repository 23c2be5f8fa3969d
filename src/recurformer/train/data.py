"""Training and test data as map-style datasets without an end: item i depends on the seed and on i alone.

So a run can be resumed at any step without a random state, and a test stream never meets the training stream of the
same seed. Items are input_ids and labels, both (L,); labels are not shifted (the model does that), -100 where
nothing is asked.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from recurformer.tasks import mqar
from recurformer.tasks.hashhop import HashHopSample, HashHopTask, score_hashes
from recurformer.tasks.hashhop_tokens import HashHopTokens

Item = dict[str, torch.Tensor]

IGNORED = -100
STREAMS = {"train": 0, "test": 1}


def item_generator(seed: int, index: int, stream: str = "train") -> np.random.Generator:
    """The generator of item (or block) `index`."""
    # three words always: numpy's SeedSequence takes [1] and [1, 0] for the same
    return np.random.default_rng([seed, STREAMS[stream], index])


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
    """What the datasets below share: `size`, which only `len` reports, and the making of batches, padded at the end."""

    pad_token_id = 0

    def __init__(self, seed: int, stream: str, size: int | None) -> None:
        self.seed, self.stream, self.size = seed, stream, size

    def __len__(self) -> int:
        if self.size is None:
            raise TypeError(f"{type(self).__name__} has no end: give it a size")
        return self.size

    def collate(self, items: Sequence[Item]) -> Item:
        """One batch: input_ids and labels (B, L), and attention_mask (B, L) when the lengths differ."""
        return pad_batch(items, self.pad_token_id, side="right")


class BlockDataset(ItemDataset):
    """Items drawn `block` at a time, which costs far less than one by one; the last block is kept."""

    block = 64

    def __init__(self, seed: int, stream: str, size: int | None) -> None:
        super().__init__(seed, stream, size)
        self._number, self._kept = -1, (torch.empty(0), torch.empty(0))

    def draw(self, number: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Block `number`: input_ids and labels, both (block, L)."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> Item:
        number, place = divmod(index, self.block)
        if number != self._number:
            self._kept = self.draw(number, item_generator(self.seed, number, self.stream))
            self._number = number
        return {"input_ids": self._kept[0][place], "labels": self._kept[1][place]}


class HashHopTokenDataset(BlockDataset):
    """HashHop with one token a hash; only the answer is asked.

    Args:
        tasks: the layouts and the share of the items that each gets; all of the same length.
        seed: of all items.
        stream: "train" or "test".
        size: what `len` reports.
    """

    def __init__(
        self, tasks: Mapping[HashHopTokens, float], seed: int, stream: str = "train", size: int | None = None
    ) -> None:
        super().__init__(seed, stream, size)
        lengths = {task.length for task in tasks}
        if len(lengths) > 1:
            raise ValueError(f"hashhop: layouts of different lengths {sorted(lengths)} cannot share a batch; set pairs")
        self.tasks, self.shares = list(tasks), list(tasks.values())

    def draw(self, number: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """See `BlockDataset.draw`."""
        which = rng.choice(len(self.tasks), size=self.block, p=self.shares)
        input_ids = torch.empty(self.block, self.tasks[0].length, dtype=torch.long)
        labels = torch.empty_like(input_ids)
        for task_number, task in enumerate(self.tasks):
            rows = torch.from_numpy(np.flatnonzero(which == task_number))
            if len(rows):
                input_ids[rows], labels[rows] = task.sample_batch(rng, len(rows))
        return input_ids, labels

    def correct(self, index: int, generated: Sequence[int]) -> int:
        """Leading hashes of item `index`'s answer that `generated`, token ids after its prompt, reproduces."""
        labels = self[index]["labels"]
        return score_hashes(list(generated), labels[labels != IGNORED].tolist())


class HashHopTextDataset(ItemDataset):
    """HashHop in letters, for a pretrained language model; only the answer and the end of the text are asked.

    Args:
        tasks: the layouts and the share of the items that each gets.
        tokenizer: of the model; begins a text as it always does.
        seed: of all items.
        stream: "train" or "test".
        size: what `len` reports.
    """

    def __init__(
        self,
        tasks: Mapping[HashHopTask, float],
        tokenizer: PreTrainedTokenizerBase,
        seed: int,
        stream: str = "train",
        size: int | None = None,
    ) -> None:
        super().__init__(seed, stream, size)
        self.tasks, self.shares, self.tokenizer = list(tasks), list(tasks.values()), tokenizer
        self.pad_token_id = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)

    def sample(self, index: int) -> HashHopSample:
        """Item `index` as text."""
        rng = item_generator(self.seed, index, self.stream)
        return self.tasks[rng.choice(len(self.tasks), p=self.shares)].sample(rng)

    def __getitem__(self, index: int) -> Item:
        sample = self.sample(index)
        prompt = self.tokenizer(sample.prompt, verbose=False).input_ids
        answer = self.tokenizer(sample.answer, add_special_tokens=False).input_ids
        if self.tokenizer.eos_token_id is not None:
            answer = [*answer, self.tokenizer.eos_token_id]
        return {
            "input_ids": torch.tensor(prompt + answer),
            "labels": torch.tensor([IGNORED] * len(prompt) + answer),
        }

    def correct(self, index: int, generated: Sequence[int]) -> int:
        """Leading hashes of item `index`'s answer that `generated`, token ids after its prompt, reproduces."""
        return score_hashes(self.tokenizer.decode(list(generated), skip_special_tokens=True), self.sample(index).target)


class MQARDataset(BlockDataset):
    """Multi-query associative recall over several slices: batch b is drawn from slice b modulo their number.

    A batch has one length, so that nothing is padded; the slices get the same number of batches.

    Args:
        slices: (length, pairs) of each slice.
        vocabulary: number of tokens; the lower half are keys, the upper half values.
        batch_size: items of the same slice in a row.
        seed: of all items.
        stream: "train" or "test".
        power: of the law of the gaps between queries.
        size: what `len` reports.
    """

    def __init__(
        self,
        slices: Sequence[tuple[int, int]],
        vocabulary: int,
        batch_size: int,
        seed: int,
        *,
        stream: str = "train",
        power: float = 0.01,
        size: int | None = None,
    ) -> None:
        super().__init__(seed, stream, size)
        if not slices:
            raise ValueError("mqar: the list of slices is empty; give at least one (length, pairs)")
        for length, pairs in slices:
            mqar.check_sizes(vocabulary, length, pairs)
        self.slices, self.vocabulary, self.block, self.power = list(slices), vocabulary, batch_size, power

    def draw(self, number: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """See `BlockDataset.draw`."""
        length, pairs = self.slices[number % len(self.slices)]
        return self._draw_slice(rng, self.block, length, pairs)

    def _draw_slice(
        self, rng: np.random.Generator, samples: int, length: int, pairs: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        input_ids, labels = mqar.sample_batch(rng, samples, self.vocabulary, length, pairs, self.power)
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
        """The one batch that was asked for."""
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
        super().__init__(seed, "train", len(input_ids))
        self.input_ids = input_ids
        self._round, self._order = -1, np.empty(0, dtype=np.int64)

    def __getitem__(self, index: int) -> Item:
        number, place = divmod(index, len(self.input_ids))
        if number != self._round:
            self._order = item_generator(self.seed, number).permutation(len(self.input_ids))
            self._round = number
        input_ids = self.input_ids[self._order[place]]
        labels = input_ids.clone()
        labels[0] = (
            IGNORED  # never predicted; said so, because library versions differ in whether it counts in the mean
        )
        return {"input_ids": input_ids, "labels": labels}


def unshift(labels: torch.Tensor) -> torch.Tensor:
    """Labels (B, L) whose position i holds what is predicted at i, as the library wants them: at i + 1.

    Raises:
        ValueError: a last position has a label, which would fall off the end.
    """
    if (labels[:, -1] != IGNORED).any():
        raise ValueError(
            "labels: a last position predicts a token beyond the sample; make the samples one token longer"
        )
    return torch.cat([torch.full_like(labels[:, :1], IGNORED), labels[:, :-1]], dim=1)
