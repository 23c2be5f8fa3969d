"""Linear attention (Katharopoulos et al., arXiv 2006.16236) with the replaced heads' own queries, keys and values."""

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache

from .mixer_base import Mixer, ReplacedHeads, join, weighted_means
from .recurrence import decayed_recurrence


class LinearMixer(Mixer):
    """Attention with the kernel phi(q) . phi(k), phi = elu + 1, on rotated queries and keys.

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
