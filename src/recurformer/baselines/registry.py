"""The eviction methods by name, and a cache of each for a model."""

from transformers import PreTrainedModel

from recurformer.baselines.big_bird import BigBird
from recurformer.baselines.cache import EvictingCache
from recurformer.baselines.citrus import Citrus
from recurformer.baselines.eviction import Eviction
from recurformer.baselines.h2o import H2O
from recurformer.baselines.pyramidinfer_official import PyramidInferOfficial
from recurformer.baselines.pyramidinfer_paper import PyramidInferPaper
from recurformer.baselines.razor_attention import RazorAttention
from recurformer.baselines.scissorhands import Scissorhands
from recurformer.baselines.snapkv import SnapKV
from recurformer.baselines.streaming_llm import StreamingLLM
from recurformer.heads.probes import Repeated

EVICTIONS: dict[str, type[Eviction]] = {
    "streaming_llm": StreamingLLM,
    "h2o": H2O,
    "snapkv": SnapKV,
    "scissorhands": Scissorhands,
    "pyramidinfer_paper": PyramidInferPaper,
    "pyramidinfer_official": PyramidInferOfficial,
    "razor_attention": RazorAttention,
    "citrus": Citrus,
    "big_bird": BigBird,
}


def make_eviction(
    model: PreTrainedModel, method: str, budget: float | int, repeated: Repeated | None = None
) -> Eviction:
    """Return a method with what it has to know about `model`.

    Args:
        model: a causal language model that has not been converted.
        method: a name in `EVICTIONS`.
        budget: share (0, 1] of the tokens seen so far that the cache holds, on average over layers and heads, or a
            number of tokens.
        repeated: random tokens, repeated, on which a method may judge the heads; None: any of the vocabulary, which
            tell little about a model that reads no text.

    Raises:
        ValueError: an unknown method, a bad budget, a converted model.
    """
    if method not in EVICTIONS:
        raise ValueError(f"method={method!r} is unknown; choose one of {', '.join(EVICTIONS)}")
    if any(getattr(model.config, "recurrent_heads", [])):
        raise ValueError(f"method={method!r} evicts from a model's own attention; this one has been converted")
    return EVICTIONS[method].for_model(model, budget, repeated)


def make_cache(model: PreTrainedModel, method: str, budget: float | int) -> EvictingCache:
    """Return an empty cache for one batch, to be used inside `evicting(model)`: see `make_eviction`."""
    return EvictingCache(make_eviction(model, method, budget), model.config.num_hidden_layers)
