"""The windows and bits that a budget of bytes allows: for each group of heads what is worth most, by its price."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from recurformer.heads.attention import Progress
from recurformer.heads.price import Keep, allocate, choices, key_centers, price_text_and_needles, windows_by_group
from recurformer.heads.probes import long_lookups
from recurformer.measure.cache import count_cache, meta_twin
from recurformer.model.layout import sliding_layers
from recurformer.model.packed import BITS
from recurformer.recover.recipe import BY_PRICE
from recurformer.study import HeadScores

LEAST = Keep(window=16, bits=min(BITS))
"""The least that a group may keep; other windows are its doubles."""
PRICED = 4
"""Windows of text, at most, and as many lookups as long, on which windows are priced."""
QUESTIONS = 8
"""Of each lookup."""
BUDGETS = [2.0**-power for power in range(1, 6)]
"""Fractions of the cache whose estimated cost is shown beside that of the chosen one."""
SINKS = BY_PRICE.sink_tokens or 0


class _Spending:
    """What the groups of a model may hold after so many tokens.

    Attributes:
        layers: those whose heads may have windows.
        windows: their sizes.
        kept: the choices of a group.
        sizes: their bytes, in weights of 16 bits.
        whole: bytes of the original's cache.
        beyond: bytes that no window saves: of layers with a sliding window of their own; of the number of tokens seen
            in each layer; of a key and a value a token where no head is left that counts them.
        least: fraction of the cache that is left by the smallest windows in all heads.
    """

    def __init__(self, original: PreTrainedModel, tokens: int):
        config, twin = original.config, meta_twin(original)
        self.layers = sorted(set(range(config.num_hidden_layers)) - set(sliding_layers(config)))
        least = LEAST.window or tokens
        doubles = [least * 2**power for power in range(tokens.bit_length())]
        self.windows = [window for window in doubles if window < tokens]
        self.kept = choices(self.windows, BITS)
        stock: Any = twin.to(torch.bfloat16)  # type: ignore[arg-type]
        head_dim = stock.model.layers[0].self_attn.head_dim
        self.sizes = [keep.bytes(tokens, head_dim, SINKS) for keep in self.kept]
        held = count_cache(stock, tokens).groupby("layer").bytes.sum()
        self.whole = float(held.sum())
        self.beyond = float(held.drop(self.layers).sum()) + 8 * config.num_hidden_layers + 4 * tokens
        groups = len(self.layers) * config.num_key_value_heads
        self.least = (groups * LEAST.bytes(tokens, head_dim, SINKS) + self.beyond) / self.whole


def refuse_budget(original: PreTrainedModel, budget: float, tokens: int) -> None:
    """Refuse a fraction of the cache that no choice of windows leaves.

    Raises:
        ValueError: it is none, or below that of the smallest windows in all heads.
    """
    if not 0 < budget < 1:
        raise ValueError(f"cache={budget:g} must lie between 0 and 1: it is a fraction of the original's cache")
    if budget < (least := _Spending(original, tokens).least):
        raise ValueError(
            f"cache={budget:g}: windows of {LEAST.window} tokens and {LEAST.bits} bits in all heads need {least:.4f} "
            f"of the cache at {tokens:,} tokens"
        )


def choose_windows(
    original: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: Tensor,
    budget: float,
    seed: int,
    progress: Progress = None,
) -> dict[str, Any]:
    """Return the choice with the least sum of costs that keeps a fraction `budget` of the cache.

    Args:
        original: a model that can be converted.
        tokenizer: its tokenizer.
        text: windows (windows, L), of which the first `PRICED` are read; the budget is counted after L tokens.
        budget: see `refuse_budget`.
        seed: of the lookups and of the drawn tokens.
        progress: called with (samples done, samples).

    Returns:
        as JSON: heads, replaced ones of each layer; windows and bits of each layer's key-value heads, a window of None
        for all tokens; estimated, pairs of a fraction of the cache and the sum of costs, in nats a token; centers, see
        `key_centers`.
    """
    text = text[:PRICED]
    samples, tokens = text.shape
    spending, lookups = _Spending(original, tokens), long_lookups(tokenizer, samples, tokens, QUESTIONS, seed)
    centers = key_centers(original, text)
    costs = price_text_and_needles(
        original, text, lookups, spending.windows, BITS, sink_tokens=SINKS, centers=centers,
        needle_weight=HeadScores().needle_weight, seed=seed, progress=progress,
    )  # fmt: skip

    def least_cost(fraction: float) -> tuple[float, Tensor]:
        priced = costs[spending.layers]
        chosen = allocate(priced, spending.sizes, fraction * spending.whole - spending.beyond)
        return float(priced.gather(-1, chosen.unsqueeze(-1)).sum()), chosen

    estimated = {fraction: least_cost(fraction)[0] for fraction in BUDGETS if fraction > spending.least}
    chosen = torch.full(costs.shape[:2], spending.kept.index(Keep()))
    estimated[budget], chosen[spending.layers] = least_cost(budget)
    keeps = [[spending.kept[place] for place in layer] for layer in chosen.tolist()]
    return {
        "heads": windows_by_group(keeps, original.config)["heads"],
        "windows": [[keep.window for keep in layer] for layer in keeps],
        "bits": [[keep.bits for keep in layer] for layer in keeps],
        "estimated": sorted(estimated.items()),
        "centers": centers.tolist(),
    }


def sizes_of(choice: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """Return the sizes that `convert` needs for a choice of windows; none for a choice of heads alone.

    Args:
        choice: of `choose_windows`, or any with `heads`.
        config: of the original.
    """
    if "windows" not in choice:
        return {}
    layers = zip(choice["windows"], choice["bits"], strict=True)
    sizes = windows_by_group([[Keep(*keep) for keep in zip(*layer, strict=True)] for layer in layers], config)
    return {name: sizes[name] for name in ("window_tokens", "window_bits")} | {
        "key_centers": torch.tensor(choice["centers"])
    }
