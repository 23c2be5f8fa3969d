import re
from itertools import pairwise

import pytest
import torch
from caches import sliding_cache
from transformers import GenerationConfig

from recurformer.data import IGNORED
from recurformer.data.backbones import byte_tokenizer
from recurformer.data.hashhop import hashhop_dataset
from recurformer.data.passkey import NEEDLE_TASKS
from recurformer.data.sizes import HashHopTextSizes
from recurformer.measure.cache import count_cache
from recurformer.measure.generate import MORE_TOKENS, generate_greedily
from recurformer.measure.hashhop import hashhop_rows
from recurformer.measure.lm_eval import LocalSettings, lm_eval_rows
from recurformer.measure.needle import needle_rows, turns_rows
from recurformer.study import HashHopTask, Needle, Tasks
from recurformer.train.trainer import train

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
def test_a_wrong_answer_counts_against_its_own_cell(model, reader, batch_size, monkeypatch):
    """Prompts are answered in another order than their rows stand in."""
    monkeypatch.setattr("recurformer.measure.needle.samples_per_batch", lambda device, tokens: batch_size)

    def late(prompt):
        """Whether no key stands in front of the first sentence of the hay."""
        return not re.search(r"there\. The pass key", prompt)

    reader(late)
    rows = needle_rows(model, BYTES, model.config, TEXTS, grid=asked(1200, samples=3), depths=DEPTHS)
    assert rows.correct.tolist() == [1 if depth == 0 else 0 for depth in rows.depth]
    reader(lambda prompt: True)
    rows = needle_rows(model, BYTES, model.config, TEXTS, grid=asked(1200, tasks=["multi_query"]), depths=DEPTHS)
    assert set(rows.correct) == {1}


@pytest.mark.parametrize("model", ["llama"], indirect=True)
@pytest.mark.parametrize("begins", [False, True])
def test_a_prompt_begins_as_the_tokenizer_begins_a_text(model, make_tokenizer, tmp_path, begins):
    first, tokenizer = [], make_tokenizer(begins=begins)
    model.register_forward_hook(
        lambda module, args, kwargs, output: first.append(kwargs["input_ids"][0, :2].tolist()), with_kwargs=True
    )
    needle_rows(model, tokenizer, model.config, TEXTS, grid=asked(400), depths=[0])
    hashhop_rows(model, tokenizer, settings("text"), variants=["paper"], samples=1)
    tasks, sizes = Tasks(names=["hashhop"], samples=1), HashHopTextSizes("paper", 2, 3, 60)
    lm_eval_rows(model, LocalSettings(tokenizer, tasks, hashhop=sizes), tmp_path)
    prompts = [ids for ids in first if len(ids) > 1]  # what follows is read token by token
    assert len(prompts) == 3
    assert all((ids[0] == tokenizer.bos_token_id) == begins and ids[1] != tokenizer.bos_token_id for ids in prompts)


def test_the_cache_is_measured_after_the_prompt(model):
    """One for the original, what the converted model's cache is counted as, and exactly what a small cache keeps."""
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
    made = []

    def new_cache():
        made.append(sliding_cache(model, 50))
        return made[-1]

    monkeypatch.setattr("recurformer.measure.needle.samples_per_batch", lambda device, tokens: 4)
    grid = asked(1200, 1000, samples=3)
    needle_rows(model, BYTES, model.config, TEXTS, grid=grid, depths=DEPTHS, new_cache=new_cache)
    assert len(made) == 4
    assert all(cache.get_seq_length() > 900 and cache.layers[0].keys.shape[2] == 50 for cache in made)


def test_later_questions_are_answered_as_if_the_document_was_read_with_them(model, monkeypatch):
    """Each from a cache of its own; the ratio is that of the document's cache."""
    asked = []

    def write(model, prompts, limits, pad_token_id, new_cache):
        written = generate_greedily(model, prompts, limits, pad_token_id, new_cache)
        asked.append((prompts[0], limits[0], written[0][0]))
        return written

    monkeypatch.setattr("recurformer.measure.needle.generate_greedily", write)
    rows = turns_rows(model, BYTES, model.config, TEXTS, lengths=[1300], documents=1)
    assert list(rows.columns) == ["length", "document", "depth", "known", "correct", "queries", "ratio"]
    assert len(rows) == len(asked) == len({tuple(prompt.tolist()) for prompt, *_ in asked}) == 10
    assert not rows.known.any() and rows.depth.is_unique and rows.ratio.nunique() == 1
    for prompt, limit, written in asked[:3]:
        assert generate_greedily(model, [prompt], [limit], 0)[0] == [written]


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_what_a_cache_drops_is_dropped_before_the_question_is_known(model):
    """Of a sliding cache of 50 tokens, the later question's is that of the document, the known one's of the prompt."""
    made, held = [], []

    def new_cache():
        made.append(sliding_cache(model, 50))
        return made[-1]

    def look(module, args, kwargs):
        cache = kwargs["past_key_values"]
        held.append(
            ((*args, kwargs.get("input_ids"))[0].shape[1], cache.get_seq_length(), any(cache is one for one in made))
        )

    model.register_forward_pre_hook(look, with_kwargs=True)
    rows = turns_rows(model, BYTES, model.config, TEXTS, lengths=[1300], documents=2, new_cache=new_cache)
    assert rows.known.sum() == 2 and len(rows) == 22 and rows.ratio.unique() == pytest.approx(50 / 1290, rel=0.05)
    read_whole = [first for first in held if first[0] > 1000]
    assert len(read_whole) == len(made) == 4, "each document once, and once with a question"
    after = [(new, seen) for new, seen, own in held if new > 1 and not own]
    assert len(after) == 20 and all(new < 100 and seen > 1200 for new, seen in after)


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_what_cannot_be_asked_is_refused(model):
    with pytest.raises(ValueError, match=r"^tasks: 'pass' is unknown; there are passkey, multi_key, multi_query$"):
        needle_rows(model, BYTES, model.config, TEXTS, grid={400: {"passkey": 1, "pass": 1}})
    with pytest.raises(ValueError, match=r"^tokens is 100; "):
        needle_rows(model, BYTES, model.config, TEXTS, grid={100: {"passkey": 1}})


def settings(form="tokens", **changes):
    sizes = {"hops": 4, "vocabulary": 64, "chains": 2, "pairs": 8, "hash_length": 2, "characters": 80}
    return HashHopTask(**{"form": form} | sizes | changes)


@torch.no_grad()
def one_by_one(model, dataset, index):
    """Greedy decoding of one prompt without cache, without padding."""
    item = dataset[index]
    asked = item["labels"] != IGNORED
    ids = item["input_ids"][~asked].tolist()[: int(asked.nonzero()[0])]
    prompt = len(ids)
    for _ in range(len(asked) - prompt):
        ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        if ids[-1] == model.generation_config.eos_token_id:
            break
    return ids[prompt:]


@pytest.mark.parametrize("form", ["tokens", "text"])
def test_what_is_scored_is_the_models_own_greedy_writing(model, make_tokenizer, form, monkeypatch):
    """Batched, left-padded, with cache, against one prompt at a time without cache."""
    tokenizer, written = make_tokenizer(), {}
    dataset = hashhop_dataset(settings(form), tokenizer, variant="paper", stream="test")
    kind = type(dataset)
    original, whole = kind.correct, kind.__getitem__

    def shortened(self, index):
        """Prompts of different lengths, so that a batch has padding: without some of their first tokens."""
        return {key: value[3 * (index % 3) :] for key, value in whole(self, index).items()}

    monkeypatch.setattr(kind, "__getitem__", shortened)
    monkeypatch.setattr(kind, "distances", lambda self, index: [])
    monkeypatch.setattr(kind, "correct", lambda self, i, ids: written.update({i: list(ids)}) or original(self, i, ids))
    rows = hashhop_rows(model, tokenizer, settings(form), variants=["paper"], samples=5, batch_size=3)
    assert rows["sample"].tolist() == [0, 1, 2, 3, 4]
    for index in range(5):
        expected = one_by_one(model, dataset, index)
        assert written[index][: len(expected)] == expected
        assert rows.correct[index] == original(dataset, index, expected)


@pytest.mark.parametrize("model", ["llama"], indirect=True)
@pytest.mark.parametrize(("form", "more"), [("tokens", 0), ("text", MORE_TOKENS)])
def test_letters_may_take_more_tokens_than_the_right_answer(model, make_tokenizer, form, more, monkeypatch):
    """As many more as the keys of a haystack; a hash that is one token needs none."""
    tokenizer, given = make_tokenizer(), []
    monkeypatch.setattr(
        "recurformer.measure.generate.generate_greedily",
        lambda model, prompts, limits, *others: given.extend(limits) or ([[]] * len(limits), 1.0),
    )
    hashhop_rows(model, tokenizer, settings(form), variants=["official"], samples=3)
    dataset = hashhop_dataset(settings(form), tokenizer, variant="official", stream="test")
    asked = [dataset[index]["labels"] != IGNORED for index in range(3)]
    assert sorted(given) == sorted(len(row) - int(row.nonzero()[0]) + more for row in asked)


@pytest.mark.parametrize("model", ["converted"], indirect=True)
def test_prompts_are_read_once_and_generation_stops_with_the_last_answer(model):
    """One forward pass over the prompts, with the logits of one token, then one token a pass, until all have ended."""
    shapes = []
    model.register_forward_hook(
        lambda module, args, kwargs, output: shapes.append((kwargs["input_ids"].shape[1], output.logits.shape[1])),
        with_kwargs=True,
    )
    hashhop_rows(model, None, settings(), variants=["paper"], samples=4)
    prompt = 3 * settings().pairs + 3
    assert shapes == [(prompt, 1)] + [(1, 1)] * settings().hops
    shapes.clear()
    model.generation_config.eos_token_id = list(range(model.config.vocab_size))
    hashhop_rows(model, None, settings(), variants=["paper"], samples=4)
    assert shapes == [(prompt, 1)]


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_the_models_generation_settings_do_not_leak_in(model):
    sampled = GenerationConfig(do_sample=True, temperature=5.0, repetition_penalty=9.0, eos_token_id=2, num_beams=2)
    plain = hashhop_rows(model, None, settings(), samples=6)
    model.generation_config = sampled
    assert hashhop_rows(model, None, settings(), samples=6).equals(plain)
    assert model.generation_config is sampled


def test_the_cache_of_hashhop_is_measured_after_the_prompt(model):
    """One for the original, what the converted model's cache is counted as, and exactly what a small cache keeps."""
    rows = hashhop_rows(model, None, settings(), samples=5, batch_size=3, original=model.config)
    prompt = 3 * settings().pairs + 3
    full = 2 * 2 * 2 * 8 * 4 * prompt  # layers, keys and values, KV heads, their size, bytes
    assert rows.ratio.tolist() == pytest.approx([count_cache(model, prompt).bytes.sum() / full] * 10)
    assert rows.drop(columns="ratio").equals(hashhop_rows(model, None, settings(), samples=5))
    if model.config.model_type == "llama":
        assert (rows.ratio == 1).all()
        small = hashhop_rows(
            model, None, settings(), samples=5, original=model.config, new_cache=lambda: sliding_cache(model, 9)
        )
        assert small.ratio.tolist() == pytest.approx([9 / prompt] * 10)


@pytest.mark.parametrize("model", ["converted"], indirect=True)
def test_a_model_that_learned_the_answers_scores_them(model, tmp_path):
    """One hop in a list of one chain: the answer is the other hash of the list, which any mixer learns to copy."""
    easy = settings(hops=1, chains=1, pairs=1, vocabulary=16)
    before = hashhop_rows(model, None, easy, variants=["official"], samples=64)
    dataset = hashhop_dataset(easy, None, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.2)
    train(model, dataset, output_dir=tmp_path, steps=100, batch_size=32, learning_rate=1e-2, log_every=50)
    after = hashhop_rows(model.eval(), None, easy, variants=["official"], samples=64)
    assert before.correct.mean() < 0.4
    assert after.correct.mean() > 0.9


@pytest.mark.parametrize("variant", ["official", "paper"])
@pytest.mark.parametrize("form", ["tokens", "text"])
def test_distances_are_those_between_the_lines_of_the_chain(make_tokenizer, form, variant):
    tokenizer = make_tokenizer()
    dataset = hashhop_dataset(settings(form), tokenizer, variant=variant, stream="test")
    for index in range(5):
        if form == "text":
            sample = dataset.sample(index)
            chain = [sample.start, *sample.target]
            listing = sample.prompt.split("\nCOMPLETION")[0].splitlines() if variant == "official" else (
                sample.prompt.split(".\n")[0].split(", "))  # fmt: skip
            pairs = [tuple(word.strip("'") for word in line.replace(" → ", " = ").split(" = ")) for line in listing]
        else:
            ids, labels = (dataset[index][name].tolist() for name in ("input_ids", "labels"))
            answer = [token for token in labels if token != IGNORED]
            chain = [ids[len(ids) - len(answer) - 2], *answer]
            pairs = [(ids[place], ids[place + 1]) for place in range(1, 1 + 3 * settings().pairs, 3)]
        places = [pairs.index(link) for link in pairwise(chain)]
        expected = [abs(after - before) for before, after in pairwise(places)]
        assert dataset.distances(index) == expected
        assert len(expected) == settings().hops - 1 and min(expected) > 0
