"""The method's own settings: profiling, selection, the block, and training."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

import recurformer.model
from recurformer.study.block import NUMBER, Beta, Block, Count, Index, Rate, Several, Share


def mixer_names() -> list[str]:
    """The names of all mixers, after the files `mixer_*.py` that hold one each."""
    (folder,) = recurformer.model.__path__
    files = (path.stem.removeprefix("mixer_") for path in Path(folder).glob("mixer_*.py"))
    return sorted(name for name in files if name != "base")


Unit = Literal["kv_group", "head", "layer"]
if TYPE_CHECKING:
    Mixer = str
else:  # each mixer has a file of its name; to import their registry would import torch
    Mixer = Literal[tuple(mixer_names())]
Untrained = Literal["window", "linear", "mean", "zero"]
"""Mixers that have nothing to learn: no weights but the replaced heads' own."""
MeasuredScore = Literal["retrieval", "echo", "induction", "sensitivity"]
"""Rankings of heads whose scores are measured on the model itself, not read from its profile."""
Selector = Literal["ra_i", "mean_rr", "random", "inverse_ra_i", MeasuredScore]


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

    @model_validator(mode="after")
    def window_within(self) -> Self:
        """A window that hides nothing makes every head recency-aware."""
        if self.window >= self.tokens:
            raise ValueError(f"window: {self.window} must be below the {self.tokens} tokens of a sample")
        return self


class Selection(Block):
    """Which heads are replaced."""

    unit: Unit = "kv_group"
    """kv_group: whole query groups, so that their KV heads are freed; head: single query heads, as the text says;
    layer: whole layers."""
    scope: Literal["global", "layer"] = "global"
    """global: ranked over all layers; layer: the same share in each layer."""
    by: Selector = "ra_i"
    """The ranking: share of samples with a high recency ratio, mean recency ratio, two controls, and scores measured on
    the model (`head_scores`)."""

    @model_validator(mode="after")
    def layers_of_all(self) -> Self:
        """A share of a layer's heads is no whole layer."""
        if self.unit == self.scope == "layer":
            raise ValueError("scope: with unit 'layer' whole layers are ranked; choose scope 'global'")
        return self


class HeadScores(Block):
    """Scores of every head that need the model itself, not its head profile; the highest is replaced first."""

    by: Annotated[list[MeasuredScore], Field(min_length=1)] = list(get_args(MeasuredScore))
    """retrieval: a key-value lookup without the head; echo, induction: attention to repeated random tokens;
    sensitivity: text read by the head through a window."""
    samples: Count = 8
    """Prompts of the key-value lookup, and texts of repeated random tokens."""
    pairs: Count = 8
    """Lines `key: value` of a lookup prompt."""
    questions: Count = 4
    """Keys asked at the end of a lookup prompt."""
    minimum_accuracy: Share = 0.5
    """Share of the values that the model must find with all its heads for the lookup to say something."""
    repeated_tokens: Several = 128
    """Random tokens that are repeated."""
    repetitions: Several = 4
    """How often they stand one behind the other."""
    windows: Count = 2
    """Windows of text for `sensitivity`."""
    tokens: Count = 256
    """Length of such a window in tokens."""
    window_tokens: Count = 64
    """Latest tokens that a head sees in `sensitivity`."""
    sink_tokens: Count = 1
    """First tokens that it sees besides."""

    @model_validator(mode="after")
    def something_asked(self) -> Self:
        """Every question has its line, and the window hides something."""
        if self.questions > self.pairs:
            raise ValueError(f"questions: {self.questions} need as many pairs, there are {self.pairs}")
        if self.window_tokens + self.sink_tokens + 1 >= self.tokens:
            raise ValueError(
                f"tokens: {self.tokens} must exceed window_tokens {self.window_tokens} and sink_tokens"
                f" {self.sink_tokens} by two or more, or the window hides nothing"
            )
        return self


class RecencySettings(Block):
    """Other settings of RA-I, whose choice of heads is compared with that of the default."""

    windows: Annotated[list[Count], Field(min_length=1)]
    """Values of k."""
    thresholds: Annotated[list[Share], Field(min_length=1)]
    """Values of alpha."""
    betas: Annotated[list[Beta], Field(min_length=1)]
    """Shares of heads replaced."""
    units: Annotated[list[Unit], Field(min_length=1)] = ["kv_group", "head"]
    """Selection units."""


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
    sink_tokens: Index = 4
    """First tokens that the mixer `window` never forgets."""


class Training(Block):
    """One training run."""

    steps: Count
    """Optimiser steps."""
    batch_size: Count
    """Samples in one optimiser step."""
    learning_rate: Rate
    """Peak learning rate."""
    mamba_learning_rate: Annotated[float, NUMBER, Field(ge=0)] | None = None
    """Peak learning rate of the Mamba blocks; the same as the others' when absent, 0 freezes them."""
    schedule: Literal["one_cycle", "cosine", "constant"] = "cosine"
    """Shape of the learning rate over the steps."""
    warmup_share: Share = 0.1
    """Share of the steps over which the learning rate rises."""
    weight_decay: Annotated[float, NUMBER, Field(ge=0)] = 0.01
    """AdamW's weight decay."""
    gradient_clip: Rate = 1.0
    """Largest norm of the gradient."""
    log_every: Count = 10
    """Steps between two lines of metrics.jsonl."""
    save_every: Count = 200
    """Steps between two checkpoints to resume from."""


class Distributed(Block):
    """How a training lies on several processes, each with a GPU of its own where there are GPUs."""

    processes: Count
    """Processes that train together; with their number neither samples nor recipe change."""
    strategy: Literal["ddp", "fsdp"] = "fsdp"
    """ddp: each process has the whole model; fsdp: each has its share of weights, gradients and moments."""
    gradient_accumulation: Count = 1
    """Passes over which each process spreads its samples of one step."""
    activation_checkpointing: bool = False
    """Whether activations within a decoder layer are computed again instead of kept."""
    precision: Literal["bf16", "float32"] = "bf16"
    """Of products; weights, gradients and moments are float32."""
