"""What all implementations of the selective scan share: inputs, the name of a forced one, and torch operators."""

import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

Passes = tuple[Callable[..., Any], Callable[..., Any]]
"""The forward pass and the backward pass, or the functions that give empty results of each."""


ENVIRONMENT_VARIABLE = "RECURFORMER_SCAN"


def forced() -> str | None:
    """Return the implementation of the recurrent parts that the environment forces, or None."""
    return os.environ.get(ENVIRONMENT_VARIABLE) or None


class ScanInputs(NamedTuple):
    """The arguments of `recurformer.model.scan.selective_scan`, in the order of the operators."""

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    z: Tensor | None
    delta_bias: Tensor | None
    initial_state: Tensor | None
    delta_softplus: bool


NAMES = ScanInputs._fields[:-1]
OPTIONAL = ("D", "z", "delta_bias", "initial_state")
TENSORS = ", ".join(f"Tensor{'?' if name in OPTIONAL else ''} {name}" for name in NAMES)


def operator(module: str, name: str, function: Any, fake: Any, schema: str, device: str | None = None) -> Any:
    """Register `<module>::<name>`, so that a second copy of this code (trust_remote_code) has its own, and return it.

    `fake` gives results of the right shapes but no values; `device` is the only type of device that `function` takes.
    """
    name = f"{re.sub(r'[^0-9A-Za-z]', '_', module)}::{name}"
    registered = torch.library.custom_op(name, function, mutates_args=(), device_types=device, schema=schema)
    registered.register_fake(fake)
    return registered


def empty_gradients(_grad_y, _grad_last, _starts, u, *inputs):
    """Return empty tensors in the place of the gradients of a scan's tensors; the last input is a flag."""
    return [u.new_empty(0) if x is None else x.new_empty(x.shape) for x in (u, *inputs[:-1])]


def scan_operator(module: str, name: str, passes: Passes, empty: Passes, device: str | None = None) -> Passes:
    """Register an implementation's passes as torch operators `name` and `<name>_backward`, and return these.

    Args:
        module: where the operators belong.
        name: of the first.
        passes: forward takes the tensors of `ScanInputs` and a flag, and returns y, the last state and the states that
            the backward pass starts from; backward takes the gradients of y and of the last state (each may be None),
            those states, and the arguments of forward, and returns the tensors' gradients, empty for an absent tensor.
        empty: the same with results of the right shapes but no values.
        device: the only type of device that they take.
    """
    arguments = f"{TENSORS}, bool flag"
    outwards = f"({arguments}) -> (Tensor, Tensor, Tensor)"
    back = f"(Tensor? grad_y, Tensor? grad_last, Tensor starts, {arguments}) -> Tensor[]"
    forward = operator(module, name, passes[0], empty[0], outwards, device)
    backward = operator(module, f"{name}_backward", passes[1], empty[1], back, device)

    def save(ctx, inputs, output):
        *tensors, ctx.flag = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, output[2])

    def differentiate(ctx, grad_y, grad_last, _grad_starts):
        *tensors, starts = ctx.saved_tensors  # read once: activation checkpointing recomputes at each reading
        grads = backward(grad_y, grad_last, starts, *tensors, ctx.flag)
        return *(None if x is None else grad for x, grad in zip(tensors, grads, strict=True)), None

    forward.register_autograd(differentiate, setup_context=save)
    return forward, backward
