"""What each table shows. What all of them keep to stands in test_renderers.py."""

import numpy as np
import pandas as pd
import pytest
from rendering import build, lines_of, pick

from recurformer.render.table import escape
from recurformer.results.cells import growth_exponent
from recurformer.results.scores import METHODS
from recurformer.results.words import NOTHING, number


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("h_gq & 5 % · d", r"h\_gq \& 5 \% \(\cdot\) d"),
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


def test_table1_puts_the_measured_growth_beside_the_printed(measurements):
    """A term of lower order bends the fit over all lengths by more than the one over the longest."""
    complexity = measurements["complexity"]
    table = build(
        "table1", measurements, complexity=complexity.assign(bytes=lambda f: f["bytes"] + 10**5 * f["length"])
    )
    peak = pick(table.frame, phase="prefill", mixer="attention", quantity="cache_peak")
    assert peak["paper_exponent"] == 2
    assert 1.8 < peak["exponent"] < peak["exponent_longest"] < 2
    assert "1,024, 4,096, 16,384; d is 4,096" in " ".join(table.notes)
    with pytest.raises(ValueError, match="at least 2 lengths"):
        build("table1", measurements, complexity=complexity.assign(length=1024))


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


def test_table3_compares_the_trained_stage(tables, measurements):
    frame = tables["table3"].frame
    paper_rows = frame[frame["model"] == "llama2-7b"]
    assert paper_rows["status"].tolist() == ["not-run", "not-run"]
    assert paper_rows["paper_over_original"].tolist() == pytest.approx([1, 9.199 / 9.023])
    ours = pick(frame, model="smollm2-135m", beta=0.5, stage="trained")
    assert ours["ours_over_original"] == pytest.approx(14.202 / 12.088)
    assert frame[frame["paper"].notna()]["stage"].unique().tolist() == ["trained"]
    assert lines_of(tables["table3"])["Model"].tolist()[6:8] == ["SmolLM2-135M"] * 2
    with pytest.raises(ValueError, match="no row with split = validation"):
        build("table3", measurements, perplexity=measurements["perplexity"].assign(split="train"))


def test_table5_has_both_intervals_and_the_papers(tables, measurements):
    frame = tables["table5"].frame
    ours = pick(frame, model="smollm2-135m", norm="l1", tokens="first")
    assert (ours["ours"], ours["mean_low"], ours["spread_low"]) == pytest.approx((0.0281, 0.0281, -0.0530))
    paper = pick(frame, model="qwen2-7b", norm="l2", tokens="other")
    assert (paper["paper"], paper["paper_low"], paper["paper_high"]) == (0.0181, 0.0075, 0.0286)
    assert paper["status"] == "not-run"
    as_backbone = measurements["contribution"].replace({"smollm2-135m": "qwen2-7b"})
    table = build("table5", measurements, contribution=as_backbone)
    filled = pick(table.frame, model="qwen2-7b", norm="l2", tokens="other")
    assert filled["difference"] == pytest.approx(0.0129 - 0.0181)


def test_table5_states_the_direction_of_each_model(measurements):
    frame = measurements["contribution"]
    more = (frame["tokens"] == "first") & ((frame["model"] == "hashhop-llama") | (frame["norm"] == "l1"))
    contribution = frame.assign(mean=frame["mean"].mask(more & (frame["model"] != "hashhop-qwen2"), 0.9))
    (note,) = [note for note in build("table5", measurements, contribution=contribution).notes if "claim is" in note]
    assert note.split("; ") == [
        "SmolLM2-135M: the first token contributes more under L1, less under L2",
        "HashHop-Llama: the first token contributes more under both norms",
        "HashHop-Qwen2: the first token contributes less under both norms, the paper's claim is that it contributes "
        "less.",
    ]


def test_a_table_says_where_it_was_measured_and_carries_its_runs(tables):
    table = tables["table1"].measured_by("default", "a processor, 2 cores", ["1f-2e", "3d-4c"])
    assert table.notes[-1] == "Study default, 2 runs on a processor, 2 cores."
    assert "<!-- runs: 1f-2e 3d-4c -->" in table.to_markdown()
    assert "% run 3d-4c\n" in table.to_latex()
    assert 'content="1f-2e 3d-4c"' in table.to_html()
    assert "runs:" not in tables["table1"].to_markdown()


def test_long_inputs_shows_each_model_with_ever_smaller_caches_and_the_windows_between_which_it_lies(tables):
    lines = lines_of(tables["long_inputs"])
    assert list(lines["cache"]) == ["1.0000", "0.2500", "0.1250"] * 2 and lines["Model"].nunique() == 2
    evicted = pick(lines, Model="SmolLM2-135M", cache="0.2500")
    assert evicted["KL"] == "0.7500 [0.3750, 1.1250]" and evicted["perplexity"] == number(np.exp(3.875), 2)
    assert set(lines.loc[lines["Method"] == "original", "KL"]) == {NOTHING}


def test_the_frontier_shows_each_method_at_each_size_of_its_cache_in_the_order_of_its_figure(tables, measurements):
    lines = lines_of(tables["frontier"])
    names = [method for of_family in METHODS.values() for method in of_family.values()]
    assert list(lines["Method"].map(names.index)) == sorted(lines["Method"].map(names.index))
    caches = lines.groupby("Method", sort=False)["cache"].apply(list)
    assert all(held == sorted(held, reverse=True) for held in caches)
    continuation = measurements["continuation"]
    evicted = continuation[continuation["method"] == "snapkv"].iloc[0]
    sums = continuation[continuation["method"] == "snapkv"].groupby("ratio")[["divergence", "tokens"]].sum()
    shown = lines.loc[lines["Method"] == "SnapKV", "divergence from the original"].str.split().str[0]
    assert list(shown) == [number(value, 4) for value in (sums["divergence"] / sums["tokens"])[::-1]]
    table = tables["frontier"]
    turns = measurements["turns"]
    known = turns[turns["known"]].drop_duplicates(["length", "document", "depth"])
    original = pick(table.frame, family="original", measure="asked with 1,024 tokens")
    assert original["samples"] == len(known[known["length"] == 1024])
    needle = measurements["needle"].assign(ratio=lambda f: f["ratio"] + 0.01)
    trained = needle[needle["family"] == "original"].assign(trained=True)
    fuller = {"continuation": continuation, "needle": pd.concat([needle, trained], ignore_index=True)}
    again = lines_of(build("frontier", fuller))
    assert f"{evicted.ratio + 0.01:.3f} to {evicted.ratio:.3f}" in set(again["cache"])
    assert "original, trained" in set(again["Method"])
    frame = table.frame.dropna(subset=["low", "high"])
    assert ((frame["low"] <= frame["mean"]) & (frame["mean"] <= frame["high"])).all()
    with pytest.raises(ValueError, match="no continuation measurements with a divergence"):
        build("frontier", {"continuation": continuation.assign(divergence=np.nan)})


def test_lm_eval_shows_the_original_twice_and_recurformer_with_standard_errors(tables, measurements):
    table = tables["lm_eval"]
    line = pick(lines_of(table), Task="hellaswag")
    assert set(line[["original", "original, trained", "RecurFormer, trained, β 0.5"]]) == {"0.900 ± 0.010"}
    assert line["samples"] == "1,000"
    assert "±" not in pick(lines_of(table), Task="wikipedia")["original"]
    rows = measurements["ablation_lm_eval"]
    came = rows[(rows["family"] == "original") & ~rows["trained"]]
    bought = came.assign(family="priced", method="windows_bits")
    shares = [bought.assign(setting=share, value=share) for share in (0.125, 0.25)]
    priced = lines_of(build("lm_eval", measurements, ablation_lm_eval=pd.concat([came, *shares])))
    of_shares = [f"windows and bits by price, {share} of the cache" for share in (0.25, 0.125)]
    assert list(priced.columns)[-2:] == of_shares
    assert list(pick(priced, Task="hellaswag")[of_shares]) == ["0.250 ± 0.010", "0.125 ± 0.010"]
    untold = build("lm_eval", measurements, ablation_lm_eval=rows[rows["trained"]])
    assert set(lines_of(untold)["original"]) == {NOTHING}
    with pytest.raises(ValueError, match="two values of smollm2-135m, hellaswag, acc"):
        build("lm_eval", measurements, ablation_lm_eval=pd.concat([rows, rows]))
