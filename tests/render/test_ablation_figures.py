"""The reviewers' figures: they show the numbers that were measured, and only what was measured."""

import numpy as np
import pandas as pd
import pytest
from layout import assert_labels_apart, assert_nothing_cut_off
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from recurformer.render.figures import FIGURES
from recurformer.render.figures_ablations import FEW
from recurformer.render.panels import OURS, look_of
from recurformer.results.scores import METHODS
from tests.worlds import SELECTORS
from tests.worlds import SETTINGS_SHOWN as SETTINGS


def perplexities(rows: pd.DataFrame, key: str) -> np.ndarray:
    sums = rows.groupby(key)[["negative_log_likelihood", "tokens"]].sum()
    return np.exp(sums["negative_log_likelihood"] / sums["tokens"]).to_numpy()


def lines_with(axes: Axes, method: tuple[str, str]) -> list[Line2D]:
    """The lines of a method, by colour and marker."""
    look = look_of(method)
    return [line for line in axes.lines if (line.get_color(), line.get_marker()) == (look.colour, look.marker)]


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def of(frame: pd.DataFrame, **where: object) -> pd.DataFrame:
    for column, value in where.items():
        frame = frame[frame[column] == value]
    return frame


OURS_TRAINED = {"family": "mixer", "method": "mamba", "by": "ra_i", "trained": True}


def test_looks_of_methods_differ():
    methods = [(family, method) for family, names in METHODS.items() for method in names]
    assert len({(look_of(method).colour, look_of(method).marker) for method in methods}) == len(methods)
    assert len({look_of(method).colour for method in methods if method[0] == "eviction"}) == 5, "four and grey"


def test_pareto_shows_the_scores_over_the_caches_that_were_held(figures, measurements):
    figure = figures["ablation_pareto"]
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["HashHop-Llama: h_gq on HashHop", "HashHop-Qwen2: h_gq on HashHop",
        "SmolLM2-135M: needle accuracy", "SmolLM2-135M: perplexity"]  # fmt: skip
    ours = of(measurements["compared_hashhop"], model="hashhop-llama", **OURS_TRAINED)
    expected = (ours["correct"] / ours["hops"]).groupby(ours["ratio"]).mean()
    (line,) = [line for line in lines_with(figure.axes[0], ("mixer", "mamba")) if line.get_linewidth() > 2]
    assert line.get_xdata() == pytest.approx(expected.index)
    assert line.get_ydata() == pytest.approx(expected.to_numpy())
    snapkv = of(measurements["continuation"], method="snapkv")
    (line,) = lines_with(figure.axes[3], ("eviction", "snapkv"))
    assert line.get_ydata() == pytest.approx(perplexities(snapkv, "ratio"))
    assert [text for text in texts(figure.axes[0]) if text[0] == "β"] == [f"β {beta:g}" for beta in SETTINGS]
    assert {METHODS["eviction"]["snapkv"], METHODS["mixer"]["mamba"]} <= set(texts(figure.axes[0]))


def test_a_front_needs_intervals_that_tell_which_points_are_on_it(measurements):
    hops = measurements["compared_hashhop"]
    hops = hops[hops["model"] == "hashhop-llama"]
    more = pd.concat([hops.assign(sample=hops["sample"] + 32 * times) for times in range(20)], ignore_index=True)
    for frame, expected in ((hops, 0), (more, 1)):
        (axes,) = FIGURES["ablation_pareto"](compared_hashhop=frame).axes
        assert texts(axes).count("Pareto front") == expected
        assert len([line for line in axes.lines if line.get_linewidth() == 5]) == expected


def test_no_line_joins_points_of_few_samples(measurements):
    frame = of(measurements["continuation"], seed=0)
    for samples, name, joined in ((9, "ablation_pareto", False), (10, "ablation_pareto", True), (9, "frontier", True)):
        some = [frame[frame["window"] == 0].assign(window=window) for window in range(samples)]
        figure = FIGURES[name](continuation=pd.concat(some))
        (line,) = lines_with(figure.axes[0], ("eviction", "snapkv"))
        assert (line.get_linestyle() != "None") is joined
        assert ("No line joins" in figure.get_supxlabel()) is not joined


def test_a_perplexity_far_above_the_others_is_told_and_does_not_hide_them(measurements):
    frame = measurements["continuation"]
    ours = (frame["family"] == "mixer") & (frame["method"] == "mamba") & frame["trained"]
    worse = frame.assign(negative_log_likelihood=frame["negative_log_likelihood"].mask(ours, 32 * np.log(1e4)))
    (axes,) = FIGURES["ablation_pareto"](continuation=worse).axes
    assert axes.get_ylim()[1] < 100
    far = [(text.xy[0], text.get_text()) for text in axes.texts if ": " in text.get_text()]
    ratios = np.sort(frame.loc[ours, "ratio"].unique())
    assert sorted(far) == [(pytest.approx(ratio), "Mamba: 10,000") for ratio in ratios]


def test_pareto_counts_the_needle_tasks_that_the_original_has_learned(figures, measurements):
    needle = measurements["needle"]
    assert of(needle, family="original", task="multi_key")["correct"].mean() < 0.95
    ours = of(needle[needle["task"] != "multi_key"], **OURS_TRAINED)
    expected = (ours["correct"] / ours["queries"]).groupby(ours["ratio"]).mean()
    (line,) = lines_with(figures["ablation_pareto"].axes[2], ("mixer", "mamba"))
    assert line.get_ydata() == pytest.approx(expected.to_numpy())


def test_the_frontier_shows_divergence_and_needles_of_each_length_over_the_cache(figures, measurements):
    titles = [axes.get_title().split(": ")[1] for axes in figures["frontier"].axes if axes.axison]
    later = [f"asked {when} 1,024 tokens" for when in ("after", "with")]
    needles = [f"needles at {length:,} tokens" for length in (512, 1024)]
    assert titles == ["divergence from the original", "agreement with what the original writes", *needles, *later]
    first, second, _, _, after, with_it, *_ = figures["frontier"].axes
    turns = of(measurements["turns"], method="snapkv")
    for axes, known in ((after, False), (with_it, True)):
        answered = of(turns, known=known).groupby("ratio")["correct"].mean()
        assert lines_with(axes, ("eviction", "snapkv"))[0].get_ydata() == pytest.approx(answered.to_numpy())
    snapkv = of(measurements["continuation"], method="snapkv")
    (line,) = lines_with(first, ("eviction", "snapkv"))
    sums = snapkv.groupby("ratio")[["divergence", "tokens"]].sum()
    assert line.get_ydata() == pytest.approx((sums["divergence"] / sums["tokens"]).to_numpy())
    assert first.get_yscale() == "log" and second.get_yscale() == "linear"
    never = FIGURES["frontier"](measurements["continuation"], measurements["needle"].assign(correct=0))
    assert "not-run" not in texts(never.axes[1]) and never.axes[1].lines
    untouched = measurements["continuation"].assign(trained=False)
    shown = texts(FIGURES["frontier"](untouched).axes[0])
    assert "original" not in shown and "Mamba (RecurFormer)" not in shown
    named = {METHODS["priced"]["mamba"], METHODS["chosen"]["kvzip"], "Mamba, from closed form"}
    assert named <= set(shown)


def test_states_show_each_group_and_in_how_many_the_state_is_cheaper(figures, measurements):
    rows = measurements["mixer_prices"]
    for axes, (mixer, of_mixer) in zip(figures["states"].axes, rows.groupby("mixer"), strict=True):
        assert METHODS["mixer"][mixer] in axes.get_title() and axes.get_title().endswith("cheaper in 28 of 32")
        dearer, cheaper = (line for line in axes.lines if len(line.get_xdata()) > 2)
        assert len(dearer.get_xdata()) == 4 and max(cheaper.get_ydata()) < 1 < min(dearer.get_ydata())
        times = of_mixer.set_index(["layer", "group", "seed"]).eval("log(cost / tokens_cost)").unstack()
        means = np.exp(times.mean(axis=1))
        assert sorted([*dearer.get_ydata(), *cheaper.get_ydata()]) == pytest.approx(sorted(means))
        ranges = [line.vertices[:, 1] for of in axes.collections for line in of.get_paths()]
        assert np.sort(ranges, axis=0) == pytest.approx(np.sort(np.sort(np.exp(times)), axis=0))
    alone = FIGURES["states"](rows.assign(needle_weight=0.0))
    for figure, words in ((figures["states"], "text with lookups of"), (alone, "lookups count no more than other")):
        assert words in figure.get_supxlabel().replace("\n", " ")
    with pytest.raises(ValueError, match="no mixer holds as many bytes"):
        FIGURES["states"](rows.assign(tokens_cost=float("nan")))


def drawn_of_families(name: str, measurements: dict[str, pd.DataFrame], *families: str) -> Figure:
    frame = measurements["compared_hashhop"]
    chosen = frame["family"].isin(["original", *families]) & (frame["model"] == "hashhop-llama")
    return FIGURES[name](compared_hashhop=frame[chosen])


@pytest.mark.parametrize(
    ("name", "families"),
    [
        ("ablation_pareto", ("eviction",)),
        ("ablation_pareto", ("layers", "pooled")),
        ("ablation_granularity", ("mixer",)),
        ("ablation_mixers", ("mixer",)),
    ],
)
def test_what_was_not_measured_is_not_named(measurements, name, families):
    figure = drawn_of_families(name, measurements, *families)
    assert len(figure.axes) == 1
    absent = {label for family in set(METHODS) - {"original", *families} for label in METHODS[family].values()}
    assert not absent & set(texts(figure.axes[0]))
    assert_nothing_cut_off(figure)
    assert_labels_apart(figure)


@pytest.mark.parametrize("name", ["ablation_granularity", "ablation_mixers"])
def test_measurements_of_other_methods_alone_make_no_figure(measurements, name):
    with pytest.raises(ValueError, match="measurements for this figure"):
        drawn_of_families(name, measurements, "eviction")


@pytest.mark.parametrize(
    ("name", "kind", "column", "value", "reason"),
    [
        ("ablation_pareto", "compared_hashhop", "correct", 14, "reaches 0.875 (h_gq on HashHop)"),
        ("ablation_mixers", "needle", "correct", 0, "reaches 0 (passkeys)"),
        ("ablation_granularity", "continuation", "negative_log_likelihood", 160.0, "reaches 148 (perplexity)"),
        ("ablation_needle", "needle", "correct", 0, "reaches 0 (passkeys)"),
    ],
)
def test_methods_are_not_compared_on_a_task_that_the_original_has_not_learned(
    measurements, name, kind, column, value, reason
):
    weak = measurements[kind].copy()
    weak.loc[weak["family"] == "original", column] = value
    figure = FIGURES[name](**{kind: weak})
    assert [text.get_text() for text in figure.axes[0].texts] == ["not-run"]
    assert not figure.axes[0].lines
    assert not figure.axes[0].images
    assert reason in figure.get_supxlabel().replace("\n", " ")
    assert_nothing_cut_off(figure)


def test_mixers_are_shown_trained_and_hollow_untrained(figures, measurements):
    axes = figures["ablation_mixers"].axes[3]
    rows = of(measurements["continuation"], method="gated", by="ra_i")
    lines = lines_with(axes, ("mixer", "gated"))
    assert len(lines) == 2
    for line in lines:
        trained = line.get_markerfacecolor() != "white"
        assert line.get_xdata().tolist() == list(SETTINGS)
        assert line.get_ydata() == pytest.approx(perplexities(of(rows, trained=trained), "setting"))


def test_selectors_shows_each_selector_and_its_agreement(measurements):
    kinds = ("continuation", "head_scores")
    figure = FIGURES["ablation_selectors"](**{kind: measurements[kind] for kind in kinds})
    quality, _, correlation, overlap = figure.axes
    assert len(quality.lines) >= 2 + len(SELECTORS)
    (line,) = [line for line in quality.lines if line.get_marker() == "d"]
    assert line.get_ydata() == pytest.approx(perplexities(of(measurements["continuation"], by="random"), "setting"))
    (ours,) = [line for line in quality.lines if line.get_color() == OURS and line.get_marker() == "o"]
    assert ours.get_markerfacecolor() == OURS, "all selectors trained"
    named = [text.get_text() for text in correlation.get_yticklabels()]
    widths = dict(zip(named, (bar.get_width() for bar in correlation.patches), strict=True))
    assert widths["inverse RA-I"] == pytest.approx(-1)
    assert widths["mean recency ratio"] > widths["echo score"] > 0
    shared = dict(zip(named, (bar.get_width() for bar in overlap.patches), strict=True))
    assert shared["inverse RA-I"] == 0
    assert shared["random"] == pytest.approx(0.5, abs=0.1)


def test_sizes_stand_over_the_length_and_over_the_hops(figures, measurements):
    by_size, by_hops, *_ = figures["ablation_sizes"].axes
    assert (by_size.get_xlabel(), by_hops.get_xlabel()) == ("characters in the prompt", "hops asked for")
    rows = of(measurements["hashhop_sizes"], model="hashhop-llama")
    for axes, column, kept, trained in ((by_size, "size", "hops", 16), (by_hops, "hops", "size", 6144)):
        original = of(rows, family="original", **{kept: trained})
        expected = (original["correct"] / original["hops"]).groupby(original[column]).mean()
        line = axes.containers[0].lines[0]
        np.testing.assert_array_equal(line.get_xdata(), expected.index)
        np.testing.assert_allclose(np.asarray(line.get_ydata(), float), expected.to_numpy(float))


def test_needle_maps_are_the_passkeys_by_depth_and_length(figures, measurements):
    figure = figures["ablation_needle"]
    maps = {axes.get_title().split("\n")[0]: axes.images[0] for axes in figure.axes if axes.get_title()}
    assert len(maps) == len(METHODS["eviction"]) - 1 + len(METHODS["mixer"]) + 5, "both of PyramidInfer share a name"
    rows = of(measurements["needle"], method="h2o", setting=0.5, task="passkey")
    expected = rows.pivot_table(index="depth", columns="length", values="correct")
    np.testing.assert_allclose(maps["H2O"].get_array(), expected)
    assert maps["original"].get_array().min() == 1
    asked = measurements["needle"].query("task == 'passkey' and method == 'h2o' and setting == 0.5")
    few = asked.groupby(["depth", "length"])["queries"].sum().max() < FEW
    assert maps["H2O"].get_alpha() == (0.3 if few else 1.0)
    (counts,) = [texts(axes) for axes in figure.axes if axes.get_title().startswith("H2O")]
    found = rows.groupby(["depth", "length"])[["correct", "queries"]].sum()
    assert counts == [f"{correct}/{asked}" for correct, asked in found.itertuples(index=False)]


def test_ra_i_shows_the_share_that_changes_and_frames_the_default(figures, measurements):
    figure = figures["ablation_ra_i"]
    *panels, _bar = figure.axes
    assert [axes.get_title().split("\n")[1] for axes in panels] == [f"β = {beta:g}" for beta in (0.25, 0.5, 0.75, 0.9)]
    rows = of(measurements["ra_i_settings"], beta=0.5, unit="kv_group")
    expected = rows.assign(changed=1 - rows["shared"] / rows["selected"])
    matrix = expected.pivot_table(index="threshold", columns="window", values="changed")
    np.testing.assert_allclose(panels[1].images[0].get_array(), matrix)
    frame = panels[1].patches[0]
    assert (round(frame.get_x() + 0.47), round(frame.get_y() + 0.47)) == (2, 1), "k = 102, α = 0.5"
