"""Multi-query associative recall (MQAR): return the value of each key that was shown earlier.

Protocol of zoology (https://github.com/HazyResearch/zoology, `multiquery_ar`; the paper's appendix A.2 and figure 4).
"""

import numpy as np
import torch

from recurformer.data import IGNORED
from recurformer.data.sizes import check_mqar


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
