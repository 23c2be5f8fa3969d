"""One recovery of a converted model by a recipe: closed form, transfer and distillation, measured on the way."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurformer.data.datasets import WindowDataset
from recurformer.data.interval import mean_interval
from recurformer.heads.attention import Progress
from recurformer.model.convert import convert
from recurformer.recover.calibrate import ERRORS, calibrate
from recurformer.recover.kept import KeptSteps
from recurformer.recover.learn import TRAINED, distil, transfer
from recurformer.recover.pair import quality_rows
from recurformer.recover.recipe import Plan, memory_settings
from recurformer.study import Recipe, Training

Rows = Callable[[dict[str, float]], None]
"""A function that takes the rows of a training's log (`recurformer.train.trainer.train`)."""
NamedProgress = Callable[[str], Progress]
"""Gets the name of a step, and returns what is called with (done, all), or None."""


class RecoveryCurve:
    """The quality of a model beside its original, again and again while it learns.

    Args:
        original: the model whose predictions are the yardstick.
        model: the one that learns; measured in the type of its weights.
        windows: (windows, L) held-out token ids, without padding.
        kept: for the points.
        halvings: points of each training: at its end, at a half of it, at a quarter, and so on. One more, at three
            quarters, tells whether the loss still falls.
        progress: of a point.
        say: called with a line at each point.
    """

    def __init__(
        self,
        original: PreTrainedModel,
        model: PreTrainedModel,
        windows: Tensor,
        kept: KeptSteps,
        halvings: int = 7,
        progress: NamedProgress = lambda name: None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.original, self.model, self.windows, self.kept = original, model, windows, kept
        self.halvings, self.progress, self.say = halvings, progress, say
        self.tokens, self.seconds = 0, 0.0

    @property
    def rows(self) -> pd.DataFrame:
        """All points: stage, tokens (seen), seconds (spent on learning), and the columns of `quality_rows`."""
        points = sorted(self.kept.values("point-"), key=lambda rows: rows[0]["tokens"])
        return pd.DataFrame([row for rows in points for row in rows])

    @property
    def fall(self) -> float:
        """The most by which the held-out loss may have fallen between the last two points, in nats: the upper end of
        the 95 % interval over the windows. NaN where the last training has no two points.
        """
        rows = self.rows
        last = rows[rows["stage"] == rows["stage"].iloc[-1]]
        losses = last.pivot(index="window", columns="tokens", values="negative_log_likelihood")
        if losses.shape[1] < 2 or len(losses) < 2:
            return math.nan
        return mean_interval((losses.iloc[:, -2] - losses.iloc[:, -1]).to_numpy()).high

    def add(self, stage: str, tokens: int = 0, seconds: float = 0.0) -> None:
        """Learning that is no training, and the point after it."""
        self.tokens, self.seconds = self.tokens + tokens, self.seconds + seconds
        self._measure(stage)

    def of_training(self, stage: str, steps: int, log_every: int = 1) -> Rows:
        """A function that takes the rows of the log of a training of so many steps."""
        parts = [0.75, *(0.5**halving for halving in range(self.halvings))]
        due = {min(steps, log_every * math.ceil(steps * part / log_every)) for part in parts}
        tokens, seconds = self.tokens, self.seconds

        def on_row(row: dict[str, float]) -> None:
            self.tokens, self.seconds = tokens + int(row["tokens"]), seconds + row["seconds"]
            if row["step"] in due:
                self._measure(stage)

        return on_row

    def _measure(self, stage: str) -> None:
        def make() -> list[dict[Any, Any]]:
            training = self.model.training
            rows = quality_rows(self.original, self.model.eval(), self.windows, self.progress(f"{stage}: window"))
            self.model.train(training)
            perplexity = math.exp(min(rows["negative_log_likelihood"].mean(), 700.0))
            divergence = rows["divergence"].mean()
            self.say(f"{stage}, {self.tokens:,} tokens: perplexity {perplexity:.4g}, divergence {divergence:.4g}")
            return rows.assign(stage=stage, tokens=self.tokens, seconds=self.seconds).to_dict("records")

        self.kept.result(f"point-{self.tokens}", make)


def converted_by(
    recipe: Recipe, original: PreTrainedModel, heads: list[list[int]], seed: int, **sizes: Any
) -> PreTrainedModel:
    """The model with which a recipe starts, in evaluation mode; the same weights at every call.

    Args:
        recipe: its mixer, the sizes that it names and its weights are read.
        original: not changed.
        heads: replaced heads of each layer.
        seed: of the new weights.
        **sizes: of the mixers.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = convert(original, heads, recipe.mixer, **sizes | recipe.sizes()).eval()
        return model if recipe.weights == "reused" else type(model)(model.config).to(model.device).eval()


def learn(
    step: str,
    original: PreTrainedModel,
    converted: PreTrainedModel,
    dataset: WindowDataset,
    recipe: Recipe,
    training: Training,
    **settings: Any,
) -> pd.DataFrame:
    """One training of a recipe, "transfer" or "distil"; `settings` go before those of `training`."""
    if step == "transfer":
        common = training.model_dump(exclude={"learning_rate", "mixer_learning_rate", "weight_decay"})
        rate = recipe.transfer_learning_rate
        return transfer(original, converted, dataset, learning_rate=rate, **common | settings)
    own = {"trained": recipe.trained, "language_model_share": recipe.language_model_share}
    own |= memory_settings(dataset.input_ids.shape[1], training.batch_size)
    return distil(original, converted, dataset, **training.model_dump() | own | settings)


class Recovered(NamedTuple):
    """What a recovery leaves beside the model and its curve.

    Attributes:
        plan: the numbers of steps.
        errors: of the closed form in each layer, as of `calibrate`; no rows without one.
        losses: rows of the log of each training.
    """

    plan: Plan
    errors: pd.DataFrame
    losses: dict[str, list[dict[Any, Any]]]


def recover(
    original: PreTrainedModel,
    converted: PreTrainedModel,
    windows: Tensor,
    recipe: Recipe,
    curve: RecoveryCurve,
    *,
    training: Training,
    folder: str | Path,
    seed: int = 0,
    bf16: bool = False,
    plan: Callable[[], Plan] | None = None,
    progress: NamedProgress = lambda name: None,
) -> Recovered:
    """Calibrate, transfer and distil `converted` in place. Interrupted, the same call resumes.

    Args:
        original: the model that `converted` was converted from; not changed.
        converted: the model that learns.
        windows: (windows, L) token ids to learn from, without padding.
        recipe: its `steps` are those of everything: the closed form takes the place of as many as it has windows for.
        curve: of these two models; its `kept` holds the finished steps.
        training: settings that the recipe does not name.
        folder: for the state; metrics.jsonl of the last training stays in it.
        seed: of the order of the windows.
        bf16: see `recurformer.train.trainer.train`.
        plan: called after the closed form, where its time decides on the steps; None: the recipe's.
        progress: of the closed form.

    Raises:
        ValueError: there are fewer windows or steps than the closed form and transfer shall have, or as the steps of
            recovery raise.
    """
    if recipe.calibrate_windows > len(windows):
        raise ValueError(f"calibrate_windows: {recipe.calibrate_windows} were asked for, the text has {len(windows)}")
    training = training.model_copy(update=recipe.training())
    if plan is None:
        named = Plan.of(recipe, training)  # refuses at once
    folder, kept = Path(folder), curve.kept
    mixers = {name: tensor for name, tensor in converted.named_parameters() if TRAINED["mixers"](name)}
    dataset = WindowDataset(windows, seed=seed)
    curve.add("converted")
    errors: list[dict[Any, Any]] = []
    if recipe.calibrate_windows:
        chosen = windows[: recipe.calibrate_windows]

        def solve() -> list[dict[Any, Any]]:
            layers, shown = folder / "layers", progress("calibrate: layer")
            rows = calibrate(original, converted, chosen, start=recipe.start, output_dir=layers, progress=shown)
            return rows.to_dict("records")

        errors = kept.change("calibrate", mixers, solve)
        curve.add("calibrated", chosen.numel(), kept.seconds["calibrate"])
    planned = named if plan is None else plan()
    losses: dict[str, list[dict[Any, Any]]] = {"transfer": [], "distil": []}

    def train(step: str, steps: int, output_dir: Path, on_row: Rows) -> list[dict[Any, Any]]:
        settings: dict[str, Any] = {"steps": steps, "save_every": planned.save_every, "seed": seed, "bf16": bf16}
        settings |= {"output_dir": output_dir, "on_log": on_row}
        return learn(step, original, converted, dataset, recipe, training, **settings).to_dict("records")

    if steps := planned.transfer_steps:
        on_row = curve.of_training("transferred", steps, training.log_every)
        tokens, seconds = curve.tokens, curve.seconds
        losses["transfer"] = kept.change(
            "transfer", mixers, lambda: train("transfer", steps, folder / "transfer", on_row)
        )
        shutil.rmtree(folder / "transfer", ignore_errors=True)
        last = losses["transfer"][-1]
        curve.tokens, curve.seconds = tokens, seconds
        curve.add("transferred", int(last["tokens"]), last["seconds"])
    if steps := planned.distil_steps:
        on_row = curve.of_training("distilled", steps, training.log_every)
        losses["distil"] = train("distil", steps, folder, on_row)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").touch()
    return Recovered(planned, pd.DataFrame(errors, columns=ERRORS), losses)
