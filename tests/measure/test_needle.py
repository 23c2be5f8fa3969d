import re

import pytest
from caches import sliding_cache

from recurformer.data.hashhop import byte_tokenizer
from recurformer.data.passkey import NEEDLE_TASKS
from recurformer.measure.answers import needle_rows
from recurformer.measure.cache import count_cache
from recurformer.study import Needle

TEXTS = ["One short sentence. Another one follows it, much longer than the first was! A third? Then it ends."]
BYTES = byte_tokenizer()
DEPTHS = (0, 0.5)


def asked(*lengths, tasks=("passkey",), samples=1):
    """The same tasks, as often, at every length."""
    return {length: dict.fromkeys(tasks, samples) for length in lengths}


@pytest.fixture
def reader(monkeypatch):
    """Instead of the model, one that looks the keys up, the last one of each prompt wrongly where it is told so."""
    seen = []

    def install(wrong=lambda prompt: False):
        def read(model, prompts, limits, pad_token_id, new_cache):
            texts = [BYTES.decode(prompt) for prompt in prompts]
            seen.extend(texts)
            return [BYTES(answer(text)).input_ids for text in texts], 1.0

        def answer(prompt):
            asked = re.findall(r" of (\w+)", prompt[prompt.rindex("What") : prompt.rindex("?")])
            keys = [re.search(rf"pass key{of} is (\d+)", prompt)[1] for of in [f" of {name}" for name in asked] or [""]]
            if wrong(prompt):
                keys[-1] = "1" + keys[-1]
            return ". And another one is ".join(keys)

        monkeypatch.setattr("recurformer.measure.generate.generate_greedily", read)
        return seen

    return install


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_right_answers_score_at_every_length_and_depth(model, reader):
    seen = reader()
    rows = needle_rows(
        model, BYTES, model.config, TEXTS, grid=asked(1200, 1000, tasks=NEEDLE_TASKS, samples=3), depths=DEPTHS
    )
    assert list(rows.columns) == ["task", "length", "depth", "sample", "correct", "queries", "ratio"]
    cells = rows.groupby(["task", "length", "depth"])["sample"].apply(list)
    assert len(cells) == 3 * 2 * 2 and all(samples == [0, 1, 2] for samples in cells)
    assert rows.queries.tolist() == [NEEDLE_TASKS[task]["queries"] for task in rows.task]
    assert rows.correct.equals(rows.queries)
    assert len(set(seen)) == len(rows)
    assert all("much longer than the first was!" in prompt for prompt in seen), "the hay is the given text"
    assert [1200 - 60 < len(prompt) <= 1200 for prompt in seen].count(True) == len(rows) / 2


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_each_task_is_asked_at_its_own_lengths(model, reader):
    reader()
    settings = Needle(lengths=[1000, 1200], samples=3, several_lengths=[1200, 1400], several_samples=1)
    rows = needle_rows(model, BYTES, model.config, TEXTS, grid=settings.grid(), depths=DEPTHS)
    found = rows.groupby(["task", "length"]).size() / len(DEPTHS)
    one = {("passkey", length): 3 for length in (1000, 1200)}
    several = {(task, length): 1 for task in ("multi_key", "multi_query") for length in (1200, 1400)}
    assert found.to_dict() == one | several
    plain = Needle(lengths=[1000, 1200], samples=2)
    assert plain.grid() == asked(1000, 1200, tasks=NEEDLE_TASKS, samples=2)


@pytest.mark.parametrize("model", ["llama"], indirect=True)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_wrong_answer_counts_against_its_own_cell(model, reader, batch_size):
    """Prompts are answered in another order than their rows stand in."""

    def late(prompt):
        """Whether no key stands in front of the first sentence of the hay."""
        return not re.search(r"there\. The pass key", prompt)

    reader(late)
    rows = needle_rows(
        model, BYTES, model.config, TEXTS, grid=asked(1200, samples=3), depths=DEPTHS, batch_size=batch_size
    )
    assert rows.correct.tolist() == [1 if depth == 0 else 0 for depth in rows.depth]
    reader(lambda prompt: True)
    rows = needle_rows(
        model, BYTES, model.config, TEXTS, grid=asked(1200, tasks=["multi_query"]), depths=DEPTHS, batch_size=batch_size
    )
    assert set(rows.correct) == {1}


@pytest.mark.parametrize("model", ["llama"], indirect=True)
@pytest.mark.parametrize("begins", [False, True])
def test_a_prompt_begins_as_the_tokenizer_begins_a_text(model, make_tokenizer, begins):
    first = []
    model.register_forward_hook(
        lambda module, args, kwargs, output: first.append(kwargs["input_ids"][0, :2].tolist()), with_kwargs=True
    )
    tokenizer = make_tokenizer(begins=begins)
    needle_rows(model, tokenizer, model.config, TEXTS, grid=asked(400), depths=[0])
    letter = tokenizer("T", add_special_tokens=False).input_ids[0]
    assert (first[0][0] == letter) is not begins
    assert begins is False or first[0] == [1, letter]


def test_the_cache_is_measured_after_the_prompt(model):
    """One for the original, what the converted model's cache is counted as, and exactly what a small cache keeps."""
    model.resize_token_embeddings(259)
    original = model.config
    sizes = {"grid": asked(500), "depths": [0.5]}
    rows = needle_rows(model, BYTES, original, TEXTS, **sizes)
    prompt = []
    model.register_forward_hook(
        lambda module, args, kwargs, output: prompt.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    needle_rows(model, BYTES, original, TEXTS, **sizes)
    full = 2 * 2 * 2 * 8 * 4 * prompt[0]  # layers, keys and values, KV heads, their size, bytes
    assert rows.ratio.item() == pytest.approx(count_cache(model, prompt[0]).bytes.sum() / full)
    if original.model_type == "llama":
        assert rows.ratio.item() == 1
        small = needle_rows(model, BYTES, original, TEXTS, **sizes, new_cache=lambda: sliding_cache(model, 50))
        assert small.ratio.item() == pytest.approx(50 / prompt[0])


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_every_batch_has_a_cache_of_its_own(model, monkeypatch):
    model.resize_token_embeddings(259)
    made = []

    def new_cache():
        made.append(sliding_cache(model, 50))
        return made[-1]

    grid = asked(1200, 1000, samples=3)
    needle_rows(model, BYTES, model.config, TEXTS, grid=grid, depths=DEPTHS, batch_size=4, new_cache=new_cache)
    assert len(made) == 4
    assert all(cache.get_seq_length() > 900 and cache.layers[0].keys.shape[2] == 50 for cache in made)


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_what_cannot_be_asked_is_refused(model):
    with pytest.raises(ValueError, match=r"^tasks: 'pass' is unknown; there are passkey, multi_key, multi_query$"):
        needle_rows(model, BYTES, model.config, TEXTS, grid={400: {"passkey": 1, "pass": 1}})
    with pytest.raises(ValueError, match=r"^tokens is 100; "):
        needle_rows(model, BYTES, model.config, TEXTS, grid={100: {"passkey": 1}})
