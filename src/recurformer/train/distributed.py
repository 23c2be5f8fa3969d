"""One training run over several processes: the same recipe, samples and curve as in one, whatever their number.

Step s reads the items s·batch_size … (s+1)·batch_size - 1 of the dataset. They are dealt to the processes and to the
passes of each, and every token of the step weighs the same, wherever it was read. Weights, gradients and AdamW's
moments are float32. Whoever starts the processes has initialised `torch.distributed`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from recurformer.data import IGNORED
from recurformer.study import Distributed, Training
from recurformer.train.checkpoints import fingerprint, last_checkpoint, open_run, step_of
from recurformer.train.data import Item, ItemDataset
from recurformer.train.metrics import MetricLog, TrainingDiverged
from recurformer.train.optimiser import SCHEDULES, parameter_groups
from recurformer.train.sharded import load_checkpoint, save_checkpoint
from recurformer.train.surroundings import quiet_library, training_state
from recurformer.train.time_limit import TimeLimit

Value = TypeVar("Value")


def train_distributed(
    model: PreTrainedModel,
    dataset: ItemDataset,
    recipe: Training,
    spread: Distributed,
    *,
    output_dir: str | Path,
    on_log: Callable[[dict[str, float]], None] | None = None,
) -> None:
    """Train `model` in place, together with the other processes of the group, each of which calls this.

    A run that was killed continues from its last whole checkpoint, on any number of processes and by any strategy. With
    another model, data, recipe or precision it starts again. Only the first process writes metrics.jsonl and shows
    its progress.

    Args:
        model: float32, the same on every process; its parameters are sharded afterwards when the strategy says so.
        dataset: items 0, 1, … without an end.
        recipe: the settings of the training.
        spread: the settings of several processes; `processes` is not read, the group's size is.
        output_dir: folder for metrics.jsonl and checkpoints, one for all processes.
        on_log: called on the first process with every new row of metrics.jsonl.

    Raises:
        ValueError: a batch that cannot be dealt evenly, a model with dropout, a folder that cannot be written.
        TrainingDiverged: the loss or the gradient became NaN or infinite; the last whole checkpoint is kept.
        StoppedForTime: the environment's RECURFORMER_MINUTES were up; a checkpoint of the step that it names is kept.
    """
    limit = TimeLimit()
    samples = _samples_per_pass(recipe.batch_size, spread.gradient_accumulation)
    if getattr(model.config, "attention_dropout", 0.0):
        raise ValueError("attention_dropout: a model with dropout cannot be trained alike on any number of processes")
    folder = Path(output_dir)
    log = _open_log(folder, model, dataset, recipe, spread, on_log) if dist.get_rank() == 0 else None
    with quiet_library(), training_state(model, spread.activation_checkpointing):
        model.train()
        wrapped = _spread(model, spread.strategy)
        groups = parameter_groups(model, recipe.learning_rate, recipe.mixer_learning_rate, recipe.weight_decay)
        optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, fused=True)
        rates = [group["lr"] for group in groups]
        first = _agree_on(log.first_step if log else 0)
        if first:
            load_checkpoint(folder / f"checkpoint-{first}", model, optimizer)
        save_steps = -(-recipe.save_every // recipe.log_every) * recipe.log_every
        for step in range(first, recipe.steps):
            share = SCHEDULES[recipe.schedule](step, recipe.steps, recipe.warmup_share)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * share
            batches = _batches(dataset, step, recipe.batch_size, samples, model.device)
            loss, tokens = _backward(wrapped, batches, spread.precision)
            done = step + 1
            _require_finite("loss", loss, done)
            norm = nn.utils.clip_grad_norm_(model.parameters(), recipe.gradient_clip)
            _require_finite("gradient", norm.full_tensor() if isinstance(norm, DTensor) else norm, done)
            optimizer.step()
            optimizer.zero_grad()
            if log:
                _note(log, done, loss, tokens, recipe.learning_rate * share)
            if done == recipe.steps or done % recipe.log_every:  # only a step that the log has is resumed
                continue
            no_time_left = _agree_on(limit.leaves_no_time())
            if no_time_left or done % save_steps == 0:
                save_checkpoint(folder / f"checkpoint-{done}", model, optimizer)
            if no_time_left:
                raise limit.stopped(done, recipe.steps)


def _samples_per_pass(batch_size: int, passes: int) -> int:
    samples, remainder = divmod(batch_size, dist.get_world_size() * passes)
    if remainder:
        raise ValueError(
            f"batch_size {batch_size}: not divisible by processes {dist.get_world_size()}"
            f" times gradient_accumulation {passes}"
        )
    return samples


def _open_log(
    folder: Path,
    model: PreTrainedModel,
    dataset: ItemDataset,
    recipe: Training,
    spread: Distributed,
    on_log: Callable[[dict[str, float]], None] | None,
) -> MetricLog:
    """The metric log, continued from the last whole checkpoint."""
    first_item = {key: value.tolist() for key, value in dataset[0].items()}
    run = {"precision": spread.precision, "model": fingerprint(model), "first_item": first_item}
    open_run(folder, {**recipe.model_dump(), **run})
    log = MetricLog(folder / "metrics.jsonl", recipe.steps, recipe.log_every, on_log)
    checkpoint = last_checkpoint(folder, {row["step"] for row in log.rows})
    log.resume(step_of(checkpoint) if checkpoint else 0)
    return log


def _note(log: MetricLog, step: int, loss: Tensor, tokens: int, learning_rate: float) -> None:
    log.add(loss, tokens)
    if log.is_due(step):
        log.write(step, learning_rate, passes=1)
    log.show_progress(step)


def _agree_on(value: Value) -> Value:
    """The value of the first process, on all processes."""
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def _spread(model: PreTrainedModel, strategy: str) -> nn.Module:
    """The model as the processes share it: replicated, or each decoder layer, and the modules around them, sharded."""
    if strategy == "ddp":
        return DistributedDataParallel(model)
    mesh = init_device_mesh(model.device.type, (dist.get_world_size(),))
    layers: Any = model.base_model.layers
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)  # embeddings and head stay one unit: they may be the same parameter
    return model


def _batches(dataset: ItemDataset, step: int, batch_size: int, samples: int, device: torch.device) -> list[Item]:
    """One process's part of the batch of `step`, one batch for every pass."""
    processes = dist.get_world_size()
    starts = range(step * batch_size + dist.get_rank() * samples, (step + 1) * batch_size, processes * samples)
    collated = [dataset.collate([dataset[start + index] for index in range(samples)]) for start in starts]
    return [{key: value.to(device) for key, value in batch.items()} for batch in collated]


def _backward(model: nn.Module, batches: list[Item], precision: str) -> tuple[Tensor, int]:
    """Gradients of the mean loss over the predicted tokens of all processes; that loss, and the tokens read by all."""
    device = batches[0]["input_ids"].device
    predicted = sum(int((batch["labels"][:, 1:] != IGNORED).sum()) for batch in batches)
    tokens = sum(int(batch.get("attention_mask", torch.ones_like(batch["input_ids"])).sum()) for batch in batches)
    counts = torch.tensor([predicted, tokens], device=device)
    dist.all_reduce(counts)
    loss = torch.zeros((), device=device)
    for batch in batches:
        with _exchange(model, last=batch is batches[-1]):
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                part = model(**batch, num_items_in_batch=counts[0], use_cache=False).loss
            # gradients are averaged over the processes, but a process's part is a share of the whole already
            (part * dist.get_world_size()).backward()
        loss += part.detach()
    dist.all_reduce(loss)
    return loss, int(counts[1])


def _exchange(model: nn.Module, last: bool) -> AbstractContextManager:
    """Gradients are exchanged in a step's last pass; of a sharded model in each, for no process has room for all."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) and not last else nullcontext()


def _require_finite(quantity: str, value: Tensor, step: int) -> None:
    if not torch.isfinite(value):
        advice = "lower the learning rate or the gradient clip"
        raise TrainingDiverged(f"step {step}: the {quantity} is {value.item()}; {advice}")
