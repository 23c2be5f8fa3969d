"""The method's own settings: profiling, selection, the block, training; and recovery, how converted models learn from
their original, recipe by recipe, on equally many tokens.
"""

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from recurformer.study.block import NUMBER, Beta, Block, Count, Index, Name, Rate, Seed, Several, Share


def mixer_names() -> list[str]:
    """The keys of `recurformer.model.mixers.MIXERS`, read from the source: to import it would import torch."""
    tree = ast.parse((Path(__file__).parents[1] / "model" / "mixers.py").read_text(encoding="utf-8"))
    named = {ast.unparse(node.target): node.value for node in tree.body if isinstance(node, ast.AnnAssign)}
    registry: Any = named["MIXERS"]
    return sorted(key.value for key in registry.keys)


Unit = Literal["kv_group", "head", "layer"]
if TYPE_CHECKING:
    Mixer = str
else:
    Mixer = Literal[tuple(mixer_names())]
Untrained = Literal["window", "linear", "mean", "zero"]
"""Mixers that have nothing to learn: no weights but the replaced heads' own."""
Solved = Literal["mamba", "window_state"]
"""Mixers with a state whose last layer is solved in closed form where they stand untrained."""
MeasuredScore = Literal["retrieval", "echo", "induction", "price", "kvzip", "gates"]
"""Rankings of heads whose scores `head-scores` measures on the model itself."""
MIXER_PRICE: Literal["mixer_price"] = "mixer_price"
"""The ranking by what the mixer in the place of the heads costs, which `mixer-prices` measures."""
MEASURED = (*get_args(MeasuredScore), MIXER_PRICE)
"""Rankings whose scores are measured on the model itself, not read from its profile."""
Selector = Literal["ra_i", "mean_rr", "random", "inverse_ra_i", MeasuredScore, "mixer_price"]


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
        """A window as long as the sample would make every head recency-aware."""
        if self.window >= self.tokens:
            raise ValueError(f"window: {self.window} must be below the {self.tokens} tokens of a sample")
        return self


class Selection(Block):
    """Which heads are replaced."""

    unit: Unit = "kv_group"
    """kv_group: whole query groups, which frees their KV heads; head: single query heads, as in the paper's text;
    layer: whole layers."""
    scope: Literal["global", "layer"] = "global"
    """global: ranked over all layers; layer: the same fraction in each layer."""
    by: Selector = "ra_i"
    """The ranking. ra_i: number of samples with a high recency ratio; mean_rr: mean recency ratio; random and
    inverse_ra_i: controls; mixer_price: what the group loses to the mixer in its place (`mixer-prices`); the others:
    scores measured on the model (`head-scores`)."""

    @model_validator(mode="after")
    def layers_of_all(self) -> Self:
        """Whole layers cannot be a fraction of each layer."""
        if self.unit == self.scope == "layer":
            raise ValueError("scope: unit 'layer' ranks whole layers; choose scope 'global'")
        return self


NeedleWeight = Annotated[float, Field(ge=0), NUMBER]
NEEDLE_WEIGHT = 0.1
"""What all looked-up tokens of a window count together in a price list; all its tokens together count 1. With 0.5
text would lose a sixth more, and lookups a twelfth less (SmolLM2, an eighth of its cache, by estimates)."""


class HeadScores(Block):
    """Scores of every head, measured on the model itself; the head with the highest score is replaced first."""

    by: Annotated[list[MeasuredScore], Field(min_length=1)] = list(get_args(MeasuredScore))
    """retrieval: a key-value lookup without the head; echo, induction: attention to repeated random tokens;
    price: what the whole group of heads loses by a window, on text with lookups hidden in it, by one backward pass;
    kvzip: the most attention to a token of a text while the model reads it again, as KVzip scores heads; gates: how far
    a gate between all tokens and the window stays open for such lookups, as DuoAttention scores them."""
    samples: Count = 8
    """Prompts of the key-value lookup, and texts of repeated random tokens."""
    pairs: Count = 8
    """Lines `key: value` of a lookup prompt."""
    questions: Count = 4
    """Keys asked at the end of a lookup prompt."""
    minimum_accuracy: Share = 0.5
    """Fraction of the values that the model with all heads must find; below it the lookup decides nothing."""
    repeated_tokens: Several = 128
    """Random tokens that are repeated."""
    repetitions: Several = 4
    """How often they are repeated."""
    windows: Count = 2
    """Windows of text for `price`, `kvzip` and `gates`."""
    tokens: Count = 256
    """Length of such a window, in tokens; `kvzip` reads it twice."""
    window_tokens: Count = 64
    """Latest tokens that a head sees in `price`, and beside a gate."""
    sink_tokens: Count = 1
    """First tokens that a head always sees there; of `kvzip` those whose attention does not count."""
    gate_steps: Count = 100
    """Steps in which the gates learn."""
    needle_weight: NeedleWeight = 0.5
    """What all looked-up tokens of a window count together in `price`; all its tokens together count 1."""

    @model_validator(mode="after")
    def something_asked(self) -> Self:
        """Every question has its line, and the window hides a part of the text."""
        if self.questions > self.pairs:
            raise ValueError(f"questions: {self.questions} need as many pairs, but pairs is {self.pairs}")
        if self.window_tokens + self.sink_tokens + 1 >= self.tokens:
            raise ValueError(
                f"tokens: {self.tokens} must exceed window_tokens {self.window_tokens} and sink_tokens"
                f" {self.sink_tokens} by two or more: else the window hides nothing"
            )
        return self


class RecencySettings(Block):
    """Other settings of RA-I; their choice of heads is compared with the default's."""

    windows: Annotated[list[Count], Field(min_length=1)]
    """Values of k."""
    thresholds: Annotated[list[Share], Field(min_length=1)]
    """Values of alpha."""
    betas: Annotated[list[Beta], Field(min_length=1)]
    """Fractions of replaced heads."""
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
    """The window of the mixers that have one."""

    window_tokens: Count = 64
    """Last tokens that a mixer with a window reads, including the current one."""
    sink_tokens: Index = 4
    """First tokens that the mixers `window` and `window_state` always read."""


class Training(Block):
    """One training run."""

    steps: Count
    """Optimiser steps."""
    batch_size: Count
    """Samples in one optimiser step."""
    learning_rate: Rate
    """Peak learning rate."""
    mixer_learning_rate: Annotated[float, Field(ge=0), NUMBER] | None = None
    """Peak learning rate of the mixers; absent: `learning_rate`; 0 freezes them."""
    schedule: Literal["one_cycle", "cosine", "constant"] = "cosine"
    """Shape of the learning rate over the steps."""
    warmup_share: Share = 0.1
    """Share of the steps in which the learning rate rises to its peak."""
    weight_decay: Annotated[float, Field(ge=0), NUMBER] = 0.01
    """AdamW's weight decay."""
    gradient_clip: Rate = 1.0
    """Largest norm of the gradient."""
    log_every: Count = 10
    """Steps between two lines of metrics.jsonl."""
    save_every: Count = 200
    """Steps between two checkpoints to resume from."""


class Copying(Training):
    """Training on lists of words that come again and again. A batch of shorter lists has more of them, and `batch_size`
    counts the longest.
    """

    words: Annotated[Count, Field(ge=2)]
    """The most frequent words of the training articles: lists are made of their tokens."""
    lengths: Annotated[list[Annotated[Count, Field(ge=8)]], Field(min_length=1)]
    """Tokens of a sample: at least two tellings of a list."""
    curriculum_share: Share = 0.0
    """Share of the steps in which the lengths join one after the other; 0: all are trained from the first step."""


class Distributed(Block):
    """A training over several processes, each with its own GPU if there are GPUs."""

    processes: Count = 1
    """Number of processes; samples and recipe do not depend on it."""
    strategy: Literal["ddp", "fsdp"] = "fsdp"
    """ddp: each process has the whole model; fsdp: each has a part of the weights, gradients and moments."""
    gradient_accumulation: Count = 1
    """Forward and backward passes in which each process computes its samples of one step."""
    activation_checkpointing: bool = False
    """Whether the backward pass computes the activations within a decoder layer again, to save memory."""
    precision: Literal["bf16", "float32"] = "bf16"
    """Type of matrix products where the device is fast at bf16; weights, gradients and moments are float32."""

    def training(self) -> dict[str, Any]:
        """The arguments of `recurformer.train.trainer.train` that say this, all but the processes."""
        return {
            "gradient_accumulation": self.gradient_accumulation,
            "gradient_checkpointing": self.activation_checkpointing,
            "bf16": self.precision == "bf16",
            "strategy": self.strategy,
        }


EQUAL_BYTES = "bytes_"
"""Prefix of the names of recipes that are compared with each other at equal bytes."""


class Recipe(Block):
    """One recipe. Its defaults are plain training, our reading of the paper: Mamba blocks with random weights, and all
    weights trained on the language-model loss.
    """

    mixer: Mixer = "mamba"
    """Mixer that replaces the heads."""
    window_tokens: Count | None = None
    """For mixers with a window: last tokens that they read."""
    sink_tokens: Index | None = None
    """For mixers with a window: first tokens that they always read."""
    mamba: Mamba | None = None
    """Sizes of its Mamba block; absent: those of the study."""
    weights: Literal["reused", "random"] = "reused"
    """Weights at the start: the original's, or random ones in a model of the same shape."""
    steps: Count | None = None
    """Steps in all; absent: as many as plain training has at the same fraction of heads."""
    calibrate_windows: Index = 0
    """Windows for the closed form of the mixers' last layers; they replace as many steps. 0: no closed form."""
    start: Literal["random", "linear"] = "random"
    """For the closed form: the mixers' other weights. random: as initialised; linear: as linear attention."""
    transfer_steps: Index = 0
    """Steps in which the mixers learn the outputs of the replaced heads, layer by layer."""
    transfer_learning_rate: Rate = 2e-3
    """Peak learning rate of these steps."""
    language_model_share: Share = 1.0
    """In the later steps: weight of the language-model loss; the divergence from the original has the rest."""
    trained: Literal["mixers", "attention", "lora", "all"] = "all"
    """Weights that the later steps train."""
    learning_rate: Rate | None = None
    """Peak learning rate of the later steps; absent: that of `language.training`."""
    mixer_learning_rate: Annotated[float, Field(ge=0), NUMBER] | None = None
    """Peak learning rate of the mixers; absent: `learning_rate`, or that of `language.training` if both are absent."""
    warmup_share: Share | None = None
    """Share of the steps in which the rates rise to their peaks; absent: that of `language.training`."""
    betas: list[Beta] = []
    """Fractions of replaced heads; empty: all of `language.betas` except 0."""
    seeds: list[Seed] = []
    """One run for each; the study's seed when empty."""

    @model_validator(mode="after")
    def can_run(self) -> Self:
        """The mixer has the weights that the recipe solves for and trains."""
        if 0 in self.betas:
            raise ValueError("betas: 0 replaces no head; leave it out")
        if self.mamba and self.mixer != "mamba":
            raise ValueError(f"mamba: {self.mixer!r} is no Mamba block; leave it out")
        if self.calibrate_windows == 1:
            raise ValueError("calibrate_windows: 1 window cannot choose a ridge parameter; give 2 or more, or none")
        if self.start != "random" and not self.calibrate_windows:
            raise ValueError(f"start: {self.start!r} belongs to the closed form; give calibrate_windows")
        for key in ("calibrate_windows", "transfer_steps"):
            if getattr(self, key) and self.mixer in get_args(Untrained):
                raise ValueError(
                    f"{key}: {self.mixer!r} has no linear layer to solve for and learns nothing; leave it out"
                )
        return self

    def sizes(self) -> dict[str, int]:
        """The sizes of its mixer that are named."""
        window = self.model_dump(include={"window_tokens", "sink_tokens"}, exclude_none=True)
        return window | (self.mamba.model_dump() if self.mamba else {})

    def training(self) -> dict[str, Any]:
        """The settings of `Training` that are its own; with a rate of its own, the mixers' is the same."""
        named = self.model_dump(include={"steps", "learning_rate", "warmup_share"}, exclude_none=True)
        rate = self.mixer_learning_rate
        return named | ({"mixer_learning_rate": rate} if rate is not None or self.learning_rate is not None else {})


class Recovery(Block):
    """Measurements during the training, and recipes other than the paper's."""

    held_out: Count = 16
    """Validation windows of `language.tokens` tokens for each point of a curve."""
    halvings: Count = 7
    """Number of points of a curve: at the end of the training, at a half of it, at a quarter, and so on."""
    arms: dict[Name, Recipe] = {}
    """Recipes by name; names that begin with `bytes_` are compared with each other at equal bytes."""
