import json

import pandas as pd
import pytest
from rendering import ALL_TABLES, render

from recurformer.render.figures import FIGURES
from recurformer.results.frames import READERS, TEXTS, read_frame, read_frames


def write(rows, path):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_dict("records")))
    else:
        rows.to_csv(path, index=False) if path.suffix == ".csv" else rows.to_parquet(path)


@pytest.mark.parametrize("suffix", READERS)
def test_a_name_stays_a_text_whatever_it_looks_like(tmp_path, suffix):
    names = ["NA", "nan", "null", "None", "007", "360", "1e3", "0x10", "inf", "True", "2024-01-01", "1_000"]
    for written in (names, *([name] for name in names)):  # alone, a column could be one of numbers
        rows = pd.DataFrame(
            dict.fromkeys(TEXTS, written) | {"beta": 0.0, "step": 1, "value": float("nan"), "by": "ra_i"}
        )
        write(rows, tmp_path / f"rows{suffix}")
        pd.testing.assert_frame_equal(read_frame(tmp_path / f"rows{suffix}"), rows)


@pytest.fixture(scope="module")
def renamed(measurements, tmp_path_factory):
    """The synthetic measurements, read from files, with other names of models and arms."""
    other = {"hashhop-llama": "NA", "hashhop-qwen2": "007", "smollm2-135m": "360", "plus": "1e3"}
    folder = tmp_path_factory.mktemp("renamed")
    files = [folder / f"{kind}.csv" for kind in measurements]
    for file, frame in zip(files, measurements.values(), strict=True):
        names = [name for name in TEXTS if name in frame]
        frame.assign(**{name: frame[name].replace(other) for name in names}).to_csv(file, index=False)
    return read_frames(files)


@pytest.mark.parametrize("renderer", [*ALL_TABLES.values(), *FIGURES.values()], ids=[*ALL_TABLES, *FIGURES])
def test_models_may_have_any_names(renderer, renamed):
    render(renderer, renamed)


def test_a_file_that_is_named_twice_is_no_second_sample(measurements, tmp_path):
    """A ledger asks for the same needles as those of the ablations and of the recovery."""
    file = tmp_path / "needle.csv"
    measurements["needle"].to_csv(file, index=False)
    once, twice = (read_frames(files)["needle"] for files in ([file], [file, str(file)]))
    pd.testing.assert_frame_equal(once, twice)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cache.json", b"{}", r"cache\.json: a measurement file ends in \.csv, \.jsonl, \.parquet"),
        ("cache.csv", b"", r"cache\.csv: unreadable \(No columns to parse from file\)"),
        ("cache.csv", b"a,b\n1,2\n1,2,3\n", r"cache\.csv: unreadable \(.*Expected 2 fields in line 3, saw 3\)"),
        ("cache.parquet", b"PAR1 broken", r"cache\.parquet: unreadable"),
    ],
)
def test_what_is_no_measurement_is_refused_in_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as refused:
        read_frame(path)
    assert "\n" not in str(refused.value)
