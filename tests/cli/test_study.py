"""Study files: typed, complete, described."""

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


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_study_is_valid_and_bears_its_files_name(file):
    assert load_study(yaml.safe_load(file.read_text())).study == file.stem


def test_the_rankings_of_a_study_are_those_of_the_package():
    assert set(get_args(Selection.model_fields["by"].annotation)) == {*SELECTORS, *MEASURED}
    assert set(get_args(MeasuredScore)) == set(MEASURED) == set(SCORES)


def test_every_key_is_described():
    assert describe() == (CONFIG / "README.md").read_text(), "run: recurformer study --describe > config/README.md"
    assert "|  |" not in describe()


def test_a_study_can_name_every_method_there_is():
    assert set(get_args(Eviction)) == set(EVICTIONS)
    assert set(get_args(Mixer)) <= set(MIXERS)  # the recovery's variants are no arms of the ablations
    assert set(get_args(Selector)) == {*SELECTORS, *MEASURED}
