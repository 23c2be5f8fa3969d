"""Run a model over samples with an attention function of the caller in the place of its own.

`watch_attention` shows an observer the attention weights, `ROWS` queries at a time, and the model attends with these
very weights. No layer ever has a (B, H, L, L) tensor.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from recurformer.data.datasets import samples_per_batch
from recurformer.model.prefill import attending_by, check_arguments

IMPLEMENTATION = "recurformer_stream"
Progress = Callable[[int, int], None] | None
"""Called with (done, all)."""
Attend = Callable[[int, Tensor, Tensor, Tensor, Tensor | None, float], Tensor]
"""What a model in `attending` calls instead of its own attention, with a layer's index, query, key, value, mask and
scaling as in `LayerInputs`; returns (B, L, H, head_dim)."""


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
    check_arguments(module, kwargs, "whose weights cannot be streamed")
    if attend is None:
        raise ValueError(f"{type(module).__name__} is not handed the keyword arguments of the forward pass")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(module.layer_idx, query, key, value, attention_mask, scaling), None


AttentionInterface.register(IMPLEMENTATION, _attention)
# Without a mask function under the same name the library hands every layer the mask None, silently: a sliding window
# would not slide.
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


def attending(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model in evaluation mode as it needs `attend`; the given one stays as it is.

    Raises:
        ValueError: the model does not attend through transformers' attention interface.
    """
    return attending_by(model, IMPLEMENTATION).eval()


def causal_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """The output of a layer by itself."""
    causal = mask is None
    output = F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=scaling, enable_gqa=True)
    return output.transpose(1, 2)


def logits_of(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Return the logits of hidden states after the last norm, which Granite scales and Gemma bounds."""
    logits = model.get_output_embeddings()(hidden) / getattr(model.config, "logits_scaling", 1.0)
    cap = getattr(model.config, "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap


Arguments = tuple[tuple[Tensor, ...], dict[str, Any]]
"""Arguments of one call of a module: by position and by name."""


@contextmanager
def reading(modules: Iterable[nn.Module]) -> Iterator[list[Arguments]]:
    """Collect the arguments of every call of some modules, in the order of the calls, while the block runs."""
    calls: list[Arguments] = []
    with ExitStack() as stack:
        for module in modules:
            handle = module.register_forward_pre_hook(lambda _, *arguments: calls.append(arguments), with_kwargs=True)
            stack.callback(handle.remove)
        yield calls


@dataclass(frozen=True)
class LayerInputs:
    """The inputs of one layer's attention in one forward pass.

    Attributes:
        layer: index of the decoder layer.
        heads: the model's own (original) indices of the query heads, (H,), in the order of the tensors below.
        samples: indices of the batch's samples in the whole input, (B,).
        tokens: whether a position holds a token and not padding, (B, L) bool; padding is on the right.
        query: query states (B, H, L, head_dim), rotated.
        key: likewise, of the key-value heads, each of which serves H / key-value heads queries in a row.
        value: likewise.
        mask: whether a query may see a key, (B or 1, 1, L, L) bool; None means all up to the query's own position.
        scaling: factor of the scores before the softmax.
    """

    layer: int
    heads: Tensor
    samples: Tensor
    tokens: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scaling: float

    @property
    def place(self) -> tuple[Tensor, int, Tensor]:
        """Index of these samples' heads in a tensor (samples, layers, heads)."""
        return self.samples[:, None], self.layer, self.heads[None, :]


def retained_heads(config: Any, layer: int) -> list[int]:
    """Query heads of `layer` that still attend, by their original index: all of them unless the model was converted."""
    replaced = set((getattr(config, "recurrent_heads", None) or {layer: ()})[layer])
    return [head for head in range(config.num_attention_heads) if head not in replaced]


def check_batch(input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """Return whether each position holds a token, (samples, L) bool.

    Raises:
        ValueError: the input is empty or not (samples, tokens), the mask has another shape, or padding stands between
            tokens.
    """
    if input_ids.dim() != 2 or input_ids.numel() == 0:
        raise ValueError(
            f"input_ids must be (samples, tokens) with at least one of each, got shape {tuple(input_ids.shape)}"
        )
    if attention_mask is None:
        return torch.ones_like(input_ids, dtype=torch.bool)
    if attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}, input_ids {tuple(input_ids.shape)}: must agree"
        )
    tokens = attention_mask.bool()
    edges = (tokens.int().diff(dim=1) != 0).sum(1)
    wrong = ~tokens.any(1) | (edges > 2) | ((edges == 2) & tokens[:, 0])
    if wrong.any():
        sample = int(wrong.nonzero()[0])
        raise ValueError(
            f"attention_mask of sample {sample}: the tokens must be one unbroken run, at least one token long"
        )
    return tokens


def _left_aligned(input_ids: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The samples from their first token on, padding after it, where causal attention needs no mask."""
    first = tokens.int().argmax(1, keepdim=True)
    order = (torch.arange(input_ids.shape[1], device=input_ids.device) + first) % input_ids.shape[1]
    return input_ids.gather(1, order), tokens.gather(1, order)


@torch.no_grad()
def run_attention(
    model: PreTrainedModel,
    input_ids: Tensor,
    attention: Callable[[LayerInputs], Tensor],
    attention_mask: Tensor | None = None,
    batch_size: int | None = None,
    progress: Progress = None,
) -> None:
    """Run the model without its language-model head over all samples, with `attention` in the place of its own.

    The model and its other callers notice nothing of it. Padding may be on the left or on the right: every sample is
    moved to begin at position 0, so that padding changes nothing.

    Args:
        model: causal language model whose attention goes through transformers' attention interface; converted models
            too, of which only the retained heads attend.
        input_ids: (samples, L) token ids.
        attention: called for every layer of every batch; returns (B, L, H, head_dim).
        attention_mask: (samples, L), 1 for tokens and 0 for padding; None means no padding.
        batch_size: samples in one forward pass; None: see `samples_per_batch`.
        progress: called with (samples done, samples) after each batch.

    Raises:
        ValueError: bad input (see `check_batch`), batch_size below 1, or the model does not use the attention
            interface.
    """
    input_ids, tokens = _left_aligned(input_ids, check_batch(input_ids, attention_mask))
    samples, length = input_ids.shape
    if batch_size is None:
        batch_size = samples_per_batch(model.device.type, length)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    heads = [torch.tensor(retained_heads(model.config, layer)) for layer in range(model.config.num_hidden_layers)]
    reader, attended = attending(model), set[int]()
    for start in range(0, samples, batch_size):
        rows = slice(start, min(start + batch_size, samples))
        about = torch.arange(rows.start, rows.stop), tokens[rows].to(model.device)

        def attend(layer: int, query: Tensor, *states: Any, about: tuple[Tensor, Tensor] = about) -> Tensor:
            if query.shape[1] != (count := len(heads[layer])):
                raise ValueError(f"layer {layer} attends with {query.shape[1]} query heads, its config says {count}")
            attended.add(layer)
            return attention(LayerInputs(layer, heads[layer], *about, query, *states))

        reader.base_model(input_ids[rows].to(model.device), use_cache=False, attend=attend)
        if any(map(len, heads)) and not attended:
            raise ValueError(f"{type(model).__name__} does not attend through transformers' attention interface")
        if progress is not None:
            progress(rows.stop, samples)


ROWS = 128  # query rows whose weights exist at the same time


@dataclass(frozen=True)
class AttentionBlock:
    """The attention weights of some queries of one layer.

    Attributes:
        inputs: of the layer's attention.
        start: position of the first query.
        weights: softmax weights (B, H, queries, keys) in float32 or better; keys are positions 0 .. start + queries -
            1. Rows of padding are zero. The observer may overwrite them.
    """

    inputs: LayerInputs
    start: int
    weights: Tensor

    @property
    def stop(self) -> int:
        """Position after the last query, and the number of keys."""
        return self.start + self.weights.shape[2]

    def value_norms(self, order: int) -> Tensor:
        """Norm of every query head's value vector of each key, (B, H, keys), float64."""
        norms = self.inputs.value[:, :, : self.stop].double().norm(p=order, dim=-1)
        return norms.repeat_interleave(self.weights.shape[1] // norms.shape[1], 1)


AttentionObserver = Callable[[AttentionBlock], None]
"""Reads a block; the block's tensors are not to be kept."""


def attend_by_rows(inputs: LayerInputs, observer: AttentionObserver) -> Tensor:
    """Attend with explicit weights and show them to `observer`, block by block; returns (B, L, H, head_dim)."""
    query, key, value, mask = inputs.query, inputs.key, inputs.value, inputs.mask
    batch, heads, length, _ = query.shape
    dtype = torch.promote_types(query.dtype, torch.float32)
    positions = torch.arange(length, device=query.device)
    outputs = []
    for start in range(0, length, ROWS):
        stop = min(start + ROWS, length)
        rows = query[:, :, start:stop].unflatten(1, (key.shape[1], -1)).flatten(2, 3)
        scores = (rows @ key[:, :, :stop].transpose(-1, -2)).view(batch, heads, stop - start, stop)
        visible = positions[start:stop, None] >= positions[None, :stop]
        if mask is not None:
            visible = visible & mask[:, :, start:stop, :stop]
        weights = scores.to(dtype).mul_(inputs.scaling).masked_fill_(~visible, float("-inf")).softmax(-1)
        if mask is not None:
            weights.masked_fill_(~visible, 0.0)  # a row without keys is NaN until here
        grouped = weights.to(value.dtype).unflatten(1, (value.shape[1], -1)).flatten(2, 3)
        outputs.append((grouped @ value[:, :, :stop]).view(batch, heads, stop - start, -1))
        observer(AttentionBlock(inputs, start, weights.mul_(inputs.tokens[:, None, start:stop, None])))
    return torch.cat(outputs, 2).transpose(1, 2)


def watch_attention(
    model: PreTrainedModel,
    input_ids: Tensor,
    observer: AttentionObserver,
    progress: Progress = None,
) -> None:
    """Run the model over all samples and show every attention layer's weights to `observer`: see `run_attention`."""
    run_attention(model, input_ids, lambda inputs: attend_by_rows(inputs, observer), progress=progress)
