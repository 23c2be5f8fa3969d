"""What a plan says before a run: the jobs and reasons of real dry runs, and costs that are measured or unknown."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from recurformer.cli.main import main
from recurformer.cli.study import read_study
from recurformer.costs import Cost
from recurformer.plan.dry_run import Job, dry_run, read_dry_run
from recurformer.plan.estimates import FORMULA, estimate, past_costs
from recurformer.plan.listing import by_rule, summary, totals
from tests.workflow.dry_runs import ROOT, link_workflow

SMOKE = read_study(ROOT / "config/smoke.yaml").model_dump(mode="json")
MQAR = "mqar/beta-{}/lr-{}/seed-0"


def past_run(folder, minutes, was, *, threads=1):
    """A run record; `was` is the folder that the run wrote to."""
    argv = ["recurformer", "mqar", "--record", f"{was}/run.json", "--threads", str(threads)]
    cost = {"seconds": minutes * 60, "peak_memory_bytes": 500 * 2**20, "accelerator": None}
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"run": minutes, "argv": argv, "outputs": [], **cost}))


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder that holds links to the workflow and nothing that it made."""
    monkeypatch.chdir(link_workflow(tmp_path))
    return tmp_path


def test_each_job_of_a_study_has_its_reason_and_the_best_estimate(project, capsys):
    here, recorded, elsewhere = (MQAR.format(*key) for key in (("0.0", "0.001"), ("0.0", "0.003"), ("0.5", "0.001")))
    past_run(project / "results/smoke" / here, 1, f"results/smoke/{here}", threads=2)
    past_run(project / "recorded/box/results" / here, 50, f"results/smoke/{here}")
    past_run(project / "recorded/box/results" / recorded, 2, f"results/smoke/{recorded}")
    past_run(project / "recorded/box/results" / elsewhere, 70, f"results/{elsewhere}")  # of the default study
    words = ["plan", "--configfile", "config/smoke.yaml", "--cores", "2", "--json", "plan.json"]
    assert main(words) == 0
    plan = json.loads(Path("plan.json").read_text())
    mqar = {job["outputs"][0]: job["expected"] for job in plan["jobs"] if job["rule"] == "mqar"}
    assert len(mqar) == 6
    source = {Path(output).parent.as_posix(): (cost["minutes"], cost["source"]) for output, cost in mqar.items()}
    assert source.pop(f"results/smoke/{here}") == (1, "a former run")
    assert source.pop(f"results/smoke/{recorded}") == (2, "recorded/box")
    assert set(source.values()) == {(1.5, "median of 2 of its rule")}
    assert all(job["reasons"] == ["outputs are missing"] for job in plan["jobs"])
    others = [job["expected"] for job in plan["jobs"] if job["rule"] != "mqar"]
    assert all(cost["source"] == FORMULA and cost["minutes"] > 0 for cost in others)
    total = plan["total"]
    assert total["unknown_jobs"] == 0
    assert sum(total["sources"].values()) == total["jobs"]
    past = 2 + 2 + 4 * 2  # the first held two cores; their median is two
    assert total["core_minutes"] == pytest.approx(past + sum(cost["core_minutes"] for cost in others))
    assert total["wall_minutes_at_least"] == pytest.approx(total["core_minutes"] / 2)
    printed = capsys.readouterr().out
    assert "| train_text " in printed
    assert "GFLOP/s" in printed


def test_one_target_needs_only_its_own_jobs(project, capsys):
    target = "results/smoke/tables/table1.csv"
    assert main(["plan", target, "--jobs", "--configfile", "config/smoke.yaml"]) == 0
    printed = capsys.readouterr().out
    assert f"| {target} " in printed
    assert "results/smoke/caches/complexity.csv" in printed
    assert "mqar" not in printed


def test_a_target_that_no_rule_makes_is_refused_in_one_line(project, capsys):
    assert main(["plan", "nonsense", "--configfile", "config/smoke.yaml"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "nonsense" in error


RULE = """
rule {name}:
    output: "{name}.txt"
    params:
        code="{code}",
        settings=["--steps", "{steps}", "--rate", "0.1"],
    threads: 2
    resources: gpu=1
    shell: "echo {{params}} > {{output}}"
"""
LAST = """
rule after:
    input: "code.txt"
    output: "after.txt"
    shell: "cp {input} {output}"
"""
REASONS = {
    "settings": "settings have changed (--steps)",
    "code": "the code of its stage has changed",
    "missing": "outputs are missing",
    "after": "inputs are made anew",
}


def test_reasons_are_plain_words(tmp_path, monkeypatch):
    """One run, then one dry run after each rule but one has met with something else."""
    monkeypatch.chdir(tmp_path)
    names = ["settings", "code", "missing", "unchanged"]
    targets = [f"{name}.txt" for name in (*names, "after")]

    def write(**changes):
        rules = [{"name": name, "code": "0123456789abcdef", "steps": 6, **changes.get(name, {})} for name in names]
        Path("Snakefile").write_text("".join(RULE.format(**rule) for rule in rules) + LAST)

    write()
    Path("config.yaml").write_text("{}")
    subprocess.run([sys.executable, "-m", "snakemake", *targets, "--cores", "2", "--quiet", "all"], check=True)
    assert dry_run(targets, ["config.yaml"], cores=4) == []
    Path("missing.txt").unlink()
    write(settings={"steps": 7}, code={"code": "0123456789abcdee"})
    jobs = dry_run(targets, ["config.yaml"], cores=4)
    assert {job.rule: "; ".join(job.reasons) for job in jobs} == REASONS
    assert all((job.threads, job.gpu) == (2, "1") for job in jobs if job.rule != "after")
    Path("code.txt").write_text("changed by hand")
    write()
    (job,) = dry_run(["after.txt"], ["config.yaml"], cores=4)
    assert job.reasons == ("inputs are newer than outputs",)


def test_a_dry_run_that_is_not_understood_is_refused():
    with pytest.raises(ValueError, match="2 jobs, of which 0"):
        read_dry_run("job count\ntotal    2\n\nrule x ->\n    output: a.txt\n")


def job(**changed):
    known = {"rule": "mqar", "outputs": ("a.csv", "results/beta-0.5/run.json"), "reasons": ("outputs are missing",)}
    known |= {"wildcards": {"beta": "0.5"}, "threads": 1, "resources": {"mem_mb": "4000"}}
    return Job(**known | changed)


def test_an_unknown_job_is_never_a_free_one():
    planned = [(job(), Cost(3.0, 6.0, 0.0, 100.0, None, "a former run")), (job(), None)]
    assert "3.0; 1 unknown" in by_rule(planned)
    assert "100; 1 unknown, requested 4,000" in by_rule(planned)
    assert "unknown: 1 job without any former run or formula" in summary(totals(planned, cores=2))
    assert totals([(job(), None)], cores=2)["longest_minutes"] is None
    assert "core time" not in summary(totals([(job(), None)], cores=2))


def test_estimates_are_not_borrowed_from_another_rule_or_study(tmp_path):
    past_run(tmp_path / "a", 5, "results/other/beta-0.5")
    past_run(tmp_path / "b", 5, "results/gamma-0.5")
    past = past_costs({tmp_path: "a former run"})
    assert len(past) == 2
    assert estimate(job(), past, SMOKE).source == FORMULA
    assert estimate(job(rule="unheard_of"), past, SMOKE) is None


def test_estimates_are_not_borrowed_from_another_backbone(tmp_path):
    past_run(tmp_path / "a", 5, "results/tiny/beta-0.5")
    past_run(tmp_path / "b", 7, "results/tiny/beta-0.9")
    past = past_costs({tmp_path: "a former run"})
    same, other = (
        job(
            rule="train_text",
            wildcards={"backbone": name, "beta": "0.0"},
            outputs=(f"results/{name}/beta-0.0/run.json",),
        )
        for name in ("tiny", "hashhop-tiny")
    )
    assert estimate(same, past, SMOKE).minutes == 6
    assert estimate(other, past, SMOKE).source == FORMULA


def test_the_paper_study_is_planned_with_its_gpu_hours_and_memory(project, capsys):
    words = ["all", "ablations", "--configfile", "config/paper.yaml", "--cores", "16", "--gpus", "8"]
    assert main(["plan", *words, "--json", "plan.json"]) == 0
    plan = json.loads(Path("plan.json").read_text())
    training = [job["expected"] for job in plan["jobs"] if job["rule"] == "train_hashhop"]
    assert len(training) == 18
    cards = {round(cost["gpu_minutes"] / cost["minutes"], 6) for cost in training}
    assert cards == {1, 4}, "the 7B models are trained on four cards"
    assert all(cost["minutes"] > 60 and cost["card_megabytes"] > 10_000 for cost in training)
    total = plan["total"]
    assert total["gpu_jobs"] == sum(job["expected"]["gpu_minutes"] > 0 for job in plan["jobs"]) > 700
    assert total["unknown_jobs"] == 0
    assert total["gpu_minutes"] == pytest.approx(sum(job["expected"]["gpu_minutes"] for job in plan["jobs"]))
    assert not total["too_large"]
    printed = capsys.readouterr().out
    assert f"GPU hours: {total['gpu_minutes'] / 60:.1f}" in printed
    assert "TFLOP/s" in printed
    assert "| llama2-7b " in printed


def test_the_memory_plan_alone_needs_no_dry_run(project, capsys):
    (project / "Snakefile").unlink()
    assert main(["plan", "--memory", "--configfile", "config/paper.yaml"]) == 0
    assert "FSDP" in capsys.readouterr().out
