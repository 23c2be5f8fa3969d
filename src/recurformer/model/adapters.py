"""Adapters: code that reads a layer's weights directly, without its forward pass, would miss them."""

from torch import nn


def refuse_adapter(module: nn.Module, place: str) -> None:
    """Refuse a layer that PEFT has wrapped in an adapter.

    Args:
        module: a layer of a model.
        place: its name in the message.

    Raises:
        ValueError: it is wrapped.
    """
    if hasattr(module, "base_layer"):  # PEFT's name of the wrapped layer
        raise ValueError(f"{place} has an adapter; merge it first: model = model.merge_and_unload()")
