"""Attention maps of a very, a middling and a hardly recency-aware head, averaged over samples (Figure 5)."""

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurformer.heads.profile import HeadProfile
from recurformer.heads.run import Progress, check_batch
from recurformer.heads.select import ra_i_scores
from recurformer.heads.stream import AttentionBlock, watch_attention

LEVELS = ("high", "mid", "low")


def representative_heads(profile: HeadProfile) -> dict[str, tuple[int, int]]:
    """Choose the heads to show: highest, median and lowest by RA-I, ties broken by mean recency ratio, then by index.

    The median of an even number of heads is the higher one of the middle two. (The paper does not name its heads.)

    Returns:
        level ("high", "mid", "low") -> (layer, head).

    Raises:
        ValueError: fewer than 3 heads have a recency ratio.
    """
    scores = ra_i_scores(profile).flatten()
    attending = (~scores.isnan()).nonzero().flatten()
    if len(attending) < len(LEVELS):
        raise ValueError(f"{len(attending)} heads have a recency ratio, but a high, a mid and a low one are needed")
    order = attending[scores[attending].sort(descending=True, stable=True).indices]
    places = {"high": 0, "mid": (len(order) - 1) // 2, "low": len(order) - 1}
    return {level: divmod(int(order[place]), profile.shape[1]) for level, place in places.items()}


class _MapSums:
    """Attention weights of a few heads, summed over samples in float64."""

    def __init__(self, heads: dict[str, tuple[int, int]], tokens: int):
        self.heads = heads
        self.maps = {level: torch.zeros(tokens, tokens, dtype=torch.float64) for level in heads}

    def __call__(self, block: AttentionBlock) -> None:
        for level, (layer, head) in self.heads.items():
            if layer == block.inputs.layer:
                column = (block.inputs.heads == head).nonzero().flatten()
                total = block.weights[:, column].sum((0, 1), dtype=torch.float64).cpu()
                self.maps[level][block.start : block.stop, : block.stop] += total


def attention_maps(
    model: PreTrainedModel,
    input_ids: Tensor,
    profile: HeadProfile,
    name: str,
    batch_size: int | None = None,
    progress: Progress = None,
) -> pd.DataFrame:
    """Average the attention maps of three heads over all samples: the rows of attention_map.parquet.

    Args:
        model: causal language model, the one that was profiled.
        input_ids: (samples, tokens) without padding; 256 tokens in the paper.
        profile: chooses the heads, see `representative_heads`.
        name: written to the column `model`.
        batch_size: samples in one forward pass; None: see `samples_per_batch`.
        progress: called with (samples done, samples).

    Returns:
        model, level ("high", "mid", "low"), layer, head, ra_i, query, key, weight, samples; every key <= query, the
        first token included.

    Raises:
        ValueError: empty input, a profile of another model's shape, or a model that cannot be watched.
    """
    check_batch(input_ids)
    shape = (model.config.num_hidden_layers, model.config.num_attention_heads)
    if profile.shape != shape:
        raise ValueError(f"profile is of {profile.shape} layers and heads, model {name} has {shape}")
    samples, tokens = input_ids.shape
    sums = _MapSums(representative_heads(profile), tokens)
    watch_attention(model, input_ids, sums, batch_size, progress)
    query, key = (index.numpy() for index in torch.tril_indices(tokens, tokens))
    frames = [
        pd.DataFrame(
            {
                "model": name, "level": level, "layer": layer, "head": head, "ra_i": int(profile.ra_i[layer, head]),
                "query": query, "key": key, "weight": sums.maps[level].numpy()[query, key] / samples,
                "samples": samples,
            }
        )
        for level, (layer, head) in sums.heads.items()
    ]  # fmt: skip
    return pd.concat(frames, ignore_index=True)
