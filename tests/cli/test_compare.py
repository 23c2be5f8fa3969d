"""Two ledgers beside each other: which verdicts and which numbers differ."""

import json

import pytest

from recurformer.cli.main import main
from recurformer.results.words import MARKS

STUDY = "this study"
OWN, NONE = ("reproduced", "0.5", STUDY), ("not-run", "", "")


def write(folder, **claims):
    """A ledger of claims: id -> verdict and our value."""
    folder.mkdir()
    entries = [
        {
            "id": name,
            "verdict": verdict,
            "ours": ours,
            "reason": "",
            "evidence": ours and {"source": source, "runs": []},
        }
        for name, (verdict, ours, source) in claims.items()
    ]
    (folder / "claims.json").write_text(json.dumps({"counts": dict.fromkeys(MARKS, 0), "claims": entries}))
    return str(folder)


@pytest.fixture
def recorded(tmp_path):
    return write(tmp_path / "recorded", a=OWN, b=("reproduced", "1.0", STUDY), c=NONE, e=OWN)


def compared(capsys, *places) -> str:
    assert main(["compare", *places]) == 0
    return capsys.readouterr().out


def test_other_verdicts_and_other_numbers_are_shown(recorded, tmp_path, capsys):
    results = write(
        tmp_path / "results", a=("reproduced", "0.6", STUDY), b=("contradicted", "1.0", STUDY), d=NONE,
        e=("reproduced", "0.5", "recorded/cpu"),
    )  # fmt: skip
    first, second, *lines = compared(capsys, recorded, results).splitlines()
    assert first == "3 claims compared: 1 have another verdict."
    assert second == (
        f"{results} measured 2 of the numbers in {recorded} itself: 1 are others."
        " 1 it takes from recordings, which is no comparison, and 0 it lacks."
    )
    assert f"Only in {recorded} (1): c" in lines and f"Only in {results} (1): d" in lines
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert rows[2:] == [
        ["a", "reproduced", "reproduced", "0.5", "0.6"],
        ["b", "reproduced", "contradicted", "1.0", "1.0"],
    ]


def test_what_cannot_be_compared_is_refused_in_one_line(recorded, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    other = write(tmp_path / "other", z=NONE)
    for place, said in (
        (tmp_path / "nowhere", "nowhere: no such folder or ledger"),
        (tmp_path / "empty", "claims.json: no ledger there"),
        (other, "have no claim in common: nothing can be compared"),
    ):
        assert main(["compare", recorded, str(place)]) == 1
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1
