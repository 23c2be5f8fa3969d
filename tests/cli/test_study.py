"""Study files: typed, complete, refused in one line."""

from pathlib import Path
from typing import get_args

import pytest
import yaml

from recurformer.baselines import EVICTIONS
from recurformer.cli.study import describe
from recurformer.heads.scores import SCORES
from recurformer.heads.select import MEASURED, SELECTORS
from recurformer.model.mixers import MIXERS
from recurformer.study import Selection, load_study
from recurformer.study.ablations import Eviction, Mixer, Selector
from recurformer.study.method import MeasuredScore

CONFIG = Path(__file__).parents[2] / "config"
FILES = sorted(CONFIG.glob("*.yaml"))


@pytest.fixture
def smoke():
    return yaml.safe_load((CONFIG / "smoke.yaml").read_text())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_study_is_valid_and_bears_its_files_name(file):
    assert load_study(yaml.safe_load(file.read_text())).study == file.stem


def changed(settings, path, value):
    *parents, last = path.split(".")
    block = settings
    for key in parents:
        block = block[int(key) if key.isdigit() else key]
    block[int(last) if last.isdigit() else last] = value
    return settings


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("betas", [0.0, 1.5], r"betas\.1 = 1\.5"),
        ("betas", [], "betas"),
        ("betass", [0.5], r"betass: unknown key; did you mean 'betas'\?"),
        ("language.trainin", {}, r"language\.trainin: unknown key; did you mean 'training'"),
        ("backbones.tiny.head", 2, r"backbones\.tiny\.head: unknown key; did you mean 'heads'"),
        ("ablations.needle.length", [64], r"ablations\.needle\.length: unknown key; did you mean 'lengths'"),
        ("mamba.width", 2, r"mamba\.width: unknown key; choose one of d_state, d_conv, expand"),
        ("language.backbones", ["gpt5"], r"language\.backbones: 'gpt5' has no entry in backbones"),
        ("language.sink_heads", {"gpt5": {}}, r"language\.sink_heads: 'gpt5' is not in language\.backbones"),
        (
            "language.sink_heads",
            {"tiny": {"layer": 1}},
            r"language\.sink_heads\.tiny: layer 1 and head None: give both",
        ),
        ("language.sink_heads", {"tiny": {"layer": -1, "head": 0}}, r"language\.sink_heads\.tiny\.layer = -1"),
        (
            "language.sink_heads",
            {"tiny": {"layer": 3, "head": 0}},
            r"language\.sink_heads\.tiny\.layer = 3: tiny has 3, counted from 0 to 2",
        ),
        ("backbones.tiny.heads", None, "heads"),
        ("backbones.tiny.source", "hug", r"backbones\.tiny\.source = 'hug'"),
        ("mamba.d_state", 0, r"mamba\.d_state = 0"),
        ("hashhop.training.steps", "many", r"hashhop\.training\.steps = 'many'"),
        ("hashhop.pretraining", None, r"hashhop\.pretraining: this key is missing; 'hashhop-tiny' is random"),
        ("selection", {"by": "charm"}, r"selection\.by = 'charm'"),
        ("caches.measured", ["hashhop-tiny"], r"caches\.measured: 'hashhop-tiny' is not in caches\.backbones"),
        ("study", "../elsewhere", "study = '../elsewhere'"),
        ("ablations.evictions", ["oracle"], r"ablations\.evictions\.0 = 'oracle'"),
        ("ablations.language.backbones", ["hashhop-tiny"], r"ablations\.language\.backbones: 'hashhop-tiny' is not in"),
        ("distributed", {"gpt5": {"processes": 2}}, "distributed: 'gpt5' has no entry in backbones"),
        ("distributed", {"tiny": {"processes": 3}}, r"distributed\.tiny: .* language\.training\.batch_size 2"),
        ("device_measurements", {"backbones": ["gpt5"]}, r"device_measurements\.backbones: 'gpt5' has no entry"),
        ("language.tasks", {"limits": [["mmlu", 5]]}, r"limits: 'mmlu' is not in names"),
        ("device_measurements", {"speed": ["luck"]}, r"device_measurements\.speed\.0 = 'luck'"),
        ("device_measurements", {"speed": ["training"]}, "speed: 'training' is measured on cpu only"),
        (
            "device_measurements",
            {"device": "cpu", "speed": ["throughput"]},
            "speed: 'throughput' is measured on cuda only",
        ),
        ("job_minutes", 0, "job_minutes = 0"),
        ("ablations.language.selected", "linear", "selected: 'linear' is neither in trained nor in untrained"),
    ],
)
def test_a_bad_value_is_refused_in_one_line_that_names_it(smoke, path, value, named):
    with pytest.raises(ValueError, match=named) as caught:
        load_study(changed(smoke, path, value))
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named(smoke):
    del smoke["corpus"]
    with pytest.raises(ValueError, match="corpus: this key is missing"):
        load_study(smoke)


def test_the_rankings_of_a_study_are_those_of_the_package():
    assert set(get_args(Selection.model_fields["by"].annotation)) == {*SELECTORS, *MEASURED}
    assert set(get_args(MeasuredScore)) == set(MEASURED) == set(SCORES)


def test_every_key_is_described():
    assert describe() == (CONFIG / "README.md").read_text(), "run: recurformer study --describe > config/README.md"
    assert "|  |" not in describe()


def test_a_study_can_name_every_method_there_is():
    assert (set(get_args(Eviction)), set(get_args(Mixer))) == (set(EVICTIONS), set(MIXERS))
    assert set(get_args(Selector)) == {*SELECTORS, *MEASURED}
