"""Where a head looks on average: its attention by lag."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv

from recurformer.recover.pair import ReplacedLayer, replaced_layers


class _Profile:
    """Sums of one layer's attention by lag over all windows; a forward hook."""

    def __init__(self, place: ReplacedLayer, lags: int) -> None:
        self.heads, self.lags, self.windows = list(place.converted.layout.replaced), lags, 0
        self.sums: Tensor | float = 0.0

    def __call__(self, attention: Any, _: tuple[Tensor, ...], named: dict[str, Any]) -> None:
        rows = named["hidden_states"]
        q, k = (
            project(rows).unflatten(2, (-1, attention.head_dim)) for project in (attention.q_proj, attention.k_proj)
        )
        q, k = apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), *named["position_embeddings"])
        k = repeat_kv(k, attention.num_key_value_groups)[:, self.heads]
        scores = q[:, self.heads] @ k.mT * attention.scaling
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        weights = scores.masked_fill(future, -torch.inf).float().softmax(-1).sum(0)[..., 1:]  # without the sink
        lags = [weights.diagonal(-1 - lag, -2, -1).mean(-1) for lag in range(self.lags)]
        self.sums = self.sums + torch.stack(lags, 1).double()
        self.windows += len(rows)


@torch.no_grad()
def lag_profiles(
    original: PreTrainedModel, converted: PreTrainedModel, windows: Tensor, *, lags: int = 256, batch_size: int = 1
) -> dict[int, Tensor]:
    """Return the mean attention of each layer's replaced heads by lag, (heads, lags) in float64.

    The first token, on which many heads leave what they need nowhere, is left out; nothing is normalised for it.

    Args:
        original: the model that `converted` was converted from.
        converted: says which heads are replaced.
        windows: (windows, L) token ids, without padding.
        lags: 0 to `lags` - 1 are measured; at most L - 1 of them.
        batch_size: windows in one forward pass.

    Raises:
        ValueError: windows that are too short, or models that are no pair (`replaced_layers`).
    """
    if windows.ndim != 2 or not len(windows) or not 0 < lags < windows.shape[1]:
        raise ValueError(
            f"windows: expected (windows, tokens) of more than lags={lags} tokens, got {tuple(windows.shape)}"
        )
    places = replaced_layers(original, converted)
    found = {place.index: _Profile(place, lags) for place in places}
    handles = [place.original.register_forward_pre_hook(found[place.index], with_kwargs=True) for place in places]
    try:
        for batch in windows.to(original.device).split(batch_size):
            original.base_model(batch, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return {index: torch.as_tensor(profile.sums) / profile.windows for index, profile in found.items()}
