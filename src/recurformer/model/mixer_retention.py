"""Retention: linear attention that forgets at several rates, and a linear readout that can be solved in closed form.

Fixed rates side by side are multi-scale retention's (RetNet, arXiv 2307.08621), the learnt gate on them gated linear
attention's (arXiv 2312.06635) and Mamba-2's (arXiv 2405.21060). Unlike theirs, every head has all rates, one gate
serves all query heads of a KV head, so that they share its state, and outputs are weighted means, as attention's are.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache
from transformers import initialization as init

from .layout import HeadLayout
from .mixer_base import Mixer, ReplacedHeads, weighted_means
from .recurrence import decayed_recurrence


class Retention(Mixer):
    """y_t = S_t^T phi(q_t) / (z_t . phi(q_t)) of every head and rate.

    S_t = g_t S_{t-1} + phi(k_t) v_t^T and z_t = g_t z_{t-1} + phi(k_t), phi = elu + 1 of rotated queries and keys,
    g = sigmoid(gate(hidden states)): one for every KV head and rate. The state [S, z] is kept in float32.
    """

    reads_keys = True
    memories: ClassVar[tuple[float, ...]]
    """Tokens after which a state has decayed to 1/e, before anything is learnt; one for every rate."""

    def __init__(self, config: Any, layout: HeadLayout, head_dim: int, layer_index: int):
        super().__init__(config, layout, head_dim, layer_index)
        self.outputs = sum(self.copies) * head_dim
        self.features = len(self.memories) * self.outputs + len(self.copies) * head_dim
        self.gate = nn.Linear(config.hidden_size, len(self.copies) * len(self.memories))

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialise the gates to `memories` whatever the token."""
        init.zeros_(self.gate.weight)
        bias = self.gate.bias.new_tensor([-math.log(math.expm1(1 / memory)) for memory in self.memories])
        init.copy_(self.gate.bias, bias.repeat(len(self.copies)))

    def retain(
        self, values: Tensor, state: Tensor | None, padding_mask: Tensor | None, heads: ReplacedHeads
    ) -> tuple[Tensor, Tensor]:
        """Run the recurrence from `state` on, if there is one.

        Returns:
            features (B, L, features), y of every head at every rate and then the values; the last state (B, KV heads *
            rates, head_dim, head_dim + 1).
        """
        dtype = torch.promote_types(values.dtype, torch.float32)
        queries, keys = (F.elu(x.to(dtype)) + 1 for x in heads.rotated())
        decays = F.logsigmoid(self.gate(heads.hidden_states).to(dtype)).transpose(1, 2).contiguous()
        if padding_mask is not None:
            real = padding_mask.unsqueeze(1).to(dtype)
            keys, decays = keys * real.unsqueeze(-1), decays * real
        inputs = self.split(values)
        outputs, state = decayed_recurrence(
            self._at_rates(queries),
            self._at_rates(self.repeat(keys)),
            self._at_rates(self.repeat(F.pad(inputs.to(dtype), (0, 1), value=1.0))),
            self._of_heads(decays),
            None if state is None else self._of_heads(state),
        )
        alike = state.unflatten(1, (-1, len(self.memories))).split(self.copies, 1)  # a KV head's readers have one state
        means = weighted_means(outputs).to(values.dtype)
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

    def forward(self, values: Tensor, cache: Cache | None, padding_mask: Tensor | None, heads: ReplacedHeads) -> Tensor:
        """Run the recurrence and read it; see `Mixer`."""
        features, state = self.retain(values, self.previous(cache, "recurrent"), padding_mask, heads)
        if cache is not None:
            cache.update_recurrent_state(state, self.layer_index)
        return self.readout(features)
