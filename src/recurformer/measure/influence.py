"""Influence of each earlier token on one query: through an attention head, and through the Mamba block that
replaced it.

Figure 1 draws this as a schematic; here both halves are measured. The S6 recurrence is linear in its input, so its
output is exactly an attention-like sum (Ali et al. 2024, arXiv 2403.01590, write Mamba in this form):

    y[t, d] = sum_{s <= t} M[t, s, d] u[s, d] + D[d] u[t, d]
    M[t, s, d] = sum_n C[t, n] exp(A[d, n] (delta[s+1, d] + ... + delta[t, d])) delta[s, d] B[s, n]

Its inputs u are no tokens: the convolution mixes K of them into each, and SiLU is its argument times a sigmoid g. So
the convolution is a sum of this kind too, and y is a sum over the tokens' own rows r of in_proj:

    u[s, d] = g[s, d] (b[d] + sum_k w[d, k] r[s-K+1+k, d]),  g[s, d] = sigmoid of the same brackets
    y[t, d] = sum_{j <= t} T[t, j, d] r[j, d] + the part of the bias b, which belongs to no token
    T[t, j, d] = sum_{j <= s < j+K, s <= t} (M[t, s, d] + [s = t] D[d]) g[s, d] w[d, K-1-(s-j)]

The sum is exact: nothing is approximated or differentiated. delta, B, C and g depend on the tokens. They count as
weights at their own values, as softmax weights do in attention; so the derivative of SiLU does not enter.

The rest of the block is left out. Its output gate is one factor for all tokens of a channel; in_proj and out_proj mix
the features of one token. All channels count alike.

`gate_norms` measures the paper's input gate, v' = B v (section 3.1): here delta[s] B[s] r[s] stands for v'. It leaves
SiLU and the convolution out of the value, which the latter makes short at the first token: no tokens stand before it.
They still act on delta and B.
"""

from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from recurformer.heads.attention import AttentionBlock, check_batch, reading, watch_attention
from recurformer.heads.profile import HeadProfile
from recurformer.heads.select import ra_i_scores

ALL_HEADS = -1  # the Mamba block mixes the channels of all replaced heads of its layer


def unrolled_weights(delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """The last row of M: the weights of the inputs in the scan's last output, without the skip weight D.

    Args:
        delta: step sizes after bias and softplus (B, D, L).
        A: state transition (D, N), negative.
        B: input matrix of every step (B, N, L).
        C: output matrix of every step (B, N, L).

    Returns:
        (B, D, L).
    """
    elapsed = delta.cumsum(-1)
    since = elapsed[..., -1:] - elapsed  # delta[s+1] + ... + delta[t], (B, D, L)
    decay = torch.exp(A[None, :, :, None] * since.unsqueeze(2))  # (B, D, N, L)
    gates = C[..., -1:] * B  # (B, N, L)
    return (decay * gates.unsqueeze(1)).sum(2) * delta


def token_weights(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, sigmoid: Tensor, taps: Tensor) -> Tensor:
    """The last row of T: the weights of the tokens' rows of in_proj in the scan's last output, with the skip.

    `D` (D,) are the skip weights, `sigmoid` (B, D, L) is g, that in SiLU, at every step, `taps` (D, K) are w, of the
    convolution, the last one the token's own. All else is as of `unrolled_weights`.
    """
    steps = unrolled_weights(delta, A, B, C)
    steps[..., -1] += D
    steps = steps * sigmoid
    weights, length = torch.zeros_like(steps), steps.shape[-1]
    for lag, tap in enumerate(taps.flip(-1).unbind(-1)[:length]):
        weights[..., : length - lag] += steps[..., lag:] * tap[:, None]
    return weights


@torch.no_grad()
def _run_block(model: PreTrainedModel, input_ids: Tensor, layer: int) -> tuple[Any, list[Tensor], list[Tensor]]:
    """Run a converted model; return one layer's Mamba block; the inputs of its in_proj (B, L, features), of its
    convolution r and of its x_proj u, (B, L, D); delta after softplus (B, L, D), B and C (B, L, N), in float64.

    Raises:
        ValueError: the layer has no Mamba block.
    """
    base: Any = model.base_model
    block = getattr(base.layers[layer].self_attn, "mamba", None)
    if block is None:
        raise ValueError(f"layer {layer} has no Mamba block: none of its heads was replaced")
    training = model.training
    model.eval()
    try:
        with reading([block.in_proj, block.conv1d, block.x_proj]) as calls:
            base(input_ids.to(model.device), use_cache=False)
    finally:
        model.train(training)
    inputs = [arguments[0] for arguments, _ in calls]
    width = block.A_log.shape[1]
    steps, B, C = block.x_proj(inputs[-1]).split([block.dt_proj.in_features, width, width], -1)
    return block, inputs, [F.softplus(block.dt_proj(steps).double()), B.double(), C.double()]


@torch.no_grad()
def block_arguments(model: PreTrainedModel, input_ids: Tensor, layer: int) -> dict[str, Tensor]:
    """Run a converted model and return the arguments of `token_weights` for one layer's Mamba block, in float64.

    Returns:
        delta (after softplus) and sigmoid (B, D, L), A (D, N), B and C (B, N, L), D (D,), taps (D, K).

    Raises:
        ValueError: the layer has no Mamba block.
    """
    block, (_, rows, _), (delta, B, C) = _run_block(model, input_ids, layer)
    conv = block.conv1d
    taps = conv.weight.double()
    before = F.pad(rows.double().transpose(1, 2), (taps.shape[-1] - 1, 0))
    return {
        "delta": delta.transpose(1, 2),
        "A": -torch.exp(block.A_log.double()),
        "B": B.transpose(1, 2),
        "C": C.transpose(1, 2),
        "D": block.D.double(),
        "sigmoid": F.conv1d(before, taps, conv.bias.double(), groups=len(taps)).sigmoid(),
        "taps": taps.squeeze(1),
    }


@torch.no_grad()
def gate_norms(model: PreTrainedModel, input_ids: Tensor) -> dict[str, Tensor]:
    """Norm of each token's value before and after the input gates of a converted model, over the mean of all tokens.

    Returns:
        "attention": of the value vectors of a layer's replaced heads, "mamba": of the term that the state would take
        in with a value before the convolution; each (L,), the mean over samples, then over the layers with a Mamba
        block, float64.
    """
    norms: dict[str, list[Tensor]] = {"attention": [], "mamba": []}
    for layer in (layer for layer, heads in enumerate(model.config.recurrent_heads) if heads):
        _, (values, rows, _), (delta, B, _) = _run_block(model, input_ids, layer)
        behind = (delta * rows.double()).norm(dim=-1) * B.norm(dim=-1)  # of an outer product over D and N
        for name, norm in (("attention", values.double().norm(dim=-1)), ("mamba", behind)):
            mean = norm.mean(0)
            norms[name].append((mean / mean.mean()).cpu())
    return {name: torch.stack(of_layers).mean(0) for name, of_layers in norms.items()}


def mamba_influence(model: PreTrainedModel, input_ids: Tensor, layer: int) -> Tensor:
    """Fraction of each token in the scan of one layer's Mamba block at the last position, (L,), summing to 1.

    |T[L - 1, j, d]| is averaged over the channels d and the samples, then normalised over j.

    Raises:
        ValueError: the layer has no Mamba block.
    """
    check_batch(input_ids)
    arguments = block_arguments(model, input_ids, layer)
    parameters = {name: arguments[name] for name in ("A", "D", "taps")}
    # sample by sample: the decays of all at once, at each of a channel's states, would fill a GPU
    samples = zip(*(arguments[name].split(1) for name in ("delta", "B", "C", "sigmoid")), strict=True)
    rows = [
        token_weights(delta=delta, B=B, C=C, sigmoid=sigmoid, **parameters).abs() for delta, B, C, sigmoid in samples
    ]
    weights = torch.cat(rows).mean((0, 1))
    return (weights / weights.sum()).cpu()


def attention_influence(model: PreTrainedModel, input_ids: Tensor, layer: int, head: int) -> Tensor:
    """Attention weights of one head at the last position, averaged over the samples, (L,), summing to 1.

    Raises:
        ValueError: the head does not attend.
    """
    rows: list[Tensor] = []

    def keep_row(block: AttentionBlock) -> None:
        heads = block.inputs.heads.tolist()
        if block.inputs.layer == layer and block.stop == input_ids.shape[1] and head in heads:
            rows.append(block.weights[:, heads.index(head), -1].double().cpu())

    watch_attention(model, input_ids, keep_row)
    if not rows:
        raise ValueError(f"layer {layer} head {head} does not attend in {type(model).__name__}")
    return torch.cat(rows).mean(0)


def replaced_example(profile: HeadProfile, recurrent_heads: list[list[int]]) -> tuple[int, int]:
    """The replaced head with the highest RA-I, ties broken by mean recency ratio, then by index: (layer, head).

    Raises:
        ValueError: no head is replaced.
    """
    replaced = [(layer, head) for layer, heads in enumerate(recurrent_heads) for head in heads]
    if not replaced:
        raise ValueError("no head of the converted model is replaced: convert with beta > 0")
    scores = ra_i_scores(profile)
    return max(replaced, key=lambda place: float(scores[place]))


def measure_influence(
    original: PreTrainedModel,
    converted: PreTrainedModel,
    input_ids: Tensor,
    profile: HeadProfile,
    name: str,
) -> pd.DataFrame:
    """Compare a recency-aware head with the Mamba block that replaced it: the rows of influence.parquet (Figure 1).

    Args:
        original: the model before conversion; the attention row is its.
        converted: the converted and trained model.
        input_ids: (samples, tokens) without padding, the last of which is the query; weights are averaged over the
            samples.
        profile: recency ratios of `original`; the example is `replaced_example`.
        name: written to the column `model`.

    Returns:
        model, mixer ("attention", "mamba"), layer, head (-1 for the Mamba block, which serves all replaced heads of the
        layer), query, key, weight (summing to 1 for each mixer), norm (of the key's value: see `gate_norms`), samples.

    Raises:
        ValueError: no head is replaced.
    """
    layer, head = replaced_example(profile, getattr(converted.config, "recurrent_heads", None) or [])
    weights = {
        ("attention", head): attention_influence(original, input_ids, layer, head),
        ("mamba", ALL_HEADS): mamba_influence(converted, input_ids, layer),
    }
    norms = gate_norms(converted, input_ids)
    frames = []
    for (mixer, index), row in weights.items():
        place = {"model": name, "mixer": mixer, "layer": layer, "head": index, "query": len(row) - 1}
        values = {"key": range(len(row)), "weight": row.numpy(), "norm": norms[mixer].numpy()}
        frames.append(pd.DataFrame(place | values))
    return pd.concat(frames, ignore_index=True).assign(samples=len(input_ids))
