"""What a recurrent state in the place of a group of heads costs, beside the tokens and bits of no more bytes."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from recurformer.heads.attention import Progress
from recurformer.heads.price import backward, cost_by_group
from recurformer.measure.cache import count_cache, meta_twin
from recurformer.model.convert import convert
from recurformer.recover.budget import bytes_of, cost_table, free_layers, text_with_lookups
from recurformer.recover.calibrate import calibrate
from recurformer.recover.pair import replaced_layers
from recurformer.recover.recipe import RECIPES
from recurformer.study.method import NEEDLE_WEIGHT

COLUMNS = ["layer", "group", "mixer", "bytes", "tokens", "cost", "error", "window", "bits", "tokens_cost"]


@torch.no_grad()
def price_mixer(
    original: PreTrainedModel,
    converted: PreTrainedModel,
    input_ids: Tensor,
    weights: Tensor | None = None,
    seed: int = 0,
    progress: Progress = None,
) -> Tensor:
    """Estimate what each group's replaced heads cost if all other groups stay as they are.

    Each mixer reads the hidden states of the original, so no layer's error reaches another. The estimate is that of
    `recurformer.heads.price.price`.

    Args:
        original: the model that `converted` was converted from.
        converted: its mixers stand for whole groups of heads, in as many layers as shall be priced.
        input_ids: as of `price`.
        weights: as of `price`.
        seed: of the drawn tokens.
        progress: called with (samples done, samples).

    Returns:
        (layers, KV heads) float64, in nats, weighted; NaN where nothing is replaced.

    Raises:
        ValueError: the models are not a pair, or a group is replaced in part; and as of `price`.
    """
    base: Any = original.base_model
    config = original.config
    places = {place.index: place for place in replaced_layers(original, converted)}
    each = config.num_attention_heads // config.num_key_value_heads
    costs = torch.full((config.num_hidden_layers, config.num_key_value_heads), float("nan"), dtype=torch.float64)
    groups_of = {}
    for index, place in places.items():
        groups_of[index] = sorted({head // each for head in place.converted.layout.replaced})
        if len(groups_of[index]) * each != len(place.converted.layout.replaced):
            raise ValueError(f"converted: layer {index} replaces a part of a group; convert whole groups to price them")
        costs[index, groups_of[index]] = 0
    for passed in backward(original, input_ids, weights, seed, progress):
        if passed.layer in places:
            place, layer = places[passed.layer], base.layers[passed.layer]
            positions = passed.arguments["position_embeddings"]
            mixed = place.converted.replaced_outputs(layer.input_layernorm(passed.hidden), positions)
            output, gradient = (heads.flatten(2)[..., place.features] for heads in (passed.output, passed.gradient))
            change = ((mixed - output).double() * gradient).unflatten(-1, (-1, place.converted.head_dim)).sum(-1)
            groups = groups_of[passed.layer]
            costs[passed.layer, groups] += cost_by_group(change.mT.unsqueeze(-1), len(groups))[:, 0]
    return costs / len(input_ids)


def solved(
    original: PreTrainedModel,
    heads: Sequence[Sequence[int]],
    mixer: str,
    text: Tensor,
    seed: int,
    alone: bool = False,
    **sizes: Any,
) -> tuple[PreTrainedModel, pd.DataFrame]:
    """Convert a model and solve its mixers in closed form, by the recipe's start; no training.

    Args:
        original: a model that can be converted.
        heads: the query heads of each layer that are replaced.
        mixer: name of one with a last linear layer.
        text: windows (windows, L).
        seed: of the mixers' other weights.
        alone: as of `calibrate`.
        sizes: of the mixers, see `convert`.

    Returns:
        The converted model, and the report of `calibrate`.
    """
    torch.manual_seed(seed)
    converted = convert(original, heads, mixer, **sizes)
    start = RECIPES[mixer].start if mixer in RECIPES else "random"
    return converted, calibrate(original, converted, text, batch_size=1, start=start, alone=alone)


def price_mixers(
    original: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: Tensor,
    mixers: Sequence[str],
    prices: pd.DataFrame,
    seed: int,
    progress: Progress = None,
    needle_weight: float = NEEDLE_WEIGHT,
    **sizes: Any,
) -> pd.DataFrame:
    """Price mixers with a state in the place of every group, each solved in closed form on the original's states.

    A layer's groups share one block, as the paper's do. Each is charged its part of the block's bytes, and gets what
    the whole state tells; and of the tokens only the sizes on the price list stand beside it. Both favour the state.

    Args:
        original: a model that can be converted.
        tokenizer: its tokenizer.
        text: windows (windows, L): the first `PRICED` for prices, as in `price_list`, the others for the closed form.
        mixers: names, of mixers with a last linear layer.
        prices: of `price_list`, of the same model and length.
        seed: of the mixers' other weights, the lookups and the drawn tokens.
        progress: called with (samples done, samples) of each mixer.
        needle_weight: as of `price_list`.
        sizes: of the mixers, see `convert`.

    Returns:
        One row a group and mixer: layer, group, mixer, bytes (its part of the layer's cache), tokens (L), cost (as of
        `price_list`), error (of the layer's block on held-out text: see `calibrate`); window, bits and tokens_cost of
        the cheapest choice of tokens and bits that holds no more bytes; NaN where there is none.
    """
    tokens, config = text.shape[1], original.config
    every, free = list(range(config.num_attention_heads)), free_layers(original)
    heads = [every if layer in free else [] for layer in range(config.num_hidden_layers)]
    input_ids, weights = text_with_lookups(tokenizer, text, seed, needle_weight)
    (table, kept), rows = cost_table(prices), []
    for mixer in mixers:
        converted, report = solved(original, heads, mixer, text[len(input_ids) :], seed, alone=True, **sizes)
        errors = report.set_index("layer").after
        held = count_cache(meta_twin(converted).to(torch.bfloat16), tokens)  # type: ignore[arg-type]
        size = held[~held.kind.isin(["key", "value"])].groupby("layer").bytes.sum() / config.num_key_value_heads
        costs = price_mixer(original, converted, input_ids, weights, seed, progress)
        fits = [place for place, keep in enumerate(kept) if bytes_of(keep, original, tokens) <= size.max()]
        for (layer, group), of_group in zip(list(table.index), table.to_numpy(), strict=True):
            row = {"layer": layer, "group": group, "mixer": mixer, "bytes": size[layer], "tokens": tokens}
            row |= {"cost": float(costs[layer, group]), "error": errors[layer]}
            if fits:
                best = min(fits, key=of_group.__getitem__)
                row |= {**asdict(kept[best]), "tokens_cost": of_group[best]}
            rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)
