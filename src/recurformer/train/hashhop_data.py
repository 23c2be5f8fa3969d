"""HashHop samples as a dataset, in both forms: one token a hash for small models, letters for pretrained ones."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from recurformer.data import IGNORED
from recurformer.data.hashhop import HASH, HashHopSample, HashHopTask, HashHopTokens, link_distances, score_hashes
from recurformer.data.sizes import HASH_SPECIALS, QUERY
from recurformer.study import HashHopTask as HashHopSettings
from recurformer.train.data import BlockDataset, Item, ItemDataset, item_generator, pad_token


class HashHopTokenDataset(BlockDataset):
    """HashHop with one token a hash; only the answer has labels.

    Args:
        tasks: the layouts and the share of the items that each gets; all of the same length.
        seed: of all items.
        stream: a name in `STREAMS`.
        size: the number of items that `len` reports.
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

    def distances(self, index: int) -> list[int]:
        """Pairs between the linked pairs of item `index`: see `link_distances`."""
        input_ids, labels = (self[index][name].tolist() for name in ("input_ids", "labels"))
        query = input_ids.index(HASH_SPECIALS.index(QUERY))
        return link_distances(input_ids[1:query:3], [input_ids[query + 1], *filter(IGNORED.__ne__, labels)])


class HashHopTextDataset(ItemDataset):
    """HashHop in letters, for a pretrained language model; only the answer and the end of the text have labels.

    Args:
        tasks: the layouts and the share of the items that each gets.
        tokenizer: of the model; begins a text as it always does.
        seed: of all items.
        stream: a name in `STREAMS`.
        size: the number of items that `len` reports.
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
        self.pad_token_id = pad_token(tokenizer)

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

    def distances(self, index: int) -> list[int]:
        """Pairs between the linked pairs of item `index`: see `link_distances`."""
        sample = self.sample(index)
        return link_distances(HASH.findall(sample.prompt)[::2], [sample.start, *sample.target])


HashHopDataset = HashHopTokenDataset | HashHopTextDataset


def hashhop_dataset(
    task: HashHopSettings,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    size: int | None = None,
    seed: int = 0,
    variant: str | None = None,
    stream: str = "train",
) -> HashHopDataset:
    """Samples of a task for training, profiling or testing.

    Args:
        task: the sizes.
        tokenizer: of the model; not used by the form "tokens".
        size: the number of items that `len` of the dataset reports.
        seed: of all samples.
        variant: "official" or "paper"; None: both, "paper" with the share that the task sets.
        stream: a name in `STREAMS`.
    """
    mixed = {"official": 1 - task.paper_share, "paper": task.paper_share}
    shares = {name: share for name, share in mixed.items() if share} if variant is None else {variant: 1.0}
    sizes: list[tuple[dict[str, Any], float]] = [(vars(task.sizes(name)), share) for name, share in shares.items()]
    if task.form == "tokens":
        tokens = {HashHopTokens(**layout): share for layout, share in sizes}
        return HashHopTokenDataset(tokens, seed, stream, size)
    if tokenizer is None:
        raise ValueError("hashhop: the form text needs a tokenizer")
    return HashHopTextDataset({HashHopTask(**layout): share for layout, share in sizes}, tokenizer, seed, stream, size)
