"""Measurements of a world in which the paper is right: every claim that can be tested holds, at the paper's scale.

One function a kind of measurement, named after it, gives the rows. Claims are judged on them; tables and figures show
them under the names of small models, and with more methods.
"""

import math
from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pandas as pd

from recurformer.claims.evidence import THIS_STUDY, Evidence
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
)
from recurformer.results.frames import COLUMNS
from recurformer.results.scores import METHODS

BETAS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
GROUPS = {"qwen2-0.5b": 7, "llama2-7b": 1, "qwen2-7b": 7}
CELL = {(cell.table, cell.model, cell.method, cell.part, cell.beta, cell.quantity): cell for cell in CELLS}
FURTHER = {
    "cache": ["ranking", "kv_bytes", "conv_bytes", "recurrent_bytes", "total_bytes", "state_dtype", "heads_replaced",
        "kv_heads_freed"],
    "hashhop": ["distances", "beta"],
    "baseline": ["distances"],
    "influence": ["samples"],
    "continuation": ["divergence", "recalled", "recalled_likelihood"],
}  # fmt: skip
"""Kind -> columns besides those that renderers read."""
TRAINED = {"metrics", "perplexity", "hashhop", "mqar", "compared_hashhop", "hashhop_sizes", "needle", "written",
    "continuation", "positions", "ablation_lm_eval"}  # fmt: skip
"""Kinds whose rows say how the training of their model ended."""

Rows = Iterator[tuple]


def _cells(table: int, *quantities: str):
    return [cell for cell in CELLS if cell.table == table and cell.quantity in quantities]


def complexity() -> Rows:
    for (phase, mixer, quantity), exponent in EXPONENTS.items():
        for length in (1024, 4096, 16384):
            each = 1000 if mixer == "attention" else 10
            yield mixer, phase, quantity, length, each * length**exponent, each * length, 4096


def cache() -> Rows:
    """Of single heads only the last of a group frees a key-value head."""
    for cell in _cells(4, *CACHE_LENGTHS):
        # The printed 0.5930 and 0.5900 are the paper's own inconsistency: here the cache falls.
        ratio = 0.25 if (cell.model, cell.beta) == ("qwen2-7b", 0.75) else cell.value
        freed, length, group = round(1000 * cell.beta), CACHE_LENGTHS[cell.quantity], GROUPS[cell.model]
        states = [EXPAND * LLAMA2_7B_WIDTH * LLAMA2_7B_LAYERS * size * cell.beta for size in (2 * D_CONV, 4 * D_STATE)]
        kv = length * (1000 - freed)
        counted = (kv, *states, kv + sum(states), "conv:bfloat16 recurrent:float32", freed * group, freed)
        for unit, part in (("kv_group", 1), ("head", group)):
            yield cell.model, unit, cell.beta, length, 1 - (1 - ratio) / part, "random", *counted


def pyramidinfer() -> Rows:
    for cell in _cells(2, *CACHE_LENGTHS):
        if cell.method == "PyramidInfer":
            yield cell.model, CACHE_LENGTHS[cell.quantity], cell.value


def memory() -> Rows:
    for cell, (protocol, times) in product(_cells(4, "l_m"), (("one_shot", 1), ("chunked", 4))):
        yield cell.model, cell.beta, protocol, times * cell.value, 80 * 2**30, "measured"
    for cell in (cell for cell in _cells(2, "l_m") if cell.method == "PyramidInfer"):
        yield cell.model, 0.0, "pyramidinfer", cell.value, 80 * 2**30, "measured"


def bench() -> Rows:
    for model, topic, tokens in product(BACKBONE_LABELS, ("prefill", "decode"), (1024, 61440)):
        seconds = tokens / 2**15
        yield topic, model, "GPU", 0.0, 1, tokens, 5, 1.0, 1.0, 1.0, seconds
        yield topic, model, "cpu", 0.9, 1, tokens, 5, 0.3, 0.2, 0.4, seconds / 0.3
        of_many = 1.5 if (topic, tokens) == ("decode", 1024) else 0.3
        yield topic, model, "GPU", 0.9, 8, tokens, 5, of_many, of_many - 0.1, of_many + 0.1, seconds / of_many
        for beta in (0.5, 0.9):
            ratio = 2.0 - beta if tokens > 1024 else 0.8
            yield topic, model, "GPU", beta, 1, tokens, 5, ratio, ratio - 0.05, ratio + 0.05, seconds / ratio


def _answers(model: str, beta: float, quality: float, hops: int = 16, samples: int = 250) -> Rows:
    """All or nothing is right but in one sample, which makes the mean the printed one to the last digit. A little less
    is right in the layout of the appendix; a near and a far link take turns.
    """
    distances = " ".join((["3", "30"] * hops)[: hops - 1])
    for (variant, less), sample in product((("official", 0), ("paper", 2)), range(samples)):
        right = int(np.clip(round(quality * samples * hops) - hops * (sample + less), 0, hops))
        about = ("mixer", "mamba", beta, "ra_i", True) if beta else ("original", "full", 1.0, "", True)
        yield model, *about, 0, 1.0 - beta, variant, sample, right, hops, distances, beta


def hashhop() -> Rows:
    for cell in _cells(4, "h_gq"):
        yield from _answers(cell.model, cell.beta, cell.value)


def pyramidinfer_hashhop() -> Rows:
    (cell,) = (cell for cell in _cells(2, "h_gq") if cell.method == "PyramidInfer")
    for model, *_, seed, _, variant, sample, right, hops, _, _ in _answers(cell.model, 0.0, cell.value):
        about = "eviction", "pyramidinfer_paper", 0.7, "", False
        yield model, *about, seed, 0.105, variant, sample, right, hops


def baseline() -> Rows:
    for model in BACKBONE_LABELS:
        printed = CELL[2, model, "Original Model", "", 0.0, "h_gq"].value
        for _, *_, seed, _, variant, sample, right, hops, distances, _ in _answers(model, 0.0, printed):
            yield model, seed, variant, sample, right, hops, distances


def perplexity() -> Rows:
    for cell in _cells(3, "perplexity"):
        original = CELL[3, cell.model, "Original Model", "", 0.0, "perplexity"].value
        converted = original if cell.beta == 0 else 1000.0
        stages = ("before", original), ("converted", converted), ("trained", cell.value)
        for beta, (stage, value) in product({cell.beta, math.ceil(cell.beta)}, stages):  # all heads do as well as half
            yield cell.model, beta, 0, stage, "validation", 1000, 1000 * math.log(value)


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


ORIGINAL = ("original", "full", 1.0, "", False, 0, 1.0)
RECURFORMER = ("mixer", "mamba", 0.5, "ra_i", True, 0, 0.5)
KEPT = [(*ORIGINAL, 1.0), (*RECURFORMER, 1.0)]
RIVALS = [
    *(("mixer", method, 0.5, "ra_i", True, 0, 0.5) for method in ("window", "linear")),
    *(("mixer", "mamba", 0.5, "random", True, seed, 0.5) for seed in range(3)),
    ("mixer", "mamba", 0.5, "mixer_price", True, 0, 0.5),
    ("layers", "mamba", 0.5, "ra_i", True, 0, 0.5),
    ("single", "mamba", 0.5, "ra_i", True, 0, 0.6),
    *(("eviction", method, budget, "", False, 0, budget) for method, budget in product(
        ("h2o", "snapkv", "pyramidinfer_paper"), (0.2, 0.8))),
    ("combined", "h2o", 0.2, "", True, 0, 0.2),
]  # fmt: skip
SUBJECTS = [*KEPT, *((*rival, 0.5) for rival in RIVALS)]
"""family, method, setting, by, trained, seed, ratio, and the fraction of right answers: RecurFormer keeps all, every
other method half."""
SETTINGS_SHOWN = (0.25, 0.5, 0.75)
SELECTORS = ("mean_rr", "inverse_ra_i", "retrieval", "echo", "price", "mixer_price")


def every_subject() -> Iterator[tuple]:
    """As `SUBJECTS`, of every method: what figures and tables show. The better a method, the earlier it is listed."""
    yield KEPT[0]
    for place, method in enumerate(METHODS["eviction"]):
        yield from (("eviction", method, kept, "", False, 0, kept, (0.95 - 0.05 * place) * kept**0.3)
            for kept in SETTINGS_SHOWN)  # fmt: skip
    for kept in (1 / 3, 2 / 3):
        yield "pooled", "mean", kept, "", True, 0, kept, 0.7
    for beta in SETTINGS_SHOWN:
        held = 1 - 0.92 * beta
        for place, method in enumerate(METHODS["mixer"]):
            quality = (1 - 0.05 * place) ** (1 + beta)
            yield "mixer", method, beta, "ra_i", False, 0, held, quality / 2
            if method != "zero":
                yield "mixer", method, beta, "ra_i", True, 0, held, quality
        yield "recovered", "plus", beta, "ra_i", True, 0, held, 0.995
        yield "layers", "mamba", beta, "ra_i", True, 0, 1.04 - beta, 0.85 ** (1 + 2 * beta)
        yield "single", "mamba", beta, "ra_i", True, 0, 1.1 - beta, 0.9 ** (1 + beta)
        for place, by in enumerate(SELECTORS):
            yield "mixer", "mamba", beta, by, True, 0, held, 0.99 - 0.05 * place
        yield "mixer", "window", beta, "kvzip", False, 0, held, 0.4
        for seed in range(3):
            yield "mixer", "mamba", beta, "random", True, seed, held, 0.7 - 0.05 * seed


def compared_hashhop(subjects=SUBJECTS) -> Rows:
    for model, (*about, fraction), sample in product(BACKBONE_LABELS, subjects, range(32)):
        yield model, *about, "official", sample, int(fraction * 16), 16


def hashhop_sizes() -> Rows:
    """The original has not learned the longest prompts; of longer ones an evicting cache loses half."""
    sizes = ((16, 1536), (16, 6144), (16, 9216), (4, 6144))
    evicted = [("eviction", "pyramidinfer_paper", budget, "", False, 0, budget, 0.5) for budget in (0.25, 0.75)]
    for model, (*about, fraction), (hops, size), sample in product(BACKBONE_LABELS, KEPT + evicted, sizes, range(32)):
        right = 8 if size > 6144 and about[0] == "original" else int(hops * fraction) if size > 1536 else hops
        yield model, *about, "official", sample, right, hops, size, "text", (hops, size) == (16, 6144)


def needle(subjects=SUBJECTS) -> Rows:
    """One passkey at some depth, or the answers to four questions; nobody has learned to tell one key from others."""
    for model, (*about, fraction), sample in product(BACKBONE_LABELS, subjects, range(8)):
        for length, depth in product((512, 1024), (0.0, 0.5, 1.0)):
            yield model, *about, "passkey", length, depth, sample, int(sample < 8 * fraction), 1
        yield model, *about, "multi_query", 512, 0.5, sample, int(4 * fraction), 4
        yield model, *about, "multi_key", 512, 0.5, sample, int(sample < 4 * fraction), 1


def turns(subjects=SUBJECTS) -> Rows:
    """Six documents, ten questions about each afterwards; with an evicting cache one is known before."""
    for model, (*about, fraction), document, question in product(BACKBONE_LABELS, subjects, range(6), range(10)):
        depth = (question + 0.5) / 10
        yield model, *about, 1024, document, depth, False, int(question < 10 * fraction**2), 1
        if about[0] == "eviction" and question == document:
            yield model, *about, 1024, document, depth, True, 1, 1


AT_EQUAL_BYTES = [
    ("mixer", "window", 0.8, "ra_i", False, 0, 0.25, 0.6),
    ("priced", "windows", 0.25, "", False, 0, 0.255, 0.5),
]


def continuation(subjects=(*SUBJECTS, *AT_EQUAL_BYTES)) -> Rows:
    for model, (*about, fraction), window, position in product(BACKBONE_LABELS, subjects, range(3), (0, 32)):
        yield model, *about, window, position, 32, 32 * (3.5 - fraction), 32 * (1 - fraction), 4, 4 * (4 - fraction)


def long_continuation() -> Rows:
    """Untrained, of two models; windows differ, and the smaller the cache, the further off is the model."""
    evicted = [("eviction", "snapkv", budget, "", False, 0, budget) for budget in (0.25, 0.125)]
    subjects = [("original", "full", 1.0, "", False, 0, 1.0), *evicted]
    for model, about, window in product(("qwen2-0.5b", "llama2-7b"), subjects, range(3)):
        apart = (1 - about[-1]) * (window + 1) / 2
        yield model, *about, window, 0, 32, 32 * (3.5 + apart / 2), 32 * apart


def written(subjects=SUBJECTS) -> Rows:
    """The more was lost, the sooner another token comes, and the less likely all are."""
    for model, (*about, fraction), window in product(BACKBONE_LABELS, subjects, range(3)):
        yield model, *about, window, int(64 * fraction), 64, 64 * (1.1 - fraction)


def positions() -> Rows:
    """Nearer to the end of a long window each token is harder, and with few attention heads what stood far back too."""
    of_betas = [
        ("original", "full", 1.0, "", True, 0),
        *(("mixer", "mamba", b, "ra_i", True, 0) for b in (0.5, 0.9, 1.0)),
    ]
    of_shares = [ORIGINAL, *(("priced", "windows_bits", share, "", False, 0, share) for share in (0.25, 0.5))]
    trained = product(BACKBONE_LABELS, ((*about, 0.6) for about in of_betas))
    subjects = [*trained, *product(["qwen2-0.5b"], of_shares)]
    for (model, about), window, position in product(subjects, range(3), range(0, 512, 32)):
        apart = (1 - about[-1]) * (position + 32 * window) / 512
        nats, recalled = 2 + position / 512 + (0 if about[4] else apart / 2), position // 64
        lost = recalled * (nats + 1 + (2 * about[2] - 1) * (about[0] == "mixer"))
        yield model, *about, window, position, 32, 32 * nats, 32 * apart, recalled, lost


def ablation_lm_eval() -> Rows:
    """RecurFormer scores as the original does: 0.9, on a second task as if both guessed, and a perplexity."""
    tasks = (("hellaswag", "acc", 0.9, 0.01), ("winogrande", "acc", 0.5, 0.01),
        ("wikipedia", "byte_perplexity", 2.0, math.nan))  # fmt: skip
    trained = (*ORIGINAL[:4], True, 0)
    for model, about, task in product(BACKBONE_LABELS, (ORIGINAL[:-1], trained, RECURFORMER[:-1]), tasks):
        yield model, *about, *task, 1000


def ra_i_settings() -> Rows:
    """The farther a setting is from the default, the more heads change."""
    settings = product((32, 64, 102, 205), (0.3, 0.5, 0.7, 0.9))
    places = product(BACKBONE_LABELS, settings, (0.25, 0.5, 0.75, 0.9), ("kv_group", "head"))
    for model, (window, alpha), beta, unit in places:
        away = abs(math.log2(window / 102)) / 2 + abs(alpha - 0.5)
        chosen = round(400 * beta)
        kept = chosen - round(0.15 * away * chosen)
        yield model, window, alpha, beta, unit, chosen, kept, 1 - away / 3, (window, alpha) == (102, 0.5)


def head_scores() -> Rows:
    """Every score but chance puts the heads nearly in the order of RA-I, or of its opposite."""
    noise = np.random.default_rng(0)
    spread = {"ra_i": 0, "mean_rr": 2, "retrieval": 5, "echo": 10, "induction": 15, "price": 20}
    for model, layer, head in product(BACKBONE_LABELS, range(8), range(8)):
        ra_i = 8 * layer + head
        for by, width in spread.items():
            yield model, by, 0, layer, head, ra_i + noise.normal(0, width)
        yield model, "inverse_ra_i", 0, layer, head, -ra_i
        for seed in range(3):
            yield model, "random", seed, layer, head, noise.random()


def mixer_prices() -> Rows:
    """A state is the better use of its bytes in all groups but every eighth."""
    groups = product(BACKBONE_LABELS, range(16), range(2), ("mamba", "window_state"), range(2))
    for model, layer, group, mixer, seed in groups:
        cost = 0.001 * (1 + layer)
        times = (0.2 if (2 * layer + group) % 8 == 0 else 3) * 1.1 ** (2 * seed - 1)
        yield model, seed, layer, group, mixer, 27_648, 4096, cost, 0.3, 64, 8, cost * times


def recovery() -> Rows:
    """Every recipe comes back but from random weights; at equal bytes the window stays farther away."""
    ends = {"paper": 2.02, "calibrated": 2.01, "plus": 2.0, "state": 2.0, "bytes_mamba": 2.0, "bytes_window": 2.1}
    ends |= {"paper_98k": 2.5, "scratch_98k": 6.0}
    mixers = {"state": "window_state", "bytes_window": "window"}
    for tokens, window in product((0, 10**6), range(6)):
        yield "qwen2-0.5b", "original", "", 0.0, 0, tokens, 1.0, window, 2.0 + window / 10, 0.0, 1e6, 6e6
    runs = [
        *((arm, 0.5, end) for arm, end in ends.items()),
        ("paper", 0.9, 2.5),
        ("paper", 1.0, 2.5),
        ("plus", 0.9, 2.2),
    ]
    for (arm, beta, end), window in product(runs, range(6)):
        for tokens, nats in ((0, 9.0), (10**6, end)):
            apart = nats - 2.0 + 0.01 * (window + 1)
            about = ("qwen2-0.5b", arm, mixers.get(arm, "mamba"), beta, 0, tokens, 1.0, window)
            yield *about, nats + window / 10, apart, 6e5, 3e6


def layer_errors() -> Rows:
    for layer in range(8):
        yield "qwen2-0.5b", "bytes_mamba", "mamba", 0.5, 0, layer, 0.2 + 0.02 * layer


KINDS: tuple[Callable[..., Rows], ...] = (
    complexity, cache, pyramidinfer, memory, hashhop, pyramidinfer_hashhop, baseline, perplexity, metrics,
    contribution, profile, sink, attention_map, influence, mqar, compared_hashhop, hashhop_sizes, needle, turns,
    written, continuation, long_continuation, positions, ablation_lm_eval, ra_i_settings, head_scores, mixer_prices,
    recovery, layer_errors, bench,
)  # fmt: skip


def _frame(rows: Callable[..., Rows], *subjects) -> pd.DataFrame:
    """The rows of a kind, each with the name of its file; two seeds, and the loss of every training has flattened."""
    kind = rows.__name__
    frame = pd.DataFrame(list(rows(*subjects)), columns=[*COLUMNS[kind], *FURTHER.get(kind, [])])
    if {"seed", "beta"} <= set(frame):
        frame = pd.concat([frame, frame.assign(seed=1)], ignore_index=True)
    return frame.assign(file=f"{kind}.csv", **({"fall": 0.0} if kind in TRAINED else {}))


def frames() -> dict[str, pd.DataFrame]:
    """Every kind of measurement, of the paper's models."""
    return {rows.__name__: _frame(rows) for rows in KINDS}


def world(frames: dict[str, pd.DataFrame], source: str = THIS_STUDY, **changed: dict) -> Evidence:
    """Measurements as evidence, made at the paper's sizes but for the changed settings of some kinds."""
    settings = {f"{kind}.csv": SETTINGS.get(kind, {}) | changed.get(kind, {}) for kind in frames}
    return Evidence(source, frames, settings)


SMALL = {"qwen2-0.5b": "smollm2-135m", "llama2-7b": "hashhop-llama", "qwen2-7b": "hashhop-qwen2"}


def smaller(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The same by small models, with the paper's names taken away; before conversion they have learned HashHop."""
    small = {kind: frame.replace({"model": SMALL}) if "model" in frame else frame for kind, frame in frames.items()}
    return small | {"baseline": small["baseline"].assign(correct=lambda f: f["hops"])}


def shown() -> dict[str, pd.DataFrame]:
    """What a study of small models shows: counts and lengths of the paper's shapes, and every method on one model, on
    HashHop on two.
    """
    kinds = (compared_hashhop, needle, turns, written, continuation)
    made = smaller(frames() | {rows.__name__: _frame(rows, [*every_subject()]) for rows in kinds})
    made |= {kind: _frame(globals()[kind]) for kind in ("complexity", "cache", "pyramidinfer", "memory")}
    made["memory"] = made["memory"].query("protocol != 'pyramidinfer'").assign(source="model")
    of_one = ("needle", "turns", "written", "continuation", "positions", "ablation_lm_eval", "ra_i_settings",
        "head_scores", "mixer_prices")  # fmt: skip
    made |= {kind: made[kind][made[kind]["model"] == "smollm2-135m"] for kind in of_one}
    made |= {
        kind: made[kind][made[kind]["model"].str.startswith("hashhop")]
        for kind in ("hashhop", "baseline", "compared_hashhop", "hashhop_sizes")
    }
    return {kind: frame.drop(columns="file").reset_index(drop=True) for kind, frame in made.items()}
