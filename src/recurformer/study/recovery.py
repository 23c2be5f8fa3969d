"""Recovery: how converted models learn from their original, recipe by recipe, on equally many tokens."""

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from recurformer.study.block import NUMBER, Beta, Block, Count, Index, Name, Rate, Seed, Share
from recurformer.study.method import Mixer, Untrained

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

    def window(self) -> dict[str, int]:
        """The sizes of the window that are named."""
        sizes = {"window_tokens": self.window_tokens, "sink_tokens": self.sink_tokens}
        return {name: size for name, size in sizes.items() if size is not None}

    def training(self) -> dict[str, Any]:
        """The settings of `Training` that are its own; with a rate of its own, the mixers' is the same."""
        names = ("steps", "learning_rate", "warmup_share")
        named = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
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
