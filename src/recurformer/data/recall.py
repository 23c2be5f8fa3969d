"""Tasks of recall: lists of keys and values, and questions after them that only the list can answer.

`key_value_samples` writes them in single tokens of a model's own vocabulary. `mqar_batch` draws multi-query associative
recall of zoology (https://github.com/HazyResearch/zoology, `multiquery_ar`; the paper's appendix A.2 and figure 4).
"""

import re

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from recurformer.data import IGNORED
from recurformer.data.draw import draw_distinct, draw_weighted
from recurformer.data.sizes import check_mqar
from recurformer.data.windows import encode_text, text_prefix

# words after a space, in the two ways in which vocabularies write it; where there are none, as among bytes, letters
ITEMS = (re.compile(r"[Ġ▁][a-z]{3,}"), re.compile(r"[A-Za-z0-9]"))
COMMON = 2000  # a vocabulary of merges has its frequent words first; with all words SmolLM2 finds fewer values


def single_tokens(tokenizer: PreTrainedTokenizerBase, needed: int) -> np.ndarray:
    """Ids of common words, or else of letters and digits, that are one token each; int64, at least `needed`.

    Raises:
        ValueError: the vocabulary has too few of both.
    """
    words = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    for item in ITEMS:
        tokens = [token for token, word in enumerate(words) if word and item.fullmatch(word)]
        if len(tokens) >= needed:
            return np.array(tokens[: max(COMMON, needed)])
    raise ValueError(f"key-value lookup: {needed} different items are needed, the vocabulary has fewer words")


def key_value_samples(
    tokenizer: PreTrainedTokenizerBase, samples: int, pairs: int, questions: int, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
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
        input_ids and labels, both int64 (samples, L). Labels are aligned with input_ids: the answers at their places,
        -100 elsewhere.

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
    return torch.from_numpy(input_ids), torch.from_numpy(labels)


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
        label:  ·   ·   ·   ·   ·   ·   7   ·   ·   ·   ·   ·   8   ·

    Labels stand at the query's own position: the model's output at position i predicts labels[i], without another
    shift.

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
        input_ids (batch, length) and labels (batch, length), int64; labels are -100 but at the queries.

    Raises:
        ValueError: sizes that do not fit each other.
    """
    check_mqar(vocabulary, length, pairs)
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
    np.put_along_axis(labels, positions, values, axis=1)
    return torch.from_numpy(input_ids), torch.from_numpy(labels)


def count_correct(predictions: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Right answers and queries of each sample. Nothing is shifted: predictions[:, i] is compared with labels[:, i].

    Args:
        predictions: predicted token ids (batch, length), or logits (batch, length, vocabulary), at each position.
        labels: (batch, length) as made by `sample_batch`: the token that the position itself predicts, -100 where
            none is queried. Labels that were moved one position on for a library are to be moved back first.

    Returns:
        correct (batch,) and queries (batch,), int64.
    """
    if predictions.dim() == labels.dim() + 1:
        predictions = predictions.argmax(dim=-1)
    queried = labels != IGNORED
    return ((predictions == labels) & queried).sum(dim=-1), queried.sum(dim=-1)
