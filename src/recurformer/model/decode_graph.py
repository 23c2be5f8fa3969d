"""Decoding with one launch per token: the whole step is captured once as a CUDA graph and replayed.

A graph repeats operations on fixed addresses. So the cache is static (keys and values of the retained heads) or updated
in place (convolution windows and states), positions are tensors that count themselves, and tokens and logits pass
through buffers. On devices without graphs the same step runs operation by operation.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel, StaticCache

from .fold import folded

Step = Callable[[], None]


def capture_cuda_graph(step: Step) -> Step:
    """Return the replay of a step, which must have run before; capturing does not run it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


class DecodeGraph:
    """Decode a fixed number of rows one token after the other, for one prompt after the other.

        with DecodeGraph(model, rows=2, max_length=4096) as decode:
            logits = decode.start(prompts, attention_mask)
            logits = decode(logits.argmax(-1))

    Weights are folded inside (`recurformer.folded`). If one has changed, the next `start` has the step captured anew;
    they must not change between a start and its last token.

    Args:
        model: a causal language model in evaluation mode, converted or not.
        rows: sequences decoded together.
        max_length: tokens, prompt and padding included, that the cache holds.
        capture: makes a replay of a step; by default a CUDA graph's on a GPU, elsewhere steps are not captured.

    Raises:
        ValueError: a step with sliding-window attention is to be captured.
    """

    def __init__(
        self, model: PreTrainedModel, rows: int, max_length: int, capture: Callable[[Step], Step] | None = None
    ):
        self.model, self.max_length = model, max_length
        self.capture = capture or (capture_cuda_graph if model.device.type == "cuda" else None)
        self.cache = StaticCache(config=model.config, max_cache_len=max_length)
        if self.capture and any(getattr(layer, "is_sliding", False) for layer in self.cache.layers):
            raise ValueError("a sliding attention window moves by the host's count of tokens, which no graph advances")
        self.tokens = torch.zeros(rows, 1, dtype=torch.long, device=model.device)
        self.positions = torch.zeros_like(self.tokens)
        self.mask = torch.ones(rows, max_length, dtype=torch.long, device=model.device)
        self.logits: Tensor | None = None
        self.replay: Step | None = None
        self.warm, self.length = False, 0
        self.weights: list[Any] = []
        self.folds = ExitStack()

    def __enter__(self) -> Self:
        self.folds.enter_context(folded(self.model))
        return self

    def __exit__(self, *exception: object) -> None:
        self.replay, self.weights = None, []
        self.folds.close()

    @torch.no_grad()
    def start(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Forget the last sequences and read prompts (rows, L); returns the logits of the next tokens (rows, V).

        Args:
            input_ids: the prompts.
            attention_mask: (rows, L), 0 at padding, which must be on the left.

        Raises:
            ValueError: another number of rows, or more tokens than the cache holds.
        """
        rows, length = input_ids.shape
        if rows != len(self.tokens) or length > self.max_length:
            raise ValueError(
                f"prompts of {rows} rows and {length} tokens: this graph takes {len(self.tokens)} rows and"
                f" at most {self.max_length} tokens"
            )
        self.cache.reset()
        self.mask.fill_(1)
        if attention_mask is not None:
            self.mask[:, :length] = attention_mask
        places = (self.mask[:, :length].cumsum(-1) - 1).clamp(min=0)
        logits = self.model(
            input_ids,
            attention_mask=self.mask[:, :length],
            position_ids=places,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        self.length = length
        self.positions.copy_(places[:, -1:] + 1)
        if self.logits is None:
            self.logits = torch.empty_like(logits)
        if (weights := self._weights()) != self.weights:
            self.weights, self.replay, self.warm = weights, None, False
        return logits

    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> Tensor:
        """Append tokens (rows,); returns the logits of the next (rows, V), in a buffer that the next call overwrites.

        Raises:
            RuntimeError: nothing was started, or the cache is full.
        """
        if self.logits is None or self.length == 0:
            raise RuntimeError("decode step before start: read the prompts first")
        if self.length == self.max_length:
            raise RuntimeError(f"the cache is full: {self.max_length} tokens")
        self.length += 1
        self.tokens.copy_(tokens.unsqueeze(-1))
        if self.replay is None and self.capture is not None and self.warm:
            self.replay = self.capture(self._step)
        (self.replay or self._step)()
        self.warm = True  # kernels are compiled and workspaces are there: from now on a step can be captured
        return self.logits

    def _step(self) -> None:
        logits = self.model(
            self.tokens,
            attention_mask=self.mask,
            position_ids=self.positions,
            past_key_values=self.cache,
            use_cache=True,
        ).logits
        self.positions.add_(1)
        self.logits.copy_(logits[:, -1])  # type: ignore[union-attr]

    def _weights(self) -> list[Any]:
        """Return the weights that a captured step reads; they differ once one changes, moves or is fused anew."""
        weights: list[Any] = [(weight.data_ptr(), weight._version) for weight in self.model.parameters()]
        foldings: list[Any] = [getattr(module, "folding", None) for module in self.model.modules()]
        return weights + [folding.fused for folding in foldings if folding is not None]
