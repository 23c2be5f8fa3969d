"""Measurements of a world in which the paper is right: every claim that can be tested holds, at the paper's scale."""

import math
from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pandas as pd

from recurformer.claims import THIS_STUDY, Evidence
from recurformer.paper import (
    BACKBONE_LABELS,
    CACHE_LENGTHS,
    CELLS,
    D_CONV,
    D_STATE,
    EXPAND,
    EXPONENTS,
    LLAMA2_7B_LAYERS,
    LLAMA2_7B_WIDTH,
    SETTINGS,
)  # fmt: skip
from recurformer.results.frames import COLUMNS
from recurformer.results.learned import TRAINED

BETAS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
GROUPS = {"qwen2-0.5b": 7, "llama2-7b": 1, "qwen2-7b": 7}
CELL = {(cell.table, cell.model, cell.method, cell.part, cell.beta, cell.quantity): cell for cell in CELLS}
FURTHER = {
    "complexity": ["width", "operations"],
    "cache": ["kv_bytes", "conv_bytes", "recurrent_bytes", "total_bytes", "state_dtype", "heads_replaced",
        "kv_heads_freed"],
    "pyramidinfer": ["source"],
    "hashhop": ["distances", "beta"],
    "baseline": ["distances"],
    "influence": ["norm", "samples"],
}  # fmt: skip
"""Kind -> columns besides those that renderers read. The functions below have the rows of one kind each."""

Rows = Iterator[tuple]


def _cells(table: int, *quantities: str):
    return [cell for cell in CELLS if cell.table == table and cell.quantity in quantities]


def complexity() -> Rows:
    for (phase, mixer, quantity), exponent in EXPONENTS.items():
        for length in (1024, 4096, 16384):
            each = 1000 if mixer == "attention" else 10
            yield mixer, phase, quantity, length, each * length**exponent, 4096, each * length


def cache() -> Rows:
    for cell in _cells(4, *CACHE_LENGTHS):
        # The printed 0.5930 and 0.5900 are the paper's own inconsistency: here the cache falls.
        ratio = 0.25 if (cell.model, cell.beta) == ("qwen2-7b", 0.75) else cell.value
        freed, length = round(1000 * cell.beta), CACHE_LENGTHS[cell.quantity]
        states = [EXPAND * LLAMA2_7B_WIDTH * LLAMA2_7B_LAYERS * size * cell.beta for size in (2 * D_CONV, 4 * D_STATE)]
        kv = length * (1000 - freed)
        counted = (kv, *states, kv + sum(states), "conv:bfloat16 recurrent:float32", freed * GROUPS[cell.model], freed)
        for unit in ("kv_group", "head"):
            yield cell.model, unit, cell.beta, length, ratio, *counted


def pyramidinfer() -> Rows:
    for cell in _cells(2, *CACHE_LENGTHS):
        if cell.method == "PyramidInfer":
            yield cell.model, CACHE_LENGTHS[cell.quantity], cell.value, "counted"


def memory() -> Rows:
    for cell, protocol in product(_cells(4, "l_m"), ("one_shot", "chunked")):
        yield cell.model, cell.beta, protocol, cell.value, 10**6, "measured"


def _answers(model: str, beta: float, quality: float, hops: int = 16, samples: int = 200) -> Rows:
    """All or nothing is right; a near and a far link take turns."""
    distances = " ".join((["3", "30"] * hops)[: hops - 1])
    for variant, sample in product(("official", "paper"), range(samples)):
        right = hops if sample < round(quality * samples) else 0
        about = ("mixer", "mamba", beta, "ra_i", True) if beta else ("original", "full", 1.0, "", True)
        yield model, *about, 0, 1.0 - beta, variant, sample, right, hops, distances, beta


def hashhop() -> Rows:
    for cell in _cells(4, "h_gq"):
        yield from _answers(cell.model, cell.beta, cell.value)


def baseline() -> Rows:
    for model in BACKBONE_LABELS:
        for _, *_, seed, _, variant, sample, right, hops, distances, _ in _answers(model, 0.0, 0.999):
            yield model, seed, variant, sample, right, hops, distances


def perplexity() -> Rows:
    for cell in _cells(3, "perplexity"):
        original = CELL[3, cell.model, "Original Model", "", 0.0, "perplexity"].value
        converted = original if cell.beta == 0 else 1000.0
        for stage, value in (("before", original), ("converted", converted), ("trained", cell.value)):
            yield cell.model, cell.beta, 0, stage, "validation", 1000, 1000 * math.log(value)


def metrics() -> Rows:
    for model, beta, step in product(BACKBONE_LABELS, (0.0, 0.5), range(1, 101)):
        yield model, "paper" if beta else "original", beta, 0, step, 2.5 + 0.1 * beta + 1 / step


def contribution() -> Rows:
    for cell in _cells(5, "l1_interval", "l2_interval"):
        norm = cell.quantity[:2]
        mean = CELL[5, cell.model, "", cell.part, None, f"{norm}_mean"].value
        for interval, (low, high) in (("mean", (mean, mean)), ("spread", cell.bounds)):
            yield cell.model, norm, cell.part, interval, mean, low, high, 512, 1e-9


def profile() -> Rows:
    recent = {"qwen2-0.5b": 3, "llama2-7b": 1, "qwen2-7b": 2}
    for model, sample, head in product(BACKBONE_LABELS, range(1024), range(4)):
        yield model, sample, 0, head, 0.9 if head < recent[model] else 0.2, 0.5


def sink() -> Rows:
    def value(quantity: str, query: int, key: int, value: float) -> tuple:
        return "llama2-7b", 23, 17, quantity, query, key, value, 1024

    for quantity, key in product(("value_norm", "value_norm_l1"), range(8)):
        yield value(quantity, -1, key, 0.1 if key == 0 else 10.0)
    for key in range(8):
        yield value("value_spread", -1, key, 0.1 if key == 0 else 0.9)
    for query, key in product(range(8), range(8)):
        if key <= query:
            weight = 1.0 if query == 0 else 0.6 if key == 0 else 0.4 / query
            yield value("attention", query, key, weight)
            yield value("contribution", query, key, weight * (0.1 if key == 0 else 10.0))


def attention_map() -> Rows:
    for level, first, decay in (("high", 0.1, 0.5), ("mid", 0.3, 0.9), ("low", 0.7, 1.0)):
        for query in range(64):
            weights = np.array([decay ** (query - key) for key in range(1, query + 1)])
            shared = (1 - first) * weights / weights.sum() if query else weights
            for key, weight in enumerate([first if query else 1.0, *shared]):
                for model in BACKBONE_LABELS:
                    yield model, level, 0, 0, 1, query, key, weight, 512


def influence() -> Rows:
    for model, (mixer, first), key in product(BACKBONE_LABELS, (("attention", 0.1), ("mamba", 0.9)), range(8)):
        yield model, mixer, 0, 0, 7, key, 1 / 8, first if key == 0 else 1.0, 1024


def mqar() -> Rows:
    splits = [*product(["validation"], (128, 256)), *product(["test"], (128, 256, 512, 1024))]
    for beta, rate, (split, length) in product(BETAS, (0.001, 0.01), splits):
        yield beta, rate, 0, split, length, length // 4, length <= 256, (10 if beta == 1 else 1000), 1000


KEPT = [("original", "full", 1.0, "", False, 0, 1.0), ("mixer", "mamba", 0.5, "ra_i", True, 0, 0.5)]
CHANGED = [
    *(("mixer", method, 0.5, "ra_i", True, 0, 0.5) for method in ("window", "linear")),
    *(("mixer", "mamba", 0.5, "random", True, seed, 0.5) for seed in range(3)),
    ("layers", "mamba", 0.5, "ra_i", True, 0, 0.5),
    *(
        ("eviction", method, budget, "", False, 0, budget)
        for method in ("h2o", "snapkv", "pyramidinfer_paper")
        for budget in (0.2, 0.8)
    ),
    ("combined", "h2o", 0.2, "", True, 0, 0.2),
]
THINGS = [*((*thing, 1.0) for thing in KEPT), *((*thing, 0.5) for thing in CHANGED)]
"""Identity without the model, and a fraction of right answers: RecurFormer keeps all, every other method half."""


def compared_hashhop() -> Rows:
    for model, (*about, fraction), sample in product(BACKBONE_LABELS, THINGS, range(8)):
        yield model, *about, "official", sample, int(fraction * 16), 16


def hashhop_sizes() -> Rows:
    """The original has not learned the longest prompts."""
    sizes = ((16, 1536), (16, 6144), (16, 9216), (4, 6144))
    for model, about, (hops, size), sample in product(BACKBONE_LABELS, KEPT, sizes, range(8)):
        right = 8 if size > 6144 and about[0] == "original" else hops
        yield model, *about, "official", sample, right, hops, size, "text", size == 6144


def needle() -> Rows:
    for model, (*about, fraction), sample in product(BACKBONE_LABELS, THINGS, range(8)):
        yield model, *about, "passkey", 512, 0.5, sample, int(sample < 8 * fraction), 1


def continuation() -> Rows:
    for model, (*about, fraction), window, position in product(BACKBONE_LABELS, THINGS, range(3), (0, 32)):
        yield model, *about, window, position, 32, 32 * (3.5 - fraction)


def ablation_lm_eval() -> Rows:
    """The original scores 0.9, and on a second task as if it guessed; RecurFormer scores as it does."""
    trained = ("original", "full", 1.0, "", True, 0)
    for model, about, (task, value) in product(
        BACKBONE_LABELS, (KEPT[0][:-1], trained, KEPT[1][:-1]), (("hellaswag", 0.9), ("winogrande", 0.5))
    ):
        yield model, *about, task, "acc", value, 0.01, 1000


def ra_i_settings() -> Rows:
    settings = ((102, 0.5, 0), (64, 0.5, 5), (205, 0.5, 8), (102, 0.7, 3), (32, 0.5, 40))
    for model, (window, alpha, moved) in product(BACKBONE_LABELS, settings):
        yield model, window, alpha, 0.5, "kv_group", 100, 100 - moved, 1 - moved / 100, (window, alpha) == (102, 0.5)


def head_scores() -> Rows:
    """Every score puts the heads in the order of RA-I."""
    scores = ("ra_i", "retrieval", "echo", "induction")
    for model, by, layer, head in product(BACKBONE_LABELS, scores, range(8), range(8)):
        yield model, by, 0, layer, head, float(8 * layer + head)


def recovery() -> Rows:
    """Every recipe comes back but from random weights; at equal bytes the window stays farther away."""
    ends = {"paper": 2.02, "calibrated": 2.01, "plus": 2.0, "bytes_mamba": 2.0, "bytes_window": 2.1}
    ends |= {"paper_98k": 2.5, "scratch_98k": 6.0}
    for tokens, window in product((0, 10**6), range(6)):
        yield "qwen2-0.5b", "original", "", 0.0, 0, tokens, 1.0, window, 2.0 + window / 10, 0.0, 1e6, 6e6
    for (arm, end), window in product(ends.items(), range(6)):
        mixer = "window" if arm == "bytes_window" else "mamba"
        for tokens, nats in ((0, 9.0), (10**6, end)):
            apart = nats - 2.0 + 0.01 * (window + 1)
            yield "qwen2-0.5b", arm, mixer, 0.5, 0, tokens, 1.0, window, nats + window / 10, apart, 6e5, 3e6


KINDS: tuple[Callable[[], Rows], ...] = (
    complexity, cache, pyramidinfer, memory, hashhop, baseline, perplexity, metrics, contribution, profile, sink,
    attention_map, influence, mqar, compared_hashhop, hashhop_sizes, needle, continuation, ablation_lm_eval,
    ra_i_settings, head_scores, recovery,
)  # fmt: skip


def frames() -> dict[str, pd.DataFrame]:
    """Every kind of measurement, each row with the name of its file; two seeds, and the loss of every training has
    flattened."""
    made = {}
    for rows in KINDS:
        kind = rows.__name__
        frame = pd.DataFrame(list(rows()), columns=[*COLUMNS[kind], *FURTHER.get(kind, [])])
        if {"seed", "beta"} <= set(frame):
            frame = pd.concat([frame, frame.assign(seed=1)], ignore_index=True)
        made[kind] = frame.assign(file=f"{kind}.csv", **({"fall": 0.0} if kind in TRAINED else {}))
    return made


def world(frames: dict[str, pd.DataFrame], source: str = THIS_STUDY, **changed: dict) -> Evidence:
    """Measurements as evidence, made at the paper's sizes but for the changed settings of some kinds."""
    settings = {f"{kind}.csv": SETTINGS.get(kind, {}) | changed.get(kind, {}) for kind in frames}
    return Evidence(source, frames, settings)
