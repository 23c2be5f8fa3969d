"""The table of the reviewers' questions: its answers follow the data."""

import math
from pathlib import Path

import pandas as pd
import pytest
from rendering import kinds_of

from recurformer.claims.claim import ALLOWED_DROP, QUESTIONS
from recurformer.claims.evidence import read_recordings
from recurformer.claims.ledger import NO, YES, reviewer_questions
from recurformer.cli.main import main
from recurformer.measure.lm_eval import LOCAL_TASKS
from recurformer.render.figures import FIGURES
from recurformer.results.scores import HASHHOP, METHODS, scores
from recurformer.results.words import NOT_RUN, UNDECIDED
from recurformer.study.measurements import LOCAL

ROOT = Path(__file__).parents[2]
QUALITIES = ("compared_hashhop", "needle", "continuation")


@pytest.fixture(scope="module")
def frames(measurements) -> dict[str, pd.DataFrame]:
    made = {kind: frame for kind, frame in measurements.items() if kind in kinds_of(reviewer_questions)}
    left_out = [*list(METHODS["eviction"])[2:-3], "gated", "zero"]
    for kind in QUALITIES:
        made[kind] = made[kind][~made[kind]["method"].isin(left_out) & (made[kind]["model"] != "hashhop-qwen2")]
    return made


@pytest.fixture(scope="module")
def answered(frames) -> pd.DataFrame:
    return answers(frames)


def answers(frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    return reviewer_questions(**frames).set_index("id")


def ours(frame: pd.DataFrame) -> pd.Series:
    return (frame["family"] == "mixer") & (frame["method"] == "mamba") & (frame["by"] == "ra_i")


def test_every_question_has_an_answer_or_a_reason(answered):
    found = answered
    assert list(found.index) == list(QUESTIONS)
    assert set(found["verdict"]) == {YES, UNDECIDED, NOT_RUN}
    assert set(found.index[found["verdict"] == NOT_RUN]) == {"real-world", "merging", "chosen"}
    assert {question.figure for question in QUESTIONS.values()} - {""} <= set(FIGURES)
    assert found.loc["merging", "answer"] == QUESTIONS["merging"].unanswered
    assert found["answer"].str.len().min() > 20


def test_an_answer_says_the_measured_numbers(frames, answered):
    rows = frames["continuation"]
    half = rows[ours(rows) & rows["trained"] & (rows["setting"] == 0.5)]
    perplexity = math.exp(half["negative_log_likelihood"].sum() / half["tokens"].sum())
    assert f"RecurFormer {perplexity:.3g}, the original" in answered.loc["perplexity-gap", "answer"]


def test_recordings_answer_what_a_study_leaves_open():
    """Each answer names its recording; a study's own measurements come first."""
    recorded = read_recordings(ROOT / "recorded", ["mixer_prices", "continuation"])
    found = reviewer_questions(recordings=recorded).set_index("id")
    assert found.loc["states", ["verdict", "recording"]].tolist() == [NO, str(ROOT / "recorded/long")]
    assert found.loc["states", "runs"]
    assert reviewer_questions().set_index("id").loc["states", "verdict"] == NOT_RUN
    own = next(one for one in recorded if one.source.endswith("small")).frames
    answer = reviewer_questions(continuation=own["continuation"], recordings=recorded).set_index("id").loc["length"]
    assert (answer["verdict"], answer["recording"]) == (YES, "")


def worse_ours(frame: pd.DataFrame, column: str, value: float) -> pd.DataFrame:
    return frame.assign(**{column: frame[column].mask(ours(frame), value)})


@pytest.mark.parametrize(
    ("kind", "column", "value", "questions"),
    [
        ("compared_hashhop", "correct", 0, ("pareto", "granularity", "mqa")),
        (
            "continuation", "negative_log_likelihood", 140.0,
            ("selectors", "mixers", "linear", "window", "perplexity-gap"),
        ),
        ("continuation", "recalled_likelihood", 140.0, ("recall", "synthetic")),
        ("needle", "correct", 0, ("passkey", "needle", "long-context", "several-keys")),
        ("hashhop_sizes", "correct", 0, ("sizes",)),
        ("ablation_lm_eval", "value", 0.2, ("lm-eval",)),
    ],
)  # fmt: skip
def test_the_answers_change_with_the_data(frames, answered, kind, column, value, questions):
    before = answered.loc[list(questions)]
    after = answers({kind: worse_ours(frames[kind], column, value)}).loc[list(questions)]
    assert set(before["verdict"]) <= {YES, UNDECIDED}
    assert set(after["verdict"]) == {NO}
    assert (after["answer"] != before["answer"]).all()


def test_a_kind_that_was_not_measured_leaves_its_questions_not_run(frames):
    found = answers({"ra_i_settings": frames["ra_i_settings"]})
    assert found.loc["ra_i", "verdict"] == YES
    others = found.drop(index=["ra_i", "merging"])
    assert set(others["verdict"]) == {NOT_RUN}
    assert others["answer"].str.contains("no .* measurements").all()


def test_a_size_that_the_original_has_not_learned_is_told_apart(answered):
    answer = answered.loc["sizes", "answer"]
    assert "where the original itself has not learned the task, RecurFormer scores" in answer
    assert "8 hops, 4 chains" not in answer


def test_tasks_of_lm_eval_stand_beside_the_original_that_was_trained_likewise(frames, answered):
    rows = frames["ablation_lm_eval"]
    untrained = rows[rows["family"] == "original"].assign(trained=False, value=0.0)
    found = answers({"ablation_lm_eval": pd.concat([rows, untrained])}).loc["lm-eval"]
    assert (found["answer"], found["samples"]) == (answered.loc["lm-eval", "answer"], 1000)
    assert "fraction of right answers at β 0.5: RecurFormer 0.9 [0.88, 0.917], " in found["answer"]
    assert "the original (hellaswag, acc) 0.9 [" in found["answer"]
    assert "wikipedia byte_perplexity: RecurFormer 2, the original 2" in found["answer"]


def test_tasks_of_this_project_say_nothing_about_those_of_the_hub(frames):
    assert set(LOCAL_TASKS) == LOCAL
    likelihoods = frames["ablation_lm_eval"].query("task == 'wikipedia'")
    assert answers({"ablation_lm_eval": likelihoods}).loc["lm-eval", "verdict"] == NOT_RUN


def test_long_tasks_of_the_hub_answer_their_own_question_where_they_were_measured(frames):
    rows = frames["ablation_lm_eval"]
    found = answers({"ablation_lm_eval": rows.replace({"task": {"hellaswag": "longbench_qasper"}})})
    assert "the original (longbench_qasper, acc) 0.9" in found.loc["real-world", "answer"]
    assert found.loc["real-world", "verdict"] == found.loc["lm-eval", "verdict"] == YES


def test_several_keys_that_the_original_cannot_find_decide_nothing(frames):
    rows = frames["needle"]
    lost = rows["task"].isin(["multi_key", "multi_query"]) & (rows["sample"] == 0)
    found = answers({"needle": rows.assign(correct=rows["correct"].mask(lost, 0))}).loc["several-keys"]
    assert found["verdict"] == UNDECIDED
    assert "(several keys found); a comparison needs 0.95" in found["answer"]


def test_mixers_are_compared_where_the_model_misses_the_heads(measurements):
    rows = measurements["compared_hashhop"]
    rows = rows[rows["model"] == "hashhop-llama"]
    zero = (rows["method"] == "zero") & (rows["setting"] == 0.25)
    removed = rows.assign(trained=rows["trained"] | (rows["method"] == "zero"))
    unmissed = removed.assign(correct=rows["correct"].mask(zero, rows["hops"]))
    assert "at β 0.25, 0.5, 0.75" in answers({"compared_hashhop": removed}).loc["mixers", "answer"]
    assert "at β 0.5, 0.75" in answers({"compared_hashhop": unmissed}).loc["mixers", "answer"]


def test_one_mixer_that_wins_answers_for_all(measurements):
    """A mixer that was not measured leaves the answer open only where Mamba has not lost to another already."""
    rows = measurements["compared_hashhop"].query("model == 'hashhop-llama' and method != 'linear'")
    mamba = (rows["family"] == "mixer") & (rows["method"] == "mamba") & rows["trained"]
    lost = answers({"compared_hashhop": rows.assign(correct=rows["correct"].mask(mamba, 0))}).loc["mixers"]
    assert lost["verdict"] == "no" and "sliding window" in lost["answer"]
    found = answers({"compared_hashhop": rows}).loc["mixers"]
    assert found["verdict"] == "not-run" and found["answer"].startswith("linear attention on the same heads")


def test_selectors_are_compared_at_the_same_training(frames):
    rows = frames["continuation"]
    untrained = rows.assign(trained=rows["trained"] & (rows["by"] != "random"))
    found = answers({"continuation": untrained}).loc["selectors"]
    trained = answers({"continuation": rows}).loc["selectors"]
    assert found["answer"] != trained["answer"]


def test_files_of_some_kinds_make_the_table_and_the_figures(frames, tmp_path, capsys):
    files = []
    for kind in ("continuation", "ra_i_settings"):
        files.append(str(tmp_path / f"{kind}.csv"))
        frames[kind].to_csv(files[-1], index=False)
    outputs = [str(tmp_path / f"reviewer_questions.{suffix}") for suffix in ("csv", "md", "tex", "html")]
    assert main(["table", "reviewer_questions", *files, "--out", *outputs]) == 0
    written = (tmp_path / "reviewer_questions.md").read_text()
    assert written.startswith("### Reviewer questions. What the reviewers asked")
    assert main(["figure", "ablation_granularity", files[0], "--out", str(tmp_path / "ablation_granularity.svg")]) == 0
    hashhop = str(tmp_path / "hashhop.parquet")
    frames["compared_hashhop"].to_parquet(hashhop)
    assert main(["figure", "ablation_granularity", hashhop, "--out", str(tmp_path / "of_hashhop.svg")]) == 0
    assert main(["figure", "ablation_granularity", *files, "--out", str(tmp_path / "x.svg")]) == 1
    assert "made from files named hashhop, needle, continuation" in capsys.readouterr().err


def test_the_smallest_cache_that_still_does_hashhop_is_said(frames):
    rows = frames["compared_hashhop"]
    points = scores(rows, HASHHOP)
    best = points.loc[points["family"] == "original", "mean"].item()
    kept = points[
        (points["family"] == "mixer") & (points["method"] == "mamba") & (points["mean"] >= best - ALLOWED_DROP)
    ]
    kept = kept[kept["trained"] & (kept["by"] == "ra_i")]
    answer = answers({"compared_hashhop": rows}).loc["pareto", "answer"]
    betas = ", ".join(f"{beta:g}" for beta in sorted(points.loc[points["family"] == "mixer", "setting"].unique()))
    assert f"HashHop-Llama, at β {betas}, stays within 0.082 of the original's h_gq down to a cache of" in answer
    assert f"{kept['ratio'].min():.2f} (Mamba (RecurFormer))" in answer


def test_a_model_that_has_not_learned_hashhop_has_no_smallest_cache(frames, answered):
    learned = frames["compared_hashhop"]
    never = learned.assign(model="hashhop-qwen2", correct=0)
    found = answers({"compared_hashhop": pd.concat([learned, never])})
    assert found.loc["pareto", "answer"] == answered.loc["pareto", "answer"]
