"""The stage that decides claims: its files, its counts, its exit code."""

import json

import pandas as pd
import pytest

from recurformer.cli.main import main

LENGTHS = {10_240: 0.1054, 61_440: 0.1043}


@pytest.fixture
def measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(folder: str, shift: float = 0.0) -> str:
        path = tmp_path / folder / "pyramidinfer.csv"
        path.parent.mkdir(parents=True)
        rows = [("llama2-7b", length, ratio + shift) for length, ratio in LENGTHS.items()]
        pd.DataFrame(rows, columns=["model", "length", "ratio"]).to_csv(path, index=False)
        return str(path)

    return write


def decide(*words: str) -> int:
    return main(["claims", *words])


def verdicts(path: str) -> dict[str, str]:
    with open(path) as file:
        return {claim["id"]: claim["verdict"] for claim in json.load(file)["claims"]}


CELL = "table2/llama2-7b/pyramidinfer/cs_10k"


def test_every_format_is_written_and_counts_the_same(measured, tmp_path, capsys):
    out = [str(tmp_path / f"out/claims{suffix}") for suffix in (".json", ".csv", ".md", ".html")]
    assert decide(measured("results/caches"), "--study", "mine", "--out", *out) == 0
    shown = capsys.readouterr().out
    ledger = json.loads((tmp_path / "out/claims.json").read_text())
    assert ledger["study"] == "mine"
    assert f"✓ reproduced: {ledger['counts']['reproduced']}" in shown
    frame = pd.read_csv(tmp_path / "out/claims.csv")
    assert frame["verdict"].value_counts().to_dict() == {k: v for k, v in ledger["counts"].items() if v}
    assert verdicts(out[0])[CELL] == "reproduced"
    assert CELL in (tmp_path / "out/claims.html").read_text()
    assert "✓ reproduced" in (tmp_path / "out/claims.md").read_text()


def test_a_recording_is_evidence_where_the_study_has_none(measured, tmp_path):
    measured("recorded/card/results/caches")
    (tmp_path / "other.csv").write_text("x\n1\n")
    assert decide("other.csv", "--recorded", "recorded", "--out", "claims.json") == 0
    ledger = json.loads((tmp_path / "claims.json").read_text())
    (claim,) = [claim for claim in ledger["claims"] if claim["id"] == CELL]
    assert (claim["verdict"], claim["evidence"]["source"]) == ("reproduced", "recorded/card")


@pytest.mark.parametrize(("shift", "code"), [(0.0, 0), (0.01, 1)])
def test_a_contradicted_claim_fails_the_command_when_asked(measured, tmp_path, capsys, shift, code):
    out = str(tmp_path / "claims.json")
    assert decide(measured("results/caches", shift), "--out", out, "--fail-on", "contradicted") == code
    assert "contradicted" in capsys.readouterr().err if code else True
    assert verdicts(out)[CELL] == ("contradicted" if code else "reproduced"), "the ledger is written all the same"
    assert decide("--ledger", out, "--fail-on", "contradicted") == code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fail-on", "wrong"], "--fail-on wrong: no such verdict; there are: reproduced, consistent"),
        (["--ledger", "nothing.json"], "nothing.json: no ledger there"),
        (["--ledger", "broken.json"], "broken.json: not a ledger written by `recurformer claims`"),
        (["table.xlsx"], "table.xlsx: a measurement file ends in .csv"),
        (["fine.csv", "--out", "claims.pdf"], "claims.pdf: a ledger is written as .json, .csv, .md, .html"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(measured, tmp_path, capsys, words, said):
    (tmp_path / "broken.json").write_text("[]")
    (tmp_path / "fine.csv").write_text("x\n1\n")
    before = sorted(tmp_path.iterdir())
    assert decide(*words) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before
