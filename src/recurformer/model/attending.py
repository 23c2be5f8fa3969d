"""Let a model attend by another function of transformers' attention interface, for one caller."""

from collections.abc import Mapping
from copy import copy, deepcopy
from functools import partial
from types import MethodType
from typing import Any

from torch.nn import Module
from transformers import PreTrainedConfig, PreTrainedModel

UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Arguments of an attention function that change the weights in ways no function here knows."""


def refuse(module: Module, arguments: Mapping[str, Any], reason: str, *more: str) -> None:
    """Check the arguments that transformers hands to an attention function.

    Raises:
        ValueError: one of `UNSUPPORTED` or `more` is given; `reason` ends the sentence.
    """
    strange = [name for name in (*UNSUPPORTED, *more) if arguments.get(name) is not None]
    if strange:
        raise ValueError(f"{type(module).__name__} attends with {strange[0]}, {reason}")


def attending_by(model: PreTrainedModel, implementation: str) -> PreTrainedModel:
    """Return the model as it attends by the function of this name; the given one and its other callers stay as it is.

    Modules and configs are copies; weights and buffers are shared, and so are the hooks of this moment.

    Raises:
        ValueError: the model does not attend through transformers' attention interface.
    """
    copies: dict[int, Any] = {id(module): copy(module) for module in model.modules()}
    for module in list(copies.values()):
        for name, value in vars(module).items():
            if isinstance(value, dict):  # of submodules, parameters, buffers or hooks
                vars(module)[name] = type(value)((key, copies.get(id(item), item)) for key, item in value.items())
            elif isinstance(value, (PreTrainedConfig, MethodType, partial)):  # methods that someone has wrapped, too
                vars(module)[name] = deepcopy(value, copies)
    twin = copies[id(model)]
    twin.set_attn_implementation(implementation)
    if twin.config._attn_implementation != implementation:
        raise ValueError(f"{type(model).__name__} does not attend through transformers' attention interface")
    return twin
