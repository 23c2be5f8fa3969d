"""Synthetic measurements of the ablations, in the shape of the real ones: every family, method and setting."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pandas as pd

from recurformer.results.frames import COLUMNS
from recurformer.results.learned import TRAINED
from recurformer.results.scores import METHODS

SETTINGS = (0.25, 0.5, 0.75)
SELECTORS = {"mean_rr": -0.01, "inverse_ra_i": -0.4, "retrieval": 0.01, "echo": -0.08, "sensitivity": 0.0}
HASHHOP_SIZES = ((8, 1), (8, 2), (8, 3), (8, 4), (2, 2), (4, 2), (12, 2))
STRENGTH = {
    ("original", "full"): 1.0, ("mixer", "mamba"): 0.99, ("mixer", "window"): 0.93, ("mixer", "linear"): 0.9,
    ("mixer", "gated"): 0.96,
    ("mixer", "retention"): 0.95, ("mixer", "window_state"): 0.98,
    ("mixer", "mean"): 0.75, ("mixer", "zero"): 0.6, ("layers", "mamba"): 0.85,
    ("pooled", "mean"): 0.8,
}  # fmt: skip


def things() -> Iterator[tuple]:
    """(family, method, setting, by, trained, seed, ratio, strength): strength 1 is as good as the original."""
    yield "original", "full", 1.0, "", False, 0, 1.0, 1.0
    for place, method in enumerate(METHODS["eviction"]):
        for budget in SETTINGS:
            yield "eviction", method, budget, "", False, 0, budget, (0.95 - 0.05 * place) * budget**0.3
    for method, beta in product(METHODS["mixer"], SETTINGS):
        states = 0.08 * beta if method in ("mamba", "linear", "gated") else 0.0
        for trained in (True, False) if method != "zero" else (False,):
            strength = STRENGTH["mixer", method] ** (1 + beta) * (1 if trained else 0.5)
            yield "mixer", method, beta, "ra_i", trained, 0, 1 - beta + states, strength
    for beta in SETTINGS:
        yield "recovered", "plus", beta, "ra_i", True, 0, 1 - 0.92 * beta, 0.995
        yield "layers", "mamba", beta, "ra_i", True, 0, 1.04 - beta, 0.85 ** (1 + 2 * beta)
        for by, change in SELECTORS.items():
            yield "mixer", "mamba", beta, by, True, 0, 1 - 0.92 * beta, max(0.98 + change, 0.0)
        for seed in range(3):
            yield "mixer", "mamba", beta, "random", True, seed, 1 - 0.92 * beta, 0.8 - 0.05 * seed
    for kept in (1 / 3, 2 / 3):
        yield "pooled", "mean", kept, "", True, 0, kept, 0.7


def compared_hashhop_frame(models: tuple[str, ...] = ("hashhop-llama", "hashhop-qwen2")) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    hops, samples = 8, 32
    rows = []
    for model, (*about, strength), sample in product(models, things(), range(samples)):
        right = min(hops, int(rng.geometric(1 - strength) - 1)) if strength < 1 else hops
        rows.append((model, *about, "official", sample, right, hops))
    return pd.DataFrame(rows, columns=COLUMNS["compared_hashhop"])


def hashhop_sizes_frame(models: tuple[str, ...] = ("hashhop-llama",)) -> pd.DataFrame:
    """The original fails beyond 16 pairs, which is where the replaced heads still answer."""
    rng = np.random.default_rng(8)
    things = [("original", "full", 1.0, "", True, 0, 1.0)]
    things += [("mixer", mixer, beta, "ra_i", True, 0, 1 - beta) for mixer in ("mamba", "window") for beta in SETTINGS]
    rows = []
    for model, about, (hops, size), sample in product(models, things, HASHHOP_SIZES, range(32)):
        fraction = 0.99 if about[0] != "original" or hops * size <= 16 else 0.6
        right = int(rng.binomial(hops, fraction))
        rows.append((model, *about, "official", sample, right, hops, size, "tokens", (hops, size) == (8, 2)))
    return pd.DataFrame(rows, columns=COLUMNS["hashhop_sizes"])


def needle_frame(model: str = "smollm2-135m") -> pd.DataFrame:
    rng = np.random.default_rng(4)
    rows = []
    for *about, strength in things():
        for length, depth, sample in product((256, 512, 1024), (0.0, 0.25, 0.5, 0.75, 1.0), range(4)):
            fraction = strength if strength == 1 else strength * (1 - 0.4 * (1 - depth) * length / 1024)
            rows.append((model, *about, "passkey", length, depth, sample, int(rng.random() < fraction), 1))
        for sample in range(8):
            rows.append((model, *about, "multi_key", 512, 0.5, sample, int(rng.random() < 0.5 * strength), 1))
            rows.append((model, *about, "multi_query", 512, 0.5, sample, int(rng.binomial(4, strength)), 4))
    return pd.DataFrame(rows, columns=COLUMNS["needle"])


def continuation_frame(model: str = "smollm2-135m") -> pd.DataFrame:
    rng = np.random.default_rng(5)
    text = 3.0 + rng.normal(0, 0.15, (8, 8))
    rows = []
    for *about, strength in things():
        slope = 0.0 if about[1] == "mamba" else 0.3
        for window, place in product(range(8), range(8)):
            extra = 3.5 * (1 - strength) * (1 + slope * place)
            rows.append((model, *about, window, 32 * place, 32, 32 * (text[window, place] + extra), 32 * extra))
    return pd.DataFrame(rows, columns=[*COLUMNS["continuation"], "divergence"])


def ablation_lm_eval_frame(model: str = "smollm2-135m") -> pd.DataFrame:
    """A task of right answers and one of likelihoods, of what was trained and of the original, as it came and trained
    likewise.
    """
    trained = [(*about, strength) for *about, _, strength in things() if about[4]]
    rows = []
    for *about, strength in [*(("original", "full", 1.0, "", told, 0, 1.0) for told in (False, True)), *trained]:
        fraction = round(200 * 0.9 * strength) / 200
        rows.append((model, *about, "hellaswag", "acc", fraction, (fraction * (1 - fraction) / 200) ** 0.5, 200))
        rows.append((model, *about, "wikipedia", "byte_perplexity", 3.0 - strength, np.nan, 4))
    return pd.DataFrame(rows, columns=COLUMNS["ablation_lm_eval"])


def head_scores_frame(model: str = "smollm2-135m", layers: int = 30, heads: int = 9) -> pd.DataFrame:
    rng = np.random.default_rng(6)
    ra_i = rng.integers(0, 64, (layers, heads)) + rng.random((layers, heads)) / 10
    noise = {"mean_rr": 5, "retrieval": 30, "echo": 50, "induction": 60, "sensitivity": 25}
    scores = {("ra_i", 0): ra_i, ("inverse_ra_i", 0): -ra_i}
    scores |= {(by, 0): ra_i + rng.normal(0, width, ra_i.shape) for by, width in noise.items()}
    scores |= {("random", seed): rng.random(ra_i.shape) for seed in range(3)}
    rows = [
        (model, by, seed, layer, head, score)
        for (by, seed), table in scores.items()
        for (layer, head), score in np.ndenumerate(table)
    ]
    return pd.DataFrame(rows, columns=COLUMNS["head_scores"])


def ra_i_settings_frame(models: tuple[str, ...] = ("smollm2-135m",)) -> pd.DataFrame:
    rows = []
    for model, unit, beta in product(models, ("kv_group", "head"), (0.25, 0.5, 0.75, 0.9)):
        selected = round(beta * (90 if unit == "kv_group" else 270))
        for window, threshold in product((32, 64, 102, 205), (0.3, 0.5, 0.7, 0.9)):
            distance = abs(np.log2(window / 102)) / 2 + abs(threshold - 0.5)
            moved = round(selected * 0.15 * distance)
            is_default = (window, threshold) == (102, 0.5)
            rows.append(
                (model, window, threshold, beta, unit, selected, selected - moved, 1 - distance / 3, is_default)
            )
    return pd.DataFrame(rows, columns=COLUMNS["ra_i_settings"])


def ablation_frames() -> dict[str, pd.DataFrame]:
    """Every kind of the ablations; the loss of every training has flattened."""
    made = {
        "compared_hashhop": compared_hashhop_frame(),
        "hashhop_sizes": hashhop_sizes_frame(),
        "needle": needle_frame(),
        "continuation": continuation_frame(),
        "ablation_lm_eval": ablation_lm_eval_frame(),
        "head_scores": head_scores_frame(),
        "ra_i_settings": ra_i_settings_frame(),
    }
    return {kind: frame.assign(fall=0.0) if kind in TRAINED else frame for kind, frame in made.items()}
