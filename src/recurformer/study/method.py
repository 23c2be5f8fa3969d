"""The method's own settings: profiling, selection, the block, and training."""

from typing import Annotated, Literal

from pydantic import Field

from recurformer.study.block import Block, Count, Rate, Share


class RecencyRatio(Block):
    """How recency ratios are measured (equation 1)."""

    samples: Count
    """Windows of text, or task samples, over which heads are profiled."""
    window: Count
    """k of equation 1: a key at most this far from its query is recent."""
    threshold: Share = 0.5
    """alpha: a sample counts towards a head's RA-I when its recency ratio exceeds this."""


class Profiling(RecencyRatio):
    """How recency ratios are measured on text (equation 1, appendix B)."""

    tokens: Count
    """Length of a window in tokens."""


class Selection(Block):
    """Which heads are replaced."""

    unit: Literal["kv_group", "head"] = "kv_group"
    """kv_group: whole query groups, so that their KV heads are freed; head: single query heads, as the text says."""
    scope: Literal["global", "layer"] = "global"
    """global: ranked over all layers; layer: the same share in each layer."""
    by: Literal["ra_i", "mean_rr", "random", "inverse_ra_i"] = "ra_i"
    """The ranking: share of samples with a high recency ratio, mean recency ratio, and two controls."""


class Mamba(Block):
    """The Mamba block (appendix B)."""

    d_state: Count = 16
    """State size of each channel."""
    d_conv: Count = 4
    """Width of the causal convolution."""
    expand: Count = 2
    """Inner width over the width of the replaced heads."""
    dt_rank: Count = 256
    """Rank of the step-size projection."""


class Window(Block):
    """How far the mixers look back that have a window."""

    window_tokens: Count = 64
    """Last tokens that the mixers `window` and `mean` read, the token itself among them."""
    sink_tokens: Annotated[int, Field(ge=0)] = 4
    """First tokens that the mixer `window` never forgets."""


class Training(Block):
    """One training run."""

    steps: Count
    """Optimiser steps."""
    batch_size: Count
    """Samples in one optimiser step."""
    learning_rate: Rate
    """Peak learning rate."""
    mamba_learning_rate: Rate | None = None
    """Peak learning rate of the Mamba blocks; the same as the others' when absent."""
    schedule: Literal["one_cycle", "cosine", "constant"] = "cosine"
    """Shape of the learning rate over the steps."""
    warmup_share: Share = 0.1
    """Share of the steps over which the learning rate rises."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """AdamW's weight decay."""
    gradient_clip: Rate = 1.0
    """Largest norm of the gradient."""
    log_every: Count = 10
    """Steps between two lines of metrics.jsonl."""
    save_every: Count = 200
    """Steps between two checkpoints to resume from."""
