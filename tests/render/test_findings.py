"""The numbers that README.md and docs/findings.md state are those of the data."""

import json
import re
from pathlib import Path

import pandas as pd

from recurformer.claims import all_claims
from recurformer.claims.claim import INCONSISTENCIES, STATEMENTS
from recurformer.data.interval import mean_interval
from recurformer.paper import CELLS, NUMBERS
from recurformer.render.adaptation import compared
from recurformer.results.cells import PYRAMIDINFER
from recurformer.results.words import MARKS

ROOT = Path(__file__).parents[2]
FINDINGS, README = (" ".join((ROOT / page).read_text().split()) for page in ("docs/findings.md", "README.md"))


def test_it_counts_the_sentences_that_have_a_test():
    broken = {claim for found in INCONSISTENCIES.values() for claim in found.claims}
    tested = [name for name, sentence in STATEMENTS.items() if sentence.judge]
    audited = [name for name in STATEMENTS if name not in tested and name in broken]
    asked = sum(claim.id.startswith("reviewer/") for claim in all_claims())
    left = len(STATEMENTS) - len(tested) - len(audited)
    absent = [
        entry for entry in (*CELLS, *NUMBERS) if entry.method == PYRAMIDINFER and entry.quantity in {"l_m", "h_gq"}
    ]
    for stated in (
        f"{len(CELLS)} table cells, {len(NUMBERS)} numbers that the text repeats, {len(STATEMENTS)} sentences,",
        f"Of the {len(STATEMENTS)}, {len(tested)} have a test on measurements",
        f"numbers and words decide {len(audited)}:",
        f"For the remaining {left} no stage measures anything yet.",
        f"PyramidInfer in the paper's models ({len(absent)} claims,",
        f"The {asked} statements that the reviewers asked about",
    ):
        assert stated in FINDINGS


def test_its_verdicts_are_those_of_the_recorded_ledger():
    lines = {name: re.findall(rf"\| {re.escape(sign)} {name} \| (\d+) \|", FINDINGS) for name, sign in MARKS.items()}
    shown = {name: int(count) for name, (count,) in lines.items()}
    recorded = json.loads((ROOT / "recorded/cpu/results/claims.json").read_text())
    assert shown == recorded["counts"]
    assert f"{recorded['by_definition']} of them by definition" in FINDINGS


def recorded(study, table):
    return pd.read_csv(ROOT / f"recorded/{study}/results/tables/{table}.csv")


def test_the_readmes_perplexities_are_the_recorded_ones():
    found = recorded("recovery", "recovery")
    at = found[found.beta.isin([0, 0.5])].groupby(["arm", "tokens"]).perplexity.agg(list)
    longest, states, windows = 524288, at["bytes_mamba", 98304], at["bytes_window", 98304]
    for stated in (
        f"it reaches perplexity {at['paper', longest][0]:.1f}.",
        f"original has {at['original', 0][0]:.1f}, and {at['original', longest][0]:.1f} after the same training.",
        f"the original's predictions reach {at['plus', longest][0]:.1f}.",
        f"perplexity {windows[0]:.1f} and the Mamba state {min(states):.1f} to {max(states):.1f} (three seeds each)",
    ):
        assert stated in README
    assert len(states) == len(windows) == 3 and len({f"{window:.1f}" for window in windows}) == 1


def test_what_is_said_of_long_inputs_is_recorded():
    """Divergence, passkeys and later questions by method and budget, and the groups in which a state is cheaper."""
    by = ["method", "setting"]
    rows = {name: pd.read_parquet(ROOT / f"recorded/long/measurements/{name}.parquet") for name in
        ("continuation", "needle", "turns", "mixer_prices")}  # fmt: skip
    sums = rows["continuation"].groupby(by)[["divergence", "tokens"]].sum()
    divergence = sums["divergence"] / sums["tokens"]
    for method in ("windows_bits", "snapkv"):
        quarter, eighth, sixteenth = (f"{divergence[method, budget]:.3f}" for budget in (0.25, 0.125, 0.0625))
        assert f" is {quarter}, {eighth} and {sixteenth}" in README
    found = rows["needle"].groupby(by)["correct"].sum()
    by_price = found["windows_bits"].sort_index(ascending=False)
    assert "original finds {}, this choice {}, {} and {}.".format(found["full", 1], *by_price) in README
    of_article = rows["continuation"].groupby([*by, "window"])["divergence"].sum()
    nearer = of_article["windows_bits"] < of_article["snapkv"]
    assert nearer.all() and len(nearer) == 3 * 8 and "it is larger in every article" in README
    by_article = of_article / rows["continuation"].groupby([*by, "window"])["tokens"].sum()
    pairs = {0.25: 0.8, 0.125: 0.9333}
    extra = {budget: by_article["window", beta] - by_article["windows", budget] for budget, beta in pairs.items()}
    assert all((more > 0).all() and len(more) == 8 for more in extra.values())
    for method, settings in (("window", pairs.values()), ("windows", pairs), ("streaming_llm", pairs)):
        assert " and ".join(f"{divergence[method, setting]:.3f}" for setting in settings) in README
    mean, low, high = mean_interval(extra[0.25].to_numpy())
    assert f"windows by price: by {mean:.3f} [{low:.3f}, {high:.3f}] nats a token at a quarter of the cache" in FINDINGS
    later = rows["turns"][~rows["turns"]["known"]].groupby(by)["correct"].agg(["sum", "size"])
    assert set(later["size"]) == {100}
    answered = [later["sum"][method] for method in ("full", "snapkv", "windows_bits", "windows")]
    known = rows["turns"][rows["turns"]["known"]].groupby("setting")["correct"].sum().sort_index(ascending=False)
    assert "SnapKV found {}, {} and {} of 10 such".format(*known) in README
    sentences = (
        "original answers {}.",
        "SnapKV answers {}, {} and {},",
        "Windows and bits by price answer {}, {} and {}.",
        "of 16 bits by price {}, {} and {}.",
    )
    for stated, of_method in zip(sentences, answered, strict=True):
        assert stated.format(*of_method.sort_index(ascending=False)) in README
    times = rows["mixer_prices"]["cost"] / rows["mixer_prices"]["tokens_cost"]
    assert (
        f"other {(times < 1).sum()} groups it costs {times.min():.2f} to {times[times < 1].max():.2f} times" in README
    )
    assert f"in {(times > 1).sum()} of {len(times)} groups of heads, and {times.median():.1f} times as much" in README


def test_the_readmes_adapted_model_is_the_recorded_one():
    """Every line of the printed table, and the processor minutes of the run."""
    run = json.loads((ROOT / "recorded/adapt.run.json").read_text())
    rows = compared(json.loads((ROOT / "recorded/adapt.json").read_text()))
    assert len(rows) == 14 and all(" ".join(row) in README for row in rows)
    assert run["argv"][4:9] == ["--text", "results/long/corpus/articles.parquet", "--cache", "0.125", "--tokens"]
    assert f"The run took {run['cpu_seconds'] / 60:.0f} processor minutes" in README and not run["git"]["dirty"]


def test_what_is_said_of_the_gpu_is_recorded():
    """Longest inputs of Llama2-7B, how many models' are known, and speed after the longest and the shortest context."""
    folder = ROOT / "recorded/nvidia-h100-80gb-hbm3/measurements"
    memory, bench = (pd.read_parquet(folder / f"{kind}.parquet") for kind in ("memory", "bench"))
    longest = memory[memory["model"] == "llama2-7b"].set_index("beta")
    original, converted = (int(longest.loc[beta, "l_m"]) for beta in (0.0, 0.9))
    times = converted / original
    assert f"shape reads {original:,} tokens in one pass. With 90 %" in README
    assert f"heads replaced, it reads {converted:,}: {times:.1f} times as many." in README
    assert f"That is {times:.1f} times as many" in FINDINGS
    predicted = longest.loc[0.9, "predicted"] / longest.loc[0.0, "predicted"]
    assert f"it would be {predicted:.1f}: the gaps cost the original more" in FINDINGS
    assert f"knows no gaps between tensors, it would be {predicted:.1f} times." in README
    of_qwen = memory[memory["model"] != "llama2-7b"]
    assert of_qwen["at_least"].all() and set(of_qwen["l_m"]) == {163_840}
    assert f"longest inputs ({len(memory)} models," in FINDINGS
    at = bench[(bench["batch"] == 1) & (bench["beta"] > 0)].set_index(["topic", "tokens"])
    spread = [
        "{ratio:.2f} [{ratio_low:.2f}, {ratio_high:.2f}]".format(**at.loc[topic, 61440])
        for topic in ("prefill", "decode")
    ]
    assert f"is {spread[0]} times as fast as the original's, and decoding after it {spread[1]} times" in FINDINGS
    short = [f"{at.loc[topic, 1024].ratio:.2f}" for topic in ("prefill", "decode")]
    assert "they are {} and {} times as fast".format(*short) in FINDINGS


def test_h_gq_is_stated_with_its_interval():
    table = recorded("cpu", "table4").query("quantity == 'h_gq' and setting == 'official'")
    at = {(row.model, row.beta): row for row in table.itertuples()}
    small = [at[model, 0.9] for model in ("hashhop-llama", "hashhop-qwen2")]
    lowest = at["hashhop-llama", 0.75]
    shown = [f"{row.ours:.3f} [{row.low:.3f}, {row.high:.3f}]" for row in (*small, lowest)]
    assert (
        f"{shown[0]} and {shown[1]} at β = 0.9" in FINDINGS
        and f"the multi-head model falls to 0.86: {shown[2]}" in FINDINGS
    )
    assert "They keep {:.0f} % and {:.0f} % of the hops".format(*(100 * row.ours for row in small)) in README
    assert f"interval of the first reaches down to {100 * small[0].low:.0f} %." in README


def test_the_default_studys_perplexities_and_exponents_are_the_recorded_ones():
    table = recorded("cpu", "table3").query("model == 'smollm2-135m'")
    at = {(row.stage, row.beta): row.ours for row in table.itertuples()}
    before, after, original = at["converted", 0.5], at["trained", 0.5], at["trained", 0]
    assert f"the perplexity from {before:,.0f} to {after:.0f}; the original's is {original:.1f} after" in FINDINGS
    assert "measured exponents within 0.02 of the printed orders" in FINDINGS
    assert 0.01 < recorded("cpu", "table1").difference.abs().max() < 0.02
