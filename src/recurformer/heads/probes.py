"""Samples on which heads are measured: texts, lookups that a model cannot know the answers of, repeated tokens."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from recurformer.data import IGNORED
from recurformer.data.datasets import draw_distinct
from recurformer.data.hashhop import HashHopTokenDataset, hashhop_dataset
from recurformer.data.windows import encode_text, text_prefix, windows
from recurformer.study import HashHopTask, HeadScores

# words after a space, in the two ways in which vocabularies write it; where there are none, as among bytes, letters
ITEMS = (re.compile(r"[Ġ▁][a-z]{3,}"), re.compile(r"[A-Za-z0-9]"))
REQUEST = "\n\nRepeat the previous context: "  # KVzip's (arXiv 2505.23416, algorithm 1)
COMMON = 2000  # a vocabulary of merges has its frequent words first; with all words SmolLM2 finds fewer values


class Labelled(NamedTuple):
    """Samples and their labels.

    Attributes:
        input_ids: (samples, L) without padding.
        labels: (samples, L), aligned with input_ids, -100 where no token is predicted.
    """

    input_ids: Tensor
    labels: Tensor


class Reread(NamedTuple):
    """Texts that come again.

    Attributes:
        input_ids: (samples, L).
        tokens: of a text, and of what stands before it the first time.
        again: place where it begins again.
    """

    input_ids: Tensor
    tokens: int
    again: int


class Repeated(NamedTuple):
    """Samples of repeated random tokens.

    Attributes:
        input_ids: (samples, L).
        period: tokens after which they repeat.
    """

    input_ids: Tensor
    period: int


def repeated_tokens(
    tokenizer: PreTrainedTokenizerBase, samples: int, period: int, repetitions: int, seed: int
) -> Repeated:
    """Different random tokens, none of them special, repeated; at most as many as the vocabulary has."""
    ordinary = np.array(sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids)))
    period = min(period, len(ordinary))
    drawn = ordinary[draw_distinct(np.random.default_rng(seed), len(ordinary), samples, period)]
    return Repeated(torch.from_numpy(np.tile(drawn, (1, repetitions))), period)


def single_tokens(tokenizer: PreTrainedTokenizerBase, needed: int) -> np.ndarray:
    """Ids of common words, or else of letters and digits, that are one token each; int64, at least `needed`.

    Raises:
        ValueError: the vocabulary has too few of both.
    """
    for tokens in _of_items(tokenizer):
        if len(tokens) >= needed:
            return np.array(tokens[: max(COMMON, needed)])
    raise ValueError(f"key-value lookup: {needed} different items are needed, the vocabulary has fewer words")


def _of_items(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    words = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return [[token for token, word in enumerate(words) if word and item.fullmatch(word)] for item in ITEMS]


def most_pairs(tokenizer: PreTrainedTokenizerBase) -> int:
    """The most pairs of a key and a value, all different, that `key_value_samples` finds in the vocabulary."""
    return max(map(len, _of_items(tokenizer))) // 2


def key_value_samples(
    tokenizer: PreTrainedTokenizerBase, samples: int, pairs: int, questions: int, seed: int = 0
) -> Labelled:
    """Independent lists with questions: a model must look the answers up and cannot know them.

         apple: stone
         cloud: mirror
        …
         cloud: mirror      the questions; the values after them are the answers

    Keys and values are single tokens of the model's own vocabulary, all different.

    Args:
        tokenizer: of the model.
        samples: number of lists.
        pairs: lines of a list.
        questions: keys that come again after it, each once.
        seed: of all samples.

    Returns:
        int64; the labels are the answers at their places.

    Raises:
        ValueError: more questions than pairs, or a vocabulary with too few items.
    """
    if questions > pairs:
        raise ValueError(f"key-value lookup: {questions} questions need as many pairs, there are {pairs}")
    rng = np.random.default_rng(seed)
    items = single_tokens(tokenizer, 2 * pairs)
    lines = items[draw_distinct(rng, len(items), samples, 2 * pairs)].reshape(samples, pairs, 2)
    queried = draw_distinct(rng, pairs, samples, questions)
    lines = np.concatenate([lines, np.take_along_axis(lines, queried[..., None], axis=1)], axis=1)
    colon, end = encode_text(tokenizer, ":"), encode_text(tokenizer, "\n")
    value = 1 + len(colon)  # its place in a line
    listed = np.tile(np.array([0, *colon, 0, *end]), (samples, pairs + questions, 1))
    listed[..., 0], listed[..., value] = lines[..., 0], lines[..., 1]
    labels = np.full_like(listed, IGNORED)
    labels[:, pairs:, value] = lines[:, pairs:, 1]
    prefix = np.tile(text_prefix(tokenizer), (samples, 1)).astype(np.int64)
    input_ids = np.concatenate([prefix, listed.reshape(samples, -1)], axis=1)
    labels = np.concatenate([np.full_like(prefix, IGNORED), labels.reshape(samples, -1)], axis=1)
    return Labelled(torch.from_numpy(input_ids), torch.from_numpy(labels))


def hidden_lookups(tokenizer: PreTrainedTokenizerBase, text: Tensor, questions: int, seed: int = 0) -> Labelled:
    """Text with lines `key: value` at random places, and questions after them at its end: see `key_value_samples`.

    Args:
        tokenizer: of the model.
        text: windows (samples, L), as `recurformer.data.windows.windows` cuts them; their ends make room.
        questions: as many as lines.
        seed: of all samples.

    Returns:
        Samples as long as the text.

    Raises:
        ValueError: the text has fewer tokens than lines and questions, or a vocabulary with too few items.
    """
    samples, tokens = text.shape
    lines, labels = key_value_samples(tokenizer, samples, questions, questions, seed)
    prefix = len(text_prefix(tokenizer))
    told = (lines.shape[1] - prefix) // 2  # then they are asked
    kept = tokens - lines.shape[1]  # of the text
    if kept < 1:
        raise ValueError(f"{questions} lines and questions need more than the {tokens} tokens of a window")
    rng, filled = np.random.default_rng(seed), []
    for window, line in zip(text.numpy(), lines[:, prefix:].numpy(), strict=True):
        places = np.repeat(np.sort(rng.integers(kept, size=questions)), told // questions)
        body = np.insert(window[prefix : prefix + kept], places, line[:told])
        filled.append(np.concatenate([window[:prefix], body, line[told:]]))
    return Labelled(torch.from_numpy(np.stack(filled)), F.pad(labels, (kept, 0), value=IGNORED))


def weighted(labelled: Labelled, needle_weight: float) -> tuple[Tensor, Tensor]:
    """Samples and what the prediction of each of their tokens counts, both (samples, L): all tokens of a sample count 1
    together, and all its labels `needle_weight` beside.
    """
    input_ids, labels = labelled
    asked = labels != IGNORED
    return input_ids, 1 / (labels.shape[1] - 1) + needle_weight * asked / asked.sum(1, keepdim=True)


@dataclass(frozen=True)
class TextProbes:
    """Probes of a model that reads text: it looks words up. They are the same at every call."""

    tokenizer: PreTrainedTokenizerBase
    texts: Sequence[str]
    settings: HeadScores
    seed: int

    def lookups(self) -> Labelled:
        """Lists of words, see `key_value_samples`."""
        sizes = self.settings
        return key_value_samples(self.tokenizer, sizes.samples, sizes.pairs, sizes.questions, self.seed)

    def language(self) -> Tensor:
        """Windows of the texts, (windows, tokens)."""
        return windows(self.texts, self.tokenizer, self.settings.tokens, self.settings.windows, self.seed)

    def hidden(self) -> Labelled:
        """Windows of the texts with lookups in them, see `hidden_lookups`."""
        return hidden_lookups(self.tokenizer, self.language(), self.settings.questions, self.seed)

    def weighted(self) -> tuple[Tensor, Tensor]:
        """See `hidden` and `weighted`."""
        return weighted(self.hidden(), self.settings.needle_weight)

    def reread(self) -> Reread:
        """Windows of the texts, KVzip's request to repeat them, and the same texts."""
        text = self.language()
        request = torch.tensor(encode_text(self.tokenizer, REQUEST)).expand(len(text), -1)
        again = text[:, len(text_prefix(self.tokenizer)) :]
        return Reread(torch.cat([text, request, again], 1), text.shape[1], text.shape[1] + request.shape[1])

    def repeats(self) -> Repeated:
        """See `repeated_tokens`."""
        sizes = self.settings
        return repeated_tokens(self.tokenizer, sizes.samples, sizes.repeated_tokens, sizes.repetitions, self.seed)


@dataclass(frozen=True)
class HashHopProbes:
    """Probes of a model that knows HashHop with one token a hash alone, no longer than its training samples: it looks
    hashes up, and that is its language too.
    """

    tokenizer: PreTrainedTokenizerBase
    task: HashHopTask
    settings: HeadScores
    seed: int

    def lookups(self) -> Labelled:
        """Chains that no training has seen: every hash of an answer is looked up."""
        count = self.settings.samples
        dataset = hashhop_dataset(self.task, self.tokenizer, seed=self.seed, stream="validation")
        if not isinstance(dataset, HashHopTokenDataset):
            raise ValueError(f"task-form {self.task.form}: a model that reads text is measured on --articles")
        batch = dataset.collate([dataset[index] for index in range(count)])
        return Labelled(batch["input_ids"], batch["labels"])

    def hidden(self) -> Labelled:
        """The same chains."""
        return self.lookups()

    def reread(self) -> Reread:
        """The first half of the same chains, twice."""
        input_ids = self.lookups().input_ids
        input_ids = input_ids[:, : input_ids.shape[1] // 2]
        return Reread(input_ids.repeat(1, 2), input_ids.shape[1], input_ids.shape[1])

    def weighted(self) -> tuple[Tensor, Tensor]:
        """The same chains; see `weighted`."""
        input_ids, labels = self.lookups()
        return input_ids, (labels != IGNORED) / (labels != IGNORED).sum(1, keepdim=True)

    def repeats(self) -> Repeated:
        """See `repeated_tokens`; all repetitions together are as long as a sample of the task."""
        period = self.lookups().input_ids.shape[1] // self.settings.repetitions
        return repeated_tokens(self.tokenizer, self.settings.samples, period, self.settings.repetitions, self.seed)


Probes = TextProbes | HashHopProbes
