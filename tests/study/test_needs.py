"""What jobs ask for: memory by the size of the backbone, GPUs where a study has them."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from recurformer.cli.checkpoints import save_checkpoint
from recurformer.cli.main import main
from recurformer.cli.prepare import meta_backbone
from recurformer.cli.study import read_study
from recurformer.data.backbones import load_shape, make_random, meta_model, open_random
from recurformer.data.sizes import PUBLISHED
from recurformer.study import Backbone
from recurformer.study.needs import NEEDS, Sizes, request

ROOT = Path(__file__).parents[2]
PAPER = read_study(ROOT / "config/paper.yaml").model_dump(mode="json")
SIZES = {"hidden_size": 32, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 8, "intermediate_size": 64}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_weights_are_those_of_the_real_model(name):
    parameters = meta_model(load_shape(name)).num_parameters()
    assert Sizes.of({"shape": name}).weight_bytes == pytest.approx(4 * parameters, rel=1e-3)


def test_the_weights_of_a_random_backbone_are_counted_too():
    model = make_random("llama", **SIZES, vocab_size=40)
    assert Sizes.of({**SIZES, "vocabulary": 40}).weight_bytes == pytest.approx(4 * model.num_parameters(), rel=0.02)


def test_a_checkpoint_names_its_own_sizes(tmp_path):
    """Heads that are wider than their share of the residual stream, as Qwen3 has them."""
    sizes = {"hidden_size": 32, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 24}
    model, tokenizer = open_random("byte", architecture="qwen3", **sizes)
    save_checkpoint(tmp_path / "mine", model, tokenizer)
    place = {"source": "folder", "folder": str(tmp_path / "mine")}
    assert Sizes.of(place).weight_bytes == pytest.approx(4 * model.num_parameters(), rel=0.02)
    shape = meta_backbone(Backbone(**place))
    assert shape.num_parameters() == model.num_parameters() and shape.config.head_dim == 24
    words = ["backbone", str(tmp_path / "out"), "--downloads", str(tmp_path), "--settings", json.dumps(place)]
    assert main(words) == 0
    kept = load_file(tmp_path / "out/model.safetensors")
    assert all(torch.equal(kept[name], values) for name, values in model.state_dict().items())
    (tmp_path / "mine/config.json").write_text('{"hidden_size": 32}')
    with pytest.raises(ValueError, match=r"mine: its config.json has no num_attention_heads; models that convert have"):
        Sizes.of(place)
    (tmp_path / "mine/config.json").unlink()
    with pytest.raises(ValueError, match=r"mine: no checkpoint with a readable config.json \("):
        Sizes.of(place)


def test_every_rule_with_needs_exists():
    text = "".join(file.read_text() for file in (ROOT / "workflow/rules").glob("*.smk"))
    assert set(NEEDS) <= set(re.findall(r"^ *(?:use )?rule (?:\w+ as )?(\w+)", text, re.MULTILINE))


def test_only_what_trains_or_measures_models_asks_for_a_gpu():
    names = {"backbone": "qwen2-7b"}
    asked = {rule for rule in NEEDS if request(rule, PAPER, names)["gpu"]}
    light = {"corpus", "backbone", "convert", "pool_kv", "pyramidinfer", "table", "figure"}
    assert asked == set(NEEDS) - light - {"claims", "ablation_claims", "select"}
    assert not any(request(rule, PAPER | {"device": "cpu"}, names)["gpu"] for rule in NEEDS)


def test_a_distributed_training_asks_for_a_gpu_for_each_process():
    names, spread = {"backbone": "qwen2-7b"}, {"qwen2-7b": {"processes": 4}}
    alone, shared = (request("train_text", PAPER | {"distributed": one}, names) for one in ({}, spread))
    assert (alone["gpu"], shared["gpu"]) == (1, 4)
    assert shared["mem_mb"] == 4 * alone["mem_mb"]


def test_lists_need_the_memory_of_their_longest_samples():
    """The continual training of the study counts for other trainings, its pretraining for its own."""
    recipe = {"batch_size": 16, "lengths": [24, 256]}
    language = {"copying": recipe, "pretraining": {"batch_size": 16}, "training": {"batch_size": 1}, "tokens": 256}
    study, names = PAPER | {"device": "cpu", "language": language}, {"backbone": "qwen2-7b"}
    lists, text, more = (request(rule, study, names) for rule in ("train_copying", "pretrain_text", "train_text"))
    assert lists == text and lists["mem_mb"] > more["mem_mb"]


def test_long_texts_need_more_memory():
    """Prices of long prompts by the prompts' own length, and by the other where a workflow's prefix is `long`."""
    ablations, names = PAPER["ablations"], {"backbone": "qwen2-7b", "subject": "heads/mamba"}

    def asked(rule, subject="heads/mamba", **changed):
        study = PAPER | {"device": "cpu", "ablations": {**ablations, "prices": {"tokens": 512}, **changed}}
        return request(rule, study, names | {"subject": subject})["mem_mb"]

    long = {"continuation": {"prompt": 8064, "tokens": 128}}
    assert asked("long_prices", long_inputs=long) == asked("prices", prices={"tokens": 8192}) > asked("prices")
    assert asked("long_prices", long_inputs=None) == asked("prices")
    few, several = ({"lengths": [512], "several_lengths": lengths} for lengths in ([], [8192]))
    assert asked("needle", needle=several) > asked("needle", needle=few)
    assert asked("needle", "recovered/plus", needle=several) == asked("needle", needle=several)
    assert asked("needle", "evicted/h2o", needle=several) == asked("needle", "evicted/h2o", needle=few)
    assert asked("head_scores", scores={"tokens": 1024}) > asked("head_scores", scores={"tokens": 256})


def test_a_rule_keeps_its_needs_under_a_prefix_and_an_unknown_one_is_light():
    names = {"backbone": "llama2-7b"}
    assert request("replication_train_text", PAPER, names) == request("train_text", PAPER, names)
    assert request("article_lengths", PAPER, names) == {"mem_mb": 900, "runtime": 60, "gpu": 0}
