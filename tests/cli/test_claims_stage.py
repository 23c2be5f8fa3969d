"""The stage that decides claims: its files, its counts, its exit code."""

import json
from pathlib import Path

import pandas as pd
import pytest

from recurformer.cli.main import main
from recurformer.cli.study import write_recording
from recurformer.records import run_record
from recurformer.results.frames import COLUMNS
from tests.worlds import complexity

CELL = "table1/generation/mamba/cache_size"


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Writes growth measurements at the paper's sizes, with their run record; Mamba's cache has a growth of its own."""
    monkeypatch.chdir(tmp_path)

    def write(folder: str, power: int = 0) -> str:
        path = tmp_path / folder / "complexity.csv"
        path.parent.mkdir(parents=True)
        rows = pd.DataFrame(complexity(), columns=COLUMNS["complexity"])
        is_cell = (rows[["phase", "mixer", "quantity"]] == CELL.split("/")[1:]).all(axis=1)
        settings = {"mamba_d_state": "16", "mamba_d_conv": "4", "mamba_expand": "2", "mamba_dt_rank": "256"}
        with run_record(path.with_name("complexity.run.json"), "complexity", [], settings, outputs=[path]):
            rows.assign(bytes=rows["bytes"] * rows["length"] ** (power * is_cell)).to_csv(path, index=False)
        return str(path)

    return write


def record(name: str, file: str) -> None:
    """Keep a measurement, which lies below a folder of this name, in a recording."""
    folder, files = Path("recorded", name), [Path(file), Path(file).with_suffix(".run.json")]
    folder.mkdir(parents=True)
    write_recording(folder, {path.relative_to(Path(name).absolute()): path for path in files})


def decide(*words: str) -> int:
    return main(["claims", *words])


def verdicts(path: str) -> dict[str, str]:
    with open(path) as file:
        return {claim["id"]: claim["verdict"] for claim in json.load(file)["claims"]}


def test_every_format_is_written_and_counts_the_same(measured, tmp_path, capsys):
    out = [str(tmp_path / f"out/claims{suffix}") for suffix in (".json", ".csv", ".md", ".html")]
    assert decide(measured("results/caches"), "--study", "mine", "--out", *out) == 0
    shown = capsys.readouterr().out
    ledger = json.loads((tmp_path / "out/claims.json").read_text())
    assert ledger["study"] == "mine"
    assert f"reproduced: {ledger['counts']['reproduced']}" in shown and "taken from recordings" not in shown
    frame = pd.read_csv(tmp_path / "out/claims.csv")
    papers = frame.loc[frame["kind"] != "reviewer", "verdict"]
    assert papers.value_counts().to_dict() == {k: v for k, v in ledger["counts"].items() if v}
    (claim,) = [claim for claim in ledger["claims"] if claim["id"] == CELL]
    assert (claim["verdict"], claim["evidence"]["scale"]) == ("reproduced", "paper")
    assert claim["evidence"]["runs"] == list(ledger["environment"]["runs"])
    assert claim["evidence"]["core_minutes"] >= 0
    assert CELL in (tmp_path / "out/claims.html").read_text()
    assert "reproduced" in (tmp_path / "out/claims.md").read_text()


def test_a_recording_is_evidence_where_the_study_has_none(measured, tmp_path, capsys):
    record("card", measured("card/results/caches"))
    (tmp_path / "other.csv").write_text("x\n1\n")
    assert decide("other.csv", "--recorded", "recorded", "--out", "claims.json") == 0
    ledger = json.loads((tmp_path / "claims.json").read_text())
    (claim,) = [claim for claim in ledger["claims"] if claim["id"] == CELL]
    assert (claim["verdict"], claim["evidence"]["source"]) == ("reproduced", "recorded/card")
    taken = f"taken from recordings: {ledger['counts']['reproduced']} reproduced"
    assert f"{taken}; 0 rest on this study's measurements; together:" in capsys.readouterr().out


@pytest.mark.parametrize(("power", "code"), [(0, 0), (1, 1)])
def test_a_contradicted_claim_fails_the_command_when_asked(measured, tmp_path, capsys, power, code):
    out = str(tmp_path / "claims.json")
    assert decide(measured("results/caches", power), "--out", out, "--fail-on", "contradicted") == code
    assert "contradicted" in capsys.readouterr().err if code else True
    assert verdicts(out)[CELL] == ("contradicted" if code else "reproduced"), "the ledger is written all the same"
    assert decide("--ledger", out, "--fail-on", "contradicted") == code
