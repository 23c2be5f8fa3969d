"""What the paper's figures show, and how figures look. What all of them keep to stands in test_renderers.py."""

import math
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from layout import assert_labels_apart, assert_nothing_cut_off
from matplotlib.colors import LogNorm

from recurformer.render.figures import FIGURES
from recurformer.render.style import SERIES, save_figure
from recurformer.results.frames import COLUMNS
from recurformer.results.scores import ra_i


@pytest.fixture(scope="module")
def crowded(measurements):
    """The same figures with several models, betas and seeds: what a larger study shows."""
    metrics = measurements["metrics"].replace({"hashhop-llama": "llama2-7b"})
    sinks = [measurements["sink"].assign(model=model) for model in ("smollm2-135m", "llama2-7b", "hashhop-llama")]
    profile = measurements["profile"].query("sample < 8")
    layers = [profile[(profile["model"] != "smollm2-135m") | (layer < 24)].assign(layer=layer) for layer in range(32)]
    return {
        "figure2": FIGURES["figure2"](pd.concat(sinks)),
        "figure3": FIGURES["figure3"](pd.concat([metrics, metrics[metrics["beta"] > 0].assign(beta=0.9)])),
        "figure6": FIGURES["figure6"](pd.concat(layers)),
    }


@pytest.mark.parametrize("name", ["figure2", "figure3", "figure6"])
def test_nothing_is_cut_off_with_several_models(crowded, name):
    assert_nothing_cut_off(crowded[name])
    assert_labels_apart(crowded[name])


def test_no_two_recipes_look_alike(measurements):
    recovery = measurements["recovery"]
    axes = FIGURES["recovery"](recovery[~recovery["arm"].str.endswith("98k")]).axes[1]
    lines = [getattr(handle, "lines", [handle])[0] for handle in axes.get_legend_handles_labels()[0]]
    looks = {(line.get_color(), line.get_marker()) for line in lines}
    assert len(looks) == len(lines) == 7, "original before and after, four recipes, and the window in as many bytes"


def test_no_course_is_drawn_from_the_start_to_the_first_point(figures):
    axes = figures["recovery"].axes[1]
    assert axes.get_xticklabels()[0].get_text() == "0" and axes.get_xticks()[0] < 10**6, "the first trained point"
    courses = [container.lines[0].get_xdata() for container in axes.containers]
    assert sorted({x for course in courses for x in course}) == pytest.approx([axes.get_xticks()[0], 10**6])
    assert all(len(set(course)) <= 1 for course in courses)


def test_equal_bytes_names_each_arm_best_first_and_tells_what_is_far_off(figures, measurements):
    nearness, perplexity, _ = figures["equal_bytes"].axes
    names = [text.get_text().split("\n")[0] for text in nearness.get_yticklabels()]
    assert names == ["Mamba state", "window"], "as near as 0.035 and 0.135 nats a token"
    assert [text.get_text() for text in perplexity.texts] == ["1,097"] * 2, "exp(9 - 2) before any training"
    shown = [float(container.lines[0].get_xdata()[0]) for container in perplexity.containers]
    assert shown == pytest.approx([np.exp(0.0), np.exp(0.1)])


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_same_measurements_give_the_same_bytes_whatever_the_callers_settings(measurements, tmp_path, suffix):
    contents = []
    for run in range(2):
        path = tmp_path / f"{run}{suffix}"
        with mpl.rc_context({"font.size": 20 * run + 5, "axes.grid": bool(run), "svg.hashsalt": str(run)}):
            save_figure(FIGURES["figure6"](measurements["profile"]), path)
            assert mpl.rcParams["font.size"] == 20 * run + 5, "the caller's settings are left alone"
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]


def test_svg_has_text_as_text_and_no_date_and_png_150_dots_per_inch(figures, tmp_path):
    for suffix in (".svg", ".png"):
        save_figure(figures["figure3"], tmp_path / f"figure3{suffix}")
    root = ElementTree.parse(tmp_path / "figure3.svg").getroot()
    texts = ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "training step" in texts
    assert not list(root.iter("{http://purl.org/dc/elements/1.1/}date"))
    header = (tmp_path / "figure3.png").read_bytes()[16:20]
    assert int.from_bytes(header) == round(figures["figure3"].get_figwidth() * 150)


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


def test_figure1_shades_by_the_measured_weights_and_says_which_they_are(figures, measurements):
    largest = measurements["influence"].groupby("mixer")["weight"].max()
    bars = [max(patch.get_height() for patch in axes.patches) for axes in figures["figure1"].axes[2:4]]
    assert bars == pytest.approx([largest["attention"], largest["mamba"]])
    note = figures["figure1"].get_supxlabel()
    assert "SmolLM2-135M, layer 0" in note and "head 0" in note


def test_a_small_model_comes_back_by_position_and_by_what_it_recalls(figures, measurements):
    """Perplexities of bins, over all tokens and over the recalled ones alone."""
    tokens, places, recalled = figures["comes_back"].axes
    assert [len(axes.lines) for axes in (tokens, places, recalled)] == [8, 4, 4]
    rows = measurements["positions"]
    rows = rows[rows["trained"] & (rows["model"] == measurements["recovery"]["model"].iloc[0])]
    half = rows[(rows["setting"] == 0.5) & rows["position"].between(128, 255)]
    for axes, nats, count in (
        (places, "negative_log_likelihood", "tokens"),
        (recalled, "recalled_likelihood", "recalled"),
    ):
        drawn = dict(zip(*axes.lines[1].get_data(), strict=True))
        assert drawn[176.0] == pytest.approx(np.exp(half[nats].sum() / half[count].sum()))
    ends = [line.get_ydata()[-1] for line in tokens.lines[1::2]]
    curves = measurements["recovery"][measurements["recovery"]["tokens"] > 0]
    paper = curves[(curves["arm"] == "paper") & (curves["beta"] == 0.9)]["negative_log_likelihood"]
    assert ends[2] == pytest.approx(np.exp(paper.mean()))


@pytest.mark.parametrize("text, marks", [(4e5, [4e5]), (2e6, []), (np.nan, [])])
def test_a_text_that_begins_again_is_marked(measurements, text, marks):
    """The longest curve has 1,000,000 tokens; only one of its trainings tells the length of its text."""
    rows = measurements["recovery"].assign(text_tokens=np.nan)
    rows.loc[rows["arm"] == "plus", "text_tokens"] = text
    for name, kinds in (("recovery", [rows]), ("comes_back", [rows, measurements["positions"]])):
        figure = FIGURES[name](*kinds)
        upright = [line.get_xdata()[0] for line in figure.axes[0].lines if list(line.get_ydata()) == [0, 1]]
        assert upright == marks and ("text again" in figure.get_supxlabel()) == bool(marks)
        assert_nothing_cut_off(figure)


def test_the_tradeoff_sets_each_window_against_itself(figures, measurements):
    by_bytes, by_minutes = figures["tradeoff"].axes
    ends = measurements["recovery"][measurements["recovery"]["tokens"] == 10**6]
    windows = ends.pivot_table(index="window", columns=["arm", "beta"], values="negative_log_likelihood")
    over = np.exp((windows["plus", 0.9] - windows["original", 0.0]).mean())
    drawn = [tuple(point) for line in by_bytes.lines for point in np.column_stack(line.get_data())]
    assert (0.6, pytest.approx(over)) in drawn and (1.0, pytest.approx(1.0)) in drawn
    assert {line.get_xdata()[-1] for line in by_minutes.lines[:-1]} == {1 / 60}
    assert [text.get_text() for text in by_bytes.texts] == ["β 0.5", "β 0.9", "β 1"], "Mamba's"


def test_a_price_is_paid_by_position_and_set_against_the_same_window(figures, measurements):
    apart, perplexity = figures["by_position"].axes
    rows = measurements["positions"]
    quarter = rows[(rows["family"] == "priced") & (rows["setting"] == 0.25) & (rows["position"] == 64)]
    original = rows[(rows["family"] == "original") & ~rows["trained"] & (rows["position"] == 64)]
    rise = (quarter["negative_log_likelihood"].sum() - original["negative_log_likelihood"].sum()) / 96
    for axes, value in ((apart, quarter["divergence"].sum() / 96), (perplexity, np.exp(rise))):
        assert dict(zip(*axes.lines[0].get_data(), strict=True))[80.0] == pytest.approx(value)
    longer = pd.concat([rows, rows.assign(position=rows["position"] + 512)])  # two rows a part
    two = rows[(rows["family"] == "priced") & (rows["setting"] == 0.25) & rows["position"].isin([64, 96])]
    drawn = dict(zip(*FIGURES["by_position"](longer).axes[0].lines[0].get_data(), strict=True))
    assert drawn[96.0] == pytest.approx(two["divergence"].sum() / (2 * 96)) and len(drawn) == 16
    with pytest.raises(ValueError, match="nothing that is bought by price"):
        FIGURES["by_position"](rows[rows["family"] != "priced"])


def test_windows_without_a_recalled_token_say_so(measurements):
    positions = measurements["positions"].assign(recalled=0, recalled_likelihood=0.0)
    figure = FIGURES["comes_back"](measurements["recovery"], positions)
    assert [text.get_text() for text in figure.axes[2].texts] == ["none in these windows"]
    assert_nothing_cut_off(figure)


def test_figure1_of_a_short_row(measurements):
    rows = measurements["influence"]
    short = rows[rows["key"] < 3].assign(query=2)
    assert_nothing_cut_off(FIGURES["figure1"](short))


def test_figure2_names_its_head_and_masks_the_future(figures):
    figure = figures["figure2"]
    assert figure.subfigs[0].get_suptitle() == "HashHop-Llama, layer 23, head 17: mean of 1,024 samples"
    image = figure.subfigs[0].axes[1].images[0].get_array()
    assert image.shape == (8, 8)
    assert np.ma.getmaskarray(image)[np.triu_indices(8, 1)].all()
    assert not np.ma.getmaskarray(image)[np.tril_indices(8)].any()


def test_figure3_draws_each_run_faint_and_each_mean_thick(figures, crowded):
    axes = figures["figure3"].axes[0]
    texts = [text.get_text() for text in figures["figure3"].legends[0].get_texts()]
    assert texts == ["original", "RecurFormer, β = 0.5"]
    thick = [line for line in axes.lines if line.get_linewidth() > 1]
    assert len(axes.lines) == 6, "two means of two seeds each"
    assert len({(line.get_color(), line.get_marker()) for line in thick}) == 2
    assert [axes.get_title() for axes in crowded["figure3"].axes] == ["Llama2-7B", "SmolLM2-135M", "HashHop-Qwen2"]


def test_figure3_shows_the_papers_perplexities_where_it_printed_them(crowded):
    llama, smollm, _ = crowded["figure3"].axes
    stars = [line for line in llama.lines if line.get_marker() == "*"]
    assert sorted(math.exp(line.get_ydata()[0]) for line in stars) == pytest.approx([9.023, 9.199])
    assert not [line for line in smollm.lines if line.get_marker() == "*"]
    shown = {text.get_text() for text in crowded["figure3"].legends[0].get_texts()}
    assert {"paper's perplexity, original", "paper's perplexity, β = 0.5"} <= shown


def test_figure5_leaves_the_first_token_out_of_view(figures, measurements):
    panels = figures["figure5"].axes[:3]
    weights = measurements["attention_map"]
    for axes, level in zip(panels, ("high", "mid", "low"), strict=True):
        image = axes.images[0]
        assert image.get_array().shape == (63, 63)
        rows = weights[
            (weights["level"] == level)
            & (weights["query"] == 9)
            & (weights["key"] == 4)
            & (weights["model"] == "smollm2-135m")
        ]
        assert image.get_array()[8, 3] == pytest.approx(rows["weight"].item())
        assert isinstance(image.norm, LogNorm)
        assert image.norm.vmax / image.norm.vmin == pytest.approx(1e8)
    assert panels[0].images[0].norm is panels[2].images[0].norm
    assert panels[0].get_title() == "high RA-I: layer 0, head 0\nRA-I 1, to token 0: 10 %"


def test_figure5_shows_one_head_at_each_level(measurements):
    frame = measurements["attention_map"]
    with pytest.raises(ValueError, match=r"no row with level = mid \(there are: high, low\)"):
        FIGURES["figure5"](frame[frame["level"] != "mid"])
    with pytest.raises(ValueError, match="2 heads for smollm2-135m, mid"):
        FIGURES["figure5"](pd.concat([frame, frame[frame["level"] == "mid"].assign(head=8)]))


def test_figure6_counts_samples_above_the_threshold():
    profile = pd.DataFrame(
        [
            ("m", sample, 0, head, rr, 0.5)
            for head, ratios in ((0, (0.6, 0.5, 0.9)), (1, (np.nan,) * 3))
            for sample, rr in enumerate(ratios)
        ],
        columns=COLUMNS["profile"],
    )
    np.testing.assert_array_equal(ra_i(profile), [2 / 3, np.nan])
    assert_nothing_cut_off(FIGURES["figure6"](profile=profile))
    with pytest.raises(ValueError, match="several thresholds"):
        FIGURES["figure6"](profile=pd.concat([profile, profile.assign(threshold=0.7)]))


def test_figure6_has_layers_downwards_and_one_scale(crowded):
    *panels, bar = crowded["figure6"].axes
    assert [axes.get_title() for axes in panels] == ["SmolLM2-135M", "HashHop-Llama", "HashHop-Qwen2"]
    assert panels[0].images[0].get_array().shape == (24, 4)
    assert all(axes.images[0].get_clim() == (0, 1) for axes in panels)
    assert panels[0].yaxis_inverted()
    assert bar.get_ylabel() == "RA-I / samples"


@pytest.mark.parametrize(("name", "kind"), [("figure2", "sink"), ("figure5", "attention_map")])
def test_doubled_rows_are_refused(measurements, name, kind):
    with pytest.raises(ValueError, match="several rows for one query and key"):
        FIGURES[name](pd.concat([measurements[kind], measurements[kind]]))
