"""The windows and bits that a budget of bytes allows: for each group of heads what is worth most, by its price."""

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from recurformer.heads.attention import Progress
from recurformer.heads.price import Keep, allocate, choices, key_centers, price, windows_by_group
from recurformer.heads.probes import hidden_lookups, most_pairs, weighted
from recurformer.measure.cache import count_cache, meta_twin
from recurformer.model.convert import convert
from recurformer.model.layout import sliding_layers
from recurformer.model.packed import BITS
from recurformer.recover.pair import quality_rows
from recurformer.recover.recipe import BY_PRICE
from recurformer.study.method import NEEDLE_WEIGHT

CHOSEN = 0.25
"""Fraction of what can be chosen of a cache that is kept where nothing else is asked for."""
LEAST_WINDOW = 16
"""The smallest window that a group may get, in tokens."""
EACH_DOUBLING = 2
"""Windows from one length to its double, the double among them."""
LEAST = Keep(LEAST_WINDOW, min(BITS))
"""The least that a group may keep."""
PRICED = 4
"""Windows of text, at most, on which windows and bits are priced."""
CHECKED = 2
"""Of these, on which prices are checked."""
FEW, MANY = 8, 32
"""Lookups that are hidden in each window of text: a few, or as many as a sixteenth of the text has room for. A few in a
long text, of the same weight together, would leave the prices to chance."""
APART, FAR_APART = 32, 128
"""Tokens of text for each of a few lookups, and of many; each takes about 8 tokens."""
BUDGETS = [2.0**-power for power in range(1, 6)]
"""Fractions of the cache whose estimated cost is shown beside that of the chosen one."""
FRACTIONS = [2.0 ** (-power / 4) for power in range(20, 0, -1)]
"""Of the cache, ascending, that are tried where a divergence is given."""
SINKS = BY_PRICE.sink_tokens or 0


def window_sizes(tokens: int) -> list[int]:
    """The windows that a group may get in so many tokens, ascending."""
    powers = (step / EACH_DOUBLING for step in range(EACH_DOUBLING * tokens.bit_length()))
    return [size for power in powers if (size := round(LEAST_WINDOW * 2**power)) < tokens]


def text_with_lookups(
    tokenizer: PreTrainedTokenizerBase, text: Tensor, seed: int, needle_weight: float
) -> tuple[Tensor, Tensor]:
    """The first `PRICED` of some windows (windows, L), with hidden lookups, and their weights: what all prices are
    measured on.
    """
    few, many = min(FEW, text.shape[1] // APART), min(MANY, text.shape[1] // FAR_APART)
    questions = max(1, min(max(few, many), most_pairs(tokenizer)))
    return weighted(hidden_lookups(tokenizer, text[:PRICED], questions, seed), needle_weight)


def price_list(
    original: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: Tensor,
    seed: int,
    progress: Progress = None,
    step: Callable[[str, Callable[[], Any]], Any] = lambda name, make: make(),
    needle_weight: float = NEEDLE_WEIGHT,
) -> pd.DataFrame:
    """Price windows of all sizes, of all bits, for every group of heads, on text with hidden lookups: see `price`.

    Args:
        original: a model that can be converted.
        tokenizer: its tokenizer.
        text: windows (windows, L), of which the first `PRICED` are read; a budget is counted after L tokens.
        seed: of the lookups and of the drawn tokens.
        progress: called with (samples done, samples).
        step: gets the name of a part and what computes it, as `KeptSteps.result`, which remembers it.
        needle_weight: what the answers to the lookups of a window count together, beside 1 for all its tokens.

    Returns:
        One row a group and choice: layer, group, window (NaN for all tokens), bits, tokens (L), cost (nats a token,
        with the lookups by their weight), center (of the group's keys, see `key_centers`; in the row that keeps
        everything, else None). Layers with a sliding window of their own have no rows.
    """
    tokens = text.shape[1]
    windows = window_sizes(tokens)
    centers = torch.tensor(step("centers", lambda: key_centers(original, text[:1]).tolist()))
    input_ids, weights = text_with_lookups(tokenizer, text, seed, needle_weight)

    def price_of(sample: int) -> list[Any]:
        ids, counted = input_ids[sample, None], weights[sample, None]
        costs = price(original, ids, windows, BITS, counted, sink_tokens=SINKS, centers=centers, seed=seed + sample)
        return costs.tolist()

    of_samples = []
    for sample in range(len(input_ids)):
        of_samples.append(step(f"price-{sample}", partial(price_of, sample)))
        if progress is not None:
            progress(sample + 1, len(input_ids))
    costs = torch.tensor(of_samples, dtype=torch.float64).mean(0)
    rows = [
        (layer, group, keep.window, keep.bits, tokens, cost, centers[layer, group].tolist() if keep == Keep() else None)
        for layer in free_layers(original)
        for group, of_group in enumerate(costs[layer].tolist())
        for keep, cost in zip(choices(windows, BITS), of_group, strict=True)
    ]
    return pd.DataFrame(rows, columns=["layer", "group", "window", "bits", "tokens", "cost", "center"])


def checked(
    original: PreTrainedModel,
    prices: pd.DataFrame,
    input_ids: Tensor,
    count: int,
    seed: int,
    step: Callable[[str, Callable[[], Any]], Any] = lambda name, make: make(),
) -> pd.DataFrame:
    """Measure what some choices cost alone: every estimate is of one group that changes while all others stay.

    Args:
        original: the model that was priced.
        prices: of `price_list`.
        input_ids: (samples, L), such as were priced.
        count: of choices, at most, drawn among those that `spend` makes for `BUDGETS`.
        seed: of the draws.
        step: as of `price_list`.

    Returns:
        The prices with a column divergence: KL(original || changed), nats a token; NaN where it was not measured. It
        estimates what a cost does if the lookups have no weight.
    """
    config, least = original.config, least_of(prices, original)
    made = dict.fromkeys(
        (layer, group, keep)
        for fraction in BUDGETS
        if fraction >= least
        for layer, keeps in enumerate(spend(prices, original, fraction).keeps)
        for group, keep in enumerate(keeps)
        if keep != Keep()
    )

    def alone(layer: int, group: int, keep: Keep) -> float:
        keeps = [[Keep()] * config.num_key_value_heads for _ in range(config.num_hidden_layers)]
        keeps[layer][group] = keep
        return float(quality_rows(original, _with_windows(original, prices, keeps), input_ids).divergence.mean())

    found = [
        (layer, group, keep.window, keep.bits, step(f"check-{number}", partial(alone, layer, group, keep)))
        for number, (layer, group, keep) in enumerate(random.Random(seed).sample(list(made), min(count, len(made))))
    ]
    rows = pd.DataFrame(found, columns=["layer", "group", "window", "bits", "divergence"]).astype({"window": float})
    return prices.merge(rows, how="left", on=["layer", "group", "window", "bits"])


def free_layers(original: PreTrainedModel) -> list[int]:
    """The layers whose heads may have windows."""
    return sorted(set(range(original.config.num_hidden_layers)) - set(sliding_layers(original.config)))


def _fixed_bytes(original: PreTrainedModel, tokens: int) -> tuple[float, float]:
    """Return bytes of the original's cache, in 16 bits, and of what no choice saves in a converted model's.

    That is: layers with a sliding window of their own; the number of tokens seen in each layer; a key and a value a
    token where no head is left that counts them.
    """
    held = count_cache(meta_twin(original).to(torch.bfloat16), tokens).groupby("layer").bytes.sum()  # type: ignore[arg-type]
    fixed = held.drop(free_layers(original)).sum() + 8 * original.config.num_hidden_layers + 4 * tokens
    return float(held.sum()), float(fixed)


def bytes_of(keep: Keep, original: PreTrainedModel, tokens: int) -> int:
    """Return the bytes of what one group keeps of so many tokens, in 16 bits where it is not packed."""
    layers: Any = original.model.layers
    return keep.bytes(tokens, layers[0].self_attn.head_dim, SINKS)


def least_fraction(original: PreTrainedModel, tokens: int) -> float:
    """The fraction of the cache that the least choice in all groups leaves."""
    whole, fixed = _fixed_bytes(original, tokens)
    groups = len(free_layers(original)) * original.config.num_key_value_heads
    return (groups * bytes_of(LEAST, original, tokens) + fixed) / whole


def default_budget(original: PreTrainedModel, tokens: int) -> float:
    """Return `CHOSEN` of the part of the cache that can be chosen, and all that cannot."""
    whole, fixed = _fixed_bytes(original, tokens)
    return max(least_fraction(original, tokens), (fixed + CHOSEN * (whole - fixed)) / whole)


def refuse_budget(
    original: PreTrainedModel, tokens: int, *, cache: float | None = None, loss: float | None = None
) -> None:
    """Refuse a fraction of the cache that no choice of windows leaves, or a loss where none of `FRACTIONS` can be left.

    Raises:
        ValueError: it is no fraction, or below that of the smallest windows in all heads.
    """
    budget, asked = (cache, f"cache={cache:g}") if cache is not None else (FRACTIONS[-1], f"loss={loss:g}")
    if not 0 < budget < 1:
        raise ValueError(f"{asked} must lie between 0 and 1: it is a fraction of the original's cache")
    if budget < (least := least_fraction(original, tokens)):
        whole, fixed = _fixed_bytes(original, tokens)
        sliding = f", of which {fixed / whole:.4f} cannot be chosen: layers with a sliding window of their own"
        remedy = "" if cache is None else "; give at least that"
        raise ValueError(
            f"{asked}: windows of {LEAST_WINDOW} tokens and {LEAST.bits} bits in all heads need "
            f"{math.ceil(1e4 * least) / 1e4:.4f} of the cache at {tokens:,} tokens"
            f"{sliding if sliding_layers(original.config) else ''}{remedy}"
        )


def cost_table(prices: pd.DataFrame) -> tuple[pd.DataFrame, list[Keep]]:
    """Return the costs of a price list, one row a layer and group and one column a choice, and the choices."""
    tokens = int(prices.tokens.iloc[0])
    table = prices.fillna({"window": tokens}).pivot(index=["layer", "group"], columns=["bits", "window"], values="cost")
    columns: list[Any] = list(table.columns)
    return table, [Keep(None if window == tokens else int(window), int(bits)) for bits, window in columns]


class Choice(NamedTuple):
    """What every group of heads keeps, by layer, and the sum of the costs, in nats a token."""

    keeps: list[list[Keep]]
    cost: float


def spend(prices: pd.DataFrame, original: PreTrainedModel, budget: float) -> Choice:
    """Choose what has the least sum of costs within a budget.

    Args:
        prices: of `price_list`; rows of choices that shall not be made may be missing.
        original: the model that was priced.
        budget: fraction of the original's cache, at the length of the prices.

    Raises:
        ValueError: the choices of the least size need more.
    """
    tokens = int(prices.tokens.iloc[0])
    if budget < (least := least_of(prices, original)):
        raise ValueError(
            f"cache={budget:g}: the least of what may be chosen needs {least:.4f} of it at {tokens:,} tokens"
        )
    whole, fixed = _fixed_bytes(original, tokens)
    table, kept = cost_table(prices)
    sizes = [bytes_of(keep, original, tokens) for keep in kept]
    left = max(budget * whole - fixed, min(sizes) * len(table))  # the least may be too little by rounding
    chosen = allocate(torch.tensor(table.to_numpy()), sizes, left)
    keeps = [[Keep()] * original.config.num_key_value_heads for _ in range(original.config.num_hidden_layers)]
    for (layer, group), place in zip(list(table.index), chosen.tolist(), strict=True):
        keeps[layer][group] = kept[place]
    return Choice(keeps, float(table.to_numpy()[range(len(table)), chosen].sum()))


def least_of(prices: pd.DataFrame, original: PreTrainedModel) -> float:
    """The smallest budget that `spend` can keep."""
    tokens = int(prices.tokens.iloc[0])
    whole, fixed = _fixed_bytes(original, tokens)
    table, kept = cost_table(prices)
    return (min(bytes_of(keep, original, tokens) for keep in kept) * len(table) + fixed) / whole


def centers_of(prices: pd.DataFrame, original: PreTrainedModel) -> Tensor:
    """The keys' centers of a price list, (layers, KV heads, head_dim); 0 where none was priced."""
    rows = prices.dropna(subset="center")
    config = original.config
    centers = torch.zeros(config.num_hidden_layers, config.num_key_value_heads, len(rows.center.iloc[0]))
    row: Any
    for row in rows.itertuples():
        centers[row.layer, row.group] = torch.tensor(list(row.center))
    return centers


def convert_within(
    original: PreTrainedModel, prices: pd.DataFrame, choices_made: pd.DataFrame, budget: float
) -> PreTrainedModel:
    """Return the converted model that keeps a fraction of the cache, see `spend`, without any training.

    `spend` chooses among the rows `choices_made` of the price list.
    """
    return _with_windows(original, prices, spend(choices_made, original, budget).keeps)


def _with_windows(original: PreTrainedModel, prices: pd.DataFrame, keeps: list[list[Keep]]) -> PreTrainedModel:
    """Return the converted model in which every group keeps this, by layer."""
    arguments: dict[str, Any] = windows_by_group(keeps, original.config)
    centers = centers_of(prices, original)
    return convert(original, mixer="window", **arguments, sink_tokens=SINKS, key_centers=centers)


def least_budget(
    original: PreTrainedModel, prices: pd.DataFrame, text: Tensor, loss: float, progress: Progress = None
) -> float:
    """Return the least of `FRACTIONS` of the cache that keeps the divergence from the original, as measured on the
    windows that are priced, below.

    Args:
        original: the model that was priced.
        prices: of `price_list`.
        text: windows (windows, L), of which the first `PRICED` are read.
        loss: KL(original || converted), in nats a token.
        progress: called with (windows done, windows), at each fraction that is tried.

    Raises:
        ValueError: the largest fraction's divergence is above.
    """

    def divergence(fraction: float) -> float:
        converted = convert_within(original, prices, prices, fraction)
        return float(quality_rows(original, converted, text[:PRICED], progress).divergence.mean())

    fractions = [fraction for fraction in FRACTIONS if fraction >= least_fraction(original, text.shape[1])]
    if (best := divergence(fractions[-1])) > loss:
        raise ValueError(f"loss={loss:g}: with {fractions[-1]:.3g} of the cache the divergence is {best:.2g}")
    return fractions[bisect_left(fractions[:-1], -loss, key=lambda fraction: -divergence(fraction))]


def choose_windows(
    original: PreTrainedModel,
    prices: pd.DataFrame,
    text: Tensor,
    budget: float | None,
    loss: float | None,
    progress: Progress = None,
) -> dict[str, Any]:
    """Choose by prices what every group keeps.

    Args:
        original: the model that was priced.
        prices: of `price_list`.
        text: the windows (windows, L) that were priced; see `least_budget`.
        budget: fraction of the original's cache after L tokens, see `spend`; None: the least that keeps to the loss.
        loss: see `least_budget`; None where a budget is given.
        progress: see `least_budget`.

    Returns:
        as JSON: budget, the fraction; heads, replaced ones of each layer; windows and bits of each layer's key-value
        heads, a window of None for all tokens; estimated, pairs of a fraction of the cache and the sum of costs, in
        nats a token; centers, see `key_centers`.
    """
    if loss is not None:
        budget = least_budget(original, prices, text, loss, progress)
    assert budget is not None
    least = least_fraction(original, text.shape[1])
    chosen = spend(prices, original, budget)
    estimated = {fraction: spend(prices, original, fraction).cost for fraction in BUDGETS if fraction >= least}
    return {
        "budget": budget,
        "heads": windows_by_group(chosen.keeps, original.config)["heads"],
        "windows": [[keep.window for keep in layer] for layer in chosen.keeps],
        "bits": [[keep.bits for keep in layer] for layer in chosen.keeps],
        "estimated": sorted((estimated | {budget: chosen.cost}).items()),
        "centers": centers_of(prices, original).tolist(),
    }


def sizes_of(choice: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """Return the sizes that `convert` needs for what `choose_windows` chose; none for a choice of heads alone. `config`
    is the original's.
    """
    if "windows" not in choice:
        return {}
    layers = zip(choice["windows"], choice["bits"], strict=True)
    sizes = windows_by_group([[Keep(*keep) for keep in zip(*layer, strict=True)] for layer in layers], config)
    del sizes["heads"]
    return {**sizes, "key_centers": torch.tensor(choice["centers"])}
