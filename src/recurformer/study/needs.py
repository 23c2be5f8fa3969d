"""What a job of each rule asks a machine for: memory, a time limit, GPUs. Torch-free: the workflow asks for every job.

The constants are rounded up from the recorded studies. A test holds requests against the record, but for the recovery
study's trainings: at β = 0.5 they took more than today's code does. A job that takes more asks for more at its next
attempt (`--retries`), or by `--set-resources RULE:mem_mb=…`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Self

from recurformer.data.sizes import BYTE_VOCABULARY, PUBLISHED

SLACK = 1.2  # allocators round, and blocks of both sizes exist while one replaces the other
FLOAT32, MB = 4, 2**20
GPU_LIBRARY_MB = 3000  # of the host: CUDA's own libraries
DIVERGENCE_BYTES = 32  # for each token and word: float32 logits of two models, and what their divergence takes
SCANNED = 2  # tensors of all states of a Mamba block, for each token of a prompt
LOGITS_BYTES = 12  # for each token and word: float32 logits, what the loss derives from them, and their gradient


@dataclass(frozen=True)
class Need:
    """Needs of a rule: megabytes of libraries and data, float32 copies of the backbone's weights beside them, minutes
    after which a job is taken to hang, whether it uses a GPU where the study has one, whether it trains, and whether it
    fills the memory that the study names.
    """

    base_mb: int = 700
    copies: float = 0.0
    minutes: int = 60
    gpu: bool = False
    trains: bool = False
    fills: bool = False


READ, WRITE = Need(700, 1, 240, gpu=True), Need(700, 3, 480, gpu=True)
TRAIN = Need(900, 4, 1440, gpu=True, trains=True)  # weight, gradient and AdamW's two moments (ZeRO, section 3.1)
NEEDS = {
    "corpus": Need(2000, minutes=240),
    "backbone": Need(500, 2, 240),
    **dict.fromkeys(["convert", "pool_kv"], Need(500, 2)),
    **dict.fromkeys(
        ["profile_text", "profile_hashhop", "ra_i_settings", "sink", "contribution", "attention_map", "hashhop_sizes"],
        READ,
    ),
    "ablation_lm_eval": Need(900, 1, 1440, gpu=True),
    "head_scores": Need(700, 1, 1440, gpu=True),  # and a training of gates
    **dict.fromkeys(["prices", "long_prices"], Need(700, 2, 1440, gpu=True)),  # of a changed model, to check prices
    "mixer_prices": Need(700, 2, 1440, gpu=True),  # of original and converted model, with both's states
    **dict.fromkeys(["influence", "perplexity"], Need(700, 2, 240, gpu=True)),
    **dict.fromkeys(["needle", "turns", "written", "hashhop", "baseline"], WRITE),
    # With the original's logits of all windows, where they fit into 2 GB.
    **dict.fromkeys(["continuation", "long_continuation"], Need(2800, 3, 480, gpu=True)),
    "positions": Need(1500, 3, 480, gpu=True),  # and the logits of long windows
    **dict.fromkeys(
        ["train_text", "recover", "pretrain_text", "train_copying", "pretrain_hashhop", "train_hashhop"], TRAIN
    ),
    "mqar": Need(1000, minutes=1440, gpu=True),
    **dict.fromkeys(["longest_input", "cache_peak"], Need(900, minutes=1440, gpu=True, fills=True)),
    "speed": Need(1500, 4, 240, gpu=True),  # the original and two converted models at once
    "pyramidinfer": Need(1000),
    **dict.fromkeys(["figure", "select"], Need(500)),
    **dict.fromkeys(["table", "claims", "ablation_claims"], Need(850)),  # of the measurements of all recordings
}
"""Rule -> its needs; those of any other rule are `Need()`."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a backbone; `width` of all queries of a layer, `kv_width` of all keys."""

    hidden: int
    inner: int
    layers: int
    width: int
    kv_width: int
    words: int
    tied: bool = False

    @classmethod
    def of(cls, backbone: Mapping[str, Any]) -> Self:
        """The published sizes of a backbone, a random one's own, or those that a checkpoint's config.json names.

        Raises:
            ValueError: there is no such checkpoint, or a size is not in its config.json.
        """
        place = backbone.get("folder") or backbone.get("repo") or ""
        if not backbone.get("shape") and not place:
            hidden, head_dim = backbone["hidden_size"], backbone["head_dim"]
            width, kv_width = backbone["heads"] * head_dim, backbone["kv_heads"] * head_dim
            inner = backbone.get("intermediate_size") or 4 * hidden
            words = backbone.get("vocabulary") or BYTE_VOCABULARY
            return cls(hidden, inner, backbone["layers"], width, kv_width, words)
        if backbone.get("shape"):
            shape = PUBLISHED[backbone["shape"]]
        else:
            from recurformer.data.fetch import read_config  # slow to import, and most studies do without

            shape = read_config(place, backbone.get("revision"))
        try:
            hidden, heads = shape["hidden_size"], shape["num_attention_heads"]
            head_dim = shape.get("head_dim") or hidden // heads
            width, kv_width = heads * head_dim, (shape.get("num_key_value_heads") or heads) * head_dim
            layers, words, tied = shape["num_hidden_layers"], shape["vocab_size"], shape.get("tie_word_embeddings")
            return cls(hidden, shape["intermediate_size"], layers, width, kv_width, words, bool(tied))
        except KeyError as error:
            raise ValueError(f"{place}: its config.json has no {error.args[0]}; models that convert have it") from None

    @property
    def weight_bytes(self) -> int:
        """Bytes of the float32 weights, without norms and biases."""
        layer = self.hidden * (2 * self.width + 2 * self.kv_width + 3 * self.inner)
        return FLOAT32 * (self.layers * layer + self.words * self.hidden * (1 if self.tied else 2))

    def price_bytes(self, tokens: int) -> int:
        """Bytes beside the weights that a backward pass keeps which computes one layer anew at a time: the states that
        enter each layer, and for the one about as much as 64 more.
        """
        return tokens * FLOAT32 * self.hidden * (self.layers + 64)

    def training_bytes(self, tokens: int) -> int:
        """Bytes beside the weights that a training step of so many tokens keeps: what projections, norms and the
        activation read (Korthikanti et al., arXiv 2205.05198, section 4.1; fused kernels recompute attention), and the
        logits.
        """
        kept = self.layers * (8 * self.hidden + 2 * self.kv_width + 4 * self.inner)
        return tokens * (FLOAT32 * kept + LOGITS_BYTES * self.words)


def _of_texts(rule: str, study: Mapping[str, Any], sizes: Sizes, names: Mapping[str, str]) -> float:
    """Bytes beside the weights that follow the length of the texts that a rule reads."""
    ablations, mamba = study["ablations"], study["mamba"]
    scanned = SCANNED * FLOAT32 * mamba["d_state"] * mamba["expand"] * sizes.width  # for each token
    priced, subject = ablations["prices"]["tokens"], names.get("subject") or ""
    if rule == "ablation_lm_eval" and (names.get("evaluated") or "").startswith(("niah", "ruler")):
        changed = sizes.weight_bytes if subject.startswith("priced/") else 0  # a second model
        return changed + LOGITS_BYTES * sizes.words * study["language"]["tasks"]["ruler_length"]
    if rule == "written" and (asked := ablations["written"]):  # the caches of both models, and one layer
        kept = FLOAT32 * (4 * sizes.layers * sizes.kv_width + 4 * sizes.inner)
        return kept * (asked["prompt"] + asked["tokens"]) * asked["batch_size"]
    if rule == "positions" and (asked := ablations["positions"]):
        return DIVERGENCE_BYTES * sizes.words * asked["tokens"] * asked["batch_size"]
    if rule in ("needle", "turns") and ("/mamba" in subject or subject.startswith("recovered/")):
        asked = ablations[rule]
        return scanned * max([*asked["lengths"], *asked.get("several_lengths", [])], default=0)
    if rule == "head_scores":
        return sizes.training_bytes(ablations["scores"]["tokens"])
    if rule == "long_prices" and (asked := ablations["long_inputs"]):
        priced = asked["continuation"]["prompt"] + asked["continuation"]["tokens"]
    prices = sizes.price_bytes(priced) if rule.endswith("prices") else 0
    return prices + (scanned * priced if rule == "mixer_prices" else 0)


def request(rule: str, study: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, int]:
    """What a job of `rule` asks for, with Snakemake's names: `mem_mb` of the host, `runtime` in minutes, `gpu`.

    Args:
        rule: its name, perhaps with the prefix of a workflow that imports this one.
        study: as `Study.model_dump` gives it.
        names: wildcards of the job.
    """
    known = max((name for name in NEEDS if f"_{rule}".endswith(f"_{name}")), key=len, default="")
    need = NEEDS.get(known, Need())
    on_gpu = study["device"] == "gpu"
    backbone = names.get("backbone")  # Snakemake's wildcards are a list of values, so `in` would not look at names
    spread = study["distributed"].get(backbone) if need.trains else None
    processes = spread["processes"] if spread else 1
    held = study["caches"]["sizes"]["memory_gib"] * 2**30 if need.fills and not on_gpu else 0.0
    if need.copies and backbone:
        sizes = Sizes.of(study["backbones"][backbone])
        held = sizes.weight_bytes * (1 if on_gpu else need.copies)  # on their way to a GPU
        held += 0 if on_gpu else _of_texts(known, study, sizes, names)
        if need.trains and not on_gpu:
            learnt = {"pretrain_text": "pretraining", "train_copying": "copying"}.get(known, "training")
            training = study["language"][learnt] or {"batch_size": 1}
            tokens = max(training.get("lengths", [study["language"]["tokens"]]))
            held += sizes.weight_bytes + sizes.training_bytes(tokens * training["batch_size"])  # and the original
    megabytes = SLACK * (need.base_mb + held / MB) + (GPU_LIBRARY_MB if on_gpu and need.gpu else 0)
    return {
        "mem_mb": processes * 100 * ceil(megabytes / 100),
        "runtime": need.minutes,
        "gpu": processes if on_gpu and need.gpu else 0,
    }
