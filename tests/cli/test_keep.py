"""What is kept of a study: measurements, records, tables and figures; no weights, no text."""

import pandas as pd
import pytest

from recurformer.cli.main import main
from recurformer.cli.results import read_measurements
from recurformer.records import read_record, run_record

KEPT = ["results/tables/table1.csv", "results/mqar/mqar.csv", "results/mqar/run.json", "figures/figure1.png"]
KEPT += ["results/corpus/run.json", "results/backbones/tiny.run.json"]
LEFT = [
    "results/backbones/tiny/config.json",
    "results/mqar/trained/config.json",
    "results/mqar/trained/tokenizer.json",
    "results/corpus/articles.parquet",
    "results/smoke/tables/table1.csv",
    "results/smoke/mqar/mqar.csv",
    "results/.unfinished-x/mqar.csv",
    "results/tracking/trackio/inbox/0/00000000.jsonl",
    "figures/smoke/figure1.png",
]


def test_measurements_are_kept_and_weights_left(tmp_path):
    for name in KEPT + LEFT:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    for _ in range(2):
        assert main(["keep", str(tmp_path / "results"), str(tmp_path / "figures"), str(tmp_path / "kept")]) == 0
    found = {str(path.relative_to(tmp_path / "kept")) for path in (tmp_path / "kept").rglob("*") if path.is_file()}
    assert found == set(KEPT)


def run_on(monkeypatch, place, card, dirty=False):
    """A measurement and its record, as a run on a card (or on none) leaves them."""
    monkeypatch.setattr("recurformer.records._accelerator", lambda: card and {"name": card, "peak_memory_bytes": 1})
    monkeypatch.setattr("recurformer.records._tree", lambda: {"commit": "c", "dirty": dirty, "difference": None})
    place.mkdir(parents=True)
    with run_record(place / "run.json", "mqar", [], {}, outputs=[place / "mqar.csv"]):
        (place / "mqar.csv").write_text("beta\n0.5\n")


def keep_by_card(folder):
    return main(["keep", str(folder / "results"), str(folder / "figures"), str(folder / "recorded"), "--by-card"])


def test_a_recording_is_named_by_its_card(tmp_path, monkeypatch):
    run_on(monkeypatch, tmp_path / "results/mqar", "NVIDIA H200")
    run_on(monkeypatch, tmp_path / "results/caches", None)
    assert keep_by_card(tmp_path) == 0
    kept = tmp_path / "recorded/nvidia-h200/results"
    assert read_record(kept / "mqar/run.json")["accelerator"]["name"] == "NVIDIA H200"
    assert sorted(str(path.relative_to(kept)) for path in kept.rglob("*.*")) == [
        "caches/mqar.csv", "caches/run.json", "mqar/mqar.csv", "mqar/run.json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("other", "dirty", "said"),
    [
        ("NVIDIA A100-SXM4-80GB", False, "the runs were made on NVIDIA A100-SXM4-80GB and NVIDIA H200, not on one"),
        ("NVIDIA H200", True, "other/run.json: not a run of a clean commit"),
        ("NVIDIA H200", None, "other/run.json: not a run of a clean commit"),
    ],
)
def test_a_recording_of_several_cards_or_of_unknown_code_is_refused(tmp_path, monkeypatch, capsys, other, dirty, said):
    run_on(monkeypatch, tmp_path / "results/tested", "NVIDIA H200")
    run_on(monkeypatch, tmp_path / "results/other", other, dirty)
    assert keep_by_card(tmp_path) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "recorded").exists()


def test_a_recording_without_a_card_is_refused(tmp_path, monkeypatch, capsys):
    run_on(monkeypatch, tmp_path / "results/mqar", None)
    assert keep_by_card(tmp_path) == 1
    assert "made on no card, not on one" in capsys.readouterr().err


def test_measurement_files_are_read_by_their_names(tmp_path):
    frames = [pd.DataFrame({"beta": [0.5], "value": [number]}) for number in (1, 2)]
    files = [tmp_path / "1/mqar.csv", tmp_path / "2/mqar.parquet"]
    for file in files:
        file.parent.mkdir()
    frames[0].to_csv(files[0], index=False)
    frames[1].to_parquet(files[1], index=False)
    assert read_measurements(files)["mqar"].value.tolist() == [1, 2]
