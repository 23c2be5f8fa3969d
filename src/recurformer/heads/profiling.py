"""Measure the recency ratio of every attention head of a model (equation 1)."""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurformer.heads.profile import HeadProfile
from recurformer.heads.recency import attend_and_sum
from recurformer.heads.run import LayerInputs, Progress, check_batch, run_attention
from recurformer.model.layout import sliding_layers


class _RecencySums:
    """Recency ratios of every sample and head for several windows, in float64; NaN where there is no head."""

    def __init__(self, samples: int, layers: int, heads: int, windows: Sequence[int], exclude_first: bool):
        self.windows, self.exclude_first = list(windows), exclude_first
        self.ratios = torch.full((len(self.windows), samples, layers, heads), float("nan"), dtype=torch.float64)

    def __call__(self, inputs: LayerInputs) -> Tensor:
        output, (by_distance, total) = attend_and_sum(inputs, max(self.windows), self.exclude_first)
        recent = by_distance.cumsum(-1)[..., self.windows].movedim(-1, 0)  # (windows, B, H)
        # 0 for a head without any attention beyond the first token; rounding may lead above 1
        self.ratios[:, *inputs.place] = torch.where(total > 0, recent / total, 0.0).clamp(max=1.0).cpu()
        return output


def profile_heads(
    model: PreTrainedModel,
    input_ids: Tensor,
    window: int = 102,
    threshold: float = 0.5,
    exclude_first: bool = True,
    attention_mask: Tensor | None = None,
    batch_size: int | None = None,
    progress: Progress = None,
) -> HeadProfile:
    """Measure every head's recency ratio on every sample (section 3.1; appendix B: 1,024 samples of 1,024 tokens).

        RR = sum of A[i, j] over |i - j| <= window  /  sum of A[i, j]

    over the queries i and keys j of a sample, without the column of its first token if `exclude_first` is set. Where a
    fused kernel returns its softmax sums, weights outside the window are not computed (`recurformer.heads.recency`).
    The sums are float64. Heads that do not attend, such as the replaced ones of a converted model, have NaN. So do the
    heads of layers with a sliding window between others without one; a line on stderr says so.

    Args:
        model: any causal language model that attends through transformers' attention interface.
        input_ids: (samples, L) token ids.
        window: k, in tokens. Appendix B's 102 is read as k, a tenth of its 1,024 tokens.
        threshold: alpha, compared with the ratios to count RA-I; not reported in the paper.
        exclude_first: whether the first token is left out (of a padded sample: the first that is not padding).
        attention_mask: (samples, L), 0 for padding on the left or the right.
        batch_size: samples in one forward pass; None: see `samples_per_batch`.
        progress: called with (samples done, samples) after each batch.

    Raises:
        ValueError: empty input, a broken mask, `window` negative or not shorter than every sample, `threshold`
            outside [0, 1].
    """
    (profile,) = profile_windows(
        model, input_ids, [window], threshold, exclude_first, attention_mask, batch_size, progress
    )
    return profile


def profile_windows(
    model: PreTrainedModel,
    input_ids: Tensor,
    windows: Sequence[int],
    threshold: float = 0.5,
    exclude_first: bool = True,
    attention_mask: Tensor | None = None,
    batch_size: int | None = None,
    progress: Progress = None,
) -> list[HeadProfile]:
    """The profiles for several windows k, at the cost of the largest; otherwise as `profile_heads`."""
    lengths = check_batch(input_ids, attention_mask).sum(1)
    shortest = int(lengths.min())
    for window in windows:
        if not 0 <= window < shortest:
            raise ValueError(
                f"window={window} must be at least 0 and below {shortest}, the tokens of the shortest sample"
            )
    if exclude_first and shortest < 2:
        raise ValueError("a sample of 1 token has no attention left without its first token; use exclude_first=False")
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold={threshold} must lie in [0, 1]: it is compared with a ratio")
    config = model.config
    heads = config.num_attention_heads
    sums = _RecencySums(len(input_ids), config.num_hidden_layers, heads, windows, exclude_first)
    sliding = sliding_layers(config)
    if sliding:
        print(
            f"profile: {len(sliding)} of {config.num_hidden_layers} layers attend through a sliding window and stay as"
            " they are; only heads of the others are profiled, and β is a fraction of them",
            file=sys.stderr,
            flush=True,
        )
    run_attention(model, input_ids, sums, attention_mask, batch_size, progress)
    sums.ratios[:, :, sliding] = float("nan")
    settings: dict[str, Any] = {
        "threshold": threshold,
        "exclude_first": exclude_first,
        "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "tokens": int(lengths.max()),
        "sliding": tuple(sliding),
    }
    return [HeadProfile(rr=rr, window=window, **settings) for window, rr in zip(windows, sums.ratios, strict=True)]
