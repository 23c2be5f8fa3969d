"""What a small model learns recall from: texts in which random words come again, and lists that are to be copied."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import pandas as pd
import torch

from recurformer.data import IGNORED

WORD = re.compile(r"(?<= )[A-Za-z]{4,}(?= )")
SHORTEST_LIST = 4
LIST_WORDS = 256


def frequent_words(texts: Iterable[str], count: int) -> list[str]:
    """The `count` most frequent words of four letters or more between spaces, the most frequent first.

    Raises:
        ValueError: the texts have fewer.
    """
    counts = Counter(chain.from_iterable(map(WORD.findall, texts)))
    if len(counts) < count:
        raise ValueError(f"words: the texts have {len(counts)} of four letters or more, {count} were asked for")
    return [word for word, _ in counts.most_common(count)]


def plant(articles: pd.DataFrame, words: int, every: int, back: int, lists: int, seed: int) -> pd.DataFrame:
    """Articles with pairs of words among their own, each told twice: only the first telling says what the second word
    of the second one is. Text has too few of such places for a small model to learn recall from.

    Args:
        articles: columns text and split.
        words: the most frequent words of the training texts that pairs are drawn from, each pair equally likely.
        every: words of text between the first tellings of two pairs.
        back: a pair comes again so many words later, or up to twice as many.
        lists: of `LIST_WORDS` words in one more training article: what is copied there is not forgotten.
        seed: of the pairs, places and lists.

    Raises:
        ValueError: the texts have fewer different words.
    """
    known = frequent_words(articles.loc[articles["split"] == "train", "text"], words)
    rng = np.random.default_rng(seed)

    def with_pairs(text: str) -> str:
        parts = text.split(" ")
        after = [""] * len(parts)
        for first in range(0, len(parts), every):
            pair = "".join(f" {known[word]}" for word in rng.integers(words, size=2))
            for place in (first, first + int(rng.integers(back, 2 * back + 1))):
                if place < len(parts):
                    after[place] += pair
        return " ".join(part + told for part, told in zip(parts, after, strict=True))

    planted = articles.assign(text=articles["text"].map(with_pairs))
    rows = copy_batch(rng, lists, LIST_WORDS, range(words))[0].tolist()
    text = "\n".join(" ".join(known[word] for word in row) for row in rows)
    return pd.concat([planted, pd.DataFrame({"title": [""], "text": [text], "split": ["train"]})], ignore_index=True)


def copy_batch(
    rng: np.random.Generator, samples: int, length: int, tokens: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lists of random tokens, each told again and again: what stood before tells all of it but the first telling.

    Args:
        rng: the only source of randomness.
        samples: number of lists.
        length: tokens of a sample; a list has from `SHORTEST_LIST` of them to half of these.
        tokens: those that lists are drawn from.

    Returns:
        input_ids (samples, length) and labels (samples, length), int64; labels are -100 up to the first token of the
        second telling.
    """
    lists = rng.choice(tokens, (samples, length // 2))
    periods = rng.integers(SHORTEST_LIST, length // 2 + 1, size=(samples, 1))
    places = np.arange(length)
    input_ids = np.take_along_axis(lists, places % periods, axis=1).astype(np.int64)  # (samples, length)
    labels = np.where(places > periods, input_ids, IGNORED)
    return torch.from_numpy(input_ids), torch.from_numpy(labels)
