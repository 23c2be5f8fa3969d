"""Recovery: how converted models learn from their original, recipe by recipe, on equally many tokens."""

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from recurformer.study.block import NUMBER, Beta, Block, Count, Index, Name, Rate, Seed, Share
from recurformer.study.method import Mixer, Untrained

EQUAL_BYTES = "bytes_"
"""How the names of recipes begin that are compared with each other at equal bytes."""


class Arm(Block):
    """One recipe. What it does not name is as in the paper's: Mamba blocks, started at random, everything trained on
    the language-model loss.
    """

    mixer: Mixer = "mamba"
    """What replaces the heads."""
    window_tokens: Count | None = None
    """Of mixers with a window: latest tokens that they read."""
    sink_tokens: Index | None = None
    """Of mixers with a window: first tokens that they never forget."""
    weights: Literal["reused", "random"] = "reused"
    """What it starts from: the original's weights, or random ones in a model of the same shape."""
    steps: Count | None = None
    """Steps in all; those of the paper's training at the same share of heads when absent."""
    calibrate_windows: Index = 0
    """Windows from which the closed form solves the mixers' last layers, in the place of as many steps; 0: none."""
    start: Literal["random", "linear"] = "random"
    """Of the closed form: what becomes of the mixers' other weights before."""
    transfer_steps: Index = 0
    """Steps in which the mixers learn their heads' outputs layer by layer."""
    transfer_learning_rate: Rate = 2e-3
    """Their peak learning rate."""
    language_model_share: Share = 1.0
    """Of the steps behind them: weight of the language-model loss; the divergence from the original has the rest."""
    trained: Literal["mixers", "attention", "lora", "all"] = "all"
    """What they train."""
    learning_rate: Rate | None = None
    """Their peak learning rate; that of `language.training` when absent."""
    mamba_learning_rate: Annotated[float, NUMBER, Field(ge=0)] | None = None
    """The same of the mixers; that of `language.training` when both are absent."""
    warmup_share: Share | None = None
    """Share of the steps in which the rates rise to their peaks; that of `language.training` when absent."""
    betas: list[Beta] = []
    """Shares of heads replaced; all of `language.betas` but 0 when empty."""
    seeds: list[Seed] = []
    """One run for each; the study's seed when empty."""

    @model_validator(mode="after")
    def can_run(self) -> Self:
        """What the mixer has can be solved for and trained."""
        if 0 in self.betas:
            raise ValueError("betas: 0 replaces no head; leave it out")
        if self.calibrate_windows == 1:
            raise ValueError("calibrate_windows: 1 window cannot choose a ridge parameter; give 2 or more, or none")
        if self.start != "random" and not self.calibrate_windows:
            raise ValueError(f"start: {self.start!r} belongs to a closed form; give calibrate_windows")
        for key in ("calibrate_windows", "transfer_steps"):
            if getattr(self, key) and self.mixer in get_args(Untrained):
                raise ValueError(f"{key}: {self.mixer!r} ends in no linear layer and learns nothing; leave it out")
        return self

    def window(self) -> dict[str, int]:
        """The sizes of the window that are named."""
        sizes = {"window_tokens": self.window_tokens, "sink_tokens": self.sink_tokens}
        return {name: size for name, size in sizes.items() if size is not None}

    def training(self) -> dict[str, Any]:
        """Settings of a training that are others than in the paper's; without its own rate the mixers' is the same."""
        names = ("steps", "learning_rate", "warmup_share")
        named = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        rate = self.mamba_learning_rate
        return named | ({"mamba_learning_rate": rate} if rate is not None or self.learning_rate is not None else {})

    def ways(self) -> dict[str, Any]:
        """What `recurformer.recover.arm.run_arm` takes beside the settings of a training."""
        names = "calibrate_windows start transfer_steps transfer_learning_rate language_model_share trained"
        return {name: getattr(self, name) for name in names.split()}


class Recovery(Block):
    """What is measured while models learn, and by which recipes other than the paper's."""

    held_out: Count = 16
    """Validation windows of `language.tokens` tokens, on which each point of a curve is measured."""
    halvings: Count = 7
    """Points of a training at which it is measured: at its end, at a half of it, at a quarter, and so on."""
    arms: dict[Name, Arm] = {}
    """Recipes by name; those that begin with `bytes_` are compared with each other at equal bytes."""
