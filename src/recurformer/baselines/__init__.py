"""The baselines that RecurFormer is compared with: caches that evict tokens; see `evicting` and `make_cache`."""

from recurformer.baselines.cache import EvictingCache
from recurformer.baselines.interface import empty_cache, evicting, make_cache, make_eviction, matching_budget
from recurformer.baselines.methods import EVICTIONS

__all__ = ["EVICTIONS", "EvictingCache", "empty_cache", "evicting", "make_cache", "make_eviction", "matching_budget"]
