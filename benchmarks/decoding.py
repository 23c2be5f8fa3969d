"""Greedy decoding after a context. A further way to decode is a further entry in `DECODERS`."""

import copy
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from recurformer.model.decode_graph import DecodeGraph

STEPS = 8
"""Tokens decoded in one run."""
ROOM = 20 * STEPS
"""Tokens that a static cache holds beyond the context."""


@torch.no_grad()
def fill(model: PreTrainedModel, input_ids: Tensor) -> DynamicCache:
    """The cache after a prompt."""
    cache = DynamicCache(config=model.config)
    model(input_ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return cache


class Decoder(Protocol):
    """What decodes `STEPS` tokens of every sequence after one and the same context, as often as one likes."""

    def renew(self) -> None:
        """Make ready for a run; not timed."""

    def run(self) -> None:
        """Decode."""


class EagerDecoder:
    """One forward pass of the model after the other, as stock generate() calls it.

    Args:
        model: in evaluation mode.
        filled: cache of the context; it stays as it is.
        batch: sequences in it.
    """

    def __init__(self, model: PreTrainedModel, filled: DynamicCache, batch: int = 1):
        self.model, self.filled, self.batch = model, filled, batch
        self.cache = filled

    def renew(self) -> None:
        """Start again after the context."""
        self.cache = copy.deepcopy(self.filled)

    @torch.no_grad()
    def run(self) -> None:
        """Decode `STEPS` tokens of every sequence."""
        token = torch.zeros(self.batch, 1, dtype=torch.long, device=self.model.device)
        for _ in range(STEPS):
            output = self.model(token, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
            token = output.logits[:, -1].argmax(-1, keepdim=True)


class GraphDecoder:
    """`DecodeGraph`: a static cache, and on CUDA the whole step captured. The model is folded already.

    It reads its prompt again only when the cache is full: wherever in a static cache the context ends, a step costs the
    same.
    """

    def __init__(self, model: PreTrainedModel, input_ids: Tensor):
        self.input_ids = input_ids
        self.graph = DecodeGraph(model, len(input_ids), input_ids.shape[1] + ROOM)
        self.graph.start(input_ids)

    def renew(self) -> None:
        """Make room for a run."""
        if self.graph.length + STEPS > self.graph.max_length:
            self.graph.start(self.input_ids)

    def run(self) -> None:
        """Decode `STEPS` tokens of every sequence."""
        tokens = self.input_ids[:, -1]
        for _ in range(STEPS):
            tokens = self.graph(tokens).argmax(-1)


def _eager(model: PreTrainedModel, input_ids: Tensor) -> Decoder:
    return EagerDecoder(model, fill(model, input_ids), len(input_ids))


DECODERS: dict[str, Callable[[PreTrainedModel, Tensor], Decoder]] = {"": _eager, ", graph": GraphDecoder}
"""What is added to the name of a case -> what decodes after a prompt."""
