"""Recency ratios of every attention head (equation 1), the recency-aware index that counts them, and their file.

A query's weights sum to 1, so the kernel that attends knows their total already, and only the scores in the band
0 <= i - j <= window are computed a second time. The first token comes last: the kernel attends to all others, and the
mass beyond the first token is a sum of its own. As 1 minus the first token's weight, rounding would swallow it in heads
that attend to little else.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from recurformer.files import atomic_path

if TYPE_CHECKING:  # a choice of heads by a profile needs no model: transformers takes seconds to import
    from transformers import PreTrainedModel

    from recurformer.heads.attention import AttentionBlock, LayerInputs, Progress

METADATA_KEY = b"recurformer"
SETTINGS = ("window", "threshold", "exclude_first", "kv_heads", "tokens", "model")


@dataclass(frozen=True, eq=False)
class HeadProfile:
    """Recency ratios of every head of a model over a set of samples.

    Attributes:
        rr: recency ratios in [0, 1], (samples, layers, heads), float64; NaN where the model has no attention head (a
            replaced head of a converted model, a layer of another kind).
        window: k of equation 1, in tokens: a key at distance at most k is recent.
        threshold: alpha: a sample counts towards RA-I when its recency ratio exceeds it.
        exclude_first: whether the first token was left out of both sums (section 3.1).
        kv_heads: key-value heads in a layer.
        tokens: tokens in the longest sample.
        model: the model's name in the measurements.
        sliding: layers that attend through a sliding window; their heads have no ratio and are never replaced.
    """

    rr: Tensor
    window: int
    threshold: float
    exclude_first: bool
    kv_heads: int
    tokens: int
    model: str = ""
    sliding: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.rr.dim() != 3 or self.rr.numel() == 0:
            raise ValueError(f"rr must be (samples, layers, heads), none of them 0, got shape {tuple(self.rr.shape)}")
        if self.kv_heads < 1 or self.rr.shape[2] % self.kv_heads:
            raise ValueError(f"kv_heads={self.kv_heads} must divide the {self.rr.shape[2]} heads of a layer")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold={self.threshold} must lie in [0, 1]: it is compared with a ratio")

    @property
    def ra_i(self) -> Tensor:
        """RA-I: the number of samples whose recency ratio exceeds the threshold, (layers, heads), int64.

        Figure 6 counts the same without torch, from the file of the profile: `recurformer.results.scores.ra_i`.
        """
        return (self.rr > self.threshold).sum(0)

    @property
    def mean_rr(self) -> Tensor:
        """Recency ratio averaged over the samples, (layers, heads); NaN where there is no attention head."""
        return self.rr.mean(0)

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, heads)."""
        return self.rr.shape[1], self.rr.shape[2]

    @property
    def candidates(self) -> list[int]:
        """Layers whose heads may be replaced."""
        return [layer for layer in range(self.rr.shape[1]) if layer not in self.sliding]

    def with_threshold(self, threshold: float) -> "HeadProfile":
        """Return the same ratios, counted against another alpha."""
        return replace(self, threshold=threshold)

    def save(self, path: str | Path) -> None:
        """Write one row for each (sample, layer, head), and the settings as Parquet metadata. The file appears whole or
        not at all.

        Raises:
            ValueError: the path does not end in .parquet or cannot be written to.
        """
        if Path(path).suffix != ".parquet":
            raise ValueError(f"{path}: a head profile is a .parquet file")
        import pyarrow as pa  # an extra, and profiling needs no file
        import pyarrow.parquet as pq

        sample, layer, head = np.indices(self.rr.shape, dtype=np.int32).reshape(3, -1)
        rows = {"sample": sample, "layer": layer, "head": head, "rr": self.rr.double().cpu().numpy().ravel()}
        constants = {name: pa.array([getattr(self, name)] * len(sample)) for name in ("model", "threshold")}
        table = pa.table(constants | rows)
        settings = {name: getattr(self, name) for name in SETTINGS} | (
            {"sliding": self.sliding} if self.sliding else {}
        )
        table = table.replace_schema_metadata({METADATA_KEY: json.dumps(settings, sort_keys=True).encode()})
        with atomic_path(path) as unfinished:
            pq.write_table(table, unfinished)

    @classmethod
    def load(cls, path: str | Path) -> "HeadProfile":
        """Read a profile that `save` wrote.

        Raises:
            ValueError: the file is missing, damaged or holds something else.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(path)
            settings = json.loads((table.schema.metadata or {})[METADATA_KEY])
            indices = [table[name].to_numpy() for name in ("sample", "layer", "head")]
            sizes = [int(index.max()) + 1 for index in indices]
            if len(table) != np.prod(sizes):
                raise ValueError("rows are missing")
            rr = np.full(sizes, np.nan)
            rr[tuple(indices)] = table["rr"].to_numpy()
            sliding = tuple(settings.get("sliding", ()))
            return cls(torch.from_numpy(rr), **{name: settings[name] for name in SETTINGS}, sliding=sliding)
        except (OSError, KeyError, ValueError, pa.ArrowException) as error:
            reason = "no settings in it" if isinstance(error, KeyError) else str(error).splitlines()[0]
            raise ValueError(f"{path}: not a head profile written by HeadProfile.save ({reason})") from None


BLOCK = 64  # queries whose bands are cut from one product
SCORES = 2**19  # scores that exist at the same time, or those of one key-value head if they are more


def attend_and_sum(inputs: "LayerInputs", window: int, exclude_first: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Attend, and sum the weights over the queries of each sample, with or without those on the first token.

    A sliding-window mask, or a device without a kernel for `flash_attention`, leads to explicit weights, which are
    slower.

    Returns:
        The layer's output (B, L, H, head_dim); in float64 the weights at the distances 0 .. window between query and
        key, (B, H, window + 1), and all weights, (B, H).
    """
    from recurformer.model.prefill import flash_attention, refuses

    query, key, value = (states[:, :, 1:] for states in (inputs.query, inputs.key, inputs.value))
    if inputs.mask is not None or not query.numel() or refuses(query, key, value) is not None:
        return _attend_by_rows(inputs, window, exclude_first)
    output, logsumexp = flash_attention(query, key, value, inputs.scaling)
    return _attend_by_band(inputs, window, exclude_first, output, logsumexp)


def _attend_by_rows(inputs: "LayerInputs", window: int, exclude_first: bool) -> tuple[Tensor, Tensor, Tensor]:
    from recurformer.heads.attention import attend_by_rows

    batch, heads, _, _ = inputs.query.shape
    recent = torch.zeros(batch, heads, window + 1, dtype=torch.float64, device=inputs.query.device)
    total = torch.zeros_like(recent[..., 0])

    def add(block: "AttentionBlock") -> None:
        if exclude_first:
            block.weights[..., 0] = 0.0
        total.add_(block.weights.sum(-1).sum(-1, dtype=torch.float64))
        reaching = F.pad(block.weights, (max(window - block.start, 0), 0))
        recent.add_(band(reaching, window).sum((2, 3), dtype=torch.float64).flip(-1))

    return attend_by_rows(inputs, add), recent, total


def _attend_by_band(
    inputs: "LayerInputs", window: int, exclude_first: bool, output: Tensor, logsumexp: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See `attend_and_sum`; `output` and `logsumexp` are those of attention among all tokens but the first.

    N are the key-value heads of all samples, P the queries but the first, rounded up to whole blocks.
    """
    batch, heads, length, _ = inputs.query.shape
    kv_heads, wide = inputs.key.shape[1], torch.promote_types(inputs.query.dtype, torch.float32)
    behind = -(length - 1) % BLOCK
    key = inputs.key.to(wide).mul(inputs.scaling).flatten(0, 1)  # (N, L, D)
    query = inputs.query[:, :, 1:].to(wide).unflatten(1, (kv_heads, -1)).transpose(2, 3)
    query = F.pad(query, (0, 0, 0, 0, 0, behind)).flatten(0, 1)  # (N, P, group, D)
    logsumexp = logsumexp.unflatten(1, (kv_heads, -1)).transpose(2, 3)
    logsumexp = F.pad(logsumexp, (0, 0, 0, behind)).flatten(0, 1)  # (N, P, group)
    padding = ~F.pad(inputs.tokens[:, 1:], (0, behind)).repeat_interleave(kv_heads, 0).unsqueeze(-1)  # (N, P, 1)

    on_first = (query.flatten(1, 2) @ key[:, 0].unsqueeze(-1)).view_as(logsumexp)
    beyond = torch.sigmoid(logsumexp - on_first)  # each query's weight on all tokens but the first
    everything = torch.logaddexp(logsumexp, on_first).masked_fill_(padding, float("inf"))
    recent = _band_mass(query, key[:, 1:], everything, window)
    total = beyond.masked_fill(padding, 0.0).sum(1, dtype=torch.float64)
    if not exclude_first:
        first = (1 - beyond).masked_fill_(padding, 0.0).transpose(1, 2).double()
        first = F.pad(first, (1, 0), value=1.0)  # the first query has no other key
        recent, total = recent + first[..., : window + 1], total + first.sum(-1)

    first_value = inputs.value[:, :, :1].repeat_interleave(heads // kv_heads, 1).transpose(1, 2)  # (B, 1, H, D)
    share = beyond[:, : length - 1].unflatten(0, (batch, kv_heads)).transpose(1, 2).flatten(2).unsqueeze(-1)
    mixed = torch.lerp(first_value.to(wide), output.transpose(1, 2).to(wide), share).to(output.dtype)
    return torch.cat([first_value, mixed], 1), recent.view(batch, heads, -1), total.view(batch, heads)


def _band_mass(query: Tensor, key: Tensor, logsumexp: Tensor, window: int) -> Tensor:
    """Attention weights by distance, summed over the queries.

    Args:
        query: (N, P, group, D), P being whole blocks.
        key: (N, L, D), scaled; L is at most P.
        logsumexp: of each query's scores, (N, P, group); infinite for padding.
        window: largest distance.

    Returns:
        float64 (N, group, window + 1).
    """
    count, rows, group, _ = query.shape
    query = query.view(count, rows // BLOCK, BLOCK * group, -1)
    logsumexp = logsumexp.view(count, rows // BLOCK, BLOCK, group, 1)
    bands = F.pad(key, (0, 0, window, rows - key.shape[1])).unfold(1, window + BLOCK, BLOCK)
    # the keys that would stand before the first token
    early = torch.arange(-(-window // BLOCK) * BLOCK, device=key.device).view(-1, BLOCK, 1, 1)
    absent = early + torch.arange(window + 1, device=key.device) < window

    mass = key.new_zeros(count, group, window + 1, dtype=torch.float64)
    step = max(SCORES // (group * rows * (window + BLOCK)), 1)
    for start in range(0, count, step):
        part = slice(start, start + step)
        near = band(query[part] @ bands[part], window, group)
        near[:, : len(absent)].masked_fill_(absent, float("-inf"))
        mass[part] = (near - logsumexp[part]).exp_().sum(2).sum(1, dtype=torch.float64)
    return mass.flip(-1)


def band(scores: Tensor, window: int, group: int = 1) -> Tensor:
    """A view of the scores at the distances window .. 0 between query and key, (..., queries, group, window + 1).

    Args:
        scores: (..., queries * group, keys), contiguous; the last key is the last query's own.
        window: largest distance; there are at least queries + window keys.
        group: rows of each query.
    """
    queries, keys = scores.shape[-2] // group, scores.shape[-1]
    size = (*scores.shape[:-2], queries, group, window + 1)
    stride = (*scores.stride()[:-2], group * keys + 1, keys, 1)
    return scores.as_strided(size, stride, scores.storage_offset() + keys - queries - window)


def profile_heads(
    model: "PreTrainedModel",
    input_ids: Tensor,
    window: int = 102,
    threshold: float = 0.5,
    exclude_first: bool = True,
    attention_mask: Tensor | None = None,
    batch_size: int | None = None,
    progress: "Progress" = None,
) -> HeadProfile:
    """Measure every head's recency ratio on every sample (section 3.1; appendix B: 1,024 samples of 1,024 tokens).

        RR = sum of A[i, j] over |i - j| <= window  /  sum of A[i, j]

    over the queries i and keys j of a sample, without the column of its first token if `exclude_first` is set. Where a
    fused kernel returns its softmax sums, weights outside the window are not computed.
    The sums are float64. Heads that do not attend, such as the replaced ones of a converted model, have NaN. So do the
    heads of layers with a sliding window between others without one; a line on stderr says so.

    Args:
        model: any causal language model that attends through transformers' attention interface.
        input_ids: (samples, L) token ids.
        window: k, in tokens. Appendix B's 102 is read as k, a tenth of its 1,024 tokens.
        threshold: alpha, compared with the ratios to count RA-I; not reported in the paper.
        exclude_first: whether the first token is left out (of a padded sample: the first that is not padding).
        attention_mask: (samples, L), 0 for padding on the left or the right.
        batch_size: samples in one forward pass; None: see `samples_per_batch`.
        progress: called with (samples done, samples) after each batch.

    Raises:
        ValueError: empty input, a broken mask, `window` negative or not shorter than every sample, `threshold`
            outside [0, 1].
    """
    (profile,) = profile_windows(
        model, input_ids, [window], threshold, exclude_first, attention_mask, batch_size, progress
    )
    return profile


def profile_windows(
    model: "PreTrainedModel",
    input_ids: Tensor,
    windows: Sequence[int],
    threshold: float = 0.5,
    exclude_first: bool = True,
    attention_mask: Tensor | None = None,
    batch_size: int | None = None,
    progress: "Progress" = None,
) -> list[HeadProfile]:
    """The profiles for several windows k, at the cost of the largest; otherwise as `profile_heads`."""
    from recurformer.heads.attention import check_batch, run_attention
    from recurformer.model.layout import sliding_layers

    lengths = check_batch(input_ids, attention_mask).sum(1)
    shortest = int(lengths.min())
    for window in windows:
        if not 0 <= window < shortest:
            raise ValueError(
                f"window={window} must be at least 0 and below {shortest}, the tokens of the shortest sample"
            )
    if exclude_first and shortest < 2:
        raise ValueError("a sample of 1 token has no attention left without its first token; use exclude_first=False")
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold={threshold} must lie in [0, 1]: it is compared with a ratio")
    config = model.config
    heads = config.num_attention_heads
    size = len(windows), len(input_ids), config.num_hidden_layers, heads
    ratios = torch.full(size, float("nan"), dtype=torch.float64)

    def attend(inputs: "LayerInputs") -> Tensor:
        output, by_distance, total = attend_and_sum(inputs, max(windows), exclude_first)
        recent = by_distance.cumsum(-1)[..., list(windows)].movedim(-1, 0)  # (windows, B, H)
        # 0 for a head without any attention beyond the first token; rounding may lead above 1
        ratios[:, *inputs.place] = torch.where(total > 0, recent / total, 0.0).clamp(max=1.0).cpu()
        return output

    sliding = sliding_layers(config)
    if sliding:
        print(
            f"profile: {len(sliding)} of {config.num_hidden_layers} layers attend through a sliding window and stay as"
            " they are; only heads of the others are profiled, and β is a fraction of them",
            file=sys.stderr,
            flush=True,
        )
    run_attention(model, input_ids, attend, attention_mask, batch_size, progress)
    ratios[:, :, sliding] = float("nan")
    settings: dict[str, Any] = {
        "threshold": threshold,
        "exclude_first": exclude_first,
        "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "tokens": int(lengths.max()),
        "sliding": tuple(sliding),
    }
    return [HeadProfile(rr=rr, window=window, **settings) for window, rr in zip(windows, ratios, strict=True)]
