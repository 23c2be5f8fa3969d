"""The steps of `adapt`, each kept when it is finished."""

import shutil
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from recurformer.data.documents import Documents
from recurformer.data.windows import encode_text, windows
from recurformer.heads.profile import profile_heads
from recurformer.heads.select import select_heads
from recurformer.model.convert import convert
from recurformer.recover.adapt_measures import passkeys_of, quality_of
from recurformer.recover.calibrate import calibrate
from recurformer.recover.distil import distil
from recurformer.recover.kept import KeptSteps
from recurformer.recover.recipe import MINIMUM_WINDOWS, RESERVED, TIMED_STEPS, Plan, Recipe, plan_steps
from recurformer.recover.trained import TRAINED
from recurformer.recover.transfer import transfer
from recurformer.train.data import WindowDataset


def text_windows(
    documents: Documents, tokenizer: PreTrainedTokenizerBase, recipe: Recipe, seed: int
) -> tuple[Tensor, Tensor]:
    """Windows (windows, recipe.tokens) for training and, at most `recipe.held_out_windows`, for measuring.

    Raises:
        ValueError: there are fewer than `MINIMUM_WINDOWS`; says how many tokens there are.
    """
    split_windows = []
    for (name, least), texts in zip(MINIMUM_WINDOWS.items(), documents, strict=True):
        try:
            split_windows.append(windows(texts, tokenizer, recipe.tokens, seed=seed))
        except ValueError:
            split_windows.append(torch.empty(0, recipe.tokens, dtype=torch.long))
        if len(split_windows[-1]) < least:
            tokens = sum(len(encode_text(tokenizer, text)) for text in texts)
            raise ValueError(
                f"the texts are too short: the {len(texts)} {name} documents have {tokens:,} tokens, which give "
                f"{len(split_windows[-1])} windows of {recipe.tokens}; {least} are needed, so {least * recipe.tokens:,}"
                f" tokens in documents of {recipe.tokens} or more"
            )
    return split_windows[0], split_windows[1][: recipe.held_out_windows]


Progress = Callable[[str], Callable[[int, int], None] | None]


@dataclass
class AdaptationSteps:
    """The fields are the arguments of `adapt`; `kept` has the steps that were finished before."""

    original: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    kept: KeptSteps
    recipe: Recipe
    seed: int
    train_ids: Tensor
    held_out_ids: Tensor
    progress: Progress
    say: Callable[[str], None]

    @property
    def calibrated_on(self) -> Tensor:
        """Windows from which the closed form is solved."""
        return self.train_ids[: self.recipe.calibrate_windows]

    def choose(self, beta: float) -> dict[str, Any]:
        """Share of windows in which each head looks at recent tokens, and the heads that are replaced."""

        def make() -> dict[str, Any]:
            ids = self.train_ids[: self.recipe.profile_windows]
            k = max(1, int(self.recipe.recency_window * self.recipe.tokens))
            profile = profile_heads(self.original, ids, window=k, progress=self.progress("profile: window"))
            return {"ra_i": (profile.ra_i / len(ids)).tolist(), "heads": select_heads(profile, beta)}

        return self.kept.result("heads", make)

    def measure(self, stage: str, model: PreTrainedModel, learnt_tokens: int) -> dict[str, Any]:
        """Quality on the held-out windows after learning from `learnt_tokens` tokens."""
        quality = self.kept.result(
            f"quality-{stage}",
            lambda: quality_of(self.original, model, self.held_out_ids, self.progress(f"{stage}: window")),
        )
        self.say(f"{stage}: perplexity {quality['perplexity']:.2f}, divergence {quality['divergence']:.3f}")
        return {"stage": stage, "tokens": learnt_tokens, **quality}

    def passkeys(self, stage: str, model: PreTrainedModel, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Keys found and keys asked at each length."""
        return self.kept.result(
            f"passkeys-{stage}",
            lambda: passkeys_of(
                model, self.tokenizer, self.original.config, texts, self.recipe, self.seed, self.progress("prompt")
            ),
        )

    def convert(self, heads: list[list[int]]) -> PreTrainedModel:
        """The same first weights at every call."""
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return convert(self.original, heads, self.recipe.mixer).eval()

    def _changed(self, converted: PreTrainedModel, name: str, make: Callable[[], Any]) -> Any:
        trained = TRAINED["all" if self.recipe.trained == "lora" else self.recipe.trained]
        tensors = {key: value for key, value in converted.named_parameters() if trained(key)}
        return self.kept.change(name, tensors, make)

    def calibrate(self, converted: PreTrainedModel) -> list[dict[str, Any]]:
        """The closed form; its relative error in each layer."""

        def make() -> Any:
            windows, say, folder = self.calibrated_on, self.progress("calibrate: layer"), self.kept.folder / "layers"
            start = self.recipe.start
            rows = calibrate(self.original, converted, windows, start=start, output_dir=folder, progress=say)
            return rows.to_dict("records")

        return self._changed(converted, "calibrate", make)

    def _run(
        self, name: str, converted: PreTrainedModel, output_dir: Path, steps: int, save_every: int
    ) -> pd.DataFrame:
        recipe = self.recipe
        settings: dict[str, Any] = {"output_dir": output_dir, "steps": steps, "batch_size": recipe.batch_size}
        settings |= {"seed": self.seed, "log_every": 1, "save_every": save_every}
        dataset = WindowDataset(self.train_ids, seed=self.seed)
        if name == "transfer":
            rate = recipe.transfer_learning_rate
            return transfer(self.original, converted, dataset, learning_rate=rate, **settings)
        rate = recipe.distil_learning_rate
        return distil(self.original, converted, dataset, learning_rate=rate, trained=recipe.trained, **settings)

    def train(self, name: str, converted: PreTrainedModel, plan: Plan) -> list[dict[str, Any]]:
        """Transfer or distillation; step and loss of each step."""
        output_dir = self.kept.folder / name
        steps, save_every = (getattr(plan, f"{name}_{setting}") for setting in ("steps", "save_every"))
        self.say(f"{name}: {steps} steps")

        def make() -> list[Any]:
            rows = self._run(name, converted, output_dir, steps, save_every)
            return rows[["step", "loss"]].to_dict("records")

        losses = self._changed(converted, name, make)
        shutil.rmtree(output_dir, ignore_errors=True)
        return losses

    def plan(self, converted: PreTrainedModel, minutes: float) -> Plan:
        """The numbers of steps, from the time of some on a throw-away copy."""

        def make() -> dict[str, int]:
            spent = self.kept.seconds
            measuring = 2 * spent["quality-calibrated"] + spent["passkeys-original"]  # what remains
            seconds_left = 60 * minutes * (1 - RESERVED) - sum(spent.values()) - measuring
            if seconds_left <= 0:
                return asdict(Plan(0, 0, 1, 1))
            pace = {}  # seconds of a step
            for name in ("transfer", "distil"):
                timing = self.kept.folder / "timing"
                seconds = self._run(name, deepcopy(converted), timing, TIMED_STEPS, TIMED_STEPS).seconds
                pace[name] = (seconds.iloc[-1] - seconds.iloc[0]) / (TIMED_STEPS - 1)
                seconds_left -= seconds.iloc[-1]
                shutil.rmtree(timing)
            return asdict(plan_steps(seconds_left, pace["transfer"], pace["distil"], len(self.train_ids), self.recipe))

        return Plan(**self.kept.result("plan", make))
