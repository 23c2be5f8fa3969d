"""Checkpoints of a training over several processes, in which each writes its share; any number of them reads them.

A checkpoint holds the weights and the optimiser's state, by their names and places in the whole. It does not depend on
the sharding.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

from recurformer.train.checkpoints import mark_complete


def save_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write `folder`, which is whole when all processes have written their share; older ones are then removed."""
    dcp.save(_state(model, optimizer), checkpoint_id=folder)
    dist.barrier()
    if dist.get_rank() == 0:
        mark_complete(folder)
        for old in folder.parent.glob("checkpoint-*"):
            if old != folder:
                shutil.rmtree(old)


def load_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Continue from a checkpoint of `save_checkpoint`."""
    state = _state(model, optimizer)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def whole_weights(model: nn.Module) -> dict[str, Any]:
    """All weights on the CPU, on the first process; every process must call this, the others get an empty dict.

    A tied weight is there once, under its first name.
    """
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    again = dict(model.named_parameters(remove_duplicate=False)).keys() - dict(model.named_parameters()).keys()
    return {name: weight for name, weight in weights.items() if name not in again}


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}
