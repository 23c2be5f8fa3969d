"""The recency ratio of every attention head (equation 1) and the recency-aware index that counts it (section 3.1)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurformer.files import atomic_path
from recurformer.heads.recency import attend_and_sum
from recurformer.heads.run import LayerInputs, Progress, check_batch, run_attention

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


class _RecencySums:
    """Recency ratios of every sample and head for several windows, in float64; NaN where there is no head."""

    def __init__(self, samples: int, layers: int, heads: int, windows: Sequence[int], exclude_first: bool):
        self.windows, self.exclude_first = list(windows), exclude_first
        self.ratios = torch.full((len(self.windows), samples, layers, heads), float("nan"), dtype=torch.float64)

    def __call__(self, inputs: LayerInputs) -> Tensor:
        output, (by_distance, total) = attend_and_sum(inputs, max(self.windows), self.exclude_first)
        recent = by_distance.cumsum(-1)[..., self.windows].movedim(-1, 0)  # (windows, B, H)
        # 0 for a head without any attention beyond the first token; rounding may lead above 1
        self.ratios[:, *inputs.place] = torch.where(total > 0, recent / total, 0.0).clamp(max=1.0).cpu()
        return output


def profile_heads(
    model: PreTrainedModel,
    input_ids: Tensor,
    window: int = 102,
    threshold: float = 0.5,
    exclude_first: bool = True,
    attention_mask: Tensor | None = None,
    batch_size: int | None = None,
    progress: Progress = None,
) -> HeadProfile:
    """Measure every head's recency ratio on every sample (section 3.1; appendix B: 1,024 samples of 1,024 tokens).

        RR = sum of A[i, j] over |i - j| <= window  /  sum of A[i, j]

    over the queries i and keys j of a sample, without the column of its first token when `exclude_first` is set. No
    weight outside the window is computed (`recurformer.heads.recency`), the sums are float64. Heads that do not attend,
    such as the replaced ones of a converted model, get NaN at their place.

    Args:
        model: any causal language model that attends through transformers' attention interface.
        input_ids: (samples, L) token ids.
        window: k, in tokens. Appendix B's 102 is read as k, a tenth of its 1,024 tokens.
        threshold: alpha, compared with the ratios to count RA-I; not reported in the paper.
        exclude_first: whether the first token (of a padded sample: the first that is no padding) is left out.
        attention_mask: (samples, L), 0 for padding on the left or the right.
        batch_size: samples in one forward pass; None: as many as make some thousand tokens.
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
    model: PreTrainedModel,
    input_ids: Tensor,
    windows: Sequence[int],
    threshold: float = 0.5,
    exclude_first: bool = True,
    attention_mask: Tensor | None = None,
    batch_size: int | None = None,
    progress: Progress = None,
) -> list[HeadProfile]:
    """The profiles for several windows k, at the cost of the largest; otherwise as `profile_heads`."""
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
    sums = _RecencySums(len(input_ids), config.num_hidden_layers, heads, windows, exclude_first)
    run_attention(model, input_ids, sums, attention_mask, batch_size, progress)
    settings = {
        "threshold": threshold,
        "exclude_first": exclude_first,
        "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "tokens": int(lengths.max()),
    }
    return [HeadProfile(rr=rr, window=window, **settings) for window, rr in zip(windows, sums.ratios, strict=True)]
