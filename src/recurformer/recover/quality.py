"""Distance of a changed model from its original on held-out windows: likelihood of the text, and divergence."""

from collections.abc import Callable

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from recurformer.recover.distil import divergence


@torch.no_grad()
def quality_rows(
    original: PreTrainedModel,
    model: PreTrainedModel,
    windows: Tensor,
    progress: Callable[[int, int], None] | None = None,
    original_logits: list[Tensor] | None = None,
) -> pd.DataFrame:
    """Measure window by window.

    Args:
        original: the model whose predictions are the yardstick.
        model: the changed one, on the same device; may be the original itself.
        windows: (windows, L) token ids, without padding, at least two tokens each.
        progress: called with (windows done, windows).
        original_logits: of each window, for several calls on the same windows; filled by the first.

    Returns:
        One row a window: window, tokens (predicted: all but the first), negative_log_likelihood (in nats, mean over
        them), divergence (KL(original || model), in nats, mean over them).
    """
    rows = []
    for number, window in enumerate(windows.to(model.device)):
        ours = model(window[None], use_cache=False).logits[0, :-1]
        if original_logits is not None and number < len(original_logits):
            theirs = original_logits[number]
        else:
            theirs = ours if model is original else original(window[None], use_cache=False).logits[0, :-1]
            if original_logits is not None:
                original_logits.append(theirs)
        likelihood = F.cross_entropy(ours.float(), window[1:]).item()
        rows.append((number, len(window) - 1, likelihood, divergence(ours, theirs).mean().item()))
        if progress is not None:
            progress(number + 1, len(windows))
    return pd.DataFrame(rows, columns=["window", "tokens", "negative_log_likelihood", "divergence"])
