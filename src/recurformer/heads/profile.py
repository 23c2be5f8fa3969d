"""Recency ratios of every attention head, the recency-aware index that counts them (section 3.1), and their file.

This module knows no model; `recurformer.heads.profiling` measures the ratios.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from recurformer.files import atomic_path

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

        Figure 6 counts the same without torch, from the file of the profile: `render.figures.figure6.ra_i_matrix`.
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
