"""Listen to a model's attention layers through transformers' attention interface.

The model computes its output with the library's `sdpa` attention as always; beside it every layer shows its queries,
keys and values to a listener, which travels with the forward pass as the keyword argument `attention_listener`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

IMPLEMENTATION = "recurformer_stream"
UNSUPPORTED = ("softcap", "s_aux", "position_bias")  # arguments that change the weights in ways not recomputed here


class AttentionListener(Protocol):
    """What a model in `listening` shows its attention layers to."""

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
    ) -> None:
        """Take what one layer is about to attend with.

        Args:
            layer: index of the decoder layer.
            query: query states (B, H, L, head_dim), rotated.
            key: likewise, repeated to the query heads.
            value: likewise, repeated to the query heads.
            mask: which keys a query may see, (B or 1, 1, L, L) bool; None means all up to the query's own position.
            scaling: factor of the scores before the softmax.
        """


def _overheard_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    attention_listener: AttentionListener | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if attention_listener is not None:
        _tell(attention_listener, module, query, key, value, attention_mask, scaling, kwargs)
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)


def _tell(
    listener: AttentionListener, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
    scaling: float | None, kwargs: dict[str, Any]
) -> None:  # fmt: skip
    strange = [name for name in UNSUPPORTED if kwargs.get(name) is not None]
    if strange:
        raise ValueError(f"{type(module).__name__} attends with {strange[0]}, whose weights cannot be streamed")
    groups = query.shape[1] // key.shape[1]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    listener(module.layer_idx, query, repeat_kv(key, groups), repeat_kv(value, groups), mask, scaling)


AttentionInterface.register(IMPLEMENTATION, _overheard_attention)
# Without a mask function under the same name the library hands every layer the mask None, silently: padding would be
# attended.
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


@contextmanager
def listening(model: PreTrainedModel) -> Iterator[None]:
    """Inside, the model is in evaluation mode and takes `attention_listener`; afterwards it is as before, also after an
    error.

    Raises:
        ValueError: the model does not attend through transformers' attention interface.
    """
    implementation, training = model.config._attn_implementation, model.training
    try:
        model.set_attn_implementation(IMPLEMENTATION)
        if model.config._attn_implementation != IMPLEMENTATION:
            raise ValueError(f"{type(model).__name__} does not attend through transformers' attention interface")
        model.eval()
        yield
    finally:
        model.set_attn_implementation(implementation)
        model.train(training)
