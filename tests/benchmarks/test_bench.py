"""The benchmark command on a tiny model: what it writes, and what its check lets pass."""

import json
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import baseline
from benchmarks.__main__ import main
from benchmarks.case import Options
from benchmarks.goals import CONTEXTS, Goal, judge, with_goals
from benchmarks.models import PRICED
from benchmarks.topics import TOPICS
from recurformer import convert
from recurformer.data.backbones import load_shape, make_random, meta_model
from recurformer.heads.select import random_ranking, rank_heads
from recurformer.model.attention import RecurFormerAttention
from recurformer.model.fused import savings
from recurformer.records import read_record

ROOT = Path(__file__).parents[2]
EIGHTH = "an eighth of the cache"
SHOWN = {
    "prefill, β = 0.5": ("prefill", "", "beta 0.5"),
    "prefill, β = 0.9": ("prefill", "", "beta 0.9"),
    f"prefill, {EIGHTH}": ("prefill", "", "cache 1/8"),
    "prefill, a window of 256 tokens in nine tenths of the heads": ("prefill", "", "window 256"),
    "prefill, such a window with a state": ("prefill", "", "window 256 and state"),
    f"prefill of eight sequences, {EIGHTH}": ("prefill", ", batch 8", "cache 1/8"),
    "decoding, β = 0.5": ("decode", "", "beta 0.5"),
    "decoding, β = 0.9": ("decode", "", "beta 0.9"),
    f"decoding, {EIGHTH}": ("decode", "", "cache 1/8"),
    "decoding, a window of 256 tokens in nine tenths of the heads": ("decode", "", "window 256"),
    "the same with a state": ("decode", "", "window 256 and state"),
    f"decoding eight sequences, {EIGHTH}": ("decode", ", batch 8", "cache 1/8"),
    "decoding eight sequences, β = 0.9": ("decode", ", batch 8", "beta 0.9"),
    f"decoding, {EIGHTH} in bfloat16, beside the library's float32": ("decode", ", quickest", "cache 1/8, bfloat16"),
    "only reading the weights and the cache of the former": ("decode", ", quickest", "reading alone"),
    "decoding, the windows in bfloat16, beside the library's float32": ("decode", ", quickest", "window 256, bfloat16"),
    "these with a state, likewise": ("decode", ", quickest", "window 256 and state, bfloat16"),
    "decoding, β = 0.5 in bfloat16, beside the library's float32": ("decode", ", quickest", "beta 0.5, bfloat16"),
    "decoding, β = 0.9 in bfloat16, beside the library's float32": ("decode", ", quickest", "beta 0.9, bfloat16"),
    "decoding, the backbone in bfloat16, beside the library's float32": ("decode", ", quickest", "backbone, bfloat16"),
}
"""Rows of the documents' tables -> topic, end of the case's name, candidate."""
ON_ONE_THREAD = Options("cpu", 1, quick=True, backbone="", profile=None)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> str:
    make_random(heads=4, kv_heads=2, vocab_size=64).save_pretrained(folder := tmp_path_factory.mktemp("tiny"))
    return str(folder)


@pytest.fixture(scope="session")
def run(tiny, tmp_path_factory) -> Path:
    """The folder of one run of the command."""
    folder = tmp_path_factory.mktemp("run")
    places = ["--results", f"{folder}/results", "--figures", f"{folder}/figures"]
    sizes = ["--quick", "--rounds", "3", "--threads", "1", "--backbone", tiny]
    assert main(["prefill", "decode", *sizes, *places]) == 0
    return folder


@pytest.fixture
def rows(run) -> pd.DataFrame:
    return pd.read_csv(run / "results" / "bench.csv")


def check(run: Path, committed: Path) -> int:
    return main(["--check", "--results", str(run / "results"), "--baseline", str(committed)])


def test_each_candidate_has_a_row_with_its_ratio_memory_and_goal(rows):
    changes, limit = ["backbone", "beta 0.5", "beta 0.9"], "reading alone"
    assert list(rows.candidate) == [*changes * 2, "stock", *(f"{name}, bfloat16" for name in changes), limit]
    assert (rows.ratio_low <= rows.ratio).all() and (rows.ratio <= rows.ratio_high).all()
    assert (rows.ratio[rows.candidate.isin(["backbone", "stock"])] == 1).all()
    assert rows.beta[rows.baseline == "stock"].fillna(0).eq(0).all(), "a ratio to the library's is none of a β"
    assert (rows.median_seconds > 0).all()
    assert (rows[rows.topic == "prefill"].peak_bytes > 0).all(), "a step of decoding may take no page more"
    assert list(rows.heads.fillna("")) == ["", "random", "random"] * 2 + ["", "", "random", "random", ""]
    with_goals = rows.candidate.isin(changes[1:])
    assert set(rows.met[with_goals]) <= {"met", "missed"} and rows.met[~with_goals].isna().all()


def test_the_record_names_the_command_and_the_figures_name_the_record(run, tiny):
    record = read_record(run / "results" / "bench.run.json")
    assert record["argv"][:4] == ["python", "-m", "benchmarks", "prefill"]
    assert record["inputs"][0]["path"] == tiny
    for name in ("bench_decode", "bench_prefill", "bench_memory"):
        assert record["run"] in (run / "figures" / f"{name}.svg").read_text()
        assert (run / "figures" / f"{name}.png").stat().st_size > 10_000


def test_a_run_passes_the_check_against_itself(run, tmp_path, capsys):
    committed = tmp_path / "baseline.csv"
    places = ["--results", str(run / "results"), "--baseline", str(committed)]
    assert main(["--write-baseline", *places]) == 0
    assert check(run, committed) == 0
    assert "no ratio got worse" in capsys.readouterr().out


def doctored(run: Path, path: Path, **changes: float) -> Path:
    """A baseline in which the converted models' decode ratios were other ones."""
    rows = pd.read_csv(run / "results" / "bench.csv")
    better = (rows.case == "256 tokens") & (rows.topic == "decode") & (rows.candidate != "backbone")
    for column, factor in changes.items():
        rows.loc[better, column] *= factor
    baseline.write(path, rows)
    return path


def test_each_ratio_that_got_worse_is_one_line(run, tmp_path, capsys):
    committed = doctored(run, tmp_path / "baseline.csv", ratio=20, ratio_low=20, ratio_high=20)
    assert check(run, committed) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and "decode, 256 tokens, beta 0.5" in lines[0] and "beta 0.9" in lines[1]


def test_a_fall_within_the_spread_is_none(run, tmp_path):
    assert check(run, doctored(run, tmp_path / "baseline.csv", ratio=20, ratio_low=0.5, ratio_high=20)) == 0


def test_a_candidate_that_vanished_is_found(run, tmp_path, capsys):
    rows = pd.read_csv(run / "results" / "bench.csv")
    baseline.write(tmp_path / "baseline.csv", rows.assign(candidate=rows.candidate.replace("beta 0.9", "beta 0.8")))
    assert check(run, tmp_path / "baseline.csv") == 1
    assert "no longer measured" in capsys.readouterr().out


def test_another_kind_of_device_has_no_baseline(run, tmp_path, capsys):
    rows = pd.read_csv(run / "results" / "bench.csv")
    baseline.write(tmp_path / "baseline.csv", rows.assign(device="some card"))
    assert check(run, tmp_path / "baseline.csv") == 1
    assert "has no baseline for cpu" in capsys.readouterr().err


def test_writing_a_baseline_keeps_the_other_devices(run, tmp_path):
    rows = pd.read_csv(run / "results" / "bench.csv")
    for device in ("cpu", "some card", "cpu"):
        baseline.write(tmp_path / "baseline.csv", rows.assign(device=device))
    assert baseline.read(tmp_path / "baseline.csv").device.value_counts().to_dict() == {"cpu": 11, "some card": 11}


def test_goals_of_other_devices_and_sizes_are_named_with_the_reason(rows):
    goals = [
        Goal("decode", "256 tokens", "beta 0.5", "backbone", "speed", ">=", 1e-9),
        Goal("decode", "256 tokens", "beta 0.5", "backbone", "time", "<=", 1e-9),
        Goal("decode", "4096 tokens", "beta 0.5", "backbone", "speed", ">=", 1.0),
        Goal("decode", "256 tokens", "beta 0.5", "backbone", "speed", ">=", 1.0, "cuda"),
        Goal("decode", "256 tokens", "beta 0.3", "backbone", "speed", ">=", 1.0),
        Goal("decode", "256 tokens", "beta 0.5", "backbone", "speed", ">=", 1.0, threads=7),
        Goal("scan", "*", "recurformer", "mambapy", "speed", ">=", 1.0),
    ]
    decode = rows[rows.topic == "decode"]
    judged = judge(decode, "decode", ON_ONE_THREAD, goals)
    assert [found.verdict for found in judged[:2]] == ["met", "missed"]
    reasons = ["no case '4096 tokens' in this run", "needs a GPU", "beta 0.3 is not there", "set for 7 threads"]
    assert [found.missing for found in judged[2:]] == reasons  # goals of other topics stay unsaid
    decided = with_goals(decode, judged)[lambda frame: frame.goal != ""]
    assert len(decided) == 1 and decided.met.item() == "met; missed"


def test_every_topic_names_its_cases_once_and_its_baseline_among_the_candidates(tiny):
    options = Options("cpu", 1, quick=False, backbone=tiny, profile=None)
    for topic, cases in TOPICS.items():
        found = list(cases(options))
        assert len({case.name for case in found}) == len(found), topic
        assert all(case.candidates for case in found)


def test_what_cannot_be_asked_for_is_refused(capsys):
    assert main(["throughput"]) == 1
    assert "throughput: nothing that can be measured on cpu" in capsys.readouterr().err
    assert main(["speed"]) == 1
    assert "there is no topic 'speed'; there are: scan" in capsys.readouterr().err
    assert main(["--check", "--results", "/nowhere"]) == 1
    assert "run the benchmarks first" in capsys.readouterr().err


def test_the_documents_show_the_committed_ratios():
    """Every row of docs/benchmarks.md, and those of README, which are some of them."""
    ratios = baseline.read(ROOT / "benchmarks/baseline.csv").query("device == 'cpu' and threads == 2")
    ratios = ratios.set_index(["topic", "case", "candidate"]).ratio
    expected = {
        f"| {label} | "
        + " | ".join(
            f"{ratios[place]:.2f}" if (place := (topic, f"{tokens} tokens{end}", candidate)) in ratios.index else "–"
            for tokens in CONTEXTS
        )
        + " |"
        for label, (topic, end, candidate) in SHOWN.items()
    }
    documents = [(ROOT / name).read_text().splitlines() for name in ("docs/benchmarks.md", "README.md")]
    shown = [{line for line in lines if line.split(" |")[0][2:] in SHOWN} for lines in documents]
    assert shown[0] == expected and len(shown[1]) == 5 and shown[1] < expected


def test_what_a_prefill_of_the_priced_windows_could_reach():
    """The bound that stands in the documents: attention in proportion to the pairs of tokens, all else as before."""
    text = " ".join((ROOT / "docs/benchmarks.md").read_text().split())
    rows = pd.read_csv(ROOT / "benchmarks/recorded/prefill/bench.csv").query("candidate == 'backbone' and batch == 1")
    attention = rows.set_index("tokens").attention
    windows = [window for layer in json.loads((ROOT / PRICED).read_text())["windows"] for window in layer]
    left = {}
    for tokens in CONTEXTS[2:]:
        kept = [sum(min(place, (window or tokens) + 4) for place in range(1, tokens + 1)) for window in windows]
        left[tokens] = sum(kept) / len(kept) / (tokens * (tokens + 1) / 2)
    bounds = [1 / (1 - attention[tokens] * (1 - share)) for tokens, share in left.items()]
    assert "leaves {:.2f} and {:.2f} of the pairs of tokens".format(*left.values()) in text
    assert "takes {:.2f} and {:.2f} of the backbone's time".format(*attention[list(left)]) in text
    assert "would give {:.2f} and {:.2f}".format(*bounds) in text


@pytest.mark.parametrize(
    ("mixer", "beta", "sentence"),
    [
        ("mamba", 0.9, "a folded model has {:.0f} MB of weights, and the backbone {:.0f} MB; at β = 0.5"),
        ("mamba", 0.5, "at β = 0.5, a folded model has {:.0f} MB"),
        ("window_state", 0.9, "the folded window with a state has {:.0f} MB of weights, and the backbone {:.0f} MB"),
    ],
)
def test_what_is_said_of_the_weights_of_a_token_is_counted(mixer, beta, sentence):
    """In float32: what a folded model has."""
    text = " ".join((ROOT / "docs/benchmarks.md").read_text().split())
    original = meta_model(load_shape("smollm2-135m"))
    converted = convert(original, rank_heads(random_ranking(30, 9, seed=0), 3, beta), mixer)
    saved = 0
    for layer in (module for module in converted.modules() if isinstance(module, RecurFormerAttention)):
        saved += sum(max(0, each) for each in savings(layer))
    counts = [4e-6 * count for count in (converted.num_parameters() - saved, original.num_parameters())]
    assert sentence.format(*counts) in text, counts
