"""What heads attend to: maps of single heads (Figure 5), and contributions of the first token (Figure 2 and Table 5).

A token's contribution to a query is its attention weight times the norm of its value vector (section 3.1). All
measurements stream the attention weights (`recurformer.heads.attention`) and sum them in float64.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurformer.data.interval import mean_interval
from recurformer.heads.attention import AttentionBlock, Progress, check_batch, watch_attention
from recurformer.heads.profile import HeadProfile
from recurformer.heads.select import ra_i_scores

LEVELS = ("high", "mid", "low")


def representative_heads(profile: HeadProfile) -> dict[str, tuple[int, int]]:
    """Choose the heads to show: highest and lowest by RA-I, ties broken by mean recency ratio, then by index; and of
    the others the one whose RA-I is nearest to halfway between them.

    RA-I saturates: the median head can have the RA-I of the highest. (The paper does not name its heads.)

    Returns:
        level ("high", "mid", "low") -> (layer, head).

    Raises:
        ValueError: fewer than 3 heads have a recency ratio.
    """
    scores = ra_i_scores(profile).flatten()
    attending = (~scores.isnan()).nonzero().flatten()
    if len(attending) < len(LEVELS):
        raise ValueError(f"{len(attending)} heads have a recency ratio, but a high, a mid and a low one are needed")
    high, *others, low = attending[scores[attending].sort(descending=True, stable=True).indices].tolist()
    halfway = (scores[high] + scores[low]) / 2
    mid = min(others, key=lambda head: float((scores[head] - halfway).abs()))
    return {level: divmod(head, profile.shape[1]) for level, head in zip(LEVELS, (high, mid, low), strict=True)}


def attention_maps(
    model: PreTrainedModel,
    input_ids: Tensor,
    profile: HeadProfile,
    name: str,
    progress: Progress = None,
) -> pd.DataFrame:
    """Average the attention maps of three heads over all samples: the rows of attention_map.parquet.

    Args:
        model: causal language model, the one that was profiled.
        input_ids: (samples, tokens) without padding; 256 tokens in the paper.
        profile: chooses the heads, see `representative_heads`.
        name: written to the column `model`.
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
    heads = representative_heads(profile)
    maps = {level: torch.zeros(tokens, tokens, dtype=torch.float64) for level in heads}

    def add(block: AttentionBlock) -> None:
        for level, (layer, head) in heads.items():
            if layer == block.inputs.layer:
                column = (block.inputs.heads == head).nonzero().flatten()
                total = block.weights[:, column].sum((0, 1), dtype=torch.float64).cpu()
                maps[level][block.start : block.stop, : block.stop] += total

    watch_attention(model, input_ids, add, progress)
    query, key = (index.numpy() for index in torch.tril_indices(tokens, tokens))
    frames = []
    for level, (layer, head) in heads.items():
        place = {"model": name, "level": level, "layer": layer, "head": head, "ra_i": int(profile.ra_i[layer, head])}
        weight = maps[level].numpy()[query, key] / samples
        frames.append(pd.DataFrame(place | {"query": query, "key": key, "weight": weight, "samples": samples}))
    return pd.concat(frames, ignore_index=True)


NORMS = {"l1": 1, "l2": 2}
NORMAL_95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


def _check_windows(input_ids: Tensor) -> None:
    check_batch(input_ids)
    if input_ids.shape[1] < 2:
        raise ValueError(f"input_ids has {input_ids.shape[1]} token(s) in a sample, at least 2 are needed")


def sink_statistics(
    model: PreTrainedModel,
    input_ids: Tensor,
    name: str,
    layer: int | None = None,
    head: int | None = None,
    progress: Progress = None,
) -> pd.DataFrame:
    """Average a sink head's value norms, attention and contributions over samples: the rows of sink.parquet (Figure 2).

    The sink head has the highest mean attention on the first token, over all samples and all queries but the first
    (whose only key is the first token). `layer` and `head` can name another one. (The paper shows the 18th
    head of the 24th layer of Llama-2-7b, over 1,024 samples of 32 tokens, and does not say how it was found.)

    Args:
        model: causal language model, see `watch_attention`.
        input_ids: (samples, tokens) without padding; 32 tokens in the paper. All heads' (tokens, tokens) averages are
            kept: meant for short windows.
        name: written to the column `model`.
        layer: index of the layer to show, from 0, together with `head`.
        head: index of the query head to show, from 0.
        progress: called with (samples done, samples).

    Returns:
        model, layer, head, quantity, query, key, value, samples. Quantities, each averaged over the samples:
        "value_norm" (L2 norm of the key's value vector, query -1), "value_norm_l1" (L1), "value_spread" (1 - |mean
        v|^2 / mean |v|^2 over the samples: 0 where all have the same value vector), "attention" (weight),
        "contribution" (weight times L2 norm), the latter two for every key <= query.

    Raises:
        ValueError: fewer than 2 tokens, only one of `layer` and `head`, a head that the model does not have, or a model
            that cannot be watched.
    """
    _check_windows(input_ids)
    if (layer is None) != (head is None):
        raise ValueError(f"layer={layer} and head={head}: give both or neither")
    samples, tokens = input_ids.shape
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    if layer is not None and head is not None and not (0 <= layer < layers and 0 <= head < heads):
        raise ValueError(f"layer={layer}, head={head}: {name} has layers 0 to {layers - 1}, heads 0 to {heads - 1}")
    head_dim = getattr(model.config, "head_dim", None) or model.config.hidden_size // heads
    attention = torch.zeros(layers, heads, tokens, tokens, dtype=torch.float64)  # sums over the samples, all of these
    contribution = torch.zeros_like(attention)
    value_norms = {norm: torch.zeros(layers, heads, tokens, dtype=torch.float64) for norm in NORMS}
    square_norms = torch.zeros(layers, heads, tokens, dtype=torch.float64)
    vectors = torch.zeros(layers, heads, tokens, head_dim, dtype=torch.float64)

    def add(block: AttentionBlock) -> None:
        rows, keys = slice(block.start, block.stop), slice(0, block.stop)
        place = block.inputs.layer, block.inputs.heads, rows
        norms = {norm: block.value_norms(order) for norm, order in NORMS.items()}
        weights = block.weights.double()
        attention[*place, keys] += weights.sum(0).cpu()
        contribution[*place, keys] += (weights * norms["l2"].unsqueeze(2)).sum(0).cpu()
        for norm, sums in value_norms.items():
            sums[place] += norms[norm][:, :, rows].sum(0).cpu()
        values = block.inputs.value[:, :, rows].sum(0, dtype=torch.float64)
        vectors[place] += values.repeat_interleave(len(block.inputs.heads) // len(values), 0).cpu()
        square_norms[place] += norms["l2"][:, :, rows].square().sum(0).cpu()

    watch_attention(model, input_ids, add, progress)
    if layer is None or head is None:
        on_first = attention[:, :, 1:, 0].mean(-1)  # (layers, heads)
        layer, head = divmod(int(on_first.argmax()), on_first.shape[1])
    common = (vectors[layer, head] / samples).square().sum(-1)  # to all samples, (L,)
    query, key = (index.numpy() for index in torch.tril_indices(tokens, tokens))
    parts = [
        (quantity, np.full(tokens, -1), np.arange(tokens), values.numpy())
        for quantity, values in (
            ("value_norm", value_norms["l2"][layer, head] / samples),
            ("value_norm_l1", value_norms["l1"][layer, head] / samples),
            ("value_spread", 1 - common / (square_norms[layer, head] / samples)),
        )
    ]
    for quantity, matrix in (("attention", attention), ("contribution", contribution)):
        parts.append((quantity, query, key, matrix[layer, head].numpy()[query, key] / samples))
    frames = []
    for quantity, queries, keys, values in parts:
        place = {"model": name, "layer": layer, "head": head, "quantity": quantity, "query": queries, "key": keys}
        frames.append(pd.DataFrame(place | {"value": values, "samples": samples}))
    return pd.concat(frames, ignore_index=True)


@dataclass(frozen=True, eq=False)
class Contributions:
    """Mean contributions of the first token and of the other tokens, in units of the value vectors' norm.

    Attributes:
        first: norm ("l1", "l2") -> (samples, layers, heads), float64; NaN where no head attends.
        other: likewise.
    """

    first: dict[str, Tensor]
    other: dict[str, Tensor]


def token_contributions(model: PreTrainedModel, input_ids: Tensor, progress: Progress = None) -> Contributions:
    """Measure the contributions of the first and the other tokens, per text window and head.

    Section 4.4: 512 windows of 256 tokens.

    Every query t = 1 .. L-1 compares the first token with the mean of the others that it sees; p is 1 or 2:

        first[t] = A[t, 0] * ||v_0||_p          other[t] = mean over 1 <= i <= t of A[t, i] * ||v_i||_p

    `first` and `other` are their means over t. The pairing makes uniform attention neutral: with equal value norms it
    gives first = other. (The mean over the queries that see a token would not: early queries share their attention
    among few tokens, and the first token is seen by all of them.)

    Args:
        model: causal language model, see `watch_attention`.
        input_ids: (samples, tokens) without padding.
        progress: called with (samples done, samples).

    Raises:
        ValueError: fewer than 2 tokens, or a model that cannot be watched.
    """
    _check_windows(input_ids)
    samples, tokens = input_ids.shape
    size = samples, model.config.num_hidden_layers, model.config.num_attention_heads
    nan = torch.full(size, float("nan"), dtype=torch.float64)  # stays where no head attends
    found = Contributions({p: nan.clone() for p in NORMS}, {p: nan.clone() for p in NORMS})

    def add(block: AttentionBlock) -> None:
        place = block.inputs.place
        skipped = int(block.start == 0)  # query 0 sees the first token alone: there is no other to pair it with
        weights = block.weights[:, :, skipped:].double()  # (B, H, queries, keys)
        others = torch.arange(block.start + skipped, block.stop, device=weights.device)  # number that each query sees
        for norm, order in NORMS.items():
            norms = block.value_norms(order)
            first = weights[..., 0] * norms[..., :1]  # (B, H, queries)
            other = (weights[..., 1:] @ norms[..., 1:, None]).squeeze(-1) / others
            for means, sums in ((found.first[norm], first), (found.other[norm], other)):
                before = means[place] if block.start else 0.0
                means[place] = before + sums.sum(-1).cpu() / (tokens - 1)

    watch_attention(model, input_ids, add, progress)
    return found


def contribution_table(contributions: Contributions, name: str) -> pd.DataFrame:
    """Summarise contributions: the rows of contribution.csv (Table 5).

    Two intervals, because the paper's "95 % CI" reaches below zero for quantities that cannot be negative and whose
    mean over 512 windows is far better known: only a spread of the values looks like that. "mean" is the 95 %
    confidence interval of the mean over windows; "spread" is mean +- 1.96 standard deviations over all (window,
    layer, head). `p_value` is that of a paired t-test over windows, first against other tokens, two-sided.

    Returns:
        model, norm ("l1", "l2"), tokens ("first", "other"), interval ("mean", "spread"), mean, low, high, samples
        (windows), p_value (the same for both kinds of tokens).

    Raises:
        ValueError: fewer than 2 windows.
    """
    from scipy import stats  # slow to import, and Figure 2 does without

    rows = []
    for norm in NORMS:
        kinds = {"first": contributions.first[norm], "other": contributions.other[norm]}
        per_window = {tokens: values.flatten(1).nanmean(1) for tokens, values in kinds.items()}
        samples = len(per_window["first"])
        if samples < 2:
            raise ValueError(f"an interval over windows needs at least 2 of them, got {samples}")
        p_value = float(stats.ttest_rel(per_window["first"].numpy(), per_window["other"].numpy()).pvalue)
        for tokens, values in kinds.items():
            flat = values[~values.isnan()]
            mean, half = float(flat.mean()), NORMAL_95 * float(flat.std())
            intervals = {"mean": mean_interval(per_window[tokens].numpy())[1:], "spread": (mean - half, mean + half)}
            rows += [
                (name, norm, tokens, interval, mean, low, high, samples, p_value)
                for interval, (low, high) in intervals.items()
            ]
    columns = ["model", "norm", "tokens", "interval", "mean", "low", "high", "samples", "p_value"]
    return pd.DataFrame(rows, columns=columns)
