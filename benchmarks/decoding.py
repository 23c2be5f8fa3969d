"""Greedy decoding from a filled cache. A further way to decode is a further entry in `DECODERS`."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from recurformer.measure.cache import cache_bytes

STEPS = 8
"""Tokens decoded in one run."""


@torch.no_grad()
def fill(model: PreTrainedModel, input_ids: Tensor) -> DynamicCache:
    """The cache after a prompt."""
    cache = DynamicCache(config=model.config)
    model(input_ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return cache


def held_bytes(cache: DynamicCache) -> int:
    """Bytes of all tensors in a cache."""
    return int(cache_bytes(cache).bytes.sum())


class Decoder:
    """Decodes one token after the other by the model's forward pass.

    Args:
        model: in evaluation mode.
        filled: cache of the context; it stays as it is.
        batch: sequences in it.
    """

    def __init__(self, model: PreTrainedModel, filled: DynamicCache, batch: int = 1):
        self.model, self.filled, self.batch = model, filled, batch
        self.cache: DynamicCache | None = None

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


DECODERS: dict[str, Callable[[PreTrainedModel, DynamicCache], Decoder]] = {"": Decoder}
"""What is added to the name of a candidate -> how it decodes."""
