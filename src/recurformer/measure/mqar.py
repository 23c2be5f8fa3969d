"""Figure 4: multi-query associative recall (MQAR) of a Transformer converted before its training (section 4.3).

The model returns the value of each key that was shown earlier. Protocol of zoology
(https://github.com/HazyResearch/zoology, `multiquery_ar`; the paper's appendix A.2 and figure 4).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel

from recurformer.data import IGNORED
from recurformer.data.backbones import make_random
from recurformer.data.datasets import Curriculum, draw_distinct, item_generator
from recurformer.heads.profile import profile_heads
from recurformer.heads.select import select_heads
from recurformer.model.convert import convert
from recurformer.study import MqarTask
from recurformer.train.trainer import train

PROFILED_SAMPLES = 64
COLUMNS = ["beta", "learning_rate", "seed", "split", "length", "pairs", "trained_length", "correct", "queries"]


def run_mqar(
    beta: float,
    learning_rate: float,
    seed: int,
    settings: MqarTask,
    *,
    output_dir: str | Path,
    mamba: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> pd.DataFrame:
    """Initialise, choose heads, convert, train, test.

    The heads are chosen as in the paper, by the recency ratios of the model before its training: those of random
    weights.

    Args:
        beta: fraction of the heads replaced in every layer.
        learning_rate: replaces the one of `settings.training`.
        seed: of the weights and of the samples.
        settings: sizes and recipe.
        output_dir: folder for the metric log and the checkpoints of the training.
        mamba: d_state, d_conv, expand, dt_rank of `convert`.
        device: where to train.

    Returns:
        One row a slice: beta, learning_rate, seed, split ("test": the tested slices; "validation": other samples of the
        trained slices, for the choice of a learning rate), length, pairs, trained_length (whether the training had
        samples of this length), correct, queries.
    """
    model = make_mqar_model(beta, seed, settings, mamba or {})
    model.to(torch.device(device))  # type: ignore[arg-type]
    recipe = dict(settings.training) | {"learning_rate": learning_rate}
    curriculum = round(settings.curriculum_share * recipe["steps"])
    draw = partial(mqar_batch, vocabulary=settings.vocabulary)
    dataset = Curriculum(draw, settings.train, recipe["batch_size"], seed, curriculum)
    recipe |= {"batch_size": 1}  # an item is a batch
    train(model, dataset, output_dir=output_dir, seed=seed, **recipe)
    sizes = {"vocabulary": settings.vocabulary, "samples": settings.test_samples, "seed": seed}
    slices = {"validation": settings.train, "test": settings.test}
    splits = [mqar_rows(model, listed, split=split, **sizes).assign(split=split) for split, listed in slices.items()]
    rows = pd.concat(splits, ignore_index=True).assign(beta=beta, learning_rate=learning_rate, seed=seed)
    rows["trained_length"] = rows.length.isin({length for length, _ in settings.train})
    return rows[COLUMNS]


def make_mqar_model(beta: float, seed: int, settings: MqarTask, mamba: Mapping[str, Any]) -> PreTrainedModel:
    """A randomly initialised Llama-shaped Transformer with the fraction `beta` of its heads replaced."""
    model = make_random(
        architecture="llama",
        hidden_size=settings.hidden_size,
        layers=settings.layers,
        heads=settings.heads,
        kv_heads=settings.kv_heads,
        head_dim=settings.head_dim,
        vocab_size=settings.vocabulary,
        seed=seed,
    )
    length, pairs = max(settings.train)
    input_ids, _ = mqar_batch(item_generator(seed, 0), PROFILED_SAMPLES, length, pairs, vocabulary=settings.vocabulary)
    # k: a tenth of the length, the proportion of the appendix (102 of 1,024 tokens)
    profile = profile_heads(model, input_ids, window=length // 10)
    choice = settings.selection
    heads = select_heads(profile, beta, unit=choice.unit, scope=choice.scope, by=choice.by, seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # the Mamba blocks are initialised from torch's global state
        return convert(model, heads, "mamba", **mamba)


@torch.no_grad()
def mqar_rows(
    model: PreTrainedModel,
    slices: Sequence[tuple[int, int]],
    *,
    vocabulary: int,
    samples: int,
    seed: int,
    split: str = "test",
    tokens_per_batch: int = 8192,
) -> pd.DataFrame:
    """Right answers of a model in each slice.

    Args:
        model: a causal language model.
        slices: (length, pairs) of each.
        vocabulary: number of tokens.
        samples: of each slice.
        seed: of the samples.
        split: "test" or "validation"; neither shares a sample with the other or with the training of the same seed.
        tokens_per_batch: bounds the memory of a forward pass.

    Returns:
        One row a slice: length, pairs, correct, queries.
    """
    model.eval()
    rows = []
    for length, pairs in slices:
        drawn = mqar_batch(item_generator(seed, 0, split), samples, length, pairs, vocabulary=vocabulary)
        batches = (part.to(model.device).split(max(1, tokens_per_batch // length)) for part in drawn)
        correct = 0
        for input_ids, labels in zip(*batches, strict=True):
            logits = model(input_ids=input_ids, use_cache=False).logits  # (B, L, V)
            # the output at a position predicts the token at the next one
            correct += int((logits[:, :-1].argmax(-1) == labels[:, 1:]).sum())
        rows.append((length, pairs, correct, samples * pairs))
    return pd.DataFrame(rows, columns=["length", "pairs", "correct", "queries"])


def mqar_batch(
    rng: np.random.Generator,
    batch: int,
    length: int,
    pairs: int,
    *,
    vocabulary: int,
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
        length: tokens of a sample.
        pairs: key-value pairs, each queried once.
        vocabulary: token ids; 0 is filler, keys come from 1 … vocabulary/2 - 1, values from vocabulary/2 … vocabulary -
            1.
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


def draw_weighted(rng: np.random.Generator, weights: np.ndarray, batch: int, count: int) -> np.ndarray:
    """Ordered draws without replacement where each next index is drawn in proportion to its weight among those left.

    Exponential clocks with these rates ring in exactly such an order, so sorting one clock per index draws a whole row.

    Returns:
        int64 (batch, count).
    """
    clocks = rng.standard_exponential((batch, len(weights))) / weights
    return np.argsort(clocks, axis=1)[:, :count]
