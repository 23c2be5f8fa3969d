import json
import math
from dataclasses import replace
from pathlib import Path

import lm_eval.tasks
import pandas as pd
import pytest
import torch
import yaml

from recurformer.data.backbones import byte_tokenizer
from recurformer.data.sizes import HashHopTextSizes
from recurformer.measure.language import perplexity_rows
from recurformer.measure.lm_eval import (
    LOCAL_TASKS,
    LocalSettings,
    _hub_manager,
    lm_eval_rows,
    score_hashhop,
    score_passkey_answer,
)
from recurformer.study import Tasks

CONFIGS = Path(__file__).parents[2] / "config"
TEXTS = ["The quick brown fox jumps.", "Naïve café, twice as long as the one before it: a second article.", "Three"]


@pytest.fixture
def articles():
    return pd.DataFrame({"title": list("abc"), "text": TEXTS})


@pytest.mark.parametrize("model", ["converted"], indirect=True)
@pytest.mark.parametrize("begins", [False, True])
def test_rolling_perplexity_counts_every_token_once_after_one_beginning(
    model, make_tokenizer, articles, tmp_path, begins
):
    """Against our own perplexity; a tokenizer that adds its own beginning must not make it two."""
    tokenizer = make_tokenizer(begins=begins)
    settings = LocalSettings(tokenizer, Tasks(names=["wikipedia"], tokens=400), articles=articles)
    rows = lm_eval_rows(model, settings, tmp_path).set_index("metric")
    ours = perplexity_rows(model, tokenizer, articles, tokens=401, bos=True)
    assert ours.tokens.tolist() == [len(text.encode()) for text in TEXTS]
    total = ours.negative_log_likelihood.sum()
    size = sum(len(text.encode()) for text in TEXTS)
    words = sum(len(text.split()) for text in TEXTS)
    assert rows.value["byte_perplexity"] == pytest.approx(math.exp(total / size), rel=1e-4)
    assert rows.value["bits_per_byte"] == pytest.approx(total / size / math.log(2), rel=1e-4)
    assert rows.value["word_perplexity"] == pytest.approx(math.exp(total / words), rel=1e-4)
    assert (rows.samples == 3).all()
    without = perplexity_rows(model, tokenizer, articles, tokens=401, bos=False)
    assert without.negative_log_likelihood.sum() != pytest.approx(total, rel=1e-3)


CONTINUATIONS = [
    ("The quick", " brown fox"),
    ("The quick", " b"),
    ("The quick", "e"),
    ("Once", " upon a time"),
    ("", "So"),
]


@pytest.fixture
def lm_eval_tasks(tmp_path, monkeypatch):
    """Two tasks of lm-eval's own kinds instead of its ten thousand: continuations of a text, and whole texts."""
    rows = {
        "continued": [{"context": context, "text": text} for context, text in CONTINUATIONS],
        "whole": [{"context": "", "text": text} for text in TEXTS],
    }
    kinds = {"continued": ("loglikelihood", "perplexity"), "whole": ("loglikelihood_rolling", "bits_per_byte")}
    for name, (kind, metric) in kinds.items():
        samples = tmp_path / f"{name}.json"
        samples.write_text("".join(json.dumps(row) + "\n" for row in rows[name]))
        task = {"task": name, "output_type": kind, "metric_list": [{"metric": metric}], "target_delimiter": ""}
        task |= {
            "dataset_path": "json",
            "test_split": "test",
            "doc_to_text": "{{context}}",
            "doc_to_target": "{{text}}",
        }
        task["dataset_kwargs"] = {"data_files": {"test": str(samples)}, "cache_dir": str(tmp_path / "cache")}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(task))
    manager = lm_eval.tasks.TaskManager(include_path=tmp_path, include_defaults=False)
    monkeypatch.setattr("recurformer.measure.lm_eval._hub_manager", lambda *about: manager)


@torch.no_grad()
def log_likelihood(model, tokenizer, context, text):
    """Written down: one sequence, in which the beginning stands as the tokenizer puts it, or before all."""
    asked = tokenizer(text, add_special_tokens=False).input_ids
    before = tokenizer(context).input_ids if context else [tokenizer.bos_token_id]
    chances = model(torch.tensor([before + asked])).logits[0, len(before) - 1 : -1].log_softmax(-1)
    return float(chances[range(len(asked)), asked].sum())


@pytest.mark.parametrize("model", ["converted"], indirect=True)
@pytest.mark.parametrize("begins", [False, True])
def test_lm_eval_scores_texts_that_begin_once_whatever_the_batch(
    model, make_tokenizer, lm_eval_tasks, tmp_path, begins
):
    tokenizer = make_tokenizer(begins=begins)
    continued = sum(log_likelihood(model, tokenizer, *pair) for pair in CONTINUATIONS) / len(CONTINUATIONS)
    whole = sum(log_likelihood(model, tokenizer, "", text) for text in TEXTS)
    expected = [math.exp(-continued), -whole / math.log(2) / sum(len(text.encode()) for text in TEXTS)]
    for size in (1, 3):
        tasks = Tasks(names=["continued", "whole"], batch_size=size)
        rows = lm_eval_rows(model, LocalSettings(tokenizer, tasks), tmp_path)
        assert rows.task.tolist() == ["continued", "whole"]
        assert rows.value.tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_a_limit_bounds_its_own_task_only(model, articles, tmp_path):
    tasks = Tasks(names=["hashhop", "wikipedia"], samples=3, limits=[("wikipedia", 2)], tokens=400)
    sizes = HashHopTextSizes("official", 2, 2, 20)
    rows = lm_eval_rows(model, LocalSettings(byte_tokenizer(), tasks, hashhop=sizes, articles=articles), tmp_path)
    assert rows.groupby("task").samples.unique().map(list).to_dict() == {"hashhop": [3], "wikipedia": [2]}


@pytest.mark.parametrize("model", ["converted"], indirect=True)
def test_generation_is_greedy_and_batches_change_nothing(model, tmp_path, capfd):
    """The samples are those of the text form; two batch sizes, two runs in different folders."""
    tasks = Tasks(names=["hashhop", "passkey"], samples=4, tokens=450)
    settings = LocalSettings(byte_tokenizer(), tasks, hashhop=HashHopTextSizes("paper", 2, 3, 60))
    rows = lm_eval_rows(model, settings, tmp_path / "a")
    said = capfd.readouterr()
    assert said.out == ""
    assert [line.split(":")[0] for line in said.err.splitlines()] == ["task 1/2 hashhop", "task 2/2 passkey"]
    assert rows[["task", "metric"]].to_numpy().tolist() == [
        ["hashhop", "h_gq"],
        ["hashhop", "exact"],
        ["passkey", "accuracy"],
    ]
    assert (rows.samples == 4).all()
    three_at_once = replace(settings, tasks=tasks.model_copy(update={"batch_size": 3}))
    assert rows.equals(lm_eval_rows(model, three_at_once, tmp_path / "b"))
    lines = (tmp_path / "a" / "hashhop.jsonl").read_bytes().decode("ascii").splitlines()  # written in any locale
    records = [json.loads(line) for line in lines]
    assert len(records) == 4
    assert all(record["prompt"].endswith(f"{record['start']} ⇒") for record in records)


@pytest.mark.parametrize("model", ["converted"], indirect=True)
def test_right_answers_score(model, tmp_path, monkeypatch):
    """From the written data through lm-eval to the rows: three answers right, one right for two of three hashes."""
    tasks = Tasks(names=["hashhop"], samples=4)
    settings = LocalSettings(byte_tokenizer(), tasks, hashhop=HashHopTextSizes("official", 2, 3, 60))

    def answers(self, requests, disable_tqdm=False):
        right = [request.doc["answer"].rstrip("\n") for request in requests]
        first, second, _ = requests[0].doc["target"]
        return [f"{first} = {second} = {first}'", *right[1:]]

    monkeypatch.setattr("lm_eval.models.huggingface.HFLM.generate_until", answers)
    rows = lm_eval_rows(model, settings, tmp_path).set_index("metric")
    assert rows.value.to_dict() == pytest.approx({"h_gq": (3 + 2 / 3) / 4, "exact": 0.75})
    assert rows.stderr["exact"] == pytest.approx(0.25)


def test_scores():
    doc = {"target": ["ab", "cd"]}
    assert score_hashhop(doc, [" ab → cd."]) == {"h_gq": 1.0, "exact": 1.0}
    assert score_hashhop(doc, [" ab → ce."]) == {"h_gq": 0.5, "exact": 0.0}
    right = [score_passkey_answer({"keys": ["123"]}, [answer]) for answer in (" 123.", "123", "\n123 or 4")]
    wrong = [score_passkey_answer({"keys": ["123"]}, [answer]) for answer in (" 1234", " not 123", ". 123", "12 3", "")]
    assert right == [{"accuracy": 1.0}] * 3 and wrong == [{"accuracy": 0.0}] * 5


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_what_cannot_run_is_named(model, tmp_path, monkeypatch):

    def ask(name):
        lm_eval_rows(model, LocalSettings(byte_tokenizer(), Tasks(names=[name])), tmp_path)

    # one of lm-eval's own tasks instead of its ten thousand, which take long to index
    some = Path(lm_eval.tasks.__file__).parent / "hellaswag"
    manager = lm_eval.tasks.TaskManager(include_path=some, include_defaults=False)
    monkeypatch.setattr("recurformer.measure.lm_eval._hub_manager", lambda *about: manager)
    with pytest.raises(ValueError, match=r"^wikipedia: the task needs articles, and there are none$"):
        ask("wikipedia")
    with pytest.raises(
        ValueError, match=r"^task 'helaswag' is unknown; there are hashhop, passkey, wikipedia and lm-eval's own$"
    ):
        ask("helaswag")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "empty")
    with pytest.raises(
        ValueError,
        match=r"^task 'hellaswag': its data cannot be loaded from the hub \(Couldn't reach 'Rowan/hellaswag'",
    ) as caught:
        ask("hellaswag")
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def hub_tasks():
    """Names of the folders that hold the declared tasks, from their index; that of all takes many seconds."""
    folders = ["arc", "hellaswag", "infinitebench", "lambada", "longbench", "longbench2", "mmlu", "piqa", "ruler"]
    folders += ["wikitext", "winogrande"]
    root = Path(lm_eval.tasks.__file__).parent
    found = lm_eval.tasks.TaskManager(include_path=[root / name for name in folders], include_defaults=False)
    return set(found.all_tasks)


def test_every_declared_task_is_known(hub_tasks):
    languages = [yaml.safe_load(file.read_text()).get("language", {}) for file in CONFIGS.glob("*.yaml")]
    declared = {name for language in languages for name in language.get("tasks", {}).get("names", [])}
    assert declared and declared <= hub_tasks | set(LOCAL_TASKS)


def test_ruler_is_told_the_tokenizer_and_the_length(tmp_path, monkeypatch):
    """Through lm-eval's own index and loading, with a task that makes its own data as RULER's do."""
    (tmp_path / "makes.py").write_text(
        "import datasets\n"
        "def data(tokenizer, max_seq_lengths, **rest):\n"
        "    rows = [{'input': tokenizer, 'answer': str(length)} for length in max_seq_lengths]\n"
        "    return {'test': datasets.Dataset.from_list(rows)}\n"
    )
    (tmp_path / "made.yaml").write_text(
        "task: made\noutput_type: generate_until\ntest_split: test\ncustom_dataset: !function makes.data\n"
        'dataset_path: ""\ndoc_to_text: "{{input}}"\ndoc_to_target: "{{answer}}"\nmetadata: {version: 1.0}\n'
    )
    whole = lm_eval.tasks.TaskManager
    monkeypatch.setattr(
        lm_eval.tasks, "TaskManager", lambda metadata: whole(None, tmp_path, include_defaults=False, metadata=metadata)
    )
    manager = _hub_manager("made", "folder/of/the/model", 8192)
    task = manager.load(["made"])["tasks"]["made"]
    assert [(doc["input"], doc["answer"]) for doc in task.test_docs()] == [("folder/of/the/model", "8192")]
