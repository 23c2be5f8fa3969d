"""The ablation study: comparisons that the reviewers asked for, at equal cache and equal training."""

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from recurformer.study.block import Beta, Block, Budget, Count, Index, Seed, Several, Share
from recurformer.study.measurements import TextWindows
from recurformer.study.method import (
    NEEDLE_WEIGHT,
    HeadScores,
    Mamba,
    Mixer,
    NeedleWeight,
    RecencySettings,
    Selector,
    Solved,
    Untrained,
    Window,
)

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

Bought = Literal["windows", "bits", "windows_bits"]
"""What may differ by group of heads: the tokens that it keeps, the bits of each of their numbers, or both."""

COMMON_BETA = 0.5
"""The fraction of heads replaced that is compared where one is: the measured one nearest to it."""


class Needle(Block):
    """Needles in a haystack over depth and length."""

    tasks: Annotated[list[Literal["passkey", "multi_key", "multi_query"]], Field(min_length=1)] = [
        "passkey",
        "multi_key",
        "multi_query",
    ]
    """passkey: one key; multi_key: several, one is asked for; multi_query: several, all are asked for."""
    lengths: Annotated[list[Count], Field(min_length=1)] = [256, 512, 1024]
    """Tokens of a prompt."""
    depths: Annotated[list[Share], Field(min_length=1)] = [0.0, 0.25, 0.5, 0.75, 1.0]
    """Position of the key, as the fraction of the text before it; of several keys their mean."""
    samples: Count = 2
    """Samples at each length and depth of each task."""
    several_lengths: list[Count] = []
    """Tokens of a prompt with several keys; empty: as `lengths`."""
    several_samples: Count | None = None
    """Samples of the tasks with several keys; absent: as `samples`."""

    def grid(self) -> dict[int, dict[str, int]]:
        """Length -> task measured at it -> samples at each depth."""
        samples_of: dict[int, dict[str, int]] = {}
        for task in self.tasks:
            alone = task == "passkey"
            samples = self.samples if alone else self.several_samples or self.samples
            for length in self.lengths if alone else self.several_lengths or self.lengths:
                samples_of.setdefault(length, {})[task] = samples
        return samples_of


class Turns(Block):
    """Documents that are read once, and ten questions about each afterwards."""

    lengths: list[Count] = []
    """Tokens of a document; none: nothing is asked."""
    documents: Count = 10
    """Documents of each length."""


class Continuation(Block):
    """Likelihood of the text after a prompt, from the cache of the prompt."""

    prompt: Count = 768
    """Tokens of the prompt."""
    tokens: Count = 256
    """Tokens after the prompt, which are predicted."""
    windows: Count = 8
    """Disjoint windows of held-out articles; the beginnings of different articles come first."""
    batch_size: Count = 8
    """Windows in a batch: changes speed and memory, not the result."""


class LongInputs(Block):
    """A short comparison after long prompts, without any training."""

    continuation: Continuation
    """The prompts, and the text after them."""
    budgets: Annotated[list[Budget], Field(min_length=1)]
    """Fractions of the cache that every method keeps."""
    priced: Annotated[list[Bought], Field(min_length=1)] = ["windows_bits"]
    """What each group of heads keeps by its price."""
    evictions: list[Eviction] = []
    """Names of the eviction methods beside it."""


class Changed(Block):
    """Variants of some backbones, compared with the original and the eviction methods."""

    backbones: Annotated[list[str], Field(min_length=1)]
    """Names in `backbones`."""
    trained: list[Mixer] = []
    """Mixers that replace the heads with the highest RA-I, after continual training."""
    trained_betas: list[Beta] = []
    """Fractions of heads that trained mixers replace; empty: `ablations.betas`."""
    untrained: list[Literal[Untrained, Solved]] = []
    """Mixers that replace the same heads, without training; of those that have something to learn, the last layer is
    solved in closed form on text, from as many windows as for `mixer_prices`."""
    layers: list[Mixer] = []
    """Mixers that replace whole layers; trained if listed in `trained`."""
    single: list[Mixer] = []
    """Mixers that replace single heads, as the paper's text has it, beside whole query groups; trained if listed in
    `trained`."""
    matched: list[Beta] = []
    """Fractions of heads: eviction methods also keep as much cache as models with trained Mamba blocks hold at them."""
    retained: list[Eviction] = []
    """Eviction methods that also run on the retained heads of the model of `matched` nearest to half of the heads."""
    kv_heads: list[Count] = []
    """Numbers of key-value heads after mean pooling; then trained with the same recipe."""
    priced: list[Bought] = []
    """What each group of heads keeps by its price, at each of `ablations.budgets`, or at the least that can be bought;
    of `language` alone."""
    selectors: list[Selector] = []
    """Other choices of heads."""
    selected: Mixer = "window"
    """Mixer that replaces the heads that these selectors choose; of `mixer_price` it is the one that is priced."""
    window: Window = Window()
    """Window of the mixers that have one."""

    @model_validator(mode="after")
    def mixers_known(self) -> Self:
        """A mixer that replaces layers or chosen heads is listed as trained or untrained."""
        chosen = [self.selected] if self.selectors else []
        for key, mixers in (("layers", self.layers), ("single", self.single), ("selected", chosen)):
            for mixer in mixers:
                if mixer not in (*self.trained, *self.untrained):
                    raise ValueError(f"{key}: {mixer!r} is neither in trained nor in untrained; add it to one of them")
        if self.matched and "mamba" not in self.trained:
            raise ValueError("matched: no cache to match without 'mamba' in trained; add it, or leave matched empty")
        if self.retained and not self.matched:
            raise ValueError("retained: no converted model whose heads could evict; name its beta in matched")
        return self


class Change(Block):
    """How a stage changes a model before it measures it, where the subject says that it is changed there."""

    budgets: list[Budget] = []
    """Fractions of the cache that an eviction method keeps, or that what is bought by its price takes."""
    as_printed: bool = False
    """Whether PyramidInfer evicts in the setting of Table 2, instead of by `budgets`."""
    betas: list[Beta] = []
    """Fractions of heads that a mixer replaces."""
    window: Window = Window()
    """Window of this mixer, if it has one."""
    mamba: Mamba = Mamba()
    """Sizes of this mixer, if it is a Mamba block."""
    solved: TextWindows | None = None
    """Text from which its last layer is solved in closed form, if it has something to learn."""
    recovered_by: Selector = "ra_i"
    """Ranking by which the heads of a recovered model were chosen."""


class Prices(Block):
    """The price list of what groups of heads may keep."""

    tokens: Several = 512
    """Length of the texts on which it is made, and at which a budget is counted."""
    needle_weight: NeedleWeight = NEEDLE_WEIGHT
    """What all looked-up tokens of a text count together; all its tokens together count 1."""
    checked: Index = 0
    """Choices, at most, whose divergence is measured beside their prices, one at a time; with a needle_weight of 0."""

    @model_validator(mode="after")
    def is_a_divergence(self) -> Self:
        """What is checked is an estimate of the divergence alone."""
        if self.checked and self.needle_weight:
            raise ValueError(
                "checked: a price counts lookups beside the divergence; give needle_weight 0, or leave it out"
            )
        return self


class MixerPrices(Block):
    """What mixers with a state cost in the place of groups of heads, at the length of `prices`."""

    mixers: Annotated[list[Solved], Field(min_length=1)] = ["mamba", "window_state"]
    """Mixers with a state, solved in closed form."""
    solved_windows: Several = 8
    """Windows of text, other than those of `prices`, from which the last layers are solved in closed form."""


class HashHopSizes(Block):
    """HashHop at lengths and hops other than those of the training."""

    sizes: Annotated[list[tuple[Count, Count]], Field(min_length=1)]
    """(hops, length of the prompt): the length counts full chains in form tokens, characters in form text."""
    samples: Count = 128
    """Test samples of each size and variant."""
    batch_size: Count = 32
    """Answers generated together: changes speed and memory, not the result."""
    mixers: list[Mixer] = ["mamba"]
    """Trained mixers that are measured and compared with the original."""
    evictions: list[Eviction] = []
    """Eviction methods that are measured beside them."""


class Ablations(Block):
    """Eviction methods, other mixers, other selectors: figures `ablation_*`, table of the reviewers' questions."""

    betas: Annotated[list[Beta], Field(min_length=1)]
    """Fractions of replaced heads."""
    budgets: Annotated[list[Budget], Field(min_length=1)]
    """Fractions of the cache that eviction methods keep."""
    evictions: list[Eviction] = []
    """Names of the eviction methods."""
    seeds: Annotated[list[Seed], Field(min_length=1)] = [0]
    """Seeds of the random choice of heads."""
    hashhop: Changed
    """Variants that are measured on HashHop."""
    language: Changed
    """Variants that are measured on text: needles, continuations, and if trained `language.tasks`."""
    sizes: HashHopSizes
    """HashHop at other sizes."""
    needle: Needle
    """Needles in a haystack of text."""
    turns: Turns = Turns()
    """Questions about documents that were read before."""
    continuation: Continuation
    """Perplexity after a prompt, by position."""
    positions: Continuation | None = None
    """The same over long windows: of the first of `language.priced`, and, far beyond the length of their training, of
    backbones that learn the text from nothing and have a `recovery`; absent: not measured."""
    written: Continuation | None = None
    """What models write after prompts, token by token the likeliest, beside what the original writes; absent: not
    measured."""
    long_inputs: LongInputs | None = None
    """A short comparison after long prompts, which `all` makes too; absent: not measured."""
    prices: Prices = Prices()
    """Prices of tokens and bits, by group of heads."""
    mixer_prices: MixerPrices = MixerPrices()
    """Prices of mixers with a state, by group of heads."""
    scores: HeadScores
    """Scores of heads that are measured on the model."""
    recency: RecencySettings
    """RA-I with other k and alpha."""

    @model_validator(mode="after")
    def solved_on_text(self) -> Self:
        """Prices and the closed form are of text: a model that reads hashes alone has none."""
        if self.hashhop.priced:
            raise ValueError("hashhop.priced: prices are of text; name what is bought in language.priced")
        if learning := set(self.hashhop.untrained) - set(get_args(Untrained)):
            raise ValueError(
                f"hashhop.untrained: {', '.join(sorted(learning))}: the closed form reads text; name it in trained"
            )
        return self
