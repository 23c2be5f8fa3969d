"""What is planned for measurements of a device, whose search for the longest input fills it, and for lm-eval."""

import re
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from recurformer.cli.study import read_study
from recurformer.measure.trials import search
from recurformer.plan.resources import A100
from recurformer.plan.rules import request
from recurformer.plan.shapes import Shape
from recurformer.plan.work_device import TRIALS, longest_tokens
from recurformer.plan.work_text import TASKS

ROOT = Path(__file__).parents[2]
MAMBA = {"d_state": 16, "d_conv": 4, "expand": 2, "dt_rank": 256}
PAPER = read_study(ROOT / "config/paper.yaml").model_dump(mode="json")
RULES = ("longest_input", "cache_peak")


@pytest.mark.parametrize("name", ["qwen2-0.5b", "llama2-7b", "qwen2-7b"])
def test_the_longest_input_is_about_that_of_the_memory_model(name):
    rows = pd.read_parquet(ROOT / "recorded/cpu/measurements/memory.parquet").query("model == @name")
    maximum, shape = PAPER["caches"]["search"]["maximum"], Shape.of({"shape": name}, MAMBA)
    for row in rows.itertuples():
        planned = longest_tokens(shape, row.beta, row.protocol, row.memory_bytes)
        assert min(planned, maximum) == pytest.approx(min(row.l_m, maximum), rel=0.13), row


def test_the_search_takes_about_as_many_prefills_as_planned():
    taken = []
    for longest in range(90_000, 110_001, 500):  # the guess is wrong by up to a tenth
        lengths = []
        search(lambda length: lengths.append(length) or length <= longest, 100_000, 2**21, 0.01)  # noqa: B023
        taken.append(len(lengths))
    assert TRIALS - 1 < sum(taken) / len(taken) <= TRIALS


def test_a_search_fills_the_card_and_reads_a_long_prompt_several_times():
    names = {"backbone": "llama2-7b", "beta": "0.0", "protocol": "one_shot"}
    asked = request("longest_input", PAPER, names)
    assert asked.card_mb == 80 * 1024
    tokens, shape = 116_000, Shape.of({"shape": "llama2-7b"}, MAMBA)
    least = TRIALS * tokens * (2 * 6.6e9 + 2 * 32 * 4096 * tokens) / A100.speed[2] / 60
    assert least < asked.minutes < 1.5 * least
    assert tokens == pytest.approx(longest_tokens(shape, 0.0, "one_shot", 80 * 2**30), rel=0.05)
    # in chunks only the ends of a prompt are read
    assert request("longest_input", PAPER, names | {"protocol": "chunked"}).minutes < 1


def test_no_prefill_is_planned_that_takes_longer_than_the_study_allows():
    """Of the GPU study's one-pass prefills on an A100 only Qwen2-0.5B's at beta up to 0.5 take over eight minutes."""
    study = read_study(ROOT / "config/gpu.yaml").model_dump(mode="json")
    caches = study["caches"]
    free = study | {"caches": caches | {"search": caches["search"] | {"prefill_minutes": None}}}
    limited = set()
    for backbone, beta in product(caches["measured"], study["betas"]):
        names = {"backbone": backbone, "beta": str(beta), "protocol": "one_shot"}
        asked, whole = (request("longest_input", one, names).minutes for one in (study, free))
        if asked != whole:
            limited.add((backbone, beta))
            assert whole > 60 and asked < 9
    assert limited == {("qwen2-0.5b", 0.0), ("qwen2-0.5b", 0.25), ("qwen2-0.5b", 0.5)}


@pytest.mark.parametrize("rule", RULES)
def test_what_measures_a_card_has_a_formula_and_asks_for_one_where_there_is_one(rule):
    names = {"backbone": "llama2-7b", "beta": "0.5", "protocol": "chunked", "topic": "decode"}
    assert request(rule, PAPER, names).gpus == 1
    assert request(rule, PAPER | {"device": "cpu"}, names).gpus == 0


def test_no_rule_asks_for_a_constant():
    for file in sorted((ROOT / "workflow/rules").glob("*.smk")):
        assert not re.findall(r"(?:mem_mb|runtime)=\d+", file.read_text()), file


def minutes(**settings):
    language = PAPER["language"] | {"tasks": PAPER["language"]["tasks"] | settings}
    names = {"backbone": "qwen2-7b", "beta": "0.5", "evaluated": settings["names"][0]}
    return request("ablation_lm_eval", PAPER | {"language": language}, names).minutes


def test_a_limit_bounds_each_task_of_a_group_and_each_choice_is_a_request():
    assert TASKS["infinitebench"].requests(50) == 12 * 50
    assert TASKS["hellaswag"].requests(None) == 40_168
    assert TASKS["hellaswag"].requests(100) == 400
    assert TASKS["wikitext"].requests(100) == 62


def test_infinitebench_takes_hours_in_proportion_to_its_samples():
    few, all_of_them = (minutes(names=["infinitebench"], limits=limits) for limits in ([["infinitebench", 50]], []))
    assert all_of_them / few == pytest.approx(3946 / 600, rel=0.05)
    assert all_of_them > 20 * 60


def test_solved_examples_in_the_prompt_take_their_time():
    few, many = (minutes(names=["mmlu"], limits=[], num_fewshot=asked) for asked in ([], [["mmlu", 5]]))
    assert many > 2 * few


def test_answers_in_writing_take_their_time():
    tasks = [minutes(names=[name], limits=[], num_fewshot=[]) for name in ("longbench", "mmlu")]
    steps = 4_750 * 128 * 28 * 1e-3 / 60  # a millisecond for each layer and token that is written
    assert tasks[0] > steps > 0.5 * tasks[0]
