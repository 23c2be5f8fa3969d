"""Tables 2 and 4: what is compared with the paper, what stands beside it, and what decides nothing."""

import re

import numpy as np
import pandas as pd
import pytest
from rendering import ALL_TABLES, GIVEN, build, lines_of, pick, render

from recurformer.results.words import Verdict


def test_table2_has_the_papers_lines_first_then_ours(tables):
    frame = tables["table2"].frame
    lines = [f"{line.model} {line.method.split()[0]}" for line in frame.itertuples()]
    assert lines[:7] == [
        "qwen2-0.5b Original", "qwen2-0.5b RecurFormer", "llama2-7b Original", "llama2-7b RecurFormer",
        "llama2-7b PyramidInfer", "qwen2-7b Original", "qwen2-7b RecurFormer",
    ]  # fmt: skip
    assert set(frame["model"][7:]) == {"hashhop-llama", "hashhop-qwen2"}


def test_table2_sets_ours_beside_the_papers_and_says_what_is_missing_and_why(tables):
    table = tables["table2"]
    line = pick(table.frame, model="llama2-7b", method="RecurFormer")
    assert (line["cs_10k_paper"], line["cs_10k_ours"]) == (0.1030, pytest.approx(0.1030))
    assert line["cs_10k_difference"] == line["cs_10k_ours"] - 0.1030
    assert (line["h_gq_status"], line["h_gq_paper"], line["l_m_status"]) == ("not-run", 0.839, "model")
    assert np.isnan(line["h_gq_ours"])
    assert line["l_m_ours_chunked"] == 4 * line["l_m_ours"]
    grouped = pick(table.frame, model="qwen2-7b", method="RecurFormer")
    assert grouped["cs_60k_ours"] < 0.13 and grouped["cs_60k_ours_head"] > 0.8, "whole groups of heads are compared"
    pyramid = pick(table.frame, model="llama2-7b", method="PyramidInfer")
    assert pyramid["cs_10k_difference"] == pytest.approx(0, abs=5e-5)
    assert pyramid["h_gq_status"] == pyramid["l_m_status"] == "not-run"
    assert any(note.startswith("h_gq of Qwen2-0.5B, Llama2-7B, Qwen2-7B: not-run") for note in table.notes)
    shown = lines_of(table).set_index("Model")["cs_10k"]
    assert set(shown["HashHop-Llama"]) == {"–"}, "what neither the paper nor the study has is no gap"


def test_a_note_on_missing_values_names_the_lines_of_a_model_that_has_others(measurements):
    cache = measurements["cache"].query("model != 'llama2-7b' or beta not in (0.25, 0.9)")
    notes = build("table4", measurements, cache=cache).notes
    assert "cs_10k of Llama2-7B (β = 0.25, β = 0.90): not-run: its cache of 10,240 tokens was not counted" in str(notes)
    notes = build("table2", measurements).notes
    assert "l_m of Llama2-7B (PyramidInfer): not-run: not measured in this study: it needs one GPU" in str(notes)


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "table4", "table5"])
def test_a_verdict_on_a_recording_is_marked_and_names_its_runs(measurements, monkeypatch, name):
    borrowed = {claim: Verdict(one.verdict, "recorded/gpu", "a b") for claim, one in GIVEN["verdicts"].items()}
    monkeypatch.setitem(GIVEN, "verdicts", borrowed)
    table = render(ALL_TABLES[name], measurements)
    judged = [cell for row in table.rows for cell in row if re.search(r"\) [✓≈✗≉!?○]", cell)]
    assert judged and all(cell.endswith(" recorded") for cell in judged)
    for ending, said in (("verdict_recording", "recorded/gpu"), ("verdict_runs", "a b")):
        columns = [column for column in table.frame if column.endswith(ending)]
        assert columns and {*pd.unique(table.frame[columns].to_numpy().ravel())} >= {said}


def test_pyramidinfer_is_measured_by_the_study_itself(measurements, tables):
    small = pick(tables["table2"].frame, model="hashhop-llama", method="PyramidInfer")
    assert (small["h_gq_ours"], small["h_gq_status"]) == (pytest.approx(0.46, abs=0.005), "measured")
    assert (small["l_m_status"], small["cs_10k_status"]) == ("", ""), "nothing is printed of it"
    row = measurements["memory"].query("model == 'llama2-7b' and beta == 0 and protocol == 'one_shot'")
    longest = row.assign(protocol="pyramidinfer", l_m=123_000, source="measured")
    memory = pd.concat([measurements["memory"], longest])
    line = pick(build("table2", measurements, memory=memory).frame, model="llama2-7b", method="PyramidInfer")
    assert (line["l_m_ours"], line["l_m_status"], line["l_m_paper"]) == (123_000, "measured", 71_680)
    frame = build("table4", measurements, memory=memory).frame
    assert pick(frame, model="llama2-7b", beta=0.0, quantity="l_m", setting="one_shot")["ours"] == 71_680


def test_variants_of_hashhop_stay_apart(measurements, tables):
    hashhop = measurements["hashhop"]
    rows = hashhop[(hashhop["model"] == "hashhop-llama") & (hashhop["beta"] == 0.5)]
    means = (rows["correct"] / rows["hops"]).groupby(rows["variant"]).mean()
    line = pick(tables["table2"].frame, model="hashhop-llama", beta=0.5)
    assert line["h_gq_ours"] == pytest.approx(means["official"])
    assert line["h_gq_ours_paper"] == pytest.approx(means["paper"])
    assert np.isnan(line["h_gq_paper"]), "the column of the paper's value is not that of the variant named paper"
    assert line["h_gq_low"] < line["h_gq_ours"] < line["h_gq_high"]


def baseline_at(measurements: dict[str, pd.DataFrame], model: str, fraction: float, layout: str) -> pd.DataFrame:
    """A baseline of one sample of 100 hops for each model and layout, all right but a fraction of one."""
    frame = measurements["baseline"].query("sample == 0").assign(hops=100, correct=100)
    chosen = (frame["model"] == model) & (frame["variant"] == layout)
    return frame.assign(correct=frame["correct"].where(~chosen, round(100 * fraction)))


H_GQ = ["h_gq, official layout", "h_gq, appendix layout"]


@pytest.mark.parametrize("name", ["table2", "table4"])
def test_h_gq_of_a_model_that_has_not_learned_the_task_is_shown_and_decides_nothing(measurements, name):
    table = build(name, measurements, baseline=baseline_at(measurements, "hashhop-qwen2", 0.41, "official"))
    shown = lines_of(table).set_index("Model")
    weak, original = (shown[(shown["β"] == "0.00") == zero].loc["HashHop-Qwen2", H_GQ] for zero in (False, True))
    assert all(re.fullmatch(r"[01]\.\d{3} \[.*\] \?", text) for text in weak.to_numpy().flat)
    assert "?" not in "".join([*original, *shown.loc["HashHop-Llama", H_GQ].to_numpy().flat])
    (reason,) = [note for note in table.notes if note.startswith("? beside h_gq")]
    assert reason == "? beside h_gq: the original HashHop-Qwen2 reaches h_gq 0.410; a comparison needs 0.95."
    assert any("h_gq is 1.000 (HashHop-Llama)" in note for note in table.notes)


@pytest.mark.parametrize(("reached", "status"), [(0.89, "measured"), (0.84, "undecided"), (0.99, "undecided")])
def test_a_backbone_of_the_papers_is_compared_where_its_original_is_near_the_printed_one(measurements, reached, status):
    names = {"model": {"hashhop-llama": "llama2-7b"}}
    frames = {kind: measurements[kind].replace(names) for kind in ("hashhop", "pyramidinfer_hashhop", "baseline")}
    frames["baseline"] = baseline_at(measurements | frames, "llama2-7b", reached, "official")
    table = build("table2", measurements, **frames)
    line = pick(table.frame, model="llama2-7b", method="RecurFormer")
    assert (line["h_gq_status"], line["l_m_status"], line["cs_10k_status"]) == (status, "model", "counted")
    assert line["h_gq_difference"] == pytest.approx(line["h_gq_ours"] - 0.839)
    official, appendix = pick(lines_of(table), Model="Llama2-7B", Method="RecurFormer")[H_GQ]
    assert "] (0.839) " in official and "(" not in appendix, "the paper's value stands beside the judged layout"
    (lacking,) = [note for note in table.notes if "no HashHop run of it in this study" in note]
    assert "Llama2-7B" not in lacking


@pytest.mark.parametrize(
    ("fraction", "layout", "layouts", "status"),
    [
        (0.95, "official", ["official", "paper"], "measured"),
        (0.94, "official", ["official", "paper"], "undecided"),
        (0.94, "paper", ["official", "paper"], "measured"),  # the layout that stands aside does not decide
        (0.94, "paper", ["paper"], "undecided"),
    ],
)
def test_the_compared_layout_decides_at_the_bound(measurements, fraction, layout, layouts, status):
    baseline = baseline_at(measurements, "hashhop-llama", fraction, layout)
    hashhop = measurements["hashhop"][measurements["hashhop"]["variant"].isin(layouts)]
    frame = build("table4", measurements, hashhop=hashhop, baseline=baseline).frame
    found = frame[(frame["quantity"] == "h_gq") & (frame["beta"] > 0)].groupby("model")["status"].unique()
    assert (found["hashhop-llama"].tolist(), found["hashhop-qwen2"].tolist()) == ([status], ["measured"])


@pytest.mark.parametrize(
    ("column", "lost", "model"), [("model", "hashhop-qwen2", "hashhop-qwen2"), ("variant", "official", "hashhop-llama")]
)
def test_h_gq_without_its_baseline_is_refused(measurements, column, lost, model):
    baseline = measurements["baseline"][measurements["baseline"][column] != lost]
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


def test_what_the_memory_model_computes_stands_in_columns_of_its_own(measurements):
    memory = measurements["memory"]
    row = memory[(memory["model"] == "llama2-7b") & (memory["beta"] == 0) & (memory["protocol"] == "one_shot")]
    measured = row.assign(beta=0.9, l_m=88_000, source="measured")
    memory = pd.concat([memory, row.assign(protocol="all_logits", l_m=60_000), measured])
    lines = lines_of(build("table4", measurements, memory=memory))
    shown = [pick(lines, Model="Llama2-7B", β=beta) for beta in ("0.00", "0.90")]
    assert [line["l_m"].split(" (")[0] for line in shown] == ["–", "88,000"]
    assert [line["l_m by model"] for line in shown] == ["71,680", "–"]
    assert [line["l_m by model, all logits"] for line in shown] == ["60,000", "–"]


def test_what_is_known_of_a_measured_length_is_said(measurements):
    memory = measurements["memory"].assign(limit=10**6)
    row = memory[(memory["model"] == "llama2-7b") & (memory["beta"] == 0.9) & (memory["protocol"] == "chunked")]
    chunks = row.assign(l_m=990_000, source="measured", at_least=True, error=0.0123)
    measured = pd.concat([chunks, chunks.assign(protocol="one_shot", l_m=88_000)])
    table = build("table4", measurements, memory=pd.concat([memory, measured]))
    line = pick(lines_of(table), Model="Llama2-7B", β="0.90")
    assert line["l_m"].startswith("88,000 or more (91,800) ")
    long = table.frame.query("model == 'llama2-7b' and beta == 0.9 and quantity == 'l_m'").set_index("setting")
    assert long.loc[["chunked", "limit"], "ours"].tolist() == [990_000, 1_000_000]
    assert long.loc[["chunked", "limit"], "status"].tolist() == ["at least", "computed"]
    assert "The memory model's error where l_m was measured: +1.2 % to +1.2 %." in table.notes


def test_only_one_forward_pass_is_compared_with_the_paper(measurements):
    memory = measurements["memory"].assign(limit=10**6)
    frame = build("table4", measurements, memory=memory[memory["protocol"] == "chunked"]).frame
    rows = frame[(frame["model"] == "llama2-7b") & (frame["quantity"] == "l_m")]
    assert set(rows.loc[rows["compared"], "status"]) == {"not-run"}
    assert set(rows.loc[~rows["compared"], "setting"]) == {"chunked", "limit"}


def test_profiled_ranking_is_preferred_and_doubles_are_refused(measurements):
    cache = measurements["cache"]
    profiled = cache[cache["model"] == "qwen2-0.5b"].assign(ranking="profile", ratio=0.123)
    frame = build("table4", measurements, cache=pd.concat([cache, profiled])).frame
    assert pick(frame, model="qwen2-0.5b", beta=0.5, quantity="cs_10k", setting="head")["ours"] == 0.123
    with pytest.raises(ValueError, match=r"several rows for model qwen2-0\.5b, beta 0"):
        build("table4", measurements, cache=pd.concat([cache, cache]))


def test_table4_is_long_and_complete(tables):
    frame = tables["table4"].frame
    assert len(frame[frame["compared"] & frame["paper"].notna()]) == 72
    assert not frame.duplicated(["model", "beta", "quantity", "setting"]).any()
    assert len(tables["table4"].lines) == 5 * 6, "every beta of the paper's models and of two others"


def test_betas_written_differently_are_the_same_share(measurements):
    cache = measurements["cache"].assign(beta=lambda frame: frame["beta"] + 1e-12)
    frame = build("table4", measurements, cache=cache).frame
    assert len(frame[(frame["model"] == "llama2-7b") & (frame["quantity"] == "cs_10k") & frame["compared"]]) == 6


def test_cache_of_other_lengths_is_refused(measurements):
    with pytest.raises(ValueError, match="no length 10240 or 61440"):
        build("table4", measurements, cache=measurements["cache"].assign(length=512))
