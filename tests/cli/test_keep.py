"""What is kept of a study: measurements, records, tables and figures; no weights, no text."""

import pytest

from recurformer.cli.main import main

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


def test_an_unfinished_study_is_refused(tmp_path, capsys):
    assert main(["keep", str(tmp_path), str(tmp_path), str(tmp_path / "kept")]) == 1
    assert "no tables in it" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_measurement_files_are_read_by_their_names(tmp_path, kind):
    import pandas as pd

    from recurformer.cli.measurements import read_measurements

    frames = [pd.DataFrame({"beta": [0.5], "value": [number]}) for number in (1, 2)]
    files = [tmp_path / str(number) / f"mqar.{kind}" for number in (1, 2)]
    for frame, file in zip(frames, files, strict=True):
        file.parent.mkdir()
        frame.to_csv(file, index=False) if kind == "csv" else frame.to_parquet(file, index=False)
    assert read_measurements(files)["mqar"].value.tolist() == [1, 2]
