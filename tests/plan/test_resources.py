"""Formulas for memory and time: they follow the sizes, agree with real layers, and need neither models nor torch."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recurformer.cli.study import read_study
from recurformer.data.backbones import make_random
from recurformer.model.convert import convert
from recurformer.plan.listing import memory_table, trainings
from recurformer.plan.resources import A100, CORE, limit_minutes, minutes
from recurformer.plan.rules import WORKS, request
from recurformer.plan.shapes import Shape
from recurformer.plan.training_memory import layer_values, training_bytes
from recurformer.plan.work import Work

CONFIG = Path(__file__).parents[2] / "config"
MAMBA = {"d_state": 16, "d_conv": 4, "expand": 2, "dt_rank": 256}
LLAMA = Shape.of({"shape": "llama2-7b"}, MAMBA)
GIB = 2**30


def study(name):
    return read_study(CONFIG / f"{name}.yaml").model_dump(mode="json")


def kept_values(layers, beta, tokens=256):
    """Numbers that the layers of a real model keep for their backward pass, for each token."""
    sizes = {"hidden_size": 128, "heads": 4, "kv_heads": 2, "head_dim": 32, "intermediate_size": 352}
    model = make_random("llama", layers=layers, vocab_size=64, **sizes)
    if beta:
        model = convert(model, [list(range(4))] * layers, "mamba", **MAMBA)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        model.train().base_model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    return sum(size for place, size in storages.items() if place not in parameters) / 4 / tokens


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_activations_are_those_that_real_layers_keep(beta):
    counted = (kept_values(3, beta) - kept_values(1, beta)) / 2
    shape = Shape(128, 352, 3, 4, 2, 32, 64)
    assert counted <= layer_values(shape, beta) * 1.02 <= 1.25 * counted


def test_a_7b_training_fits_80_gib_only_when_it_is_shared():
    (name, training), *_ = [found for found in trainings(study("paper")) if found[0] == "llama2-7b"]
    assert (name, training.beta, training.tokens > 4096) == ("llama2-7b", 1.0, True)
    assert training_bytes(replace(training, checkpointing=True)) > 80 * GIB
    assert training_bytes(replace(training, processes=8, checkpointing=True)) > 80 * GIB
    assert training_bytes(replace(training, processes=8, strategy="fsdp")) < 80 * GIB
    table = memory_table(study("paper"))
    assert sum(line.startswith("| llama2-7b ") for line in table.splitlines()) == 7
    assert "with checkpointing" in table


READ = Work("read", LLAMA, tokens=1024, sequences=64, batch=4)


def test_time_is_operations_over_speed_and_cards_share_it():
    work = Work("train", LLAMA, tokens=1024, sequences=80_000, batch=8)
    tokens = 80_000 * 1024
    least = 6 * 6.6e9 * tokens / A100.speed[2] / 60
    assert least < minutes(work, A100) < 1.2 * least
    assert minutes(replace(work, processes=8, batch=1), A100) < minutes(work, A100) / 6
    assert minutes(READ, CORE, threads=4) < minutes(READ, CORE, threads=1) / 3
    assert limit_minutes(1.0) == 20


OF_RANDOM_BACKBONES = {"pretrain_hashhop", "profile_hashhop"}
WITHOUT_CARDS = (
    "corpus backbone select select_other convert convert_to_mixer pool_kv cache memory complexity pyramidinfer table "
    "figure claims ablation_claims"
)


@pytest.mark.parametrize("name", ["smoke", "paper"])
def test_only_what_trains_or_measures_models_asks_for_a_card(name):
    settings = study(name)
    names = {"backbone": next(iter(settings["backbones"])), "beta": "0.5", "subject": "original"}
    names |= {"protocol": "chunked", "topic": "scan", "evaluated": "passkey"}
    asked = {rule: request(rule, settings, names).gpus for rule in WORKS if rule not in OF_RANDOM_BACKBONES}
    assert {rule for rule, cards in asked.items() if not cards} == (
        set(asked) if name == "smoke" else {*WITHOUT_CARDS.split()}
    )


def test_a_distributed_training_asks_for_a_card_for_each_process():
    settings = study("paper")
    names = {"backbone": "llama2-7b", "beta": "0.5"}
    alone = request("train_text", settings | {"distributed": {}}, names)
    spread = {"processes": 8, "strategy": "fsdp", "gradient_accumulation": 1, "activation_checkpointing": True}
    shared = request("train_text", settings | {"distributed": {"llama2-7b": spread}}, names)
    assert (alone.gpus, shared.gpus) == (1, 8)
    assert shared.card_mb < 60_000 < 80 * 1024 < alone.card_mb
    assert shared.limit_minutes < alone.limit_minutes
