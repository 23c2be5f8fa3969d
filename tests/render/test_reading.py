import pandas as pd
import pytest

from recurformer.render.measurements import read_frame


@pytest.mark.parametrize("name", ["cache.csv", "cache.parquet"])
def test_either_format_gives_the_same_rows(tmp_path, name):
    path = tmp_path / name
    rows = pd.DataFrame({"model": ["a", "b"], "ratio": [0.5, 0.25]})
    rows.to_csv(path, index=False) if path.suffix == ".csv" else rows.to_parquet(path)
    pd.testing.assert_frame_equal(read_frame(path), rows)


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
