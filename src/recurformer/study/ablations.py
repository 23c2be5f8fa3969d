"""The settings of what the ablation study measures on top of the paper's tables: needles, continuations."""

from typing import Annotated, Literal

from pydantic import Field

from recurformer.study.block import Block, Count, Share


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
