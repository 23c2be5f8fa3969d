"""Bytes that an eviction method keeps of a prompt in a model too large to run, of which only the depth matters."""

from collections.abc import Sequence

import pandas as pd
import torch

from recurformer.baselines.cache import EvictingCache
from recurformer.baselines.context import Arrival
from recurformer.baselines.eviction import Eviction
from recurformer.baselines.pyramidinfer import PyramidInferPaper
from recurformer.measure.cache import cache_bytes
from recurformer.paper import PYRAMIDINFER_MINIMUM, PYRAMIDINFER_RATIO

WIDTH = 8
"""Features of the one head that stands for all: heads that keep equally many tokens need no more."""


@torch.no_grad()
def kept_ratio(eviction: Eviction, layers: int, tokens: int) -> float:
    """Keys and values that the method's cache keeps of one prompt, over all of them.

    Random queries, keys and values go through the cache that the method uses in any model, layer by layer. The layers'
    outputs are not computed.

    Args:
        eviction: a method that keeps equally many tokens in all heads of a layer.
        layers: of the model.
        tokens: of the prompt, read in one forward pass.
    """
    cache, generator = EvictingCache(eviction, ["full_attention"] * layers), torch.Generator().manual_seed(0)
    count = torch.tensor([tokens])
    arrival = Arrival(torch.arange(tokens).int()[None], tokens=count, read_tokens=count, generated=0 * count)
    for layer in cache.layers:
        query, key, value = torch.randn(3, 1, 1, tokens, WIDTH, generator=generator)
        for _ in layer.arrive(query[:, None], key, value, arrival, WIDTH**-0.5):
            pass
    sizes = cache_bytes(cache)
    kept_bytes = sizes.loc[sizes["kind"].isin(["key", "value"]), "bytes"].sum()
    return float(kept_bytes / (layers * 2 * tokens * WIDTH * key.element_size()))


def pyramidinfer_rows(
    lengths: Sequence[int] = (10_240, 61_440), model: str = "llama2-7b", layers: int = 32
) -> pd.DataFrame:
    """The rows of pyramidinfer.csv, in the paper's setting (Appendix B): model, method ("pyramidinfer"), length, ratio,
    source ("counted").
    """
    method = PyramidInferPaper(1.0, keep=PYRAMIDINFER_RATIO, minimum=PYRAMIDINFER_MINIMUM)
    ratios = [kept_ratio(method, layers, length) for length in lengths]
    return pd.DataFrame(
        {"model": model, "method": "pyramidinfer", "length": lengths, "ratio": ratios, "source": "counted"}
    )
