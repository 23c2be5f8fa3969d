"""Study files: typed, complete, described."""

import json
from pathlib import Path
from typing import get_args

import jsonschema
import pytest
import yaml

from recurformer.cli.study import describe, read_study, schema
from recurformer.evict import EVICTIONS
from recurformer.heads.scores import SCORES
from recurformer.heads.select import MEASURED, SELECTORS
from recurformer.model.mixers import MIXERS
from recurformer.study import Selection
from recurformer.study.ablations import Eviction, Mixer, Selector
from recurformer.study.method import MIXER_PRICE, MeasuredScore
from tests.workflow.dry_runs import CHANGING

CONFIG = Path(__file__).parents[2] / "config"
FILES = [file for file in sorted(CONFIG.glob("*.yaml")) if file.stem not in CHANGING]


def test_every_key_is_described():
    assert describe() == (CONFIG / "README.md").read_text(), "run: recurformer study --describe > config/README.md"
    assert "|  |" not in describe()


def test_the_schema_knows_every_study_and_refuses_others():
    rules = json.loads(schema())
    for file in FILES:
        jsonschema.validate(yaml.safe_load(file.read_text()), rules)
    smoke = yaml.safe_load((CONFIG / "smoke.yaml").read_text())
    for wrong in ({"sed": 0}, {"seed": -1}, {"betas": [2.0]}, {"device": "tpu"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(smoke | wrong, rules)


def test_a_file_of_three_lines_changes_a_study(tmp_path):
    (tmp_path / "mine.yaml").write_text("study: mine\nmqar:\n  learning_rates: [0.002]\n")
    base, mine = read_study(CONFIG / "smoke.yaml"), read_study(CONFIG / "smoke.yaml", tmp_path / "mine.yaml")
    assert (mine.study, mine.mqar.learning_rates) == ("mine", [0.002])
    assert mine.mqar.task == base.mqar.task


def test_a_study_can_name_every_method_there_is():
    """It reads their names without importing torch."""
    assert set(get_args(Eviction)) == set(EVICTIONS)
    assert set(get_args(Mixer)) == set(MIXERS)
    assert set(get_args(MeasuredScore)) == set(MEASURED) - {MIXER_PRICE} == set(SCORES)
    assert set(get_args(Selector)) == set(get_args(Selection.model_fields["by"].annotation)) == {*SELECTORS, *MEASURED}
