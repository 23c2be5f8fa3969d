"""One training run of a causal language model through transformers' `Trainer`: resumable, logged, reproducible."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, SequentialSampler, default_collate
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback

from recurformer.files import alone_in, writing_weights
from recurformer.train.checkpoints import fingerprint, last_checkpoint, mark_complete, open_run, step_of
from recurformer.train.data import Item
from recurformer.train.metrics import MetricLog, TrainingDiverged
from recurformer.train.optimiser import SCHEDULES, parameter_groups
from recurformer.train.surroundings import OneDeviceArguments, fast_bf16, quiet_library, training_state
from recurformer.train.time_limit import TimeLimit
from recurformer.train.trackers import live_names, live_trackers

__all__ = ["Objective", "TrainingDiverged", "train"]


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
    objective: Objective | None = None,
    on_log: Callable[[dict[str, float]], None] | None = None,
) -> pd.DataFrame:
    """Train `model` in place, on the one device where it is, with AdamW.

    Batch n consists of the dataset's items n·batch_size … (n+1)·batch_size - 1. A run that was killed continues from
    its last whole checkpoint when called again with the same model, data and settings. On a CPU it ends with the same
    weights, bit for bit, as one that was never killed. With any other model, data or settings it starts again. Nothing
    is kept at the end but metrics.jsonl and the last checkpoints: the trained model is the caller's to save.

    Args:
        model: a causal language model, float32; converted or not.
        dataset: items 0, 1, … without an end (see `recurformer.train.data`), batched by its method `collate`.
        output_dir: folder for metrics.jsonl (step, loss, learning_rate, tokens, seconds) and checkpoints.
        steps: optimiser steps.
        batch_size: samples in one optimiser step.
        learning_rate: peak learning rate.
        mixer_learning_rate: peak learning rate of the mixers; None: the same, 0: they stay as they are.
        weight_decay: of matrices; biases, norms, A_log and D are not decayed.
        warmup_share: share of the steps over which the learning rate rises.
        schedule: a name in `recurformer.train.optimiser.SCHEDULES`.
        gradient_clip: largest norm of the gradient.
        seed: of the model's random operations, such as dropout; the data have their own.
        log_every: steps between two lines of metrics.jsonl.
        save_every: steps between two checkpoints, rounded up to a multiple of log_every.
        gradient_accumulation: forward passes over which the samples of one step are spread; divides batch_size.
        bf16: compute products in bfloat16 where the model's device is fast at them (`fast_bf16`); ignored elsewhere.
        gradient_checkpointing: recompute activations in the backward pass instead of keeping them.
        objective: the function to minimise; None: the language-model loss.
        on_log: called with every new row of metrics.jsonl.

    Returns:
        The rows of metrics.jsonl.

    Raises:
        ValueError: an unknown schedule, an indivisible batch size, a folder that cannot be written or is another run's.
        TrainingDiverged: the loss became NaN or infinite; names the step, and the last whole checkpoint is kept.
        ValueError: RECURFORMER_TRACKERS names a tracker that there is not.
        StoppedForTime: the environment's RECURFORMER_MINUTES were up; a checkpoint of the step that it names is kept.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule: {schedule!r} is unknown; there are {', '.join(SCHEDULES)}")
    if batch_size % gradient_accumulation:
        raise ValueError(f"gradient_accumulation: {gradient_accumulation} does not divide batch_size {batch_size}")
    bf16 = bf16 and fast_bf16(model.device)  # a run goes on only in the precision in which it began
    settings = {
        key: value for key, value in locals().items() if key not in {"model", "dataset", "output_dir", "on_log"}
    }
    settings["objective"] = objective and objective.identity()
    limit, trackers = TimeLimit(), live_trackers()
    folder = Path(output_dir)
    first_item = {key: torch.as_tensor(value).tolist() for key, value in dataset[0].items()}

    shape = SCHEDULES[schedule]
    groups = parameter_groups(model, learning_rate, mixer_learning_rate, weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: shape(step, steps, warmup_share))
    on_cuda = model.device.type == "cuda"
    arguments = OneDeviceArguments(
        model.device,
        output_dir=str(folder.absolute()),  # by which an import knows the live run
        max_steps=steps,
        per_device_train_batch_size=batch_size // gradient_accumulation,
        gradient_accumulation_steps=gradient_accumulation,
        max_grad_norm=gradient_clip,
        seed=seed,
        bf16=bf16,
        use_cpu=model.device.type == "cpu",
        dataloader_pin_memory=on_cuda,
        dataloader_num_workers=0,
        remove_unused_columns=False,
        logging_strategy="no",
        logging_nan_inf_filter=False,
        save_strategy="no",
        save_total_limit=2,
        eval_strategy="no",
        report_to="none",  # the trackers are callbacks below, which may fail
        **live_names(folder),
        disable_tqdm=True,
    )
    save_steps = -(-save_every // log_every) * log_every
    with alone_in(folder), quiet_library(), training_state(model, gradient_checkpointing):
        learning = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        open_run(folder, {**settings, "model": fingerprint(model), "learning": learning, "first_item": first_item})
        log = MetricLog(folder / "metrics.jsonl", steps, log_every, on_log)
        checkpoint = last_checkpoint(folder, {row["step"] for row in log.rows})
        log.resume(step_of(checkpoint) if checkpoint else 0)
        callback = _LogAndSave(
            log,
            limit,
            save_steps,
            gradient_accumulation,
            lambda step: learning_rate * shape(step, steps, warmup_share),
            live=bool(trackers),
        )
        trainer = _LeanTrainer(
            log=log,
            objective=objective,
            model=model,
            args=arguments,
            train_dataset=dataset,
            data_collator=getattr(dataset, "collate", default_collate),
            optimizers=(optimizer, scheduler),
            callbacks=[callback, *trackers],
        )
        trainer.remove_callback(PrinterCallback)
        with writing_weights(folder):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        _require_finite(model, steps)
    if (step := trainer.state.global_step) < steps:
        raise limit.stopped(step, steps)
    return pd.DataFrame(log.rows)


class _LeanTrainer(Trainer):
    """The library's Trainer with a record of every loss, but without steps that cost a small model time."""

    def __init__(self, log: MetricLog, objective: Objective | None, **settings: Any) -> None:
        super().__init__(**settings)
        self.log_of_losses = log
        self.objective: Objective | None = objective
        self.model_accepts_loss_kwargs &= objective is None  # its means over accumulated batches are averaged

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

    def training_step(
        self, model: nn.Module, inputs: dict[str, torch.Tensor], *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        mask = inputs.get("attention_mask")
        tokens = inputs["input_ids"].numel() if mask is None else int(mask.sum())
        loss = super().training_step(model, inputs, *args, **kwargs)
        self.log_of_losses.add(loss, tokens)
        return loss

    def compute_loss(self, model: Any, inputs: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        if self.objective is not None:
            with self.accelerator.autocast():
                return self.objective(model, inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def floating_point_ops(self, inputs: dict[str, torch.Tensor]) -> int:
        """Not counted: the library walks through all parameters to do so, at every step."""
        return 0


class _LogAndSave(TrainerCallback):
    """Writes the metric log, and asks for a checkpoint when one is due and the losses up to it are finite.

    With `live` trackers, it also asks Trainer to log for them.
    """

    def __init__(
        self,
        log: MetricLog,
        limit: TimeLimit,
        save_steps: int,
        passes: int,
        learning_rate: Callable[[int], float],
        live: bool,
    ) -> None:
        self.metric_log, self.limit, self.save_steps = log, limit, save_steps
        self.passes, self.learning_rate, self.live = passes, learning_rate, live

    def on_step_end(self, args, state, control, **kwargs):
        step, no_time_left = state.global_step, False
        if self.metric_log.is_due(step):  # a checkpoint is resumed only from a step that the log has
            self.metric_log.write(step, self.learning_rate(step - 1), self.passes)
            control.should_log = self.live
            no_time_left = self.limit.leaves_no_time()
        self.metric_log.show_progress(step)
        if (step % self.save_steps == 0 or no_time_left) and step < state.max_steps:
            _require_finite(kwargs["model"], step)
            control.should_save = True
            control.should_training_stop |= no_time_left
        return control

    def on_save(self, args, state, control, **kwargs):
        mark_complete(Path(args.output_dir) / f"checkpoint-{state.global_step}")


def _require_finite(model: nn.Module, step: int) -> None:
    """A finite loss can still have had a gradient that was not."""
    norms = torch.stack([parameter.detach().abs().max().double().cpu() for parameter in model.parameters()])
    if not torch.isfinite(norms).all():
        raise TrainingDiverged(
            f"step {step}: a weight is no longer finite; lower the learning rate or the gradient clip"
        )
