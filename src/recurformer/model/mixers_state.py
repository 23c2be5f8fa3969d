"""Mixers with a matrix for a state: linear attention, a gated recurrence, and retention."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache
from transformers import initialization as init

from . import cpp_step
from .layout import HeadLayout
from .mamba import initial_step_bias
from .mixer import FusedWeights, Mixer, ReplacedHeads, decayed_recurrence, join, weighted_means


class LinearMixer(Mixer):
    """Linear attention (Katharopoulos et al., arXiv 2006.16236): the kernel phi(q) . phi(k), phi = elu + 1.

    Queries and keys are the replaced heads' own, rotated.

    The state of a KV head is the sum of phi(k) [v, 1]^T, kept in float32; the last column is the normaliser.
    """

    reads_keys = True

    def forward(self, values: Tensor, cache: Cache | None, padding_mask: Tensor | None, heads: ReplacedHeads) -> Tensor:
        """Attend linearly; see `Mixer`."""
        dtype = torch.promote_types(values.dtype, torch.float32)
        queries, keys = (F.elu(x.to(dtype)) + 1 for x in heads.rotated())
        if padding_mask is not None:
            keys = keys * padding_mask[:, None, :, None].to(dtype)
        state = self.previous(cache, "recurrent")
        outputs, state = decayed_recurrence(
            queries,
            self.repeat(keys),
            self.repeat(F.pad(self.split(values).to(dtype), (0, 1), value=1.0)),
            queries.new_zeros(queries.shape[:3]),
            None if state is None else self.repeat(state),
        )
        if cache is not None:
            alike = state.split(self.copies, 1)  # heads that read one KV head have one state
            cache.update_recurrent_state(torch.cat([states[:, :1] for states in alike], 1), self.layer_index)
        return join(weighted_means(outputs), values.dtype)


A_RANGE = (1.0, 16.0)  # of -A at initialisation, uniform, as published


class GatedMixer(Mixer):
    """A gated linear recurrence as of Mamba-2 (arXiv 2405.21060) and gated linear attention (arXiv 2312.06635).

    C, B and x of Mamba-2 are the replaced heads' own queries, keys and values: training starts from pretrained weights.

    S_t = exp(delta_t A) S_{t-1} + delta_t k_t v_t^T and y_t = S_t^T q_t + D v_t, one scalar A, D and delta a head.

    delta = softplus(dt_proj(hidden states)). Queries and keys are of length one, for nothing else bounds their product
    where no softmax follows, and not rotated: the decay tells positions apart. The state is kept in float32.
    """

    reads_keys = True

    def __init__(self, config: Any, layout: HeadLayout, head_dim: int, layer_index: int):
        super().__init__(config, layout, head_dim, layer_index)
        count = len(layout.replaced)
        self.dt_proj = nn.Linear(config.hidden_size, count)
        self.A_log = nn.Parameter(torch.empty(count))
        self.D = nn.Parameter(torch.empty(count))
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialise as Mamba-2 does: A uniform, softplus(dt bias) log-uniform, PyTorch's default elsewhere.

        But D = 0, not 1: the first outputs are then small, as an untrained Mamba block's are. Whole value states, many
        times attention's outputs, would upset the layers after it.
        """
        init.kaiming_uniform_(self.dt_proj.weight, a=math.sqrt(5))
        init.copy_(self.dt_proj.bias, initial_step_bias(self.dt_proj.bias))
        low, high = A_RANGE
        uniform = torch.rand(self.A_log.shape, device=self.A_log.device, dtype=torch.float32)
        init.copy_(self.A_log, torch.log(uniform * (high - low) + low))
        init.zeros_(self.D)

    def forward(self, values: Tensor, cache: Cache | None, padding_mask: Tensor | None, heads: ReplacedHeads) -> Tensor:
        """Run the recurrence; see `Mixer`."""
        dtype = torch.promote_types(values.dtype, torch.float32)
        rates = self.dt_proj(heads.hidden_states).transpose(1, 2).to(dtype)  # (B, H, L)
        delta = F.softplus(rates.contiguous())  # compiled code fails in the backward pass of other layouts
        if padding_mask is not None:
            delta = delta * padding_mask.unsqueeze(1).to(dtype)
        queries, keys = (_unit(x.to(dtype)).transpose(1, 2) for x in (heads.queries, heads.keys))  # (B, heads, L, D)
        inputs = self.repeat(self.split(values).to(dtype))  # (B, H, L, D)
        outputs, state = decayed_recurrence(
            queries,
            self.repeat(keys) * delta.unsqueeze(-1),
            inputs,
            -delta * self.A_log.to(dtype).exp().unsqueeze(-1),
            self.previous(cache, "recurrent"),
        )
        if cache is not None:
            cache.update_recurrent_state(state, self.layer_index)
        return join(outputs + self.D.to(dtype)[:, None, None] * inputs, values.dtype)


def _unit(vectors: Tensor) -> Tensor:
    """Return vectors (..., N) at length one; those of zeros, as padding may have, as they are."""
    length = vectors.norm(dim=-1, keepdim=True)
    return vectors / length.masked_fill(length == 0, 1)


class Retention(Mixer):
    """Linear attention that forgets at several rates, read out by features that a linear layer can be solved for.

    Fixed rates side by side are multi-scale retention's (RetNet, arXiv 2307.08621), the learnt gate on them gated
    linear attention's and Mamba-2's. Unlike theirs, every head has all rates, one gate serves all query heads of a KV
    head, so that they share its state, and outputs are weighted means, as attention's are.

    y_t = S_t^T phi(q_t) / (z_t . phi(q_t)) of every head and rate.

    S_t = g_t S_{t-1} + phi(k_t) v_t^T and z_t = g_t z_{t-1} + phi(k_t), phi = elu + 1 of rotated queries and keys,
    g = sigmoid(gate(hidden states)): one for every KV head and rate. The state [S, z] is kept in float32.
    """

    reads_keys = True
    readout: nn.Linear
    memories: ClassVar[tuple[float, ...]]
    """Tokens after which a state has decayed to 1/e, before anything is learnt; one for every rate."""

    def __init__(self, config: Any, layout: HeadLayout, head_dim: int, layer_index: int):
        super().__init__(config, layout, head_dim, layer_index)
        self.outputs = sum(self.copies) * head_dim
        self.features = len(self.memories) * self.outputs + len(self.copies) * head_dim
        self.gate = nn.Linear(config.hidden_size, len(self.copies) * len(self.memories))
        self.groups = cpp_step.groups_in_order(self.copies)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialise the gates to `memories` whatever the token."""
        init.zeros_(self.gate.weight)
        bias = self.gate.bias.new_tensor([-math.log(math.expm1(1 / memory)) for memory in self.memories])
        init.copy_(self.gate.bias, bias.repeat(len(self.copies)))

    def forward(
        self,
        values: Tensor,
        cache: Cache | None,
        padding_mask: Tensor | None,
        heads: ReplacedHeads,
        fused: FusedWeights | None = None,
    ) -> Tensor:
        """Mix and read out, or with a fused output return what the readout reads; see `Mixer`."""
        features = self.mix(values, cache, padding_mask, heads)
        return self.read_out(features) if fused is None or fused.output is None else features

    def mix(self, values: Tensor, cache: Cache | None, padding_mask: Tensor | None, heads: ReplacedHeads) -> Tensor:
        """Return what the readout reads (B, L, features); arguments as of `Mixer`."""
        features, state = self.retain(values, self.previous(cache, "recurrent"), padding_mask, heads)
        if cache is not None:
            cache.update_recurrent_state(state, self.layer_index)
        return features

    def read_out(self, features: Tensor) -> Tensor:
        """Return the outputs (B, L, outputs) of `features`."""
        return self.readout(features)

    def whole_readout(self) -> Tensor:
        """Return the matrix of `read_out`."""
        return self.readout.weight

    def retain(
        self, values: Tensor, state: Tensor | None, padding_mask: Tensor | None, heads: ReplacedHeads
    ) -> tuple[Tensor, Tensor]:
        """Run the recurrence from `state` on, if there is one.

        Returns:
            features (B, L, features), y of every head at every rate and then the values; the last state (B, KV heads *
            rates, head_dim, head_dim + 1), which may be `state` itself, updated.
        """
        dtype = torch.promote_types(values.dtype, torch.float32)
        decays = F.logsigmoid(self.gate(heads.hidden_states).to(dtype)).transpose(1, 2)  # (B, KV heads * rates, L)
        decays = decays.contiguous()
        if state is not None and padding_mask is None and values.shape[1] == 1:
            cos, sin = heads.position_embeddings or (None, None)
            if cpp_step.takes((values, heads.queries, heads.keys, cos, sin), (), values.dtype):
                step = cpp_step.WindowStepInputs(heads.queries, heads.keys, values, cos, sin, self.groups)
                return cpp_step.retain_step(step, decays.squeeze(2), state), state
        queries, keys = (F.elu(x.to(dtype)) + 1 for x in heads.rotated())
        if padding_mask is not None:
            real = padding_mask.unsqueeze(1).to(dtype)
            keys, decays = keys * real.unsqueeze(-1), decays * real
        inputs = self.split(values)  # (B, KV heads, L, head_dim)
        outputs, state = decayed_recurrence(
            self._at_rates(queries),
            self._at_rates(self.repeat(keys)),
            self._at_rates(self.repeat(F.pad(inputs.to(dtype), (0, 1), value=1.0))),
            self._of_heads(decays),
            None if state is None else self._of_heads(state),
        )
        alike = state.unflatten(1, (-1, len(self.memories))).split(self.copies, 1)  # a KV head's readers have one state
        means = weighted_means(outputs).to(values.dtype)  # (B, H * rates, L, head_dim)
        features = torch.cat([means, inputs], 1).transpose(1, 2).flatten(2)
        return features, torch.cat([states[:, :1] for states in alike], 1).flatten(1, 2)

    def _at_rates(self, heads: Tensor) -> Tensor:
        """Return heads (B, H, ...) once for every rate, (B, H * rates, ...)."""
        return heads.repeat_interleave(len(self.memories), 1)

    def _of_heads(self, rates: Tensor) -> Tensor:
        """Repeat the rates of each KV head, (B, KV heads * rates, ...), for each head that reads it."""
        return self.repeat(rates.unflatten(1, (-1, len(self.memories)))).flatten(1, 2)


class RetentionMixer(Retention):
    """readout([y of every head and rate; values])."""

    memories = (2.0, 16.0)

    def __init__(self, config: Any, layout: HeadLayout, head_dim: int, layer_index: int):
        super().__init__(config, layout, head_dim, layer_index)
        self.readout = nn.Linear(self.features, self.outputs, bias=False)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialise the readout by PyTorch's default."""
        super().init_weights()
        init.kaiming_uniform_(self.readout.weight, a=math.sqrt(5))
