"""Figure 4: which learning rate it shows, and when it shows no line."""

import matplotlib as mpl
import pandas as pd
import pytest
from layout import assert_labels_apart, assert_nothing_cut_off

from recurformer.render.figures import FIGURES
from recurformer.results.frames import COLUMNS
from recurformer.results.learned import best_learning_rates, why_mqar_not_run


def mqar_runs(*runs: tuple[float, float, str, int, int]) -> pd.DataFrame:
    """Rows of (beta, learning rate, split, length, correct of 1,000), one seed, 8 pairs; 64 and 128 are trained."""
    rows = [
        (beta, rate, 0, split, length, 8, length <= 128, correct, 1000) for beta, rate, split, length, correct in runs
    ]
    return pd.DataFrame(rows, columns=COLUMNS["mqar"])


def best_line(axes: mpl.axes.Axes) -> list[float]:
    """Accuracy over beta at the best learning rates."""
    return axes.containers[0].lines[0].get_ydata().tolist()


def test_figure4_chooses_the_rate_on_validation_samples_and_shows_the_test_split_alone():
    learned = [(0.0, 1e-3, "validation", 64, 1000), (0.0, 1e-3, "test", 64, 1000), (0.0, 1e-3, "test", 512, 1000)]
    runs = [
        (0.5, rate, split, length, correct)
        for rate, on_validation, on_test in ((1e-3, 900, 100), (1e-2, 800, 990))
        for split, length, correct in (
            ("validation", 64, on_validation), ("validation", 128, on_validation), ("test", 64, on_test),
            ("test", 512, on_test - 50),
        )
    ]  # fmt: skip
    mqar = mqar_runs(*learned, *runs)
    assert best_learning_rates(mqar) == {0.0: 1e-3, 0.5: 1e-3}
    panels = FIGURES["figure4"](mqar=mqar).axes
    assert [axes.get_title().splitlines()[0] for axes in panels] == ["(a) 64 tokens", "(b) 512 tokens"]
    assert [best_line(axes) for axes in panels] == [[1.0, 0.1], [1.0, 0.05]]
    faint = {line.get_label(): line for line in panels[0].lines}["every learning rate and seed"]
    assert sorted(faint.get_ydata()) == [0.1, 0.99, 1.0]
    swapped = mqar.assign(split=mqar["split"].map({"validation": "test", "test": "validation"}))
    assert best_learning_rates(swapped)[0.5] == 1e-2, "the other samples would have chosen otherwise"


@pytest.mark.parametrize("split", ["validation", "test"])
def test_figure4_needs_both_splits(measurements, split):
    mqar = measurements["mqar"]
    with pytest.raises(ValueError, match=f"no row with split = {split}"):
        FIGURES["figure4"](mqar[mqar["split"] != split])


def of_baseline(*accuracies: tuple[str, int, int]) -> pd.DataFrame:
    """Runs of a perfect beta 0.5 and of beta 0 with the given (split, length, correct of 1,000)."""
    places = (("validation", 64), ("validation", 128), ("test", 64), ("test", 128), ("test", 512))
    perfect = [(0.5, 1e-3, split, length, 1000) for split, length in places]
    return mqar_runs(*perfect, *((0.0, 1e-3, *accuracy) for accuracy in accuracies))


@pytest.mark.parametrize(
    ("accuracies", "reason"),
    [
        ([("validation", 64, 1000), ("validation", 128, 412)], "a trained length is 0.412 (128 tokens), a comparison"),
        ([("validation", 64, 989), ("validation", 128, 1000)], "a trained length is 0.989 (64 tokens), a comparison"),
        ([("validation", 64, 990), ("validation", 128, 990)], ""),
        ([], "the accuracy at β = 0 on trained lengths is not known; a comparison needs 0.99 on each."),
        ([("test", 64, 1000), ("test", 512, 1000)], "on trained lengths is not known"),
    ],
)
def test_a_baseline_that_has_not_learned_the_trained_lengths_says_nothing(accuracies, reason):
    mqar = of_baseline(*accuracies)
    found = why_mqar_not_run(mqar, best_learning_rates(mqar))
    assert bool(found) is bool(reason)
    assert reason in found


def test_the_baseline_is_judged_by_its_mean_over_the_seeds():
    for second, learned in ((980, True), (960, False)):
        seeds = [
            mqar_runs((0.0, 1e-3, "validation", 64, correct)).assign(seed=seed)
            for seed, correct in enumerate((1000, second))
        ]
        assert (why_mqar_not_run(pd.concat(seeds), {0.0: 1e-3}) == "") is learned


def test_figure4_says_how_many_seeds_stand_behind_each_point():
    rows = of_baseline(("validation", 64, 990), ("validation", 128, 990), ("test", 64, 990))
    several = pd.concat([rows, rows[rows["beta"] == 0].assign(seed=1)])
    assert "(1 for β = 0.5; 2 for β = 0), bars" in FIGURES["figure4"](several).get_supxlabel().replace("\n", " ")


def test_figure4_sets_apart_what_was_trained_longer():
    rows = of_baseline(*((split, length, 1000) for split in ("validation", "test") for length in (64, 128)))
    longer = pd.concat([rows, mqar_runs((1.0, 2e-3, "validation", 64, 900), (1.0, 2e-3, "test", 64, 800))])
    longer["run"] = longer["beta"].map("run of {:g}".format)
    steps = {"run of 0": 900, "run of 0.5": 900, "run of 1": 14_400}
    records = {run: {"settings": {"training_steps": number}} for run, number in steps.items()}
    for given, lines in ((records, [[1.0, 1.0], [0.8]]), (None, [[1.0, 1.0, 0.8]])):
        figure = FIGURES["figure4"](longer, given)
        note = figure.get_supxlabel().replace("\n", " ")
        assert [bars.lines[0].get_ydata().tolist() for bars in figure.axes[0].containers] == lines
        assert ("(times the steps of the others): β = 1 at 0.002 (16)." in note) == bool(given)
        assert ("may have more steps" in note) != bool(given)


def test_figure4_shows_no_line_above_a_baseline_that_has_not_learned():
    learned = [("validation", 64, 990), ("validation", 128, 990)]
    tested = [("test", 64, 990), ("test", 128, 400), ("test", 512, 10)]
    figure = FIGURES["figure4"](of_baseline(*learned, *tested))
    assert not [text for axes in figure.axes for text in axes.texts]
    assert "One seed." in figure.get_supxlabel()
    assert [best_line(axes) for axes in figure.axes] == [[0.99, 1.0], [0.4, 1.0], [0.01, 1.0]]
    figure = FIGURES["figure4"](of_baseline(*tested))
    assert [[text.get_text() for text in axes.texts] for axes in figure.axes] == [["not-run"]] * 3
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines] == ["every learning rate and seed"]
        assert not axes.containers
    assert "Not compared: the accuracy at β = 0" in figure.get_supxlabel()
    assert_nothing_cut_off(figure)
    assert_labels_apart(figure)


def test_figure4_shows_chance_every_rate_and_the_seeds(figures):
    panels = figures["figure4"].axes
    assert [axes.get_title().splitlines()[0] for axes in panels] == [
        "(a) 128 tokens", "(b) 256 tokens", "(c) 512 tokens", "(d) 1,024 tokens",
    ]  # fmt: skip
    for axes, pairs in zip(panels, (32, 64, 128, 256), strict=True):
        lines = {line.get_label(): line for line in axes.lines}
        assert lines["chance: any value shown"].get_ydata()[0] == pytest.approx(1 / pairs)
        assert len(lines["every learning rate and seed"].get_xdata()) == 6 * 2 * 2
        assert lines["original (β = 0), best rate"].get_xdata().tolist() == [0.0]
