"""The ablation study: what the reviewers asked to see beside the paper's method, at equal cache and equal training."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from recurformer.study.block import Beta, Block, Budget, Count, Seed, Share
from recurformer.study.method import HeadScores, Mixer, RecencySettings, Selector, Untrained, Window

Eviction = Literal[
    "streaming_llm",
    "h2o",
    "snapkv",
    "scissorhands",
    "pyramidinfer_paper",
    "pyramidinfer_official",
    "razor_attention",
    "citrus",
    "big_bird",
]


class Needle(Block):
    """Needles in a haystack over depth and length."""

    tasks: Annotated[list[Literal["passkey", "multi_key", "multi_query"]], Field(min_length=1)] = [
        "passkey",
        "multi_key",
        "multi_query",
    ]
    """One key; several, of which one is asked for; several, all asked for."""
    lengths: Annotated[list[Count], Field(min_length=1)] = [256, 512, 1024]
    """Tokens of a prompt."""
    depths: Annotated[list[Share], Field(min_length=1)] = [0.0, 0.25, 0.5, 0.75, 1.0]
    """Shares of the text before the keys that are asked for; the mean of several."""
    samples: Count = 2
    """At each length and depth of each task."""
    several_lengths: list[Count] = []
    """Tokens of a prompt with several keys, where they differ; none: as `lengths`."""
    several_samples: Count | None = None
    """Of the tasks with several keys, where they differ."""

    def grid(self) -> dict[int, dict[str, int]]:
        """Length -> task asked at it -> samples at each depth."""
        asked: dict[int, dict[str, int]] = {}
        for task in self.tasks:
            alone = task == "passkey"
            samples = self.samples if alone else self.several_samples or self.samples
            for length in self.lengths if alone else self.several_lengths or self.lengths:
                asked.setdefault(length, {})[task] = samples
        return asked


class Continuation(Block):
    """Likelihood of the text behind a prompt, from the cache that the prompt left."""

    prompt: Count = 768
    """Tokens that are read."""
    tokens: Count = 256
    """Tokens behind them that are predicted."""
    windows: Count = 8
    """Stretches of held-out articles, disjoint, the beginnings of different articles first."""
    batch_size: Count = 8
    """Windows read together: changes speed and memory, not the result."""


class Changed(Block):
    """What is measured of some backbones beside the original and the eviction methods."""

    backbones: Annotated[list[str], Field(min_length=1)]
    """Names in `backbones`."""
    trained: list[Mixer] = []
    """Mixers in the place of the heads of the highest RA-I, after the continual training."""
    trained_betas: list[Beta] = []
    """Shares of heads replaced before a training; those of `ablations.betas` when empty."""
    untrained: list[Untrained] = []
    """The same without any training."""
    layers: list[Mixer] = []
    """Mixers in the place of whole layers, trained or not as the same mixer is above."""
    matched: list[Beta] = []
    """Eviction methods also keep as much cache as the trained Mamba blocks of these shares of heads held."""
    kv_heads: list[Count] = []
    """Key-value heads that are left after mean pooling, then trained likewise."""
    selectors: list[Selector] = []
    """Other choices of heads."""
    selected: Mixer = "window"
    """What replaces the heads that the other selectors choose."""
    window: Window = Window()
    """The window of the mixers that have one."""

    @model_validator(mode="after")
    def mixers_known(self) -> Self:
        """What replaces layers or chosen heads is trained, or declared to need no training."""
        for key, mixers in (("layers", self.layers), ("selected", [self.selected] if self.selectors else [])):
            for mixer in mixers:
                if mixer not in (*self.trained, *self.untrained):
                    raise ValueError(f"{key}: {mixer!r} is neither in trained nor in untrained; add it to one of them")
        if self.matched and "mamba" not in self.trained:
            raise ValueError("matched: no cache to match without 'mamba' in trained; add it, or leave matched empty")
        return self


class HashHopSizes(Block):
    """HashHop at other lengths and hops than those of the training."""

    sizes: Annotated[list[tuple[Count, Count]], Field(min_length=1)]
    """Hops, and how long the prompt is: full chains of so many hops in form tokens, characters in form text."""
    samples: Count = 128
    """Test samples of each size and variant."""
    batch_size: Count = 32
    """Answers generated together: changes speed and memory, not the result."""
    mixers: list[Mixer] = ["mamba"]
    """Of those trained in the place of heads, which are measured beside the original."""


class Ablations(Block):
    """Baselines, other mixers, other selectors: the figures `ablation_*` and the table of the reviewers' questions."""

    betas: Annotated[list[Beta], Field(min_length=1)]
    """Shares of heads replaced."""
    budgets: Annotated[list[Budget], Field(min_length=1)]
    """Shares of the cache that eviction methods keep."""
    evictions: list[Eviction] = []
    """Eviction methods."""
    seeds: Annotated[list[Seed], Field(min_length=1)] = [0]
    """Seeds of the random choice of heads."""
    hashhop: Changed
    """On HashHop."""
    language: Changed
    """On text: needles, continuations, and of what was trained the lm-eval tasks of `language.tasks`."""
    sizes: HashHopSizes
    """Other sizes of HashHop."""
    needle: Needle
    """Needles in a haystack of text."""
    continuation: Continuation
    """Perplexity behind a prompt, by position."""
    scores: HeadScores
    """Scores of heads that need the model."""
    recency: RecencySettings
    """Other k and alpha of RA-I."""
