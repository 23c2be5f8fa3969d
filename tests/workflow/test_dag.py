"""The DAG of every study, by dry runs: what is asked for is planned, and nothing starts from a bad configuration."""

import json
import math
import re
from collections import defaultdict

import pytest
import yaml

from recurformer.cli.main import STAGES, take_settings
from recurformer.cli.stage import flat
from recurformer.paper import SETTINGS, WINDOWS
from recurformer.records import packed, read_record, record_of
from recurformer.render.registry import REGISTRY
from tests.workflow.dry_runs import ROOT, STUDIES, DryRun, link_workflow, option, settings_of, snakemake

LONG = {"continuation", "prices"}
LEARNING = {"small", "recall"}
RECOVER = {"smoke", "default", "record", "recovery", "rates", *LEARNING}


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_plans_every_table_and_figure_of_its_parts(study, dry):
    """Caches and longest inputs are measured where a study names a device for that."""
    planned, below = dry(study), () if study == "default" else (study,)
    parts = (
        {"paper", "ablations"}
        | ({"tasks"} if study not in LEARNING else set())
        | ({"recovery"} if study in RECOVER else set())
    )
    parts |= {"equal_bytes"} if study == "recovery" else set()
    parts |= {"positions"} if study in {"smoke", *LEARNING} else set()
    parts |= {"prices", "priced_positions"} if study in {"smoke", "long", "long-2k", "long-8k", "long-text"} else set()
    parts |= {"long_inputs"} if study in {"default", "smoke"} else set()
    parts |= {"tradeoff"} if study in {"smoke", *LEARNING} else set()
    parts |= {"speed"} if study in {"default", "record", "smoke", "gpu"} else set()
    places = [tuple(name.split("/")) for job in planned.jobs for name in job.outputs]
    for kind, folder in (("tables", ("results", *below, "tables")), ("figures", ("figures", *below))):
        found = {file.split(".")[0] for *place, file in places if tuple(place) == folder}
        assert found == {name for name, entry in REGISTRY[kind].items() if entry.part in parts}
    assert ("cache_peak" in planned.counts) == (study == "gpu")
    assert ("longest_input" in planned.counts) == (study in {"gpu", "paper"})
    assert planned.counts["needle"] == planned.counts["continuation"] > 0


def test_positions_are_of_what_comes_back_and_of_the_first_choice_by_price(dry):
    """And their logits, of a real vocabulary, are asked for: one such job took 8,074 MiB."""
    jobs = {study: [job for job in dry(study).jobs if job.rule == "positions"] for study in ("long", "small")}
    models = {study: {job.outputs[0].rpartition("/")[0] for job in found} for study, found in jobs.items()}
    subjects = ("original", "priced/windows_bits")
    assert models["long"] == {f"results/long/language/smollm2-135m/{subject}/seed-0" for subject in subjects}
    assert len(models["small"]) == 24 and not any("priced" in place for place in models["small"])
    assert {8074 < int(job.resources["mem_mb"]) < 2 * 8074 for job in jobs["long"]} == {True}


def test_long_inputs_have_budgets_and_prices_of_their_own(dry):
    asked = [(words[1], settings_of(words)) for _, stage, *words in dry("default").commands if stage in LONG]
    of_prompts = [settings for file, settings in asked if file.endswith("/long_continuation.csv")]
    (length,) = {settings["prompt"] + settings["tokens"] for settings in of_prompts}
    budgets = [settings["change"]["budgets"] for settings in of_prompts if "change" in settings]
    assert len(of_prompts) == 3 and budgets == [[0.25, 0.125, 0.0625]] * 2
    assert [settings["tokens"] for file, settings in asked if file.endswith("/long_prices.parquet")] == [length]


def test_stages_take_the_words_that_rules_give_them(dry):
    commands = dry("gpu").commands + dry("smoke").commands
    for (stage, _), words in {(stage, option(words, "--settings")): words for _, stage, *words in commands}.items():
        take_settings(STAGES[stage], STAGES[stage].parser().parse_args(words))


def test_the_paper_study_asks_for_gpus_where_models_compute(dry):
    asked = {job.rule for job in dry("paper").jobs if "gpu" in job.resources}
    assert "train_hashhop" in asked and not {"select", "table", "convert"} & asked


@pytest.mark.parametrize(("study", "fewer"), [("paper", set()), ("gpu", {"profile"})])
def test_a_study_has_the_papers_sizes_under_the_names_that_its_records_will_have(study, fewer, dry):
    """Else a claim would take its measurements for smaller ones, and say no more than that they are consistent.

    `fewer` are the kinds for which the GPU study has not text enough.
    """
    checked, few = set(), set()
    for _, stage, *words in dry(study).commands:
        kind = stage.replace("-", "_")
        if kind in SETTINGS or kind in WINDOWS:
            expected, recorded = SETTINGS.get(kind, {}), flat(STAGES[stage].settings(option(words, "--settings")))
            assert {name: recorded[name] for name in expected} == expected, stage
            checked.add(kind)
            if kind in WINDOWS and recorded["samples"] < WINDOWS[kind]:
                few.add(kind)
    assert checked == (SETTINGS.keys() | WINDOWS.keys()) - {
        "baseline",
        "pyramidinfer_hashhop",
    }  # by the stage of `hashhop`
    assert few == fewer


def test_each_task_of_lm_eval_is_a_job_that_is_told_its_own_settings_alone(dry):
    """So a task that fails costs no other, and one that was measured is not measured again for another's sake."""
    evaluated = [words for _, stage, *words in dry("paper").commands if stage == "ablation-lm-eval"]
    told = {}
    for words in evaluated:
        settings = settings_of(words)
        (name,) = settings["names"]
        assert words[1].endswith(f"/tasks/{name}/ablation_lm_eval.csv")
        asked = {key: settings[key] for key in ("limits", "num_fewshot")}
        assert told.setdefault(name, asked) == asked
    assert told["mmlu"] == {"limits": [], "num_fewshot": [["mmlu", 5]]}
    assert told["ruler"] == {"limits": [["ruler", 100]], "num_fewshot": []}
    models = {words[1].split("/tasks/")[0] for words in evaluated if option(words, "--name") == "qwen2-7b"}
    subjects = ("original", "original/trained", "heads/ra_i-kv_group-0/beta-0.5/mamba")
    assert models > {f"results/paper/language/qwen2-7b/{subject}/seed-0" for subject in subjects}


def test_a_target_needs_only_its_own_jobs(dry):
    assert set(dry("default", "figures/figure4.svg").counts) == {"figure", "mqar", "total"}
    assert not {"mqar", "perplexity", "cache"} & set(dry("smoke", "ablations").counts)


MEASURED = "perplexity hashhop influence needle turns written continuation ablation-lm-eval hashhop-sizes"
"""Stages that measure trained models."""


def test_trained_models_and_their_originals_are_measured_in_the_type_of_the_study(dry):
    typed = defaultdict(set)
    for _, stage, *words in dry("paper").commands:
        typed[stage].add(option(words, "--dtype"))
    assert {stage for stage, found in typed.items() if found == {"bfloat16"}} == set(MEASURED.split())
    assert all(found == {None} for stage, found in typed.items() if stage not in MEASURED.split())


def test_what_is_compared_is_trained_alike(dry):
    """A changed model like the study's own ones: by the same recipe, on as many threads."""
    trained = defaultdict(set)
    for _, stage, *words in dry("paper").commands:
        if stage in {"train", "train-hashhop"}:
            recipe = {key: value for key, value in settings_of(words).items() if key not in {"distributed", "task"}}
            trained[stage, option(words, "--name")].add((option(words, "--threads"), json.dumps(recipe)))
    assert {stage for stage, _ in trained} == {"train", "train-hashhop"}
    assert all(len(recipes) == 1 for recipes in trained.values())
    assert {threads for threads, _ in trained["train-hashhop", "llama2-7b"]} == {"2"}, (
        "a core for each process, of the two here"
    )


def test_the_paper_study_shows_its_own_head_of_figure_2(dry):
    language, commands = yaml.safe_load((ROOT / "config/paper.yaml").read_text())["language"], dry("paper").commands
    sinks = [words for _, stage, *words in commands if stage == "sink"]
    shown = {option(words, "--name"): settings_of(words).get("shown") for words in sinks}
    assert shown == dict.fromkeys(language["backbones"]) | language["sink_heads"]


def test_a_backbone_too_large_for_one_card_is_trained_over_several(dry):
    trainings = [words for _, stage, *words in dry("paper").commands if stage == "train"]
    processes = {option(words, "--name"): settings_of(words)["distributed"]["processes"] for words in trainings}
    assert processes == {"llama2-7b": 4, "qwen2-7b": 4, "qwen2-0.5b": 1}


def test_every_model_has_one_place_for_the_study_and_its_ablations(dry):
    """What is measured of a subject lies beside its model, and no other name stands for it."""
    own = "results/paper/language/llama2-7b/heads/ra_i-kv_group-0/beta-{}/mamba/seed-0/"
    commands = dry("paper").commands
    trained = [words[3] for words in commands if words[1] == "train"]
    measured = {words[3]: words[2] for words in commands if words[1] == "needle"}
    for beta in (0.5, 0.75):
        assert trained.count(f"{own.format(beta)}trained") == 1
        assert measured[f"{own.format(beta)}needle.csv"] == f"{own.format(beta)}trained"


def test_heads_at_random_are_drawn_by_the_seed_of_each_training(tmp_path):
    """The rows of a random choice bear its seed: with one choice they would pass for those of one training."""
    study = yaml.safe_load((ROOT / "config/smoke.yaml").read_text()) | {"selection": {"by": "random"}}
    study["hashhop"]["seeds"] = [0, 1]
    (tmp_path / "random.yaml").write_text(yaml.safe_dump(study))
    planned = DryRun(link_workflow(tmp_path), "results/smoke/tables/table4.csv", "--configfile", "random.yaml")
    measured = {(option(words, "--subject"), option(words, "--seed")) for words in planned.commands}
    drawn = {(subject.split("/")[1], seed) for subject, seed in measured if str(subject).startswith("heads/")}
    assert drawn == {("random-kv_group-0", "0"), ("random-kv_group-1", "1")}


def test_no_model_is_measured_on_hashhop_twice(dry, tmp_path):
    """A backbone that learns it in the training of all models has its baseline in the original trained likewise."""
    measured = [words for _, stage, *words in dry("paper").commands if stage == "hashhop"]
    named = [[option(words, f"--{key}") for key in ("name", "subject", "seed", "settings")] for words in measured]
    assert len(named) == len({tuple(words) for words in named})
    assert ["qwen2-0.5b", "original/trained", "0"] in [words[:3] for words in named]
    folder, place = link_workflow(tmp_path), "results/paper/hashhop/qwen2-0.5b/original/trained/seed-0"
    rows = folder / place / "hashhop.parquet"
    rows.parent.mkdir(parents=True)
    rows.write_text("rows")
    argv = ["recurformer", "hashhop", "trained", f"{place}/hashhop.parquet"]
    record = {"run": "one", "argv": argv, "outputs": ["hashhop.parquet"], "stage": "hashhop"}
    rows.with_name("hashhop.run.json").write_text(json.dumps(record))
    copied = ["--cores", "1", "--allowed-rules", "baseline_after_training", "--configfile", "config/paper.yaml"]
    answer = snakemake(folder, f"{place}/baseline.parquet", *copied)
    assert answer.returncode == 0, answer.stderr
    found = read_record(record_of(rows.with_name("baseline.parquet")))
    assert found == record | {"argv": [*argv[:3], f"{place}/baseline.parquet"], "outputs": ["baseline.parquet"]}


def test_lists_are_copied_before_the_text_is_read(dry):
    for study, copies in (("recall", ["results/recall/language/recall-qwen2/copying"]), ("small", [])):
        commands = dry(study).commands
        assert [words[1] for _, stage, *words in commands if stage == "train-copying"] == copies
        bases = [words for _, stage, *words in commands if stage == "train" and words[1].endswith("/base")]
        assert bases and [words[0] for words in bases if "/backbones/" not in words[0]] == copies


def test_tokens_are_evicted_from_small_models_that_were_trained_likewise(dry):
    """At each seed of the training, down to the cache of the converted model of that seed."""
    folder = "results/recall/language/recall-qwen2"
    evicted = [
        words for _, stage, *words in dry("recall").commands if stage == "continuation" and "evicted/h2o" in words
    ]
    evicted.sort()  # by their models: jobs come in no order
    assert [words[0] for words in evicted] == [f"{folder}/original/trained/seed-{seed}/trained" for seed in range(3)]
    for seed, words in enumerate(evicted):
        assert any(word.endswith(f"beta-0.5/mamba/seed-{seed}/continuation.csv") for word in words)


def test_both_small_models_are_trained_alike(dry):
    """A study that changes another inherits its keys for one backbone, which an anchor does not show."""
    trained = defaultdict(set)
    for _, stage, *words in dry("small").commands:
        if stage in {"train", "recover"}:
            recipe = {key: value for key, value in settings_of(words).items() if key != "backbone"}
            about = [option(words, name) for name in ("--tokens", "--held-out", "--halvings")]
            trained[option(words, "--name")].add((stage, json.dumps(recipe), *about))
    assert trained["text-llama"] == trained["text-qwen2"] and len(trained["text-llama"]) == 3


def test_every_training_after_a_change_measures_a_curve_of_its_held_out_loss(tmp_path):
    """It tells whether the training was long enough. That of the backbone itself, before it is profiled, has none."""
    study = yaml.safe_load((ROOT / "config/smoke.yaml").read_text())
    study["ablations"]["language"] |= {"trained": ["mamba", "window"], "untrained": [], "selected": "window"}
    (tmp_path / "mixers.yaml").write_text(yaml.safe_dump(study))
    planned = DryRun(link_workflow(tmp_path), "all", "ablations", "--configfile", "mixers.yaml")
    curves = defaultdict(set)
    for _, stage, *words in planned.commands:
        if stage in {"train", "recover"}:
            curves[option(words, "--recovery") is not None].add(option(words, "--arm"))
    assert curves[True] > {"original", "paper", "plus", "state"} and curves[False] == {None}
    assert any("window" in arm for arm in curves[True])


RECORDED = ROOT / "recorded/cpu"
RENDERING = ("claims", "table", "figure")
RENDERED = {place: record for place, record in packed(RECORDED).items() if record["stage"] in RENDERING}


def test_rules_run_the_commands_that_rendered_the_recording(dry):
    """On those measurements that were recorded: docs/studies.md says which were not."""
    planned = set(dry("record").commands)
    commands = {tuple(word for word in words if not is_unrecorded(word)) for words in planned}
    assert [place for place, record in RENDERED.items() if tuple(record["argv"]) not in commands] == []


def is_unrecorded(word):
    place = RECORDED / word.replace("/record/", "/", 1)
    parquet = "influence|pyramidinfer_hashhop|seed-[0-9]+/hashhop(_sizes)?"
    never = rf"/(ablation_lm_eval\.csv|({parquet})\.parquet|seed-[0-9]+/mqar\.csv)$"
    return re.search(never, word) is not None and record_of(place) is None


MOST, SMALL = 2.4, 900
"""Largest memory that a job asks for over what it took, unless it asks for no more megabytes than a small one."""
VARYING = {"corpus", "continuation", "table"}
"""Rules whose memory follows the number of articles, windows or recordings, and which ask for the most."""


@pytest.mark.parametrize(
    ("study", "rules"),
    [("record", 33), ("long", 11), ("long-2k", 7), ("long-8k", 6), ("long-text", 5), ("small", 22), ("recall", 11)],
)
def test_every_recorded_job_took_less_than_its_rule_asks_for_and_not_far_less(dry, study, rules):
    found = defaultdict(list)
    recording = RECORDED.with_name("cpu" if study == "record" else study)
    for job in dry(study).jobs:
        file = next((name for name in job.outputs if name.endswith("run.json")), "")
        if record := packed(recording).get(recording / file.replace(f"/{study}/", "/", 1)):
            asked, took = int(job.resources["mem_mb"]), record["peak_memory_bytes"] / 2**20
            left = int(job.resources["runtime"]) - record["seconds"] / 60
            most = math.inf if job.rule in VARYING else max(MOST * took, SMALL)
            found[job.rule].append((took <= asked <= most, left > 0, asked, took, file))
    assert len(found) >= rules  # a rule younger than the recording has none yet
    wrong = [row for rule in found for row in found[rule] if not (row[0] and row[1])]
    assert not wrong
    assert not [job for job in dry(study).jobs if "gpu" in job.resources or int(job.resources["nodes"]) != 1]
