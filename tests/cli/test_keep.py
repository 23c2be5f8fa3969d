"""What is kept of a study: measurements, records, tables and figures; no weights, no text."""

import re

import pytest

from recurformer.cli.main import main
from recurformer.records import find_records, read_record, record_of, run_record
from recurformer.results.frames import read_frame
from recurformer.results.words import CHANGED
from tests.worlds import shown

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


def of_tree(monkeypatch, dirty):
    """Runs from now on are of a commit, as it is or changed; None: nobody knows."""
    monkeypatch.setattr("recurformer.records._tree", lambda: {"commit": "c", "dirty": dirty, "difference": None})


def test_measurements_are_kept_one_file_a_kind_and_weights_left(tmp_path, monkeypatch):
    of_tree(monkeypatch, dirty=False)
    for name in [*LEFT, "results/tables/mqar.csv", "figures/figure1.png"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    runs = {}
    for beta in (0.0, 0.5):
        place = tmp_path / f"results/mqar/beta-{beta}"
        place.mkdir()
        with run_record(place / "run.json", "mqar", [], {"beta": beta}, outputs=[place / "mqar.csv"]):
            (place / "mqar.csv").write_text(f"beta,correct\n{beta},3\n{beta},4\n")
        runs[beta] = read_record(place / "run.json")["run"]
    for _ in range(2):
        assert main(["keep", str(tmp_path / "results"), str(tmp_path / "figures"), str(tmp_path / "kept")]) == 0
    found = {str(path.relative_to(tmp_path / "kept")) for path in (tmp_path / "kept").rglob("*") if path.is_file()}
    assert found == {"runs.jsonl", "measurements/mqar.parquet", "results/tables/mqar.csv", "figures/figure1.png"}
    rows = read_frame(tmp_path / "kept/measurements/mqar.parquet")
    assert rows[["beta", "correct"]].to_numpy().tolist() == [[0, 3], [0, 4], [0.5, 3], [0.5, 4]]
    assert rows["run"].tolist() == [runs[0.0]] * 2 + [runs[0.5]] * 2
    place = tmp_path / "kept/results/mqar/beta-0.5"
    assert record_of(place / "mqar.csv") == place / "run.json"
    assert read_record(place / "run.json")["settings"] == {"beta": 0.5}
    assert [record["run"] for _, record in find_records(tmp_path / "kept")] == [*runs.values()]
    for name in ("notes.txt", "measurements/mine.parquet"):
        (tmp_path / "kept" / name).write_text("mine")
        assert main(["keep", str(tmp_path / "results"), str(tmp_path / "figures"), str(tmp_path / "kept")]) == 1
        (tmp_path / "kept" / name).unlink()


def run_on(monkeypatch, place, card, dirty=False):
    """A measurement and its record, as a run on a card (or on none) leaves them."""
    monkeypatch.setattr("recurformer.records._accelerator", lambda: card and {"name": card, "peak_memory_bytes": 1})
    of_tree(monkeypatch, dirty)
    place.mkdir(parents=True)
    with run_record(place / "run.json", "mqar", [], {}, outputs=[place / "mqar.csv"]):
        (place / "mqar.csv").write_text("beta\n0.5\n")


def keep(folder, *options):
    return main(["keep", *(str(folder / name) for name in ("results", "figures", "recorded")), *options])


def test_a_recording_is_named_by_its_card(tmp_path, monkeypatch):
    run_on(monkeypatch, tmp_path / "results/mqar", "NVIDIA H200")
    run_on(monkeypatch, tmp_path / "results/caches", None)
    assert keep(tmp_path, "--by-card") == 0
    kept = tmp_path / "recorded/nvidia-h200"
    assert read_record(kept / "results/mqar/run.json")["accelerator"]["name"] == "NVIDIA H200"
    assert read_frame(kept / "measurements/mqar.parquet")["file"].tolist() == [
        str(kept / "results/caches/mqar.csv"), str(kept / "results/mqar/mqar.csv"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("card", "other", "said"),
    [
        ("NVIDIA H200", "NVIDIA A100", "the runs were made on NVIDIA A100 and NVIDIA H200, not on one"),
        (None, None, "made on no GPU, not on one kind of GPU"),
    ],
)
def test_only_a_recording_of_one_card_has_its_name(tmp_path, monkeypatch, capsys, card, other, said):
    run_on(monkeypatch, tmp_path / "results/tested", card)
    run_on(monkeypatch, tmp_path / "results/other", other)
    assert keep(tmp_path, "--by-card") == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "recorded").exists()


@pytest.mark.parametrize(
    ("kind", "rendered", "suffix"),
    [("complexity", ("table", "table1"), ".md"), ("mqar", ("figure", "figure4"), ".svg")],
)
def test_a_table_and_a_figure_name_what_changed_code_has_measured(tmp_path, monkeypatch, kind, rendered, suffix):
    files = [tmp_path / f"measured/{name}/{kind}.csv" for name in ("clean", "changed")]
    for file, dirty in zip(files, (False, True), strict=True):
        of_tree(monkeypatch, dirty)
        file.parent.mkdir(parents=True)
        with run_record(file.parent / f"{kind}.run.json", kind, [], {}, outputs=[file]):
            shown()[kind].to_csv(file, index=False)
    notes = []
    for chosen in (files, files[:1]):
        target = tmp_path / f"rendered{suffix}"
        assert main([*rendered, *map(str, chosen), "--out", str(target)]) == 0
        lines = re.sub(r"\s*<[^>]+>\s*", " ", target.read_text()) if suffix == ".svg" else target.read_text()
        notes.append(f"{CHANGED} {kind}: changed." in " ".join(lines.split()))
    assert notes == [True, False]


@pytest.mark.parametrize("dirty", [True, None])
@pytest.mark.parametrize("options", [(), ("--by-card",)])
def test_runs_of_changed_or_unknown_code_are_refused(tmp_path, monkeypatch, capsys, dirty, options):
    run_on(monkeypatch, tmp_path / "results/tested", "NVIDIA H200")
    run_on(monkeypatch, tmp_path / "results/other", "NVIDIA H200", dirty)
    assert keep(tmp_path, *options) == 1
    assert "other/run.json: not a run of a clean commit" in capsys.readouterr().err
    assert not (tmp_path / "recorded").exists()
