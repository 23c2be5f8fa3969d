"""Measurements of a world in which the paper is right: every claim that can be tested holds, at the paper's scale."""

import math
from itertools import product

import numpy as np
import pandas as pd

from recurformer.paper import BACKBONE_LABELS, CELLS, EXPONENTS
from recurformer.paper.sizes import (
    CACHE_LENGTHS,
    D_CONV,
    D_STATE,
    EXPAND,
    LLAMA2_7B_LAYERS,
    LLAMA2_7B_WIDTH,
    SETTINGS,
)  # fmt: skip
from recurformer.render.claims import THIS_STUDY, Evidence
from recurformer.render.measurements import COLUMNS
from recurformer.render.training import TRAINED

BETAS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
GROUPS = {"qwen2-0.5b": 7, "llama2-7b": 1, "qwen2-7b": 7}
CELL = {(cell.table, cell.model, cell.method, cell.part, cell.beta, cell.quantity): cell for cell in CELLS}


def _cells(table: int, *quantities: str):
    return [cell for cell in CELLS if cell.table == table and cell.quantity in quantities]


def complexity() -> pd.DataFrame:
    rows = [
        (mixer, phase, quantity, length, (1000 if mixer == "attention" else 10) * length**exponent)
        for (phase, mixer, quantity), exponent in EXPONENTS.items()
        for length in (1024, 4096, 16384)
    ]
    return pd.DataFrame(rows, columns=["mixer", "phase", "quantity", "length", "bytes"]).assign(width=4096)


def cache() -> pd.DataFrame:
    rows = []
    for cell in _cells(4, *CACHE_LENGTHS):
        # The printed 0.5930 and 0.5900 are the paper's own inconsistency: here the cache falls.
        ratio = 0.25 if (cell.model, cell.beta) == ("qwen2-7b", 0.75) else cell.value
        freed = round(1000 * cell.beta)
        states = [EXPAND * LLAMA2_7B_WIDTH * LLAMA2_7B_LAYERS * size * cell.beta for size in (2 * D_CONV, 4 * D_STATE)]
        length = CACHE_LENGTHS[cell.quantity]
        for unit in ("kv_group", "head"):
            kv = length * (1000 - freed)
            heads = freed * GROUPS[cell.model]
            precision = "conv:bfloat16 recurrent:float32"
            rows.append(
                (cell.model, unit, cell.beta, length, ratio, kv, *states, kv + sum(states), precision, heads, freed)
            )
    sizes = [
        "kv_bytes",
        "conv_bytes",
        "recurrent_bytes",
        "total_bytes",
        "state_dtype",
        "heads_replaced",
        "kv_heads_freed",
    ]
    columns = ["model", "unit", "beta", "length", "ratio", *sizes]
    return pd.DataFrame(rows, columns=columns)


def pyramidinfer() -> pd.DataFrame:
    cells = [cell for cell in _cells(2, *CACHE_LENGTHS) if cell.method == "PyramidInfer"]
    rows = [(cell.model, CACHE_LENGTHS[cell.quantity], cell.value) for cell in cells]
    return pd.DataFrame(rows, columns=["model", "length", "ratio"])


def memory() -> pd.DataFrame:
    rows = [
        (cell.model, cell.beta, protocol, cell.value, "measured", 10**6)
        for cell in _cells(4, "l_m")
        for protocol in ("one_shot", "chunked")
    ]
    return pd.DataFrame(rows, columns=["model", "beta", "protocol", "l_m", "source", "mamba_parameters"])


def _answers(model: str, beta: float, quality: float, hops: int = 16, samples: int = 200) -> list[tuple]:
    right = round(quality * samples)
    return [
        (model, beta, 0, variant, sample, hops if sample < right else 0, hops)
        for variant in ("official", "paper")
        for sample in range(samples)
    ]


def hashhop() -> pd.DataFrame:
    rows = [row for cell in _cells(4, "h_gq") for row in _answers(cell.model, cell.beta, cell.value)]
    return pd.DataFrame(rows, columns=["model", "beta", "seed", "variant", "sample", "correct", "hops"])


def baseline() -> pd.DataFrame:
    rows = [row for model in BACKBONE_LABELS for row in _answers(model, 0.0, 0.999)]
    return pd.DataFrame(rows, columns=["model", "beta", "seed", "variant", "sample", "correct", "hops"])


def perplexity() -> pd.DataFrame:
    rows = []
    for cell in _cells(3, "perplexity"):
        original = CELL[3, cell.model, "Original Model", "", 0.0, "perplexity"].value
        converted = original if cell.beta == 0 else 1000.0
        for stage, value in (("before", original), ("converted", converted), ("trained", cell.value)):
            rows.append((cell.model, cell.beta, 0, stage, "validation", 1000, 1000 * math.log(value)))
    columns = ["model", "beta", "seed", "stage", "split", "tokens", "negative_log_likelihood"]
    return pd.DataFrame(rows, columns=columns)


def metrics() -> pd.DataFrame:
    rows = [
        (model, beta, 0, step, 2.5 + 0.1 * beta + 1 / step, step * 10**5)
        for model, beta in product(BACKBONE_LABELS, (0.0, 0.5))
        for step in range(1, 101)
    ]
    return pd.DataFrame(rows, columns=["model", "beta", "seed", "step", "loss", "tokens"])


def contribution() -> pd.DataFrame:
    rows = []
    for cell in _cells(5, "l1_interval", "l2_interval"):
        norm = cell.quantity[:2]
        mean = CELL[5, cell.model, "", cell.part, None, f"{norm}_mean"].value
        for interval, (low, high) in (("mean", (mean, mean)), ("spread", cell.bounds)):
            rows.append((cell.model, norm, cell.part, interval, mean, low, high, 512, 1e-9))
    columns = ["model", "norm", "tokens", "interval", "mean", "low", "high", "samples", "p_value"]
    return pd.DataFrame(rows, columns=columns)


def profile() -> pd.DataFrame:
    recent = {"qwen2-0.5b": 3, "llama2-7b": 1, "qwen2-7b": 2}
    rows = [
        (model, 0.5, sample, 0, head, 0.9 if head < recent[model] else 0.2)
        for model in BACKBONE_LABELS
        for sample in range(1024)
        for head in range(4)
    ]
    return pd.DataFrame(rows, columns=["model", "threshold", "sample", "layer", "head", "rr"])


def sink() -> pd.DataFrame:
    rows = [
        ("llama2-7b", 23, 17, quantity, -1, key, 0.1 if key == 0 else 10.0, 1024)
        for quantity, key in product(("value_norm", "value_norm_l1"), range(8))
    ]
    for query in range(8):
        for key in range(query + 1):
            weight = 1.0 if query == 0 else 0.6 if key == 0 else 0.4 / query
            norm = 0.1 if key == 0 else 10.0
            for quantity, value in (("attention", weight), ("contribution", weight * norm)):
                rows.append(("llama2-7b", 23, 17, quantity, query, key, value, 1024))
    return pd.DataFrame(rows, columns=["model", "layer", "head", "quantity", "query", "key", "value", "samples"])


def attention_map() -> pd.DataFrame:
    rows = []
    for level, first, decay in (("high", 0.1, 0.5), ("mid", 0.3, 0.9), ("low", 0.7, 1.0)):
        for query in range(64):
            weights = np.array([decay ** (query - key) for key in range(1, query + 1)])
            shared = (1 - first) * weights / weights.sum() if query else weights
            for key, weight in enumerate([first if query else 1.0, *shared]):
                rows += [(model, level, 0, 0, 1, query, key, weight, 512) for model in BACKBONE_LABELS]
    columns = ["model", "level", "layer", "head", "ra_i", "query", "key", "weight", "samples"]
    return pd.DataFrame(rows, columns=columns)


def mqar() -> pd.DataFrame:
    rows = [
        (beta, rate, 0, split, length, length // 4, length <= 256, (10 if beta == 1 else 1000), 1000)
        for beta in BETAS
        for rate in (0.001, 0.01)
        for split in ("validation", "test")
        for length in (128, 256, 512, 1024)
        if split == "test" or length <= 256
    ]
    columns = ["beta", "learning_rate", "seed", "split", "length", "pairs", "trained_length", "correct", "queries"]
    return pd.DataFrame(rows, columns=columns)


def _things() -> list[tuple]:
    """Identity without the model, and a share of right answers: RecurFormer keeps all, every other method half."""
    changed = [
        *(("mixer", method, 0.5, "ra_i", True, 0, 0.5) for method in ("window", "linear")),
        *(("mixer", "mamba", 0.5, "random", True, seed, 0.5) for seed in range(3)),
        ("layers", "mamba", 0.5, "ra_i", True, 0, 0.5),
        *(("eviction", method, budget, "", False, 0, budget) for method in ("h2o", "snapkv") for budget in (0.2, 0.8)),
    ]
    kept = [("original", "full", 1.0, "", False, 0, 1.0), ("mixer", "mamba", 0.5, "ra_i", True, 0, 0.5)]
    return [(*thing, 1.0) for thing in kept] + [(*thing, 0.5) for thing in changed]


def ablation_hashhop() -> pd.DataFrame:
    rows = [
        (model, *about, "official", sample, int(share * 16), 16)
        for model, (*about, share), sample in product(BACKBONE_LABELS, _things(), range(8))
    ]
    return pd.DataFrame(rows, columns=COLUMNS["ablation_hashhop"])


def hashhop_sizes() -> pd.DataFrame:
    """The original has not learned the longest prompts."""
    rows = [
        (
            model,
            *about,
            "official",
            sample,
            8 if size > 6144 and about[0] == "original" else hops,
            hops,
            size,
            "text",
            size == 6144,
        )
        for model, (*about, _) in product(BACKBONE_LABELS, _things()[:2])
        for (hops, size), sample in product(((16, 1536), (16, 6144), (16, 9216), (4, 6144)), range(8))
    ]
    return pd.DataFrame(rows, columns=COLUMNS["hashhop_sizes"])


def needle() -> pd.DataFrame:
    rows = [
        (model, *about, "passkey", 512, 0.5, sample, int(sample < 8 * share), 1)
        for model, (*about, share), sample in product(BACKBONE_LABELS, _things(), range(8))
    ]
    return pd.DataFrame(rows, columns=COLUMNS["needle"])


def continuation() -> pd.DataFrame:
    rows = [
        (model, *about, window, position, 32, 32 * (3.5 - share))
        for model, (*about, share) in product(BACKBONE_LABELS, _things())
        for window, position in product(range(3), (0, 32))
    ]
    return pd.DataFrame(rows, columns=COLUMNS["continuation"])


def ra_i_settings() -> pd.DataFrame:
    rows = [
        (
            model,
            window,
            threshold,
            0.5,
            "kv_group",
            100,
            100 - moved,
            1 - moved / 100,
            (window, threshold) == (102, 0.5),
        )
        for model in BACKBONE_LABELS
        for window, threshold, moved in ((102, 0.5, 0), (64, 0.5, 5), (205, 0.5, 8), (102, 0.7, 3), (32, 0.5, 40))
    ]
    return pd.DataFrame(rows, columns=COLUMNS["ra_i_settings"])


def head_scores() -> pd.DataFrame:
    """Every score puts the heads in the order of RA-I."""
    rows = [
        (model, by, 0, layer, head, float(8 * layer + head))
        for model, by in product(BACKBONE_LABELS, ("ra_i", "retrieval", "echo", "induction"))
        for layer, head in product(range(8), range(8))
    ]
    return pd.DataFrame(rows, columns=COLUMNS["head_scores"])


def recovery() -> pd.DataFrame:
    """Every recipe comes back; at equal bytes the window stays farther away."""
    ends = {"paper": 2.02, "calibrated": 2.01, "plus": 2.0, "bytes_mamba": 2.0, "bytes_window": 2.1}
    rows = [
        ("qwen2-0.5b", "original", "", 0.0, 0, tokens, 1.0, window, 2.0 + window / 10, 0.0, 1e6, 6e6)
        for tokens, window in product((0, 10**6), range(6))
    ]
    for (arm, end), window in product(ends.items(), range(6)):
        mixer = "window" if arm == "bytes_window" else "mamba"
        for tokens, nats in ((0, 9.0), (10**6, end)):
            apart = nats - 2.0 + 0.01 * (window + 1)
            rows.append(("qwen2-0.5b", arm, mixer, 0.5, 0, tokens, 1.0, window, nats + window / 10, apart, 6e5, 3e6))
    return pd.DataFrame(rows, columns=COLUMNS["recovery"])


KINDS = (
    complexity, cache, pyramidinfer, memory, hashhop, baseline, perplexity, metrics, contribution, profile, sink,
    attention_map, mqar, ablation_hashhop, hashhop_sizes, needle, continuation, ra_i_settings,
    head_scores, recovery,
)  # fmt: skip


def frames() -> dict[str, pd.DataFrame]:
    """Every kind of measurement, each row with the name of its file; the loss of every training has flattened."""
    made = {kind.__name__: kind().assign(file=f"{kind.__name__}.csv") for kind in KINDS}
    return {name: frame.assign(fall=0.0) if name in TRAINED else frame for name, frame in made.items()}


def world(frames: dict[str, pd.DataFrame], source: str = THIS_STUDY, **changed: dict) -> Evidence:
    """Measurements as evidence, made at the paper's sizes but for the changed settings of some kinds."""
    settings = {f"{kind}.csv": SETTINGS.get(kind, {}) | changed.get(kind, {}) for kind in frames}
    return Evidence(source, frames, settings)
