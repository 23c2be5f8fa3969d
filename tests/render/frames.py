"""Synthetic measurements in the shape of the real ones: one function for each kind of file."""

from itertools import product

import numpy as np
import pandas as pd
from ablation_frames import ablation_frames

from recurformer.results.frames import COLUMNS

BETAS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
SHAPES = {"llama2-7b": (32, 32, 1), "qwen2-7b": (28, 28, 7), "qwen2-0.5b": (24, 14, 7), "smollm2-135m": (30, 9, 3)}
SMALL = ("hashhop-llama", "hashhop-qwen2")


def cache_frame() -> pd.DataFrame:
    rows = [
        (model, unit, beta, length, 1 - beta * freed + 36 * beta / length, "random")
        for model, (_, _, group) in SHAPES.items()
        for unit, freed in (("kv_group", 1), ("head", 1 / group))
        for beta, length in product(BETAS, (10_240, 61_440))
    ]
    return pd.DataFrame(rows, columns=[*COLUMNS["cache"], "ranking"])


def hashhop_frame(rng: np.random.Generator) -> pd.DataFrame:
    rows = [
        (model, *papers(beta), 0, 1.0 - beta, variant, sample, int(rng.binomial(8, max(0.02, 0.98 - beta**4))), 8, beta)
        for model, beta, variant, sample in product(SMALL, BETAS, ("official", "paper"), range(64))
    ]
    return pd.DataFrame(rows, columns=[*COLUMNS["hashhop"], "beta"])


def papers(beta: float) -> tuple[str, str, float, str, bool]:
    """Family, method, setting, by and trained of the paper's method, and of the original trained likewise."""
    return ("mixer", "mamba", beta, "ra_i", True) if beta else ("original", "full", 1.0, "", True)


def baseline_frame() -> pd.DataFrame:
    """Before conversion both models reproduce all hashes but one."""
    hashhop = hashhop_frame(np.random.default_rng(0))
    frame = hashhop[hashhop["beta"] == 0].assign(correct=8)
    return frame.assign(correct=frame["correct"].where(frame["sample"] > 0, 7))


def memory_frame() -> pd.DataFrame:
    rows = [
        (model, beta, protocol, int(70_000 * (1 + beta) * scale), 80 * 2**30, "model")
        for model, beta, (protocol, scale) in product(SHAPES, BETAS, (("one_shot", 1), ("chunked", 4)))
    ]
    return pd.DataFrame(rows, columns=COLUMNS["memory"])


def complexity_frame() -> pd.DataFrame:
    growth = {
        ("attention", "prefill", "cache_peak"): lambda n: 4 * n**2 + 900 * n,
        ("attention", "prefill", "cache_size"): lambda n: 512 * n,
        ("attention", "generation", "cache_peak"): lambda n: 700 * n,
        ("attention", "generation", "cache_size"): lambda n: 512 * n,
        ("mamba", "prefill", "cache_peak"): lambda n: 5000 * n + 10_000,
        ("mamba", "prefill", "cache_size"): lambda n: 20_480,
        ("mamba", "generation", "cache_peak"): lambda n: 40_000,
        ("mamba", "generation", "cache_size"): lambda n: 20_480,
    }
    rows = [(*key, n, size(n)) for key, size in growth.items() for n in (1024, 2048, 4096, 8192, 16384)]
    return pd.DataFrame(rows, columns=COLUMNS["complexity"])


def perplexity_frame(rng: np.random.Generator) -> pd.DataFrame:
    means = {
        (0.0, "before"): 3.0,
        (0.0, "trained"): 2.9,
        (0.5, "before"): 3.0,
        (0.5, "converted"): 6.5,
        (0.5, "trained"): 3.2,
    }
    rows = [
        ("smollm2-135m", beta, 0, stage, split, 1000, 1000 * (mean + rng.normal(0, 0.05)))
        for (beta, stage), mean in means.items()
        for split, _ in product(("train", "validation"), range(6))
    ]
    return pd.DataFrame(rows, columns=COLUMNS["perplexity"])


def contribution_frame() -> pd.DataFrame:
    rows = [
        ("smollm2-135m", norm, tokens, interval, mean, mean - width, mean + width, 64, 3e-12)
        for norm, scale in (("l1", 1.0), ("l2", 0.2))
        for tokens, mean in (("first", 0.03 * scale), ("other", 0.07 * scale))
        for interval, width in (("mean", 0.002 * scale), ("spread", 0.08 * scale))
    ]
    return pd.DataFrame(rows, columns=COLUMNS["contribution"])


def _softmax_rows(scores: np.ndarray) -> np.ndarray:
    masked = np.where(np.tri(len(scores), dtype=bool), scores, -np.inf)
    weights = np.exp(masked - masked.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def attention_like(rng: np.random.Generator, tokens: int, reach: float, sink: float) -> np.ndarray:
    """A causal attention matrix with a given reach in tokens and a given pull of the first token."""
    distance = np.subtract.outer(np.arange(tokens), np.arange(tokens))
    scores = -distance / reach + rng.normal(0, 0.4, (tokens, tokens))
    scores[:, 0] += sink
    return _softmax_rows(scores)


def _triangle(matrix: np.ndarray) -> pd.DataFrame:
    query, key = np.tril_indices(len(matrix))
    return pd.DataFrame({"query": query, "key": key, "value": matrix[query, key]})


def sink_frame(rng: np.random.Generator) -> pd.DataFrame:
    tokens = 32
    attention = attention_like(rng, tokens, 8, 5)
    norms = np.r_[0.3, 2.5 + rng.normal(0, 0.2, tokens - 1)]
    value_norm = pd.DataFrame({"query": -1, "key": np.arange(tokens), "value": norms, "quantity": "value_norm"})
    parts = [
        value_norm,
        _triangle(attention).assign(quantity="attention"),
        _triangle(attention * norms).assign(quantity="contribution"),
    ]
    return pd.concat(parts, ignore_index=True).assign(model="smollm2-135m", layer=11, head=4, samples=64)


def metrics_frame(rng: np.random.Generator) -> pd.DataFrame:
    steps = np.arange(1, 121)
    parts = [
        pd.DataFrame(
            {
                "model": "smollm2-135m", "arm": "paper" if beta else "original", "beta": beta, "seed": 0, "step": steps,
                "loss": 2.9 + top * np.exp(-steps / 15) + rng.normal(0, 0.15, len(steps)),
                "learning_rate": 1e-4, "tokens": steps * 512, "seconds": steps * 1.5,
            }
        )
        for beta, top in ((0.0, 0.1), (0.5, 4.0))
    ]  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def mqar_frame(rng: np.random.Generator) -> pd.DataFrame:
    slices = [("validation", 64, 16), ("validation", 128, 32)]
    slices += [("test", length, length // 4) for length in (64, 128, 256, 512)]
    rows = []
    for beta, rate, seed, (split, length, pairs) in product(BETAS, (1e-3, 3e-3, 1e-2), range(3), slices):
        trained = length <= 128
        level = (1.0 if beta < 1 else 0.35) * (1 if trained else 128 / length) * (1 if rate < 5e-3 else 0.5)
        fraction = float(np.clip(level + rng.normal(0, 0.03 if beta else 0), 0.01, 1))
        rows.append((beta, rate, seed, split, length, pairs, trained, rng.binomial(64 * pairs, fraction), 64 * pairs))
    return pd.DataFrame(rows, columns=COLUMNS["mqar"])


def attention_map_frame(rng: np.random.Generator, models: tuple[str, ...] = ("smollm2-135m",)) -> pd.DataFrame:
    levels = (("high", 4, 2, 3, 64), ("mid", 40, 11, 6, 33), ("low", 400, 20, 1, 0))
    parts = [
        _triangle(attention_like(rng, 256, reach, 4))
        .rename(columns={"value": "weight"})
        .assign(model=model, level=level, layer=layer, head=head, ra_i=ra_i, samples=64)
        for model in models
        for level, reach, layer, head, ra_i in levels
    ]
    return pd.concat(parts, ignore_index=True)


def profile_frame(rng: np.random.Generator, shapes: dict[str, tuple[int, int]], samples: int = 64) -> pd.DataFrame:
    parts = []
    for model, (layers, heads) in shapes.items():
        sample, layer, head = np.indices((samples, layers, heads)).reshape(3, -1)
        centre = rng.beta(2, 1.2, (layers, heads))
        rr = np.clip(centre[layer, head] + rng.normal(0, 0.08, len(layer)), 0, 1)
        parts.append(
            pd.DataFrame({"model": model, "sample": sample, "layer": layer, "head": head, "rr": rr, "threshold": 0.5})
        )
    return pd.concat(parts, ignore_index=True)


def influence_frame(rng: np.random.Generator, tokens: int = 64) -> pd.DataFrame:
    distance = np.arange(tokens)[::-1]
    attention = np.exp(-distance / 4) + rng.uniform(0, 0.03, tokens)
    attention[0] += 0.5
    mamba = np.exp(-distance / 7) + rng.uniform(0, 0.02, tokens)
    parts = [
        pd.DataFrame({"mixer": mixer, "head": head, "key": np.arange(tokens), "weight": weight / weight.sum()})
        for mixer, head, weight in (("attention", 4, attention), ("mamba", -1, mamba))
    ]
    return pd.concat(parts, ignore_index=True).assign(model="smollm2-135m", layer=11, query=tokens - 1)


def recovery_frame(rng: np.random.Generator) -> pd.DataFrame:
    ends = {
        ("paper", "mamba"): 1.2,
        ("calibrated", "mamba"): 0.6,
        ("plus", "mamba"): 0.2,
        ("state", "window_state"): 0.05,
    }
    ends |= {(f"bytes_{mixer}", mixer): 0.1 * place for place, mixer in enumerate(("mamba", "window", "retention"), 1)}
    runs = [("original", "", 0.0, 0.05), *((*arm, 0.5, end) for arm, end in ends.items())]
    runs += [("paper", "mamba", 0.9, 2.5), ("plus", "mamba", 0.9, 1.2)]
    rows = []
    for (arm, mixer, beta, end), (point, tokens) in product(runs, enumerate((0, 32_768, 65_536, 131_072, 524_288))):
        gap = end + (6 / (1 + point) ** 2 if beta else 0) if tokens or beta else 0.0
        held = (1e8 * (1 - beta) + 5e5, 6e8 * (1 - beta) + 5e5)
        for window in range(12):
            apart = gap * (1 + 0.1 * rng.normal())
            nats = 3 + apart + rng.normal(0, 0.2)
            rows.append(
                ("smollm2-135m", arm, mixer, beta, 0, tokens, tokens / 200, window, nats, max(apart, 0.0), *held)
            )
    return pd.DataFrame(rows, columns=COLUMNS["recovery"])


def layer_errors_frame() -> pd.DataFrame:
    rows = [
        ("smollm2-135m", f"bytes_{mixer}", mixer, 0.5, 0, layer, 0.2 + 0.02 * layer)
        for mixer in ("mamba", "retention")
        for layer in range(30)
    ]
    return pd.DataFrame(rows, columns=COLUMNS["layer_errors"])


def all_frames() -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(0)
    return {
        "cache": cache_frame(),
        "pyramidinfer": pd.DataFrame(
            {"model": "llama2-7b", "method": "pyramidinfer", "length": [10_240, 61_440], "ratio": [0.105398, 0.104302]}
        ),
        "memory": memory_frame(),
        "hashhop": hashhop_frame(rng),
        "baseline": baseline_frame(),
        "perplexity": perplexity_frame(rng),
        "contribution": contribution_frame(),
        "complexity": complexity_frame(),
        "sink": sink_frame(rng),
        "metrics": metrics_frame(rng),
        "mqar": mqar_frame(rng),
        "attention_map": attention_map_frame(rng),
        "profile": profile_frame(rng, {"smollm2-135m": (30, 9)}),
        "influence": influence_frame(rng),
        "recovery": recovery_frame(rng),
        "layer_errors": layer_errors_frame(),
        **ablation_frames(),
    }
