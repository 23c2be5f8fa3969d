"""What each table shows. What all of them keep to stands in test_renderers.py."""

import numpy as np
import pandas as pd
import pytest
from rendering import render

from recurformer.render.tables import TABLES
from recurformer.render.tables.table import escape
from recurformer.render.tables.table1 import growth_exponent


def build(name: str, measurements: dict[str, pd.DataFrame], **replaced: pd.DataFrame):
    return render(TABLES[name], measurements | replaced)


def pick(frame: pd.DataFrame, **where) -> pd.Series:
    for column, value in where.items():
        frame = frame[frame[column] == value]
    assert len(frame) == 1, f"{len(frame)} rows for {where}"
    return frame.iloc[0]


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("h_gq & 5 %", r"\(h_{gq}\) \& 5 \%"),
        ("O(l_p^2 + l_p · d)", r"O(\(l_{p}^2\) + \(l_{p}\) \(\cdot\) d)"),
        ("cs_10k: kv_group", r"\(cs_{10k}\): kv\_group"),
        ("a\\b {c} #1 $2 ~ x^2", r"a\textbackslash{}b \{c\} \#1 \$2 \textasciitilde{} x\textasciicircum{}2"),
        ("β = 0.5 − 1", r"\(\beta\) = 0.5 \(-\) 1"),
    ],
)
def test_latex_escapes(text, source):
    assert escape(text) == source


def test_unknown_suffix_is_refused(tables, tmp_path):
    with pytest.raises(ValueError, match=r"table1\.xls: a table is written as \.csv, \.md, \.tex, \.html"):
        tables["table1"].write(tmp_path / "table1.xls")


@pytest.mark.parametrize("power", [0, 1, 2])
def test_growth_exponent_of_a_power_law(power):
    lengths = np.array([512.0, 1024.0, 4096.0])
    assert growth_exponent(lengths, 7.0 * lengths**power) == pytest.approx(power)


def test_table1_puts_the_measured_growth_beside_the_printed(tables):
    frame = tables["table1"].frame
    peak = pick(frame, phase="prefill", mixer="attention", quantity="cache_peak")
    assert peak["paper_exponent"] == 2
    assert 1.8 < peak["exponent"] < peak["exponent_longest"] < 2
    assert pick(frame, phase="generation", mixer="mamba", quantity="cache_size")["exponent"] == pytest.approx(0)
    assert "1,024, 2,048, 4,096, 8,192, 16,384" in " ".join(tables["table1"].notes)


def test_table1_without_one_of_its_cells(measurements):
    complexity = measurements["complexity"]
    table = build("table1", measurements, complexity=complexity[complexity["mixer"] == "attention"])
    assert len(table.frame) == 8
    assert set(table.display.loc[table.frame["mixer"] == "mamba", ("exponent", "ours")]) == {"not-run"}


def test_table2_has_the_papers_lines_first_then_ours(tables):
    frame = tables["table2"].frame
    lines = [f"{line.model} {line.method.split()[0]}" for line in frame.itertuples()]
    assert lines[:7] == [
        "qwen2-0.5b Original", "qwen2-0.5b RecurFormer", "llama2-7b Original", "llama2-7b RecurFormer",
        "llama2-7b PyramidInfer", "qwen2-7b Original", "qwen2-7b RecurFormer",
    ]  # fmt: skip
    assert set(frame["model"][7:]) == {"smollm2-135m", "hashhop-llama", "hashhop-qwen2"}


def test_table2_llama_line(tables):
    line = pick(tables["table2"].frame, model="llama2-7b", method="RecurFormer")
    assert line["cs_10k_paper"] == 0.1030
    assert line["cs_10k_ours"] == pytest.approx(0.1 + 36 * 0.9 / 10_240)
    assert line["cs_10k_difference"] == pytest.approx(line["cs_10k_ours"] - 0.1030)
    assert line["h_gq_status"] == "not-run"
    assert np.isnan(line["h_gq_ours"])
    assert line["h_gq_paper"] == 0.839
    assert line["l_m_status"] == "model"
    assert line["l_m_ours_chunked"] == 4 * line["l_m_ours"]
    grouped = pick(tables["table2"].frame, model="qwen2-7b", method="RecurFormer")
    assert grouped["cs_60k_ours"] < 0.11, "whole groups of heads are compared"
    assert grouped["cs_60k_ours_head"] > 0.8


def test_table2_shows_what_is_missing_and_why(tables):
    table = tables["table2"]
    pyramid = pick(table.frame, method="PyramidInfer")
    assert pyramid["cs_10k_difference"] == pytest.approx(0, abs=5e-5)
    assert pyramid["h_gq_status"] == pyramid["l_m_status"] == "not-run"
    assert any(note.startswith("h_gq of Qwen2-0.5B, Llama2-7B, Qwen2-7B: not-run") for note in table.notes)
    shown = table.display[table.display["", "Model"] == "HashHop-Llama"]
    assert set(shown["cs_10k", "ours"]) == {"–"}, "what neither the paper nor the study has is no gap"


def test_variants_of_hashhop_stay_apart(measurements, tables):
    hashhop = measurements["hashhop"]
    rows = hashhop[(hashhop["model"] == "hashhop-llama") & (hashhop["beta"] == 0.5)]
    means = (rows["correct"] / rows["hops"]).groupby(rows["variant"]).mean()
    line = pick(tables["table2"].frame, model="hashhop-llama", beta=0.5)
    assert line["h_gq_ours"] == pytest.approx(means["official"])
    assert line["h_gq_ours_paper"] == pytest.approx(means["paper"])
    assert np.isnan(line["h_gq_paper"]), "the column of the paper's value is not that of the variant named paper"
    assert line["h_gq_low"] < line["h_gq_ours"] < line["h_gq_high"]


def named(measurements: dict[str, pd.DataFrame], kind: str, model: str) -> pd.DataFrame:
    """The measurements of hashhop-llama under another name."""
    return measurements[kind].replace({"model": {"hashhop-llama": model}})


def baseline_at(measurements: dict[str, pd.DataFrame], model: str, share: float, layout: str) -> pd.DataFrame:
    """A baseline of one sample of 100 hops for each model and layout, all right but a share of one."""
    frame = measurements["baseline"].query("sample == 0").assign(hops=100, correct=100)
    chosen = (frame["model"] == model) & (frame["variant"] == layout)
    return frame.assign(correct=frame["correct"].where(~chosen, round(100 * share)))


def test_h_gq_of_a_model_that_has_not_learned_the_task_is_not_run(measurements):
    baseline = baseline_at(measurements, "hashhop-qwen2", 0.41, "official")
    wide, long = (build(name, measurements, baseline=baseline) for name in ("table2", "table4"))
    for table in (wide, long):
        shown = table.display.set_index(("", "Model"))["h_gq"][["ours", "appendix layout"]]
        assert set(shown.loc["HashHop-Qwen2"].to_numpy().ravel()) == {"not-run"}
        assert "not-run" not in set(shown.loc["HashHop-Llama"].to_numpy().ravel())
        reason = "the unconverted model reaches only 0.410 of the 0.95 that a comparison needs."
        assert f"h_gq of HashHop-Qwen2: not-run: {reason}" in table.notes
        assert "Without conversion h_gq is 1.000 (HashHop-Llama); a comparison needs 0.95." in table.notes
        lacking = [note for note in table.notes if "no HashHop run in this study" in note]
        assert [note.partition(":")[0] for note in lacking] == ["h_gq of Qwen2-0.5B, Llama2-7B, Qwen2-7B"]
    h_gq = long.frame[long.frame["quantity"] == "h_gq"].set_index("model")
    assert h_gq.loc["hashhop-qwen2", "status"].tolist() == ["not-run"] * 6 * 2, "every beta in both layouts"
    assert h_gq.loc["hashhop-qwen2", ["ours", "low", "high", "samples"]].isna().all(axis=None)
    assert set(h_gq.loc["hashhop-llama", "status"]) == {"measured"}
    withheld = wide.frame.set_index("model").loc["hashhop-qwen2"]
    assert set(withheld["h_gq_status"]) == {"not-run"}
    assert withheld[["h_gq_ours", "h_gq_ours_paper", "h_gq_samples"]].isna().all(axis=None)


def test_a_weak_backbone_of_the_papers_is_not_said_to_lack_a_run(measurements):
    frames = {kind: named(measurements, kind, "llama2-7b") for kind in ("hashhop", "baseline")}
    weak = frames | {"baseline": baseline_at(measurements | frames, "llama2-7b", 0.2, "official")}
    for replaced, status in ((weak, "not-run"), (frames, "measured")):
        table = build("table2", measurements, **replaced)
        line = pick(table.frame, model="llama2-7b", method="RecurFormer")
        assert (line["h_gq_status"], line["h_gq_paper"]) == (status, 0.839)
        assert (line["l_m_status"], line["cs_10k_status"]) == ("model", "counted"), "only h_gq is withheld"
        (lacking,) = [note for note in table.notes if "no HashHop run in this study" in note]
        assert "Llama2-7B" not in lacking
    assert line["h_gq_difference"] == pytest.approx(line["h_gq_ours"] - 0.839)


@pytest.mark.parametrize(
    ("share", "layout", "layouts", "status"),
    [
        (0.95, "official", ["official", "paper"], "measured"),
        (0.94, "official", ["official", "paper"], "not-run"),
        (0.94, "paper", ["official", "paper"], "measured"),  # the layout that stands aside does not decide
        (0.94, "paper", ["paper"], "not-run"),
    ],
)
def test_the_compared_layout_decides_at_the_bound(measurements, share, layout, layouts, status):
    baseline = baseline_at(measurements, "hashhop-llama", share, layout)
    hashhop = measurements["hashhop"][measurements["hashhop"]["variant"].isin(layouts)]
    frame = build("table4", measurements, hashhop=hashhop, baseline=baseline).frame
    found = frame[frame["quantity"] == "h_gq"].groupby("model")["status"].unique()
    assert (found["hashhop-llama"].tolist(), found["hashhop-qwen2"].tolist()) == ([status], ["measured"])


@pytest.mark.parametrize("column", ["model", "variant"])
def test_h_gq_without_its_baseline_is_refused(measurements, column):
    lost = {"model": "hashhop-qwen2", "variant": "official"}[column]
    baseline = measurements["baseline"][measurements["baseline"][column] != lost]
    model = {"model": "hashhop-qwen2", "variant": "hashhop-llama"}[column]
    with pytest.raises(ValueError, match=f"baseline measurements have no row of {model} in the layout official"):
        build("table2", measurements, baseline=baseline)


def test_a_measured_length_replaces_a_modelled_one(measurements):
    memory = measurements["memory"]
    row = memory[(memory["model"] == "llama2-7b") & (memory["beta"] == 0.9) & (memory["protocol"] == "one_shot")]
    measured = row.assign(l_m=88_000, source="measured")
    for parts in ([measured, memory], [memory, measured]):
        frame = build("table4", measurements, memory=pd.concat(parts)).frame
        line = pick(frame, model="llama2-7b", beta=0.9, setting="one_shot")
        assert (line["ours"], line["status"], line["difference"]) == (88_000, "measured", 88_000 - 91_800)


def test_what_is_known_of_a_measured_length_is_said(measurements):
    memory = measurements["memory"].assign(limit=10**6)
    row = memory[(memory["model"] == "llama2-7b") & (memory["beta"] == 0.9) & (memory["protocol"] == "chunked")]
    measured = row.assign(l_m=990_000, source="measured", at_least=True, error=0.0123)
    table = build("table4", measurements, memory=pd.concat([memory, measured]))
    line = table.display[(table.display["", "Model"] == "Llama2-7B") & (table.display["", "β"] == "0.90")].iloc[0]
    assert line["l_m", "chunked"] == "990,000 (at least)"
    assert line["l_m", "limit"] == "1,000,000 (computed)"
    assert "The memory model's error where l_m was measured: +1.2 % to +1.2 %." in table.notes


def test_only_one_forward_pass_is_compared_with_the_paper(measurements):
    memory = measurements["memory"].assign(limit=10**6)
    frame = build("table4", measurements, memory=memory[memory["protocol"] == "chunked"]).frame
    rows = frame[(frame["model"] == "llama2-7b") & (frame["quantity"] == "l_m")]
    assert set(rows.loc[rows["compared"], "status"]) == {"not-run"}
    assert set(rows.loc[~rows["compared"], "setting"]) == {"chunked", "limit"}


def test_profiled_ranking_is_preferred_and_doubles_are_refused(measurements):
    cache = measurements["cache"]
    profiled = cache[cache["model"] == "smollm2-135m"].assign(ranking="profile", ratio=0.123)
    frame = build("table4", measurements, cache=pd.concat([cache, profiled])).frame
    assert pick(frame, model="smollm2-135m", beta=0.5, quantity="cs_10k", setting="head")["ours"] == 0.123
    with pytest.raises(ValueError, match="several rows for model llama2-7b, beta 0"):
        build("table4", measurements, cache=pd.concat([cache, cache]))


def test_table4_is_long_and_complete(tables):
    frame = tables["table4"].frame
    compared = frame[frame["compared"] & frame["paper"].notna()]
    assert len(compared) == 72
    assert not frame.duplicated(["model", "beta", "quantity", "setting"]).any()
    for model in ("smollm2-135m", "hashhop-llama", "hashhop-qwen2"):
        assert sorted(frame.loc[frame["model"] == model, "beta"].unique()) == [0, 0.25, 0.5, 0.75, 0.9, 1]
    assert len(tables["table4"].display) == 6 * 6


def test_betas_written_differently_are_the_same_share(measurements):
    cache = measurements["cache"].assign(beta=lambda frame: frame["beta"] + 1e-12)
    frame = build("table4", measurements, cache=cache).frame
    assert len(frame[(frame["model"] == "llama2-7b") & (frame["quantity"] == "cs_10k") & frame["compared"]]) == 6


def test_table3_weights_articles_by_their_tokens(measurements):
    columns = ["model", "beta", "seed", "stage", "split", "article", "tokens", "negative_log_likelihood"]
    articles = [
        ("validation", "long", 900, 900 * 2.0),
        ("validation", "short", 100, 100 * 4.0),
        ("train", "seen", 9, 0.0),
    ]
    perplexity = pd.DataFrame([("m", 0.0, 0, "trained", *article) for article in articles], columns=columns)
    row = pick(build("table3", measurements, perplexity=perplexity).frame, model="m")
    assert row["ours"] == pytest.approx(np.exp(2.2))


def test_table3_compares_the_trained_stage(tables):
    frame = tables["table3"].frame
    paper_rows = frame[frame["model"] == "llama2-7b"]
    assert paper_rows["status"].tolist() == ["not-run", "not-run"]
    assert paper_rows["paper_over_original"].tolist() == pytest.approx([1, 9.199 / 9.023])
    ours = pick(frame, model="smollm2-135m", beta=0.5, stage="trained")
    original = pick(frame, model="smollm2-135m", beta=0.0, stage="trained")
    assert ours["ours_over_original"] == pytest.approx(ours["ours"] / original["ours"])
    assert frame[frame["paper"].notna()]["stage"].unique().tolist() == ["trained"]
    assert tables["table3"].display["", "Model"].tolist()[-2:] == ["SmolLM2-135M"] * 2


def test_table3_needs_held_out_articles(measurements):
    perplexity = measurements["perplexity"]
    with pytest.raises(ValueError, match="no row with split = validation"):
        build("table3", measurements, perplexity=perplexity[perplexity["split"] == "train"])


def test_table5_has_both_intervals_and_the_papers(tables, measurements):
    frame = tables["table5"].frame
    ours = pick(frame, model="smollm2-135m", norm="l1", tokens="first")
    assert (ours["ours"], ours["mean_low"], ours["spread_low"]) == pytest.approx((0.03, 0.028, -0.05))
    paper = pick(frame, model="qwen2-7b", norm="l2", tokens="other")
    assert (paper["paper"], paper["paper_low"], paper["paper_high"]) == (0.0181, 0.0075, 0.0286)
    assert paper["status"] == "not-run"
    as_backbone = measurements["contribution"].assign(model="qwen2-7b")
    filled = pick(
        build("table5", measurements, contribution=as_backbone).frame, model="qwen2-7b", norm="l2", tokens="other"
    )
    assert filled["difference"] == pytest.approx(filled["ours"] - 0.0181)


def test_table5_states_the_direction_of_each_model(measurements):
    """The means of the other tokens are 0.07 (L1) and 0.014 (L2)."""
    firsts = {
        "llama2-7b": {"l1": 0.9, "l2": 0.9},
        "qwen2-7b": {"l1": 0.01, "l2": 0.01},
        "smollm2-135m": {"l1": 0.09, "l2": 0.006},
    }
    frame = measurements["contribution"]
    models = [
        frame.assign(model=model, mean=frame["norm"].map(first).where(frame["tokens"] == "first", frame["mean"]))
        for model, first in firsts.items()
    ]
    assert (
        "Llama2-7B: the first token contributes more under both norms; "
        "Qwen2-7B: the first token contributes less under both norms; "
        "SmolLM2-135M: the first token contributes more under L1, less under L2, "
        "the paper's claim is that it contributes less."
    ) in build("table5", measurements, contribution=pd.concat(models)).notes


def test_cache_of_other_lengths_is_refused(measurements):
    with pytest.raises(ValueError, match="no length 10240 or 61440"):
        build("table4", measurements, cache=measurements["cache"].assign(length=512))


def test_bytes_that_cannot_be_fitted_are_refused(measurements):
    complexity = measurements["complexity"]
    with pytest.raises(ValueError, match="at least 2 lengths"):
        build("table1", measurements, complexity=complexity[complexity["length"] == 1024])
    with pytest.raises(ValueError, match="must be positive"):
        build("table1", measurements, complexity=complexity.assign(bytes=0))


def test_a_table_says_where_it_was_measured_and_carries_its_runs(tables):
    table = tables["table1"].measured_by("default", "a processor, 2 cores", ["1f-2e", "3d-4c"])
    assert table.notes[-1] == "Study default, 2 runs on a processor, 2 cores."
    assert "<!-- runs: 1f-2e 3d-4c -->" in table.to_markdown()
    assert "% run 3d-4c\n" in table.to_latex()
    assert 'content="1f-2e 3d-4c"' in table.to_html()
    assert "runs:" not in tables["table1"].to_markdown()
