"""From a figure, a table, a claim or a run to the commands behind it, and back."""

import json
import re
import shutil
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from recurformer.cli.main import main
from recurformer.records import read_record, run_record, runs_behind
from recurformer.render.style import save_figure
from recurformer.results.words import MARKS

CELL = "table4/llama2-7b/0.90/cs_10k"


def write_run(path, stage, inputs=(), write=None, **settings):
    """A run that writes one file and its record beside it; its command names the stage and what it read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    record = path.with_name(f"{path.stem}.run.json")
    argv = [stage, *map(str, inputs)]
    with run_record(record, stage, argv, {"seed": 5, **settings}, inputs=list(map(str, inputs)), outputs=[path]):
        if write:
            write(path)
        else:
            path.write_text("measured")
    return read_record(record)["run"]


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A profile, a measurement that rests on it, a figure of that, and a ledger with a claim about it."""
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "results"
    runs = {"profile": write_run(results / "language/profile.parquet", "profile")}
    runs["cache"] = write_run(results / "caches/cache.csv", "cache", ["results/language/profile.parquet"])
    measured = runs_behind(["results/caches/cache.csv"])
    for suffix in (".svg", ".png"):
        save_figure(Figure(), tmp_path / f"loose{suffix}", measured)
    runs["figure"] = write_run(
        tmp_path / "figures/figure4.svg", "figure", ["results/caches/cache.csv"],
        lambda path: save_figure(Figure(), path, measured), figure="figure4")  # fmt: skip
    claims = [
        {"id": CELL, "verdict": "reproduced", "ours": "1", "reason": "", "evidence": {"runs": [runs["cache"]]}},
        {"id": "text/input-gate", "verdict": "not-run", "ours": "", "reason": "it needs a card", "evidence": None},
    ]
    (results / "claims.json").write_text(json.dumps({"counts": dict.fromkeys(MARKS, 0), "claims": claims}))
    return runs


def traced(capsys, *words) -> str:
    assert main(["trace", *words]) == 0
    return capsys.readouterr().out


def test_a_figure_leads_to_every_command_behind_it(study, capsys):
    out = traced(capsys, "figures/figure4.svg")
    assert [out.index(study[stage]) for stage in ("figure", "cache", "profile")] == sorted(
        out.index(run) for run in study.values()
    )
    assert "command  recurformer cache results/language/profile.parquet" in out
    assert "seed     5" in out
    assert "commit " in out and "machine " in out and " s\n" in out


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_figure_without_its_sidecar_still_carries_its_runs(study, capsys, suffix):
    out = traced(capsys, f"loose{suffix}")
    assert study["cache"] in out
    assert study["profile"] in out
    assert study["figure"] not in out.split("used by")[0]


def test_each_run_names_the_line_where_its_code_begins(study, capsys):
    """And of a claim, the function that decides it."""
    out = dict(line.split(maxsplit=1) for line in traced(capsys, CELL, "--direct").splitlines() if ":" in line)
    assert out["judge"].endswith(" cache")
    for key, ending, begins in (("stage", "cli/caches.py", "@stage("), ("judge", "claims/numbers.py", "def cache(")):
        file, line = out[key].split()[0].split(":")
        assert file.endswith(ending) and Path(file).read_text().splitlines()[int(line) - 1].startswith(begins)
    assert "measure/cache.py:" in out["code"] and out["code"].endswith(" measure_cache")


def test_a_figure_names_what_drew_it_and_what_measured_its_inputs(study, capsys):
    first = traced(capsys, "figures/figure4.svg", "--direct").split("\n\n")[0]
    assert re.search(r"code +\S+render/figures.py:\d+ figure4\n", first)
    assert re.search(r"inputs +1 of cache: \S*measure/cache.py:\d+ measure_cache", first)


def test_a_recording_of_a_named_study_leads_to_all_its_runs(tmp_path, monkeypatch, capsys):
    """In a recording the study's name is no longer part of the paths."""
    monkeypatch.setattr("recurformer.records._tree", lambda: {"commit": "c", "dirty": False, "difference": None})
    monkeypatch.chdir(tmp_path)
    first = write_run(Path("results/mine/mqar/mqar.csv"), "mqar")
    write_run(Path("figures/mine/figure4.svg"), "figure", ["results/mine/mqar/mqar.csv"], figure="figure4")
    Path("results/mine/tables").mkdir()
    assert main(["keep", "results/mine", "figures/mine", "recorded/here"]) == 0
    shutil.rmtree("results")
    shutil.rmtree("figures")
    out = traced(capsys, "recorded/here/figures/figure4.svg")
    assert first in out and "not kept" not in out
    assert "  record   line 2 of recorded/here/runs.jsonl\n  wrote    results/mqar/mqar.csv\n" in out


def test_a_claim_leads_to_its_runs_and_a_run_to_its_claims_and_files(study, capsys):
    out = traced(capsys, CELL)
    assert study["profile"] in out and out.startswith(f"claim {CELL}\n  ours      1\n  verdict   reproduced\n")
    assert "\n  ledger    results/claims.json\n" in out.split("\n\n")[0] + "\n"
    out = traced(capsys, study["cache"][:8])
    assert "figures/figure4.svg" in out.split("used by")[1]
    assert f"claim {CELL}: reproduced in results/claims.json" in out.split("used by")[1]


def test_a_claim_that_no_run_decides_leads_to_those_in_its_row_of_a_table(study, capsys):
    Path("results/tables").mkdir()
    Path("results/tables/table4.csv").write_text(
        f"model,claim,verdict,runs\nsmall,text/input-gate,not-run,{study['cache']}\n"
    )
    assert f"run {study['cache']}" in traced(capsys, "text/input-gate")


def test_a_figure_from_a_recording_carries_the_runs_of_its_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("recorded").symlink_to(Path(__file__).parents[2] / "recorded")
    assert main(["figure", "figure4", "recorded/cpu/measurements/mqar.parquet", "--out", "again.svg"]) == 0
    assert capsys.readouterr().out == "again.svg\n"
    out = traced(capsys, "again.svg")
    assert len(re.findall(r"^run .* mqar ", out, re.MULTILINE)) == 39
    assert len(re.findall(r"  wrote +results/mqar/\S+, rows of \S*recorded/cpu/measurements/mqar.parquet", out)) == 39


def test_rows_are_named_where_the_recording_has_them(monkeypatch, capsys):
    """A second training of a model has a record there, and no rows of its losses."""
    monkeypatch.chdir(Path(__file__).parents[2])
    out = traced(capsys, "6083a52e")
    assert re.search(r"  wrote +results/hashhop/hashhop-llama/again/base.metrics.jsonl$", out, re.MULTILINE)


def test_a_run_whose_record_has_been_replaced_is_said_to_be_lost(study, capsys):
    write_run(Path("results/caches/cache.csv").resolve(), "cache", ["results/language/profile.parquet"])
    out = traced(capsys, "figures/figure4.svg")
    assert f"input    results/caches/cache.csv came from run {study['cache']}, whose record is not kept" in out


def test_a_claim_that_no_run_decides_is_described_all_the_same(study, capsys):
    out = traced(capsys, "text/input-gate")
    assert "claim text/input-gate" in out and "reason    it needs a card" in out
    assert "no run is kept that decides it" in out
    assert "24" in traced(capsys, "audit/whole-heads/qwen2-0.5b")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere", "nowhere: no such file, no run in results, figures, recorded has this name, and no claim of "),
        ("table4/llama2-7b/cs_10k", f"; did you mean {CELL}?"),
        ("results", "results: no run record beside it names it"),
    ],
)
def test_what_cannot_be_traced_is_said_in_one_line(study, capsys, target, said):
    assert main(["trace", target]) == 1
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
