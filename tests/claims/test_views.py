"""The measurements as claims look at them: one kind of file, several views."""

import pandas as pd
import pytest

from recurformer.claims.evidence import views
from recurformer.results.frames import COLUMNS
from tests.workflow.dry_runs import ROOT

OTHERS = [("eviction", "h2o", 0.25, "", False), ("mixer", "window", 0.5, "ra_i", True)]


def rows_of(model: str, seed: int, *subjects: tuple) -> pd.DataFrame:
    rows = [(model, *subject, seed, 1.0, "official", 0, 8, 8) for subject in subjects]
    return pd.DataFrame(rows, columns=COLUMNS["hashhop"])


def ours(beta: float, by: str = "ra_i") -> tuple:
    return ("mixer", "mamba", beta, by, True)


ORIGINAL = ("original", "full", 1.0, "", True)
UNTOUCHED = ("original", "full", 1.0, "", False)
HASHHOP = pd.concat(
    [
        rows_of("a", 0, ORIGINAL, ours(0.5), ours(0.9), ours(0.5, "random"), *OTHERS),
        rows_of("a", 0, UNTOUCHED),
        rows_of("a", 1, ORIGINAL, ours(0.5)),
        rows_of("b", 0, ORIGINAL, ours(0.5)),
    ],
    ignore_index=True,
)


def named(frame: pd.DataFrame, *columns: str) -> set[tuple]:
    return set(frame[list(columns)].itertuples(index=False, name=None))


def test_the_papers_method_is_told_from_other_subjects_and_has_its_beta():
    seen = views({"hashhop": HASHHOP})["hashhop"]
    assert named(seen, "model", "seed", "method", "beta", "by") == {
        *(("a", 0, "mamba", beta, "ra_i") for beta in (0.5, 0.9)),
        ("a", 1, "mamba", 0.5, "ra_i"), ("b", 0, "mamba", 0.5, "ra_i"),
        *((model, seed, "full", 0.0, "") for model, seed in (("a", 0), ("a", 1), ("b", 0))),
    }  # fmt: skip
    other = HASHHOP[HASHHOP["by"] != "ra_i"]
    assert named(views({"hashhop": other})["hashhop"], "method", "by") == {("full", ""), ("mamba", "random")}


def test_two_choices_of_heads_are_not_taken_for_one_method():
    """Whole query groups and single heads bear the same name: together they would halve the interval."""
    twice = pd.concat([HASHHOP, rows_of("a", 1, ours(0.5))], ignore_index=True)
    with pytest.raises(ValueError, match=r"several rows for a sample of model a, beta 0\.5, seed 1:"):
        views({"hashhop": twice})


def test_subjects_are_compared_where_others_than_the_papers_method_were_measured():
    """Other models, seeds and fractions of heads are those of Tables 2 and 4 alone. What evicts is measured on the
    original trained likewise: an untouched one beside it would be taken for what it is compared with.
    """
    seen = views({"hashhop": HASHHOP})["compared_hashhop"]
    assert set(seen["model"]) == {"a"} and set(seen["seed"]) == {0}
    assert set(seen.loc[seen["family"] == "original", "trained"]) == {True}
    assert named(seen, "family", "method", "by", "setting") == {
        ("original", "full", "", 1.0), ("mixer", "mamba", "ra_i", 0.5), ("mixer", "mamba", "random", 0.5),
        *((family, method, by, setting) for family, method, setting, by, _ in OTHERS),
    }  # fmt: skip
    assert views({"hashhop": HASHHOP[HASHHOP["model"] == "b"]})["compared_hashhop"].empty


def test_the_losses_are_those_of_the_papers_recipe():
    recorded = pd.read_parquet(ROOT / "recorded/cpu/measurements/metrics.parquet")
    assert set(recorded["arm"]) == {"original", "paper", "plus"}
    assert set(views({"metrics": recorded})["metrics"]["arm"]) == {"original", "paper"}
