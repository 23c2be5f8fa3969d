"""Attend in the place of a model's own attention, through transformers' attention interface.

Every layer hands its queries, keys and values to a function that travels with the forward pass as the keyword argument
`attend`, and takes its output from there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from recurformer.model.attending import attending_by, refuse

IMPLEMENTATION = "recurformer_stream"


class Attend(Protocol):
    """What a model in `attending` calls instead of its own attention."""

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
    ) -> Tensor:
        """Attend in one layer.

        Args:
            layer: index of the decoder layer.
            query: query states (B, H, L, head_dim), rotated.
            key: likewise, of the key-value heads, each of which serves H / key-value heads queries in a row.
            value: likewise.
            mask: which keys a query may see, (B or 1, 1, L, L) bool; None means all up to the query's own position.
            scaling: factor of the scores before the softmax.

        Returns:
            (B, L, H, head_dim).
        """


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    attend: Attend | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    refuse(module, kwargs, "whose weights cannot be streamed")
    if attend is None:
        raise ValueError(f"{type(module).__name__} is not handed the keyword arguments of the forward pass")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(module.layer_idx, query, key, value, attention_mask, scaling), None


AttentionInterface.register(IMPLEMENTATION, _attention)
# Without a mask function under the same name the library hands every layer the mask None, silently: a sliding window
# would not slide.
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


@contextmanager
def attending(model: PreTrainedModel) -> Iterator[None]:
    """Inside, the model is in evaluation mode and needs `attend`; afterwards it is as before, also after an error.

    Raises:
        ValueError: the model does not attend through transformers' attention interface.
    """
    training = model.training
    with attending_by(model, IMPLEMENTATION):
        try:
            model.eval()
            yield
        finally:
            model.train(training)
