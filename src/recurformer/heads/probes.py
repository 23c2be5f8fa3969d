"""The samples on which scores of heads are measured: lookups, language, and repeated random tokens.

A model of text looks words up; a small model that knows HashHop only looks hashes up, and that is its language too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from recurformer.corpora.windows import windows
from recurformer.study import HashHopTask, HeadScores
from recurformer.tasks.draw import draw_distinct
from recurformer.tasks.key_value import key_value_samples
from recurformer.train.hashhop_data import HashHopTokenDataset, hashhop_dataset


class Labelled(NamedTuple):
    """Samples and their labels.

    Attributes:
        input_ids: (samples, L) without padding.
        labels: (samples, L), aligned with input_ids, -100 where no token is predicted.
    """

    input_ids: Tensor
    labels: Tensor


class Repeated(NamedTuple):
    """Samples of repeated random tokens.

    Attributes:
        input_ids: (samples, L).
        period: tokens after which they repeat.
    """

    input_ids: Tensor
    period: int


class Probes(Protocol):
    """Samples for one model; the same at every call."""

    def lookups(self) -> Labelled:
        """Samples whose labels must be looked up."""

    def language(self) -> Labelled:
        """The usual tokens of the model's inputs and predictions."""

    def repeats(self) -> Repeated:
        """Random tokens, repeated."""


def repeated_tokens(
    tokenizer: PreTrainedTokenizerBase, samples: int, period: int, repetitions: int, seed: int
) -> Repeated:
    """Different random tokens, none of them special, repeated; at most as many as the vocabulary has."""
    ordinary = np.array(sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids)))
    period = min(period, len(ordinary))
    drawn = ordinary[draw_distinct(np.random.default_rng(seed), len(ordinary), samples, period)]
    return Repeated(torch.from_numpy(np.tile(drawn, (1, repetitions))), period)


@dataclass(frozen=True)
class TextProbes:
    """Probes of a model that reads text."""

    tokenizer: PreTrainedTokenizerBase
    texts: Sequence[str]
    settings: HeadScores
    seed: int

    def lookups(self) -> Labelled:
        """Lists of words, see `key_value_samples`."""
        sizes = self.settings
        return Labelled(*key_value_samples(self.tokenizer, sizes.samples, sizes.pairs, sizes.questions, self.seed))

    def language(self) -> Labelled:
        """Windows of the texts."""
        input_ids = windows(self.texts, self.tokenizer, self.settings.tokens, self.settings.windows, self.seed)
        return Labelled(input_ids, input_ids)

    def repeats(self) -> Repeated:
        """See `repeated_tokens`."""
        sizes = self.settings
        return repeated_tokens(self.tokenizer, sizes.samples, sizes.repeated_tokens, sizes.repetitions, self.seed)


@dataclass(frozen=True)
class HashHopProbes:
    """Probes of a model that knows HashHop with one token a hash alone, no longer than its training samples."""

    tokenizer: PreTrainedTokenizerBase
    task: HashHopTask
    settings: HeadScores
    seed: int

    def lookups(self) -> Labelled:
        """Chains that no training has seen: every hash of an answer is looked up."""
        count = self.settings.samples
        dataset = hashhop_dataset(self.task, self.tokenizer, size=count, seed=self.seed, stream="validation")
        if not isinstance(dataset, HashHopTokenDataset):
            raise ValueError(f"task-form {self.task.form}: a model that reads text is measured on --articles")
        batch = dataset.collate([dataset[index] for index in range(count)])
        return Labelled(batch["input_ids"], batch["labels"])

    def language(self) -> Labelled:
        """The same chains: such a model reads nothing else."""
        return self.lookups()

    def repeats(self) -> Repeated:
        """See `repeated_tokens`; all repetitions together are as long as a sample of the task."""
        period = self.lookups().input_ids.shape[1] // self.settings.repetitions
        return repeated_tokens(self.tokenizer, self.settings.samples, period, self.settings.repetitions, self.seed)
