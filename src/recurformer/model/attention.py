"""One layer's self-attention after conversion: retained heads attend, a mixer stands in the replaced heads' place."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

from .few_rows import product, project
from .layer_step import whole_step
from .layout import has_bias, head_layout, rotate, rotates
from .mixer import FusedWeights, ReplacedHeads, repeat_heads
from .mixers import MIXERS
from .prefill import IMPLEMENTATION as CHUNKED

# Attention functions that may be called for a part of the heads; one that someone registered may have to see them all.
# Eager attention copies every key anyway, and the weights that it returns have to be those that it multiplies by.
HEADWISE_ATTENTION = frozenset({"sdpa", "flash_attention_2", "flash_attention_3", "flex_attention", CHUNKED})


class RecurFormerAttention(nn.Module):
    """Self-attention of the retained heads in parallel with one mixer over the replaced heads (Algorithm 1).

    Queries and keys are projected for retained heads only, unless the mixer reads them too, values for all. Rows of the
    projections and columns of the output projection are ordered [retained heads | replaced heads], so that the
    concatenation of Algorithm 1 needs no gather. The mixer is the submodule of its name, such as `mamba`.

    Args:
        base: the stock attention module that this one stands in for; its biases, its scaling, its norms of queries and
            keys, and whether it knows positions are taken over.
        config: a RecurFormer config.
        layer_index: the layer's place.
    """

    def __init__(self, base: Any, config: Any, layer_index: int):
        super().__init__()
        self.config, self.layer_idx, self.is_causal = config, layer_index, True
        self.head_dim, self.scaling, self.attention_dropout = base.head_dim, base.scaling, base.attention_dropout
        self.layout = head_layout(
            config.recurrent_heads[layer_index], config.num_attention_heads, config.num_key_value_heads
        )
        # No index tensors: no checkpoint would carry them, and a model that is built on meta would lack their values.
        sizes = self.layout.group_sizes
        self.replaced_spans = self.layout.replaced_spans
        self.query_spans = self.layout.query_spans
        self.num_key_value_groups = 1 if self.layout.ragged or not sizes else sizes[0]
        hidden, dim, mixer = config.hidden_size, self.head_dim, MIXERS[config.mixer]
        self.rotates, self.normed, bias = rotates(base), hasattr(base, "q_norm"), has_bias(base)
        self.reads_keys = mixer.reads_keys
        projected = self.layout.projected_heads(self.reads_keys)

        if projected["q"]:
            self.q_proj = nn.Linear(hidden, len(projected["q"]) * dim, bias=bias)
            self.k_proj = nn.Linear(hidden, len(projected["k"]) * dim, bias=bias)
            if self.normed:
                self.q_norm, self.k_norm = base.q_norm, base.k_norm
        self.v_proj = nn.Linear(hidden, len(projected["v"]) * dim, bias=bias)
        self.o_proj = nn.Linear(config.num_attention_heads * dim, hidden, bias=base.o_proj.bias is not None)
        self.add_module(config.mixer, mixer(config, self.layout, dim, layer_index))
        self.folding: Callable[[nn.Module], FusedWeights | None] | None = None  # set by `recurformer.folded`
        self.steps: Callable[..., Tensor | None] | None = None  # likewise
        # without any attention head there are no keys to count tokens by: the first layer caches one scalar per token
        self.counts_tokens = not self.layout.retained and config.layer_types[layer_index] == "hybrid"

    @property
    def mixer(self) -> nn.Module:
        """The mixer that stands in the place of the replaced heads."""
        return getattr(self, self.config.mixer)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        recurrent_mask: Tensor | None = None,
        mixer_positions: tuple[Tensor, Tensor] | None = None,
        **kwargs,
    ) -> tuple[Tensor, Tensor | None]:
        """Mix (B, L, hidden) along L.

        Args:
            hidden_states: inputs (B, L, hidden).
            position_embeddings: cosines and sines of the rotary embedding.
            attention_mask: the mask of the configured attention function, or None.
            past_key_values: the cache; holds keys and values of attended KV heads, and the mixer's states.
            recurrent_mask: padding mask (B, L) of these tokens or None.
            mixer_positions: cosines and sines for the mixer, where they are not `position_embeddings`.
            **kwargs: handed on to the attention function.

        Returns:
            outputs (B, L, hidden), and the retained heads' attention weights if the attention function gives them.
        """
        projected, values = self._project(hidden_states)
        positions = position_embeddings if self.rotates else None
        fused = None if self.folding is None else self.folding(self)
        reads = self._reads(hidden_states, projected, mixer_positions or position_embeddings)
        if fused is not None:
            reads["fused"] = fused
        retained, weights = self._retain(
            values, projected, positions, attention_mask, past_key_values, **kwargs
        )  # (B, L, retained heads * head_dim)
        read = self._replaced(values).flatten(2)  # (B, L, KV heads that replaced heads read * head_dim)
        replaced = self.mixer(read, past_key_values, recurrent_mask, **reads)  # (B, L, replaced heads * head_dim)
        mixed = replaced if retained is None else torch.cat([retained, replaced], -1)  # (B, L, heads * head_dim)
        if fused is None or fused.output is None:
            return self.o_proj(mixed), weights
        return product(mixed, fused.output, self.o_proj.bias), weights

    def replaced_outputs(self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mixer's outputs (B, L, replaced heads * head_dim) alone, of whole sequences without padding."""
        projected, values = self._project(hidden_states)
        reads = self._reads(hidden_states, projected, position_embeddings)
        return self.mixer(self._replaced(values).flatten(2), None, None, **reads)

    def read(self, hidden_states: Tensor) -> Tensor:
        """Return the values (B, L, features) that the mixer reads."""
        return self._replaced(self._by_head(self.v_proj(hidden_states))).flatten(2)

    def _by_head(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:-1], -1, self.head_dim)

    def _reads(
        self, hidden_states: Tensor, projected: tuple[Tensor, Tensor] | None, positions: tuple[Tensor, Tensor]
    ) -> dict[str, Any]:
        """Return what the mixer reads beside values, from queries and keys of all heads (B, L, heads, head_dim)."""
        if projected is None or not self.reads_keys:
            return {}
        queries, keys = projected[0][:, :, len(self.layout.retained) :], self._replaced(projected[1])
        if self.scaling != self.head_dim**-0.5:
            queries = queries * (self.scaling * self.head_dim**0.5)
        return {"heads": ReplacedHeads(hidden_states, queries, keys, positions if self.rotates else None)}

    def _project(self, hidden_states: Tensor) -> tuple[tuple[Tensor, Tensor] | None, Tensor]:
        """Return queries and keys, or None where nothing reads them, and values, (B, L, heads, head_dim) each.

        Queries and keys are normalised where the family does so, and not rotated.
        """
        if not hasattr(self, "q_proj"):
            return None, self._by_head(self.v_proj(hidden_states))
        rows = project(hidden_states, (self.q_proj, self.k_proj, self.v_proj))
        queries, keys, values = (self._by_head(x) for x in rows)
        return ((self.q_norm(queries), self.k_norm(keys)) if self.normed else (queries, keys)), values

    def _replaced(self, heads: Tensor) -> Tensor:
        """Return those of the KV heads (B, L, KV heads, head_dim) that replaced query heads read."""
        parts = [heads[:, :, start:stop] for start, stop in self.replaced_spans]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)

    def _retain(
        self,
        values: Tensor,
        projected: tuple[Tensor, Tensor] | None,
        positions: tuple[Tensor, Tensor] | None,
        attention_mask: Tensor | None,
        cache: Cache | None,
        **kwargs,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Attend with the retained heads: outputs (B, L, features) and weights; neither without any such head."""
        if projected is None or not self.layout.retained:
            if self.counts_tokens and cache is not None:
                tick = values[:, :, :1, :1].transpose(1, 2)
                cache.update(tick, tick, self.layer_idx)
            return None, None
        shape, (query, key) = values.shape[:2], projected
        query = query[:, :, : len(self.layout.retained)]
        key, value = (x[:, :, : self.layout.attended_kv_heads] for x in (key, values))
        if self.steps is not None and shape[1] == 1 and cache is not None:
            output = whole_step(self, cache, attention_mask, (query, key, value), positions)
            if output is not None:
                return output, None
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))  # (B, heads or KV heads, L, head_dim)
        query, key = rotate(query, key, positions)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)  # (B, KV heads, tokens so far, head_dim)
        output, weights = self._attend(query, key, value, attention_mask, **kwargs)  # (B, L, H, head_dim)
        return output.reshape(*shape, -1), weights

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs
    ) -> tuple[Tensor, Tensor | None]:
        """Attend with the retained heads; returns (B, L, H, head_dim) and weights (B, H, L, keys) or None.

        Query groups of unequal size copy the keys in eager attention only: a decode step pads every group with zero
        queries and lets the group be the query axis; longer inputs, where padding would cost, attend group by group
        with views of its keys.
        """
        implementation = self.config._attn_implementation
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        kwargs |= {"scaling": self.scaling, "dropout": self.attention_dropout if self.training else 0.0}
        if not self.layout.ragged:
            return attend(self, query, key, value, attention_mask, **kwargs)
        # only sdpa takes several queries with a mask of one row; flash and flex derive positions from the shape
        if query.shape[2] == 1 and implementation == "sdpa":
            return self._attend_padded(attend, query, key, value, attention_mask, **kwargs), None
        if implementation in HEADWISE_ATTENTION:
            return self._attend_by_group(attend, query, key, value, attention_mask, **kwargs)
        key, value = (repeat_heads(x, self.layout.group_sizes) for x in (key, value))
        return attend(self, query, key, value, attention_mask, **kwargs)

    def _attend_padded(
        self, attend: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs
    ) -> Tensor:
        batch, groups, width = len(query), self.layout.attended_kv_heads, max(self.layout.group_sizes)
        query = query.squeeze(2)
        nothing = query.new_zeros(batch, width, self.head_dim)
        parts = ((query[:, start:stop], nothing[:, stop - start :]) for start, stop in self.query_spans)
        padded = torch.cat([part for pair in parts for part in pair], 1).view(batch, groups, width, self.head_dim)
        output, _ = attend(self, padded, key, value, mask, **{**kwargs, "is_causal": False})  # (B, width, groups, D)
        heads = [output[:, :size, group] for group, size in enumerate(self.layout.group_sizes)]
        return torch.cat(heads, 1).unsqueeze(1)

    def _attend_by_group(
        self, attend: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs
    ) -> tuple[Tensor, Tensor | None]:
        outputs, weights = [], []
        for group, (start, stop) in enumerate(self.query_spans):
            keys, values = (x[:, group : group + 1].expand(-1, stop - start, -1, -1) for x in (key, value))
            output, weight = attend(self, query[:, start:stop], keys, values, mask, **kwargs)
            outputs.append(output)
            weights.append(weight)
        return torch.cat(outputs, 2), None if weights[0] is None else torch.cat(weights, 1)
