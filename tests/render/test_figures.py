import inspect
import math
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from frames import attention_map_frame, profile_frame
from layout import assert_labels_apart, assert_nothing_cut_off
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from recurformer.render.figures import FIGURES
from recurformer.render.figures.ablations import ABLATIONS
from recurformer.render.figures.figure6 import ra_i_matrix
from recurformer.render.measurements import COLUMNS
from recurformer.render.mqar import best_learning_rates
from recurformer.render.style import SERIES, save_figure

PAPERS = [name for name in FIGURES if name not in ABLATIONS]


def draw(name: str, measurements: dict[str, pd.DataFrame], **replaced: pd.DataFrame) -> Figure:
    function = FIGURES[name]
    frames = measurements | replaced
    return function(**{kind: frames[kind] for kind in inspect.signature(function).parameters})


def heads_of(measurements: dict[str, pd.DataFrame], kind: str) -> pd.DataFrame:
    """The measurements of three models, one of them the paper's."""
    frame = measurements[kind]
    return pd.concat([frame.assign(model=model) for model in ("smollm2-135m", "llama2-7b", "hashhop-llama")])


@pytest.fixture(scope="module")
def figures(measurements):
    return {name: draw(name, measurements) for name in FIGURES}


@pytest.fixture(scope="module")
def crowded(measurements):
    """The same figures with several models, betas and seeds: what a larger study shows."""
    rng = np.random.default_rng(1)
    models = ("smollm2-135m", "llama2-7b", "qwen2-7b")
    metrics = heads_of(measurements, "metrics")
    return {
        "figure2": draw("figure2", measurements, sink=heads_of(measurements, "sink")),
        "figure3": draw("figure3", measurements, metrics=pd.concat([metrics, metrics.assign(beta=0.9, seed=1)])),
        "figure5": draw("figure5", measurements, attention_map=attention_map_frame(rng, models)),
        "figure6": draw(
            "figure6",
            measurements,
            profile=profile_frame(rng, {"qwen2-0.5b": (24, 14), "llama2-7b": (32, 32), "m": (2, 4)}, 8),
        ),
    }


@pytest.mark.parametrize("name", list(FIGURES))
def test_nothing_is_cut_off_or_overlaps(figures, name):
    assert_nothing_cut_off(figures[name])
    assert_labels_apart(figures[name])


@pytest.mark.parametrize("name", ["figure2", "figure3", "figure5", "figure6"])
def test_nothing_is_cut_off_with_several_models(crowded, name):
    assert_nothing_cut_off(crowded[name])
    assert_labels_apart(crowded[name])


def test_no_two_recipes_look_alike(measurements):
    lines = draw("recovery", measurements).axes[1].get_lines()
    looks = {(line.get_color(), line.get_marker()) for line in lines}
    assert len(looks) == len(lines) == 6, "original before and after, paper's, calibrated, plus, window and state"


def test_the_check_for_cut_off_text_can_fail():
    figure = Figure(figsize=(2, 1))
    figure.text(0.9, 0.5, "far too long for what is left of the line")
    with pytest.raises(AssertionError, match="leaves the figure"):
        assert_nothing_cut_off(figure)


@pytest.mark.parametrize("name", PAPERS)
def test_svg_has_text_as_text_and_no_date(figures, name, tmp_path):
    path = tmp_path / f"{name}.svg"
    save_figure(figures[name], path)
    root = ElementTree.parse(path).getroot()
    texts = ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]
    wanted = {"figure1": "tokens before the query", "figure3": "training step", "figure6": "layer"}
    assert wanted.get(name, "token") in " ".join(texts) or name == "figure4"
    assert not list(root.iter("{http://purl.org/dc/elements/1.1/}date"))


@pytest.mark.parametrize("name", ["figure3", "figure6"])
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_same_measurements_give_the_same_bytes(measurements, tmp_path, name, suffix):
    contents = []
    for run in range(2):
        path = tmp_path / f"{run}{suffix}"
        with mpl.rc_context({"font.size": 20 * run + 5, "axes.grid": bool(run), "svg.hashsalt": str(run)}):
            save_figure(draw(name, measurements), path)
            assert mpl.rcParams["font.size"] == 20 * run + 5, "the caller's settings are left alone"
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]


def test_png_has_150_dots_per_inch(figures, tmp_path):
    save_figure(figures["figure3"], tmp_path / "figure3.png")
    header = (tmp_path / "figure3.png").read_bytes()[16:20]
    assert int.from_bytes(header) == round(figures["figure3"].get_figwidth() * 150)


def test_unknown_format_is_refused(figures, tmp_path):
    with pytest.raises(ValueError, match=r"a figure is written as \.svg, \.png, not \.pdf"):
        save_figure(figures["figure3"], tmp_path / "figure3.pdf")


def linear(colour: str) -> np.ndarray:
    channels = np.array(mpl.colors.to_rgb(colour))
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lightness(rgb: np.ndarray) -> float:
    luminance = float(rgb @ (0.2126, 0.7152, 0.0722))
    return 116 * luminance ** (1 / 3) - 16 if luminance > 0.008856 else 903.3 * luminance


def test_series_differ_in_grey_and_in_form():
    greys = sorted(lightness(linear(look.colour)) for look in SERIES)
    assert min(np.diff(greys)) > 7, greys
    assert greys[-1] < 80, "visible on white"
    assert len({look.marker for look in SERIES}) == len({look.dashes for look in SERIES}) == len(SERIES)


@pytest.mark.parametrize(
    "vision",
    [  # Machado, Oliveira and Fernandes (2009), full protanopia and deuteranopia, in linear RGB
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    ],
    ids=["protanopia", "deuteranopia"],
)
def test_series_differ_for_colour_blind_readers(vision):
    seen = [np.clip(np.array(vision) @ linear(look.colour), 0, 1) ** (1 / 2.4) for look in SERIES]
    distances = [np.linalg.norm(a - b) for place, a in enumerate(seen) for b in seen[place + 1 :]]
    assert min(distances) > 0.15


def test_parameters_are_kinds_of_measurements():
    for function in FIGURES.values():
        assert set(inspect.signature(function).parameters) <= set(COLUMNS)


def test_figure1_shades_by_the_measured_weights(figures, measurements):
    rows = measurements["influence"]
    largest = rows.groupby("mixer")["weight"].max()
    bars = [max(patch.get_height() for patch in axes.patches) for axes in figures["figure1"].axes[2:4]]
    assert bars == pytest.approx([largest["attention"], largest["mamba"]])
    note = figures["figure1"].get_supxlabel()
    assert "layer 11" in note
    assert "head 4" in note


def test_figure1_says_which_weights_are_mambas(figures):
    note = figures["figure1"].get_supxlabel().replace("\n", " ")
    assert "each token through convolution, SiLU (its sigmoid is a gate), selective scan and skip $D$" in note
    assert "Left out: the block's output gate, one factor a channel, and its projections" in note


def test_figure1_of_a_short_row(measurements):
    rows = measurements["influence"]
    short = rows[rows["key"] < 3].assign(query=2)
    assert_nothing_cut_off(draw("figure1", measurements, influence=short))


def test_figure2_names_its_head_and_masks_the_future(figures):
    figure = figures["figure2"]
    assert figure.subfigs[0].get_suptitle() == "SmolLM2-135M, layer 11, head 4: mean of 64 samples"
    image = figure.subfigs[0].axes[1].images[0].get_array()
    assert image.shape == (32, 32)
    assert np.ma.getmaskarray(image)[np.triu_indices(32, 1)].all()
    assert not np.ma.getmaskarray(image)[np.tril_indices(32)].any()


def test_figure2_names_the_rule_that_chose_its_head(figures):
    rule = "the head whose queries give the first token the most attention on average"
    assert rule in figures["figure2"].get_supxlabel().replace("\n", " ")
    caption = Path(__file__).parents[2] / "workflow" / "report" / "captions.rst"
    assert rule in caption.read_text()


def test_figure3_draws_each_run_faint_and_each_mean_thick(figures, crowded):
    axes = figures["figure3"].axes[0]
    assert [text.get_text() for text in figures["figure3"].legends[0].get_texts()] == [
        "original",
        "RecurFormer, β = 0.5",
    ]
    thick = [line for line in axes.lines if line.get_linewidth() > 1]
    assert len(axes.lines) == 4
    assert len({(line.get_color(), line.get_marker()) for line in thick}) == 2
    assert [axes.get_title() for axes in crowded["figure3"].axes] == ["Llama2-7B", "SmolLM2-135M", "HashHop-Llama"]


def test_figure3_shows_the_papers_perplexities_where_it_printed_them(crowded):
    llama, smollm, _ = crowded["figure3"].axes
    stars = [line for line in llama.lines if line.get_marker() == "*"]
    assert sorted(math.exp(line.get_ydata()[0]) for line in stars) == pytest.approx([9.023, 9.199])
    assert not [line for line in smollm.lines if line.get_marker() == "*"]
    shown = {text.get_text() for text in crowded["figure3"].legends[0].get_texts()}
    assert {"paper's perplexity, original", "paper's perplexity, β = 0.5"} <= shown


def mqar_runs(*runs: tuple[float, float, str, int, int]) -> pd.DataFrame:
    """Rows of (beta, learning rate, split, length, correct of 1,000), one seed, 8 pairs; 64 and 128 are trained."""
    rows = [
        (beta, rate, 0, split, length, 8, length <= 128, correct, 1000) for beta, rate, split, length, correct in runs
    ]
    return pd.DataFrame(rows, columns=COLUMNS["mqar"])


def best_line(axes: mpl.axes.Axes) -> list[float]:
    """Accuracy over beta at the best learning rates."""
    return axes.containers[0].lines[0].get_ydata().tolist()


LEARNED = ((0.0, 1e-3, "validation", 64, 1000), (0.0, 1e-3, "test", 64, 1000), (0.0, 1e-3, "test", 512, 1000))


def test_figure4_chooses_the_rate_on_validation_samples_alone():
    runs = [
        (0.5, rate, split, length, correct)
        for rate, on_validation, on_test in ((1e-3, 900, 100), (1e-2, 800, 990))
        for split, length, correct in (
            ("validation", 64, on_validation), ("test", 64, on_test), ("test", 512, on_test - 50),
        )
    ]  # fmt: skip
    mqar = mqar_runs(*LEARNED, *runs)
    assert best_learning_rates(mqar) == {0.0: 1e-3, 0.5: 1e-3}
    assert [best_line(axes) for axes in FIGURES["figure4"](mqar=mqar).axes] == [[1.0, 0.1], [1.0, 0.05]]
    swapped = mqar.assign(split=mqar["split"].map({"validation": "test", "test": "validation"}))
    assert best_learning_rates(swapped)[0.5] == 1e-2, "the other samples would have chosen otherwise"


def test_figure4_shows_the_test_split_alone():
    mqar = mqar_runs(*LEARNED, (0.5, 1e-3, "validation", 128, 990), (0.5, 1e-3, "test", 64, 700))
    panels = FIGURES["figure4"](mqar=mqar).axes
    assert [axes.get_title().splitlines()[0] for axes in panels] == ["(a) 64 tokens", "(b) 512 tokens"]
    assert best_line(panels[0]) == [1.0, 0.7]
    faint = {line.get_label(): line for line in panels[0].lines}["every learning rate and seed"]
    assert faint.get_ydata().tolist() == [1.0, 0.7]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_figure4_needs_both_splits(measurements, split):
    mqar = measurements["mqar"]
    with pytest.raises(ValueError, match=f"no row with split = {split}"):
        draw("figure4", measurements, mqar=mqar[mqar["split"] != split])
    if split == "validation":
        with pytest.raises(ValueError, match="no row with split = validation"):
            best_learning_rates(mqar[mqar["split"] == "test"])


def figure4_of_baseline(*accuracies: tuple[str, int, int]) -> Figure:
    """Figure 4 of a perfect beta 0.5 and of beta 0 with the given (split, length, correct of 1,000)."""
    places = (("validation", 64), ("validation", 128), ("test", 64), ("test", 128), ("test", 512))
    perfect = [(0.5, 1e-3, split, length, 1000) for split, length in places]
    return FIGURES["figure4"](mqar=mqar_runs(*perfect, *((0.0, 1e-3, *accuracy) for accuracy in accuracies)))


def middle_texts(figure: Figure) -> list[list[str]]:
    return [[text.get_text() for text in axes.texts] for axes in figure.axes]


@pytest.mark.parametrize(
    ("accuracies", "reason"),
    [
        (
            [("validation", 64, 1000), ("validation", 128, 412), ("test", 128, 1000), ("test", 512, 1000)],
            "the lowest accuracy on a trained length is 0.412 (128 tokens), a comparison needs 0.99 on each.",
        ),
        (
            [("validation", 64, 989), ("validation", 128, 1000), ("test", 64, 1000), ("test", 512, 1000)],
            "the lowest accuracy on a trained length is 0.989 (64 tokens), a comparison needs 0.99 on each.",
        ),
        ([], "the accuracy at β = 0 on trained lengths is not known; a comparison needs 0.99 on each."),
        ([("test", 64, 1000), ("test", 512, 1000)], "on trained lengths is not known"),
    ],
)
def test_figure4_shows_no_line_above_a_baseline_that_has_not_learned(accuracies, reason):
    figure = figure4_of_baseline(*accuracies)
    assert middle_texts(figure) == [["not-run"]] * 3
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines] == ["every learning rate and seed"]
        assert not axes.containers
    assert reason in figure.get_supxlabel().replace("\n", " ")
    assert_nothing_cut_off(figure)
    assert_labels_apart(figure)


def test_figure4_shows_its_lines_when_the_baseline_has_learned_the_trained_lengths():
    figure = figure4_of_baseline(
        ("validation", 64, 990), ("validation", 128, 990), ("test", 64, 990), ("test", 128, 400), ("test", 512, 10)
    )  # of 128 tokens the test asks for more pairs than the training did: no matter
    assert middle_texts(figure) == [[]] * 3
    assert [best_line(axes) for axes in figure.axes] == [[0.99, 1.0], [0.4, 1.0], [0.01, 1.0]]
    assert "ot-run" not in figure.get_supxlabel()


def test_figure4_judges_the_baseline_by_its_mean_over_the_seeds():
    two_seeds = [
        mqar_runs((0.0, 1e-3, "validation", 64, correct), (0.0, 1e-3, "test", 64, 1000)).assign(seed=seed)
        for seed, correct in enumerate((1000, 980))
    ]
    assert middle_texts(FIGURES["figure4"](mqar=pd.concat(two_seeds))) == [[]]
    two_seeds[1].loc[two_seeds[1]["split"] == "validation", "correct"] = 960
    assert middle_texts(FIGURES["figure4"](mqar=pd.concat(two_seeds))) == [["not-run"]]


def test_figure4_shows_chance_every_rate_and_the_seeds(figures):
    panels = figures["figure4"].axes
    assert [axes.get_title().splitlines()[0] for axes in panels] == [
        "(a) 64 tokens", "(b) 128 tokens", "(c) 256 tokens", "(d) 512 tokens",
    ]  # fmt: skip
    for axes, pairs in zip(panels, (16, 32, 64, 128), strict=True):
        lines = {line.get_label(): line for line in axes.lines}
        assert lines["chance: any value shown"].get_ydata()[0] == pytest.approx(1 / pairs)
        assert len(lines["every learning rate and seed"].get_xdata()) == 6 * 3 * 3
        assert lines["original (β = 0), best rate"].get_xdata().tolist() == [0.0]
    note = figures["figure4"].get_supxlabel().replace("\n", " ")
    assert "mean accuracy on validation samples of the trained lengths" in note
    assert "mean of 3 seeds" in note


def test_figure5_leaves_the_first_token_out_of_view(figures, measurements):
    panels = figures["figure5"].axes[:3]
    weights = measurements["attention_map"]
    for axes, level in zip(panels, ("high", "mid", "low"), strict=True):
        image = axes.images[0]
        assert image.get_array().shape == (255, 255)
        rows = weights[(weights["level"] == level) & (weights["query"] == 9) & (weights["key"] == 4)]
        assert image.get_array()[8, 3] == pytest.approx(rows["weight"].item())
        assert isinstance(image.norm, LogNorm)
    assert panels[0].images[0].norm is panels[2].images[0].norm
    assert panels[0].get_title() == "high RA-I: layer 2, head 3\nRA-I 64"


def test_figure5_shows_one_head_at_each_level(measurements):
    frame = measurements["attention_map"]
    with pytest.raises(ValueError, match=r"no row with level = mid \(there are: high, low\)"):
        draw("figure5", measurements, attention_map=frame[frame["level"] != "mid"])
    with pytest.raises(ValueError, match="2 heads for smollm2-135m, mid"):
        draw(
            "figure5",
            measurements,
            attention_map=pd.concat([frame, frame[frame["level"] == "mid"].assign(head=8)]),
        )


def test_figure6_counts_samples_above_the_threshold():
    profile = pd.DataFrame(
        [
            ("m", sample, 0, head, rr, 0.5)
            for head, ratios in ((0, (0.6, 0.5, 0.9)), (1, (np.nan,) * 3))
            for sample, rr in enumerate(ratios)
        ],
        columns=COLUMNS["profile"],
    )
    np.testing.assert_array_equal(ra_i_matrix(profile), [[2, np.nan]])
    assert_nothing_cut_off(FIGURES["figure6"](profile=profile))
    with pytest.raises(ValueError, match="several thresholds"):
        FIGURES["figure6"](profile=pd.concat([profile, profile.assign(threshold=0.7)]))


def test_figure6_has_layers_downwards_and_one_scale(crowded):
    *panels, bar = crowded["figure6"].axes
    assert [axes.get_title() for axes in panels] == ["Qwen2-0.5B", "Llama2-7B", "m"]
    assert panels[0].images[0].get_array().shape == (24, 14)
    assert all(axes.images[0].get_clim() == (0, 1) for axes in panels)
    assert panels[0].yaxis_inverted()
    assert bar.get_ylabel() == "RA-I / samples"


@pytest.mark.parametrize("name", list(FIGURES))
def test_empty_and_incomplete_measurements_are_refused_in_one_line(measurements, name):
    for kind in inspect.signature(FIGURES[name]).parameters:
        with pytest.raises(ValueError, match=f"^{kind} measurements have no rows"):
            draw(name, measurements, **{kind: measurements[kind].head(0)})
        column = COLUMNS[kind][-1]
        with pytest.raises(ValueError, match=rf"^{kind} measurements lack the column\(s\) {column}"):
            draw(name, measurements, **{kind: measurements[kind].drop(columns=column)})


@pytest.mark.parametrize(
    ("name", "kind", "column"), [("figure2", "sink", "head"), ("figure5", "attention_map", "weight")]
)
def test_doubled_rows_are_refused(measurements, name, kind, column):
    doubled = pd.concat([measurements[kind], measurements[kind]])
    with pytest.raises(ValueError, match="several rows for one query and key"):
        draw(name, measurements, **{kind: doubled})


def test_weights_of_zero_cannot_be_shown_on_a_logarithmic_scale(measurements):
    with pytest.raises(ValueError, match="needs a positive value"):
        draw("figure5", measurements, attention_map=measurements["attention_map"].assign(weight=0.0))
