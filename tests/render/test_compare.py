import pandas as pd
import pytest
from rendering import pick

from recurformer.render.compare import compare, summary


@pytest.fixture
def trees(tmp_path):
    recorded, results = tmp_path / "recorded", tmp_path / "results"
    for folder in (recorded, results):
        (folder / "tables").mkdir(parents=True)
    return recorded, results


def write(path, **columns):
    frame = pd.DataFrame(columns)
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)


def test_equal_trees_agree(trees):
    for folder in trees:
        write(folder / "cache.csv", model=["a", "b"], beta=[0.5, 0.9], ratio=[0.1, None])
        write(folder / "profile.parquet", sample=[0, 1], layer=[0, 0], head=[0, 0], rr=[0.3, 0.4])
    comparison = compare(*trees)
    assert comparison["status"].tolist() == ["compared", "compared"]
    assert comparison["differing"].tolist() == [0, 0]
    assert summary(comparison) == "2 files, 2 columns compared: 2 equal, 0 different.\n"


@pytest.mark.parametrize("name", ["a.parquet", "tables/a.csv"])
def test_rows_meet_by_key_whatever_their_order(trees, name):
    recorded, results = trees
    write(recorded / name, model=["x", "y"], beta=[0.5, 0.9], ratio=[1.0, 2.0])
    write(results / name, beta=[0.9, 0.5], ratio=[2.5, 1.0], model=["y", "x"])
    row = pick(compare(recorded, results), column="ratio")
    assert (row["rows"], row["unmatched"], row["differing"]) == (2, 0, 1)
    assert row["largest_difference"] == 0.5
    assert row["largest_relative"] == pytest.approx(0.2)
    assert row["equal_share"] == 0.5


def test_missing_and_extra_files_rows_and_columns(trees):
    recorded, results = trees
    write(recorded / "gone.csv", model=["a"], value=[1])
    write(results / "tables" / "new.csv", model=["a"], value=[1])
    write(recorded / "both.csv", model=["a", "b"], value=[1, 2], old=[1, 1])
    write(results / "both.csv", model=["a", "c", "d"], value=[1, 2, 3], young=[1, 1, 1])
    comparison = compare(recorded, results)
    assert pick(comparison, file="gone.csv")["status"] == "missing"
    assert pick(comparison, file="tables/new.csv")["status"] == "extra"
    assert pick(comparison, status="column missing")["column"] == "old"
    assert pick(comparison, status="column extra")["column"] == "young"
    row = pick(comparison, column="value")
    assert (row["rows"], row["unmatched"], row["differing"]) == (1, 3, 0)
    text = summary(comparison)
    assert "missing (1): gone.csv" in text
    assert "column extra (1): both.csv young" in text
    assert "| both.csv" in text


def test_rows_do_not_meet_without_a_key_that_one_side_has(trees):
    recorded, results = trees
    write(recorded / "mqar.csv", beta=[0.5], correct=[7])
    write(results / "mqar.csv", beta=[0.5, 0.5], split=["validation", "test"], correct=[7, 0])
    row = pick(compare(recorded, results), column="correct")
    assert (row["rows"], row["unmatched"]) == (0, 3)


@pytest.mark.parametrize(
    ("models", "ours", "theirs", "differing", "largest"),
    [
        ("abc", [None, None, 1.0], [None, 3.0, float("inf")], 2, float("inf")),  # two times none agrees
        ("a", [""], [2.0], 1, 0.0),  # a column without a number is still compared
        ("aa", [1, 2], [1, 5], 1, 3),  # rows with the same keys meet in order
    ],
)
def test_values_are_compared_row_by_row(trees, models, ours, theirs, differing, largest):
    recorded, results = trees
    write(recorded / "a.csv", model=list(models), value=ours)
    write(results / "a.csv", model=list(models), value=theirs)
    row = pick(compare(recorded, results), column="value")
    assert (row["rows"], row["differing"], row["largest_difference"]) == (len(models), differing, largest)


def test_the_store_of_a_tracker_is_no_measurement(trees):
    recorded, results = trees
    for file in (recorded / "a.csv", results / "a.csv", results / "tracking/a.csv"):
        file.parent.mkdir(exist_ok=True)
        write(file, value=[1.0])
    assert compare(recorded, results)["file"].tolist() == ["a.csv"]


def test_files_of_texts_are_compared_by_their_rows(trees):
    recorded, results = trees
    write(recorded / "a.csv", model=["a", "b"])
    write(results / "a.csv", model=["a", "c"])
    row = pick(compare(recorded, results), file="a.csv")
    assert (row["rows"], row["unmatched"]) == (1, 2)
    assert "1 different" in summary(compare(recorded, results))


def test_folders_that_cannot_be_compared(trees, tmp_path):
    with pytest.raises(ValueError, match="nowhere: no such folder"):
        compare(tmp_path / "nowhere", trees[1])
    with pytest.raises(ValueError, match="have no measurement in common: nothing can be compared"):
        compare(*trees)
    (trees[0] / "a.parquet").write_bytes(b"PAR1 broken")
    (trees[1] / "a.parquet").write_bytes(b"PAR1 broken")
    with pytest.raises(ValueError, match=r"a\.parquet: unreadable"):
        compare(*trees)


def test_values_are_held_against_their_recorded_intervals(trees):
    recorded, results = trees
    models, bounds = ["a", "b", "c", "d"], {"low": [1.0, 1.0, 1.0, None], "high": [2.0, 2.0, 2.0, None]}
    verdicts = [["reproduced"] * 4, ["reproduced"] * 3 + ["contradicted"]]
    write(
        recorded / "tables/table4.csv",
        model=models, ours=[1.5, 1.5, 1.5, 1.0], runs=list("wxyz"), verdict=verdicts[0], **bounds,
    )  # fmt: skip
    write(
        results / "tables/table4.csv",
        model=models, ours=[2.0, 2.1, "not-run", 9.0], runs=list("stuv"), verdict=verdicts[1],
    )  # fmt: skip
    row = pick(compare(recorded, results), column="ours")
    assert (row["rows"], row["unmatched"], row["bounded"], row["outside"]) == (4, 0, 2, 1)
    assert pick(compare(recorded, results), column="verdict")["differing"] == 1
    assert "1 lie in it, 1 outside, of which 1 have an interval" in summary(compare(recorded, results))
    write(
        results / "tables/table4.csv",
        model=models, ours=[2.0, 2.1, None, 9.0], low=[1.9] * 4, high=[2.3] * 4, verdict=verdicts[1],
    )  # fmt: skip
    row = pick(compare(recorded, results), column="ours")
    assert (row["bounded"], row["outside"], row["apart"]) == (2, 1, 0)
