"""A list of keys and values, and questions after it: a model must look the answers up and cannot know them.

     apple: stone
     cloud: mirror
    …
     cloud: mirror      the questions; the values after them are the answers

Keys and values are single tokens of the model's own vocabulary, all different.
"""

import re

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from recurformer.corpora.windows import encode_text, text_prefix
from recurformer.tasks import IGNORED
from recurformer.tasks.draw import draw_distinct

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
    """Independent lists with questions.

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
