"""An original model beside its conversion: the heads that each mixer replaces, and how far the two lie apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from recurformer.heads.attention import Progress, logits_of
from recurformer.measure.language import divergence
from recurformer.model.attention import RecurFormerAttention
from recurformer.model.config import MODEL_TYPE_PREFIX

PLACES = 128
"""Tokens whose logits exist at the same time: with Gemma's vocabulary those of a long window would fill the memory."""
SAME = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")


@dataclass(frozen=True)
class ReplacedLayer:
    """One layer with replaced heads.

    Attributes:
        index: the layer's place.
        original: the original's attention module.
        converted: the conversion's.
    """

    index: int
    original: Any
    converted: RecurFormerAttention

    @property
    def features(self) -> list[int]:
        """Places of the replaced heads' outputs among all heads' of the original, in the mixer's order."""
        dim = self.converted.head_dim
        return [head * dim + row for head in self.converted.layout.replaced for row in range(dim)]

    @property
    def output_weight(self) -> Tensor:
        """The replaced heads' columns of the output projection, (hidden, replaced heads * head_dim)."""
        return self.converted.o_proj.weight[:, len(self.converted.layout.retained) * self.converted.head_dim :]


def replaced_layers(original: PreTrainedModel, converted: PreTrainedModel) -> list[ReplacedLayer]:
    """Return the layers in which mixers stand for heads.

    Raises:
        ValueError: `original` is converted itself, of other sizes or in training mode, the models differ in type or
            device, or no head is replaced.
    """
    if original.config.model_type.startswith(MODEL_TYPE_PREFIX):
        raise ValueError("original: this model is a converted one; give the model that it was converted from")
    if not converted.config.model_type.startswith(MODEL_TYPE_PREFIX):
        raise ValueError(f"converted: a {converted.config.model_type} model has no mixers; convert it first")
    for name in SAME:
        ours, theirs = (getattr(model.config, name) for model in (converted, original))
        if ours != theirs:
            raise ValueError(f"original: its {name} is {theirs}, the converted model's {ours}; give its own original")
    if original.dtype != converted.dtype:
        raise ValueError(f"original: its weights are {original.dtype}, the converted model's {converted.dtype}")
    if original.training:
        raise ValueError("original: it is in training mode, in which dropout acts; call original.eval()")
    if original.device != converted.device:
        raise ValueError(f"original: it is on {original.device}, the converted model on {converted.device}")
    models: Any = original, converted
    before, after = (model.base_model.layers for model in models)
    layers = [
        ReplacedLayer(index, layer.self_attn, ours.self_attn)
        for index, (layer, ours) in enumerate(zip(before, after, strict=True))
        if isinstance(ours.self_attn, RecurFormerAttention)
    ]
    if not layers:
        raise ValueError("converted: no head is replaced, so there is nothing to recover")
    return layers


def relative_error(outputs: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    """Squared error of head outputs in the residual stream, as a fraction of the contribution of the heads.

    Args:
        outputs: (..., features) of the mixer.
        targets: (..., features) of the replaced heads.
        weight: (hidden, features), their columns of the output projection.

    Returns:
        ||(outputs - targets) weight^T||^2 / ||targets weight^T||^2, 1 for outputs of zero.
    """
    wrong = torch.linalg.vector_norm((outputs - targets) @ weight.mT)
    return (wrong / torch.linalg.vector_norm(targets @ weight.mT)) ** 2


def _last_states(model: Any, window: Tensor) -> Tensor:
    """Return what the language-model head reads of a window (L,): (L, hidden)."""
    return model.base_model(window[None], use_cache=False).last_hidden_state[0]


@torch.no_grad()
def quality_rows(
    original: PreTrainedModel,
    model: PreTrainedModel,
    windows: Tensor,
    progress: Progress = None,
    edges: Sequence[int] = (),
) -> pd.DataFrame:
    """Measure window by window.

    Args:
        original: the model whose predictions are the yardstick.
        model: the changed one, on the same device; may be the original itself.
        windows: (windows, L) token ids, without padding, at least two tokens each.
        progress: called with (windows done, windows).
        edges: places, between 0 and L, at which a window is parted.

    Returns:
        One row a window, or part of one: window, predicted (tokens: all but the first of the window),
        negative_log_likelihood (in nats, mean over them), divergence (KL(original || model), in nats, mean over them);
        with edges also stop, the tokens up to the part's end.
    """
    rows, stops = [], [*edges, windows.shape[1]]
    for number, window in enumerate(windows.to(model.device)):
        ours = _last_states(model, window)
        theirs = ours if model is original else _last_states(original, window)
        for start, stop in pairwise([1, *stops]):
            sums = torch.zeros(2, dtype=torch.float64, device=window.device)
            for begin in range(start, stop, PLACES):
                end = min(begin + PLACES, stop)
                part = slice(begin - 1, end - 1)  # of the places that predict
                said = logits_of(model, ours[part])
                expected = said if model is original else logits_of(original, theirs[part])
                sums[0] += F.cross_entropy(said.float(), window[begin:end], reduction="sum")
                sums[1] += divergence(said, expected).sum()
            rows.append((number, stop - start, *(sums / (stop - start)).tolist(), stop))
        if progress is not None:
            progress(number + 1, len(windows))
    frame = pd.DataFrame(rows, columns=["window", "predicted", "negative_log_likelihood", "divergence", "stop"])
    return frame if len(stops) > 1 else frame.drop(columns="stop")
