"""What lm-eval's tasks take: a limit bounds every task of a group, and what is written takes time of its own."""

from pathlib import Path

import pytest

from recurformer.cli.study import read_study
from recurformer.plan.rules import request
from recurformer.plan.work_text import TASKS

PAPER = read_study(Path(__file__).parents[2] / "config/paper.yaml").model_dump(mode="json")
NAMES = {"backbone": "qwen2-7b", "beta": "0.5"}


def minutes(**settings):
    language = PAPER["language"] | {"tasks": PAPER["language"]["tasks"] | settings}
    return request("ablation_lm_eval", PAPER | {"language": language}, NAMES).minutes


def test_a_limit_bounds_each_task_of_a_group_and_each_choice_is_a_request():
    assert TASKS["infinitebench"].requests(50) == 12 * 50
    assert TASKS["hellaswag"].requests(None) == 40_168
    assert TASKS["hellaswag"].requests(100) == 400
    assert TASKS["wikitext"].requests(100) == 62


def test_infinitebench_takes_hours_in_proportion_to_its_samples():
    few, all_of_them = (minutes(names=["infinitebench"], limits=limits) for limits in ([["infinitebench", 50]], []))
    assert all_of_them / few == pytest.approx(3946 / 600, rel=0.05)
    assert all_of_them > 20 * 60


def test_answers_in_writing_take_their_time():
    tasks = [minutes(names=[name], limits=[]) for name in ("longbench", "mmlu")]
    steps = 4_750 * 128 * 28 * 1e-3 / 60  # a millisecond for each layer and token that is written
    assert tasks[0] > steps > 0.5 * tasks[0]
