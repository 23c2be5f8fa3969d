"""The loss of a model after a change of one attention head's output, for every head by itself.

The layers below the head do not change, so they are run once. From its layer on, the model runs over copies of the
samples side by side, in each of which another head is replaced. The caller gives the replacement.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from recurformer.batching import samples_per_batch
from recurformer.heads.run import Arguments, Progress, attending, check_batch, reading, retained_heads
from recurformer.model.layout import sliding_layers
from recurformer.tasks import IGNORED

Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]
"""Attends with a layer's query, key, value, mask and scaling, as `Attend` gets them; returns (B, L, H, head_dim)."""


def causal_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """The output of a layer by itself."""
    causal = mask is None
    output = F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=scaling, enable_gqa=True)
    return output.transpose(1, 2)


@dataclass
class _OneReplaced:
    """Attends to copies of the samples (copy 1, copy 2, …); an `Attend`.

    Attributes:
        replacement: gives the replaced heads' output.
        layer: the layer where heads are replaced.
        heads: for each copy the position of its replaced head.
        samples: of one copy.
        attended: whether any layer has called.
    """

    replacement: Attention
    layer: int
    heads: range
    samples: int
    attended: bool = False

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
    ) -> Tensor:
        self.attended = True
        mask = mask if mask is None else mask[:1]  # without padding all samples have the same
        if layer != self.layer:
            return causal_attention(query, key, value, mask, scaling)
        query, key, value = (states[: self.samples] for states in (query, key, value))  # no copy differs until here
        output = causal_attention(query, key, value, mask, scaling).repeat(len(self.heads), 1, 1, 1)
        replaced = self.replacement(query, key, value, mask, scaling)
        for copy, head in zip(output.split(self.samples), self.heads, strict=True):
            copy[:, :, head] = replaced[:, :, head]
        return output


def _run_from(base: Any, layer: int, calls: list[Arguments], attend: _OneReplaced) -> Tensor:
    """Last hidden states, (copies * B, L, hidden), if the layers from `layer` on read copies of the samples."""
    hidden = calls[layer][0][0].repeat(len(attend.heads), 1, 1)
    for above, (_, arguments) in zip(base.layers[layer:], calls[layer:], strict=True):
        hidden = above(hidden, **{**arguments, "attend": attend})
    return base.norm(hidden)


def logits_of(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Return the logits of hidden states after the last norm, which Granite scales and Gemma bounds."""
    logits = model.get_output_embeddings()(hidden) / getattr(model.config, "logits_scaling", 1.0)
    cap = getattr(model.config, "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _loss(model: PreTrainedModel, hidden: Tensor, labels: Tensor) -> float:
    """Mean negative log-likelihood of the labels, in nats, from the hidden states after the last layer's norm."""
    predicted = labels[:, 1:] != IGNORED
    logits = logits_of(model, hidden[:, :-1][predicted])
    wide = torch.promote_types(logits.dtype, torch.float32)
    return float(F.cross_entropy(logits.to(wide), labels[:, 1:][predicted], reduction="none").double().mean())


@torch.no_grad()
def loss_rises(
    model: PreTrainedModel, input_ids: Tensor, labels: Tensor, replacement: Attention, progress: Progress = None
) -> Tensor:
    """Rise of the loss when one head's output is replaced.

    Args:
        model: a causal language model of Llama's build: decoder layers, a norm, a language-model head.
        input_ids: (samples, L) without padding.
        labels: (samples, L), aligned with input_ids, -100 where no token is predicted.
        replacement: attends in the place of the replaced head; called once for a layer and batch of heads.
        progress: called with (layers done, layers).

    Returns:
        (layers, heads) float64: rise of the labels' mean negative log-likelihood, in nats; NaN where no head attends,
        and in layers with a sliding window between others without one.

    Raises:
        ValueError: empty input, labels without any prediction, or a model that does not use the attention interface.
    """
    check_batch(input_ids)
    if not (labels[:, 1:] != IGNORED).any():
        raise ValueError("labels ask nothing: there is no loss that could rise")
    input_ids, labels = input_ids.to(model.device), labels.to(model.device)
    base: Any = attending(model).base_model
    rises = torch.full((len(base.layers), model.config.num_attention_heads), float("nan"), dtype=torch.float64)
    at_once = samples_per_batch(model.device.type, input_ids.numel())
    with reading(base.layers) as calls:
        unchanged = _OneReplaced(replacement, -1, range(0), len(input_ids))
        loss = _loss(model, base(input_ids, use_cache=False, attend=unchanged).last_hidden_state, labels)
    if not unchanged.attended:
        raise ValueError(f"{type(model).__name__} does not attend through transformers' attention interface")
    for layer in range(len(base.layers)):
        heads = [] if layer in sliding_layers(model.config) else retained_heads(model.config, layer)
        for start in range(0, len(heads), at_once):
            chosen = range(start, min(start + at_once, len(heads)))
            attend = _OneReplaced(replacement, layer, chosen, len(input_ids))
            copies = _run_from(base, layer, calls, attend).split(len(input_ids))
            for position, copy in zip(chosen, copies, strict=True):
                rises[layer, heads[position]] = _loss(model, copy, labels) - loss
        if progress is not None:
            progress(layer + 1, len(base.layers))
    return rises
