"""The metric log of a run: metrics.jsonl, one object per logged step, cut back when a run resumes."""

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from recurformer.files import atomic_path

PROGRESS_SECONDS = 10.0
CONFIDENCE = 0.95


class TrainingDiverged(ValueError):
    """The loss stopped being a finite number. The last checkpoint from before is kept."""


class MetricLog:
    """Collects the loss of every step and writes a line each `every` steps.

    Losses stay on their device until a line is due, so that an accelerator is not made to wait at every step. One that
    is not finite is then still attributed to its own step.

    Args:
        path: metrics.jsonl.
        steps: steps of the whole run, for the progress line.
        every: steps between two lines.
        on_row: called with every row that is written; its time is not the training's.
    """

    def __init__(
        self,
        path: Path,
        steps: int,
        every: int,
        on_row: Callable[[dict[str, float]], None] | None = None,
    ) -> None:
        self.path, self.steps, self.every, self.on_row = path, steps, every, on_row
        self.rows = _read_rows(path)
        self.tokens = 0
        self.losses: list[torch.Tensor] = []
        self.seconds_before = 0.0
        self.started = self.last_progress = time.perf_counter()
        self.first_step = 0

    def resume(self, step: int) -> None:
        """Forget all lines after `step` and continue counting from its line; with step 0, from nothing."""
        self.rows = [row for row in self.rows if row["step"] <= step]
        if self.rows:
            self.tokens, self.seconds_before = self.rows[-1]["tokens"], self.rows[-1]["seconds"]
        with atomic_path(self.path) as unfinished:
            unfinished.write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        self.started = self.last_progress = time.perf_counter()
        self.first_step = step

    def add(self, loss: torch.Tensor, tokens: int) -> None:
        """Record one forward pass: its share of its step's loss, and the tokens it read."""
        self.losses.append(loss)
        self.tokens += tokens

    def is_due(self, step: int) -> bool:
        """Whether a line is written after `step` steps."""
        return step % self.every == 0 or step == self.steps

    def write(self, step: int, learning_rate: float, passes: int) -> None:
        """Write the line of `step`: mean loss of the steps since the last line, in nats per predicted token.

        Args:
            step: steps done.
            learning_rate: the rate that the step used.
            passes: forward passes in each step.

        Raises:
            TrainingDiverged: one of the losses was not finite.
        """
        losses = torch.stack(self.losses).double().view(-1, passes).sum(1).tolist()
        self.losses = []
        for offset, loss in enumerate(losses):
            if not math.isfinite(loss):
                at = step - len(losses) + 1 + offset
                raise TrainingDiverged(f"step {at}: the loss is {loss}; lower the learning rate or the gradient clip")
        row = {
            "step": step,
            "loss": sum(losses) / len(losses),
            "learning_rate": learning_rate,
            "tokens": self.tokens,
            "seconds": round(self.seconds_before + time.perf_counter() - self.started, 3),
        }
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if self.on_row:
            began = time.perf_counter()
            self.on_row(row)
            self.started += time.perf_counter() - began

    def show_progress(self, step: int) -> None:
        """One line on stderr, at most every `PROGRESS_SECONDS`."""
        now = time.perf_counter()
        if now - self.last_progress < PROGRESS_SECONDS:
            return
        self.last_progress = now
        seconds_left = (now - self.started) / (step - self.first_step) * (self.steps - step)
        loss = f" loss {self.rows[-1]['loss']:.4g}" if self.rows else ""
        print(f"step {step}/{self.steps}{loss} {seconds_left:.0f} s left", file=sys.stderr, flush=True)


def _read_rows(path: Path) -> list[dict]:
    """All whole lines; a last line cut short by a kill is dropped."""
    rows: list[dict] = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
                rows.append({key: row[key] for key in ("step", "loss", "learning_rate", "tokens", "seconds")})
            except (ValueError, KeyError, TypeError):
                break
    return rows


def fall_of(losses: np.ndarray) -> float:
    """The most by which a loss may have fallen from the third to the last quarter of its log, in nats (Welch's t).

    Args:
        losses: in the order of the steps.

    Returns:
        NaN for fewer than eight values, of which no quarter has a spread.
    """
    from scipy.stats import ttest_ind  # slow to import, as in recurformer.data.interval

    if len(losses) < 8:
        return math.nan
    third, last = np.array_split(np.asarray(losses, dtype=float), 4)[2:]
    if not third.std() + last.std():
        return float(third.mean() - last.mean())
    return float(ttest_ind(third, last, equal_var=False).confidence_interval(CONFIDENCE).high)
