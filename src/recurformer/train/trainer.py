"""One training of a causal language model through transformers' `Trainer`, in one process or several: resumable and
logged.
"""

import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
import torch.distributed.checkpoint as dcp
from accelerate.utils import broadcast_object_list
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset, SequentialSampler, default_collate
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from recurformer.data.datasets import Item
from recurformer.data.interval import CONFIDENCE
from recurformer.files import alone_in, writing_weights
from recurformer.model.convert import errors_only
from recurformer.train.checkpoints import COMPLETE, fingerprint, last_checkpoint, open_run
from recurformer.train.optimiser import SCHEDULES, parameter_groups
from recurformer.train.trackers import live_names, live_trackers

ROW = ("step", "loss", "learning_rate", "tokens", "seconds")
"""Columns of metrics.jsonl; the loss is the mean over the steps since the row before, in nats per predicted token."""
PROGRESS_SECONDS = 10.0


class Objective(Protocol):
    """A function that a training minimises instead of the language-model loss: a mean over the batch."""

    def __call__(self, model: PreTrainedModel, batch: Item) -> torch.Tensor:
        """The value for one batch, as the dataset collates it; scalar."""

    def identity(self) -> dict[str, Any]:
        """Its settings, as JSON: a run with another identity does not resume this one."""


def train(
    model: PreTrainedModel,
    dataset: Dataset,
    *,
    output_dir: str | Path,
    steps: int,
    batch_size: int,
    learning_rate: float,
    mixer_learning_rate: float | None = None,
    weight_decay: float = 0.01,
    warmup_share: float = 0.1,
    schedule: str = "cosine",
    gradient_clip: float = 1.0,
    seed: int = 0,
    log_every: int = 10,
    save_every: int = 200,
    gradient_accumulation: int = 1,
    bf16: bool = False,
    gradient_checkpointing: bool = False,
    strategy: str = "ddp",
    objective: Objective | None = None,
    on_log: Callable[[dict[str, float]], None] | None = None,
) -> pd.DataFrame:
    """Train `model` in place, on the one device where it is, with AdamW.

    Batch n consists of the dataset's items n·batch_size … (n+1)·batch_size - 1. A run that was killed continues from
    its last whole checkpoint when called again with the same model, data and settings. On a CPU it ends with the same
    weights, bit for bit, as one that was never killed. With any other model, data or settings it starts again. Nothing
    is kept at the end but metrics.jsonl and the last checkpoints: the trained model is the caller's to save.

    Processes that `accelerate launch` or torchrun started train together, when each calls this. They share the items
    of every batch, and every token of the batch weighs the same, so the curve is that of one process up to rounding.
    Only the first one writes.

    Args:
        model: a causal language model, float32; converted or not; the same in every process.
        dataset: items 0, 1, … without an end (see `recurformer.data.datasets`), batched by its method `collate`.
        output_dir: folder for metrics.jsonl (step, loss, learning_rate, tokens, seconds) and checkpoints.
        steps: optimiser steps.
        batch_size: samples in one optimiser step.
        learning_rate: peak learning rate.
        mixer_learning_rate: peak learning rate of the mixers; None: the same, 0: they stay as they are.
        weight_decay: of matrices; biases, norms, A_log and D are not decayed.
        warmup_share: fraction of the steps over which the learning rate rises.
        schedule: a name in `recurformer.train.optimiser.SCHEDULES`.
        gradient_clip: largest norm of the gradient.
        seed: of the model's random operations, such as dropout; the data have their own.
        log_every: steps between two lines of metrics.jsonl.
        save_every: steps between two checkpoints, rounded up to a multiple of log_every.
        gradient_accumulation: forward passes over which a process spreads its samples of one step.
        bf16: compute products in bfloat16 where the model's device is fast at them (`fast_bf16`); ignored elsewhere.
        gradient_checkpointing: recompute activations in the backward pass instead of keeping them.
        strategy: of several processes: ddp, each has the whole model; fsdp, each has a part of the weights, gradients
            and moments, and the model's parameters stay sharded (`whole_weights` gathers them).
        objective: the function to minimise, in one process only; None: the language-model loss.
        on_log: called with every new row of metrics.jsonl, in the first process.

    Returns:
        The rows of metrics.jsonl.

    Raises:
        ValueError: an unknown schedule, an indivisible batch size, a folder that cannot be written or is another run's,
            RECURFORMER_TRACKERS names a tracker that there is not, several processes and a model with dropout, or the
            loss or the gradient became NaN or infinite: then the last whole checkpoint is kept.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule: {schedule!r} is unknown; there are {', '.join(SCHEDULES)}")
    bf16 = bf16 and fast_bf16(model.device)  # a run goes on only in the precision in which it began
    settings = {
        key: value for key, value in locals().items() if key not in {"model", "dataset", "output_dir", "on_log"}
    }
    settings["objective"] = objective and objective.identity()
    folder, trackers = Path(output_dir), live_trackers()
    arguments = OneDeviceArguments(
        model.device,
        output_dir=str(folder.absolute()),  # by which an import knows the live run
        max_steps=steps,
        gradient_accumulation_steps=gradient_accumulation,
        max_grad_norm=gradient_clip,
        seed=seed,
        use_cpu=model.device.type == "cpu",
        dataloader_pin_memory=model.device.type == "cuda",
        dataloader_num_workers=0,
        ddp_find_unused_parameters=False,
        remove_unused_columns=False,
        logging_strategy="no",  # `_Schedule` says when
        logging_nan_inf_filter=False,
        save_strategy="no",
        save_total_limit=2,
        eval_strategy="no",
        report_to="none",  # the trackers are callbacks below, which may fail
        **live_names(folder),
        disable_tqdm=True,
    )
    processes, is_first = arguments.world_size, arguments.process_index == 0
    fraction, remainder = divmod(batch_size, processes * gradient_accumulation)
    if remainder:
        raise ValueError(
            f"batch_size {batch_size}: not divisible by processes {processes}"
            f" times gradient_accumulation {gradient_accumulation}"
        )
    if processes > 1 and getattr(model.config, "attention_dropout", 0.0):
        raise ValueError("attention_dropout: a model with dropout cannot be trained alike on any number of processes")
    arguments.per_device_train_batch_size = fraction
    sharded = strategy == "fsdp" and processes > 1
    save_steps = -(-save_every // log_every) * log_every
    alone = alone_in(folder) if is_first else nullcontext()
    with alone, quiet_library(), training_state(model, gradient_checkpointing):
        checkpoint = None
        if is_first:
            first_item = {key: torch.as_tensor(value).tolist() for key, value in dataset[0].items()}
            learning = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
            about = {"processes": processes, "model": fingerprint(model), "learning": learning}
            open_run(folder, {**settings, **about, "first_item": first_item})
            checkpoint = last_checkpoint(folder)
        (checkpoint,) = broadcast_object_list([checkpoint])
        if sharded:
            _shard(model)
        groups = parameter_groups(model, learning_rate, mixer_learning_rate, weight_decay)
        optimizer = torch.optim.AdamW(groups, lr=learning_rate, fused=True)

        def rate(step: int) -> float:
            return SCHEDULES[schedule](step, steps, warmup_share)

        trainer = _Trainer(
            lambda step: learning_rate * rate(step),
            objective,
            bf16,
            on_log,
            model=model,
            args=arguments,
            train_dataset=dataset,
            data_collator=getattr(dataset, "collate", default_collate),
            optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rate)),
            callbacks=[_Schedule(log_every, save_steps), *trackers],
        )
        trainer.remove_callback(PrinterCallback)
        with writing_weights(folder):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return pd.DataFrame(trainer.rows)


class _Trainer(Trainer):
    """The library's Trainer with the metric log, an objective and checkpoints of sharded models, but without some steps
    that cost a small model time.
    """

    args: Any
    model: Any
    objective: Objective | None
    optimizer: Any
    lr_scheduler: Any
    state: Any

    def __init__(
        self,
        rate: Callable[[int], float],
        objective: Objective | None,
        bf16: bool,
        on_row: Callable[[dict[str, float]], None] | None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.rate, self.objective, self.bf16, self.on_row = rate, objective, bf16, on_row
        self.model_accepts_loss_kwargs &= objective is None  # its means over accumulated batches are averaged
        self.sharded = any(isinstance(parameter, DTensor) for parameter in self.model.parameters())
        self.tokens: Any = 0
        self.started = time.perf_counter()

    @property
    def rows(self) -> list[dict[str, float]]:
        """The rows of metrics.jsonl."""
        return [{key: row[key] for key in ROW} for row in self.state.log_history if "loss" in row]

    def get_train_dataloader(self) -> DataLoader:
        return self.accelerator.prepare(
            DataLoader(
                self.train_dataset,  # type: ignore[arg-type]
                batch_size=self.args.train_batch_size,
                sampler=SequentialSampler(range(self._samples())),  # the dataset draws at random
                collate_fn=self.data_collator,
                pin_memory=self.args.dataloader_pin_memory,
            )
        )

    def num_examples(self, dataloader: DataLoader) -> int:
        return self._samples()

    def _samples(self) -> int:
        """Items that the whole run reads."""
        return self.args.max_steps * self.get_total_train_batch_size(self.args)

    def floating_point_ops(self, inputs: dict[str, torch.Tensor]) -> int:
        """Not counted: the library walks through all parameters to do so, at every step."""
        return 0

    def training_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        mask = inputs.get("attention_mask")
        self.tokens = self.tokens + (inputs["input_ids"].numel() if mask is None else mask.sum())
        return super().training_step(model, inputs, *args, **kwargs)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self.args.device.type, torch.bfloat16, enabled=self.bf16):
            if self.objective is not None:
                return self.objective(model, inputs)
            return super().compute_loss(model, inputs, *args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Write a row, unless the loss or the gradient is not finite: then no checkpoint follows."""
        if "loss" not in logs:
            return super().log(logs)  # the library's summary
        step = self.state.global_step
        for name, key in (("loss", "loss"), ("gradient", "grad_norm")):
            if not math.isfinite(value := float(logs[key])):
                advice = "lower the learning rate or the gradient clip"
                raise ValueError(f"step {step}: the {name} is {value}; {advice}")
        tokens = self.accelerator.reduce(torch.as_tensor(self.tokens, device=self.args.device), "sum")
        before = self.state.log_history[-1] if self.state.log_history else {"tokens": 0, "seconds": 0.0}
        seconds = round(before["seconds"] + time.perf_counter() - self.started, 3)
        row = {"loss": logs["loss"], "learning_rate": self.rate(step - 1), "tokens": before["tokens"] + int(tokens)}
        row["seconds"] = seconds
        super().log(dict(row))
        self.tokens = 0
        if self.state.is_world_process_zero:
            with Path(self.args.output_dir, "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **row}) + "\n")
            if self.on_row:
                self.on_row({"step": step, **row})
        self.started = time.perf_counter()

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        norm = super()._get_grad_norm(*args, **kwargs)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        super()._save_checkpoint(*args, **kwargs)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            Path(self.args.output_dir, f"checkpoint-{self.state.global_step}", COMPLETE).touch()

    # a checkpoint of a sharded model, in which each process writes its part of everything

    def _shards(self) -> dict[str, Any]:
        weights, moments = get_state_dict(self.model, self.optimizer.optimizer)
        return {"model": weights, "optimizer": moments, "scheduler": self.lr_scheduler.state_dict()}

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        if not self.sharded:
            super().save_model(*args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.sharded:
            return super()._save_optimizer_and_scheduler(output_dir)
        dcp.save(self._shards(), checkpoint_id=output_dir)

    def _load_from_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        if not self.sharded:
            super()._load_from_checkpoint(*args, **kwargs)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if not self.sharded or checkpoint is None:
            return super()._load_optimizer_and_scheduler(checkpoint)
        state = self._shards()
        dcp.load(state, checkpoint_id=checkpoint)
        weights, moments = state["model"], state["optimizer"]
        set_state_dict(self.model, self.optimizer.optimizer, model_state_dict=weights, optim_state_dict=moments)
        self.lr_scheduler.load_state_dict(state["scheduler"])


class _Schedule(TrainerCallback):
    """Says when Trainer logs and saves, cuts metrics.jsonl back to the checkpoint, and shows the progress."""

    def __init__(self, log_every: int, save_steps: int) -> None:
        self.log_every, self.save_steps = log_every, save_steps
        self.last = time.perf_counter()

    def on_train_begin(self, args, state, control, **kwargs):
        self.first_step, self.started = state.global_step, time.perf_counter()
        if state.global_step and state.is_world_process_zero:
            print(f"resumes after step {state.global_step} of {state.max_steps}", file=sys.stderr, flush=True)
        if state.is_world_process_zero:
            lines = (json.dumps({key: row[key] for key in ROW}) + "\n" for row in state.log_history)
            Path(args.output_dir, "metrics.jsonl").write_text("".join(lines), encoding="utf-8")

    def on_step_end(self, args, state, control, **kwargs):
        step, now = state.global_step, time.perf_counter()
        control.should_log = step % self.log_every == 0 or step == state.max_steps
        control.should_save = step % self.save_steps == 0 and step < state.max_steps
        if now - self.last >= PROGRESS_SECONDS and state.is_world_process_zero:
            self.last = now
            seconds_left = (now - self.started) / (step - self.first_step) * (state.max_steps - step)
            loss = f" loss {state.log_history[-1]['loss']:.4g}" if state.log_history else ""
            print(f"step {step}/{state.max_steps}{loss} {seconds_left:.0f} s left", file=sys.stderr, flush=True)


def _shard(model: PreTrainedModel) -> None:
    """Shard each decoder layer, and the modules around them, over all processes."""
    layers: Any = model.base_model.layers
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)  # embeddings and head stay one unit: they may be the same parameter
    setattr(model, "_is_accelerate_prepared", True)  # noqa: B010  else it would be wrapped for ddp too


def whole_weights(model: nn.Module) -> dict[str, Any]:
    """All weights on the CPU, on the first process; every process must call this, the others get an empty dict.

    A tied weight is there once, under its first name.
    """
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    again = dict(model.named_parameters(remove_duplicate=False)).keys() - dict(model.named_parameters()).keys()
    return {name: weight for name, weight in weights.items() if name not in again}


@contextmanager
def training_state(model: PreTrainedModel, gradient_checkpointing: bool) -> Iterator[None]:
    """Changes of a model by training, other than of its weights; undone afterwards."""
    use_cache, training = model.config.use_cache, model.training
    if gradient_checkpointing:
        # transformers 5.23 renamed the method and warns about the name that 5.17 knows
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    try:
        yield
    finally:
        if gradient_checkpointing:
            disable = getattr(model, "activation_checkpointing_disable", None) or model.gradient_checkpointing_disable
            disable()
        model.config.use_cache = use_cache
        model.train(training)


@contextmanager
def quiet_library() -> Iterator[None]:
    """Only errors: no bar for every checkpoint written, and no remark on the order of the library's steps."""
    with errors_only(), warnings.catch_warnings():
        # the library steps a scheduler that it resumes before the optimiser's first step of this process
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        yield


def fast_bf16(place: torch.device) -> bool:
    """Whether products in bfloat16 are faster than in float32 there: on a GPU, and on processors that have instructions
    for them, where a training step of SmolLM2-135M takes a third to a half of the time.
    """
    if place.type != "cpu":
        return place.type == "cuda"
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


class OneDeviceArguments(TrainingArguments):
    """The library's settings of a training in which a process has the one device where its model is; a GPU becomes the
    current one.

    Left alone, the library moves a model to the first GPU and spreads it over all by `torch.nn.DataParallel`, each with
    a whole batch.

    Args:
        place: the device.
        **settings: the library's.
    """

    def __init__(self, place: torch.device, **settings: Any):
        self.place = place
        super().__init__(**settings)

    @property
    def device(self) -> torch.device:
        """The model's device."""
        self._setup_devices  # noqa: B018  the library's state, and the first GPU as the current one
        if self.place.type == "cuda":
            torch.cuda.set_device(self.place)  # batches are sent there
        return self.place

    @property
    def n_gpu(self) -> int:
        """At most 1."""
        return min(super().n_gpu, 1)


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
