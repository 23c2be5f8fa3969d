import json
import math
from pathlib import Path

import lm_eval.tasks
import pandas as pd
import pytest

from recurformer.evaluate.lm_eval import LocalSettings, lm_eval_rows, score_hashhop, score_passkey_answer
from recurformer.evaluate.perplexity import perplexity_rows
from recurformer.tasks.hashhop import HashHopTask
from recurformer.tasks.tokenizer import byte_tokenizer

TEXTS = ["The quick brown fox jumps.", "Naïve café, twice as long as the one before it: a second article.", "Three"]


@pytest.fixture
def articles():
    return pd.DataFrame({"title": list("abc"), "text": TEXTS})


@pytest.mark.parametrize("begins", [False, True])
def test_rolling_perplexity_counts_every_token_once_after_one_beginning(
    model, make_tokenizer, articles, tmp_path, begins
):
    """Against our own perplexity; a tokenizer that adds its own beginning must not make it two."""
    tokenizer = make_tokenizer(begins=begins)
    settings = LocalSettings(tokenizer, articles=articles, window=400)
    rows = lm_eval_rows(model, ["wikipedia"], settings, folder=tmp_path).set_index("metric")
    ours = perplexity_rows(model, tokenizer, articles, tokens=401, bos=True)
    assert ours.tokens.tolist() == [len(text) for text in TEXTS]
    total = ours.negative_log_likelihood.sum()
    size = sum(len(text.encode()) for text in TEXTS)
    words = sum(len(text.split()) for text in TEXTS)
    assert rows.value["byte_perplexity"] == pytest.approx(math.exp(total / size), rel=1e-4)
    assert rows.value["bits_per_byte"] == pytest.approx(total / size / math.log(2), rel=1e-4)
    assert rows.value["word_perplexity"] == pytest.approx(math.exp(total / words), rel=1e-4)
    assert (rows.samples == 3).all()
    without = perplexity_rows(model, tokenizer, articles, tokens=401, bos=False)
    assert without.negative_log_likelihood.sum() != pytest.approx(total, rel=1e-3)


@pytest.mark.parametrize("model", ["converted"], indirect=True)
def test_generation_is_greedy_and_batches_change_nothing(model, tmp_path, capfd):
    """The samples are those of the text form; two batch sizes, two runs in different folders."""
    settings = LocalSettings(byte_tokenizer(), samples=4, hashhop=HashHopTask("paper", 2, 3, 60), passkey_tokens=450)
    model.resize_token_embeddings(259)
    rows = lm_eval_rows(model, ["hashhop", "passkey"], settings, folder=tmp_path / "a")
    said = capfd.readouterr()
    assert said.out == ""
    assert [line.split(":")[0] for line in said.err.splitlines()] == ["task 1/2 hashhop", "task 2/2 passkey"]
    assert rows[["task", "metric"]].to_numpy().tolist() == [
        ["hashhop", "h_gq"],
        ["hashhop", "exact"],
        ["passkey", "accuracy"],
    ]
    assert (rows.samples == 4).all()
    assert rows.equals(lm_eval_rows(model, ["hashhop", "passkey"], settings, folder=tmp_path / "b", batch_size=3))
    records = [json.loads(line) for line in (tmp_path / "a" / "hashhop.jsonl").read_text().splitlines()]
    assert len(records) == 4
    assert all(record["prompt"].endswith(f"{record['start']} ⇒") for record in records)


@pytest.mark.parametrize("model", ["converted"], indirect=True)
def test_right_answers_score(model, tmp_path, monkeypatch):
    """From the written data through lm-eval to the rows: three answers right, one right for two of three hashes."""
    settings = LocalSettings(byte_tokenizer(), samples=4, hashhop=HashHopTask("official", 2, 3, 60))

    def answers(self, requests, disable_tqdm=False):
        right = [request.doc["answer"].rstrip("\n") for request in requests]
        first, second, _ = requests[0].doc["target"]
        return [f"{first} = {second} = {first}'", *right[1:]]

    monkeypatch.setattr("lm_eval.models.huggingface.HFLM.generate_until", answers)
    rows = lm_eval_rows(model, ["hashhop"], settings, folder=tmp_path).set_index("metric")
    assert rows.value.to_dict() == pytest.approx({"h_gq": (3 + 2 / 3) / 4, "exact": 0.75})
    assert rows.stderr["exact"] == pytest.approx(0.25)


def test_scores():
    doc = {"target": ["ab", "cd"]}
    assert score_hashhop(doc, [" ab → cd."]) == {"h_gq": 1.0, "exact": 1.0}
    assert score_hashhop(doc, [" ab → ce."]) == {"h_gq": 0.5, "exact": 0.0}
    assert score_passkey_answer({"keys": ["123"]}, [" 123."]) == {"accuracy": 1.0}
    assert score_passkey_answer({"keys": ["123"]}, [" 1234"]) == {"accuracy": 0.0}


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_what_cannot_run_is_named(model, tmp_path, monkeypatch):
    settings = LocalSettings(byte_tokenizer())
    # one of lm-eval's own tasks instead of its ten thousand, which take long to index
    some = Path(lm_eval.tasks.__file__).parent / "hellaswag"
    manager = lm_eval.tasks.TaskManager(include_path=some, include_defaults=False)
    monkeypatch.setattr("recurformer.evaluate.lm_eval._task_manager", lambda with_hub_tasks: manager)
    with pytest.raises(ValueError, match=r"^wikipedia: the task needs articles, and there are none$"):
        lm_eval_rows(model, ["wikipedia"], settings, folder=tmp_path)
    with pytest.raises(
        ValueError, match=r"^task 'helaswag' is unknown; there are hashhop, passkey, wikipedia and lm-eval's own$"
    ):
        lm_eval_rows(model, ["helaswag"], settings, folder=tmp_path)

    def unreachable(*args, **kwargs):
        raise ConnectionError("Couldn't reach the hub\nsecond line")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(
        ValueError, match=r"^task 'hellaswag': its data cannot be loaded from the hub \(Couldn't reach the hub\)$"
    ):
        lm_eval_rows(model, ["hellaswag"], settings, folder=tmp_path)
