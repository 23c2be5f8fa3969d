"""The recovery curve of a model: its quality beside the original's, again and again while it learns."""

import math
import zlib
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from torch import Tensor
from transformers import PreTrainedModel

from recurformer.files import atomic_path
from recurformer.recover.quality import quality_rows
from recurformer.train.checkpoints import fingerprint
from recurformer.train.surroundings import as_it_is

Rows = Callable[[dict[str, float]], None]
"""A function that takes the rows of a training's log (`recurformer.train.trainer.train`)."""


class RecoveryCurve:
    """Measures a model at the start, and at each of some last halvings of its steps.

    A run that goes on after a kill takes up the earlier measurements of the same models and windows.

    Args:
        original: the model whose predictions are the yardstick.
        model: the one that learns, as it is at the start; measured in the type of its weights.
        windows: (windows, L) held-out token ids, without padding.
        learnt: (windows, L) token ids that it learns from.
        folder: for the measurements: tokens (seen), seconds (spent on learning), and the columns of `quality_rows`,
            predicted being the tokens of a window.
        halvings: points of a training, its end among them.
        say: called with a line at each point.
    """

    def __init__(
        self,
        original: PreTrainedModel,
        model: PreTrainedModel,
        windows: Tensor,
        learnt: Tensor,
        folder: str | Path,
        halvings: int = 7,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.original, self.model, self.windows = original, model, windows
        self.identity = [
            fingerprint(original),
            fingerprint(model),
            *(zlib.crc32(w.numpy().data) for w in (windows, learnt)),
        ]
        self.file = Path(folder) / f"recovery-{zlib.crc32(str(self.identity).encode()):08x}.csv"
        self.halvings, self.say = halvings, say
        self.tokens, self.seconds = 0, 0.0
        self.original_logits: list[Tensor] = []
        self.rows = pd.read_csv(self.file) if self.file.is_file() else pd.DataFrame({"tokens": []})

    def add(self, tokens: int, seconds: float) -> None:
        """Learning that is no training, and the point after it."""
        self.tokens, self.seconds = self.tokens + tokens, self.seconds + seconds
        self._measure(self.tokens, self.seconds)

    def of_training(self, steps: int, log_every: int = 1, on_log: Rows | None = None) -> Rows:
        """A function that takes the rows of the log of a training of so many steps, and passes them to `on_log`."""
        due = {min(steps, log_every * math.ceil(steps / 2**halving / log_every)) for halving in range(self.halvings)}
        tokens, seconds = self.tokens, self.seconds

        def on_row(row: dict[str, float]) -> None:
            if on_log is not None:
                on_log(row)
            self.tokens, self.seconds = tokens + int(row["tokens"]), seconds + row["seconds"]
            if row["step"] in due:
                self._measure(self.tokens, self.seconds)

        return on_row

    def _measure(self, tokens: int, seconds: float) -> None:
        if (self.rows["tokens"] == tokens).any():
            return
        with as_it_is(self.model):
            rows = quality_rows(self.original, self.model, self.windows, original_logits=self.original_logits)
        rows = rows.rename(columns={"tokens": "predicted"}).assign(tokens=tokens, seconds=seconds)
        self.rows = pd.concat([self.rows, rows], ignore_index=True).astype(
            {"tokens": int, "window": int, "predicted": int}
        )
        with atomic_path(self.file) as path:
            self.rows.to_csv(path, index=False)
        perplexity = math.exp(min(rows["negative_log_likelihood"].mean(), 700.0))
        self.say(f"{tokens:,} tokens: perplexity {perplexity:.4g}, divergence {rows['divergence'].mean():.4g}")
