"""The recency ratio of every attention head (equation 1) and the recency-aware index that counts it (section 3.1)."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurformer.files import atomic_path
from recurformer.heads.stream import AttentionBlock, check_batch, watch_attention

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
    """

    rr: Tensor
    window: int
    threshold: float
    exclude_first: bool
    kv_heads: int
    tokens: int
    model: str = ""

    def __post_init__(self) -> None:
        if self.rr.dim() != 3 or self.rr.numel() == 0:
            raise ValueError(f"rr must be (samples, layers, heads), none of them 0, got shape {tuple(self.rr.shape)}")
        if self.kv_heads < 1 or self.rr.shape[2] % self.kv_heads:
            raise ValueError(f"kv_heads={self.kv_heads} must divide the {self.rr.shape[2]} heads of a layer")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold={self.threshold} must lie in [0, 1]: it is compared with a ratio")

    @property
    def ra_i(self) -> Tensor:
        """RA-I: the number of samples whose recency ratio exceeds the threshold, (layers, heads), int64."""
        return (self.rr > self.threshold).sum(0)

    @property
    def mean_rr(self) -> Tensor:
        """Recency ratio averaged over the samples, (layers, heads); NaN where there is no attention head."""
        return self.rr.mean(0)

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, heads)."""
        return self.rr.shape[1], self.rr.shape[2]

    def with_threshold(self, threshold: float) -> "HeadProfile":
        """Return the same ratios, counted against another alpha."""
        return replace(self, threshold=threshold)

    def save(self, path: str | Path) -> None:
        """Write one row per (sample, layer, head) and the settings as Parquet metadata; the file appears whole or not
        at all.

        Raises:
            ValueError: the path does not end in .parquet or cannot be written to.
        """
        if Path(path).suffix != ".parquet":
            raise ValueError(f"{path}: a head profile is a .parquet file")
        sample, layer, head = np.indices(self.rr.shape, dtype=np.int32).reshape(3, -1)
        rows = {"sample": sample, "layer": layer, "head": head, "rr": self.rr.double().cpu().numpy().ravel()}
        constants = {name: pa.array([getattr(self, name)] * len(sample)) for name in ("model", "threshold")}
        table = pa.table(constants | rows)
        settings = {name: getattr(self, name) for name in SETTINGS}
        table = table.replace_schema_metadata({METADATA_KEY: json.dumps(settings, sort_keys=True).encode()})
        with atomic_path(path) as unfinished:
            pq.write_table(table, unfinished)

    @classmethod
    def load(cls, path: str | Path) -> "HeadProfile":
        """Read a profile that `save` wrote.

        Raises:
            ValueError: the file is missing, damaged or holds something else.
        """
        try:
            table = pq.read_table(path)
            settings = json.loads((table.schema.metadata or {})[METADATA_KEY])
            indices = [table[name].to_numpy() for name in ("sample", "layer", "head")]
            sizes = [int(index.max()) + 1 for index in indices]
            if len(table) != np.prod(sizes):
                raise ValueError("rows are missing")
            rr = np.full(sizes, np.nan)
            rr[tuple(indices)] = table["rr"].to_numpy()
            return cls(torch.from_numpy(rr), **{name: settings[name] for name in SETTINGS})
        except (OSError, KeyError, ValueError, pa.ArrowException) as error:
            reason = "no settings in it" if isinstance(error, KeyError) else str(error).splitlines()[0]
            raise ValueError(f"{path}: not a head profile written by HeadProfile.save ({reason})") from None


class _RecencyCounter:
    """Sums recent and total attention mass of every sample and head, in float64."""

    def __init__(self, samples: int, layers: int, heads: int, window: int, exclude_first: bool):
        self.window, self.exclude_first = window, exclude_first
        self.recent = torch.zeros(samples, layers, heads, dtype=torch.float64)
        self.total = torch.zeros_like(self.recent)
        self.attends = torch.zeros(layers, heads, dtype=torch.bool)

    def ratios(self) -> Tensor:
        """(samples, layers, heads): 0 for a head without any attention beyond the first token, NaN for no head at
        all.
        """
        ratios = torch.where(self.total > 0, self.recent / self.total, 0.0)
        return ratios.masked_fill_(~self.attends, float("nan"))

    def __call__(self, block: AttentionBlock) -> None:
        weights = block.weights  # (B, H, queries, keys)
        if self.exclude_first:
            weights[torch.arange(len(weights)), :, :, block.first.clamp(max=block.stop - 1)] = 0.0
        oldest = max(block.start - self.window, 0)  # no query of the block reaches further back within the window
        queries = torch.arange(block.start, block.stop, device=weights.device)
        keys = torch.arange(oldest, block.stop, device=weights.device)
        near = queries[:, None] - keys[None, :] <= self.window
        self.attends[block.layer, block.heads.cpu()] = True
        place = (block.samples[:, None], block.layer, block.heads.cpu()[None, :])
        self.total[place] += weights.sum(-1).sum(-1, dtype=torch.float64).cpu()
        self.recent[place] += (weights[..., oldest:] * near).sum(-1).sum(-1, dtype=torch.float64).cpu()


def profile_heads(
    model: PreTrainedModel,
    input_ids: Tensor,
    window: int = 102,
    threshold: float = 0.5,
    exclude_first: bool = True,
    attention_mask: Tensor | None = None,
    batch_size: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> HeadProfile:
    """Measure every head's recency ratio on every sample (section 3.1; appendix B: 1,024 samples of 1,024 tokens).

        RR = sum of A[i, j] over |i - j| <= window  /  sum of A[i, j]

    over the queries i and keys j of a sample, without the column of its first token when `exclude_first` is set. The
    weights are streamed (`recurformer.heads.stream`), the sums are float64. Heads that do not attend, such as the
    replaced ones of a converted model, get NaN at their place.

    Args:
        model: any causal language model that attends through transformers' attention interface.
        input_ids: (samples, L) token ids.
        window: k, in tokens. Appendix B's 102 is read as k, a tenth of its 1,024 tokens.
        threshold: alpha, compared with the ratios to count RA-I; not reported in the paper.
        exclude_first: whether the first token (of a padded sample: the first that is no padding) is left out.
        attention_mask: (samples, L), 0 for padding on the left or the right.
        batch_size: samples in one forward pass.
        progress: called with (samples done, samples) after each batch.

    Raises:
        ValueError: empty input, a broken mask, `window` negative or not shorter than every sample, `threshold`
            outside [0, 1].
    """
    lengths = check_batch(input_ids, attention_mask).sum(1)
    shortest = int(lengths.min())
    if not 0 <= window < shortest:
        raise ValueError(f"window={window} must be at least 0 and below {shortest}, the tokens of the shortest sample")
    if exclude_first and shortest < 2:
        raise ValueError("a sample of 1 token has no attention left without its first token; use exclude_first=False")
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold={threshold} must lie in [0, 1]: it is compared with a ratio")
    config = model.config
    heads = config.num_attention_heads
    counter = _RecencyCounter(len(input_ids), config.num_hidden_layers, heads, window, exclude_first)
    watch_attention(model, input_ids, counter, attention_mask, batch_size, progress)
    return HeadProfile(
        rr=counter.ratios(),
        window=window,
        threshold=threshold,
        exclude_first=exclude_first,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        tokens=int(lengths.max()),
    )
