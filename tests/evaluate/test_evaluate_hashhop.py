from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig

from recurformer.evaluate.hashhop import hashhop_rows
from recurformer.tasks.hashhop import HashHopTask
from recurformer.tasks.labels import IGNORED
from recurformer.train.hashhop_data import hashhop_dataset
from recurformer.train.trainer import train


def settings(form="tokens", **changes):
    sizes = {
        "hops": 4,
        "vocabulary": 64,
        "chains": 2,
        "pairs": 8,
        "hash_length": 2,
        "characters": 80,
        "paper_share": 0.0,
    }
    return SimpleNamespace(**{"form": form} | sizes | changes)


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
    monkeypatch.setattr(kind, "correct", lambda self, i, ids: written.update({i: list(ids)}) or original(self, i, ids))
    rows = hashhop_rows(model, tokenizer, settings(form), variants=["paper"], samples=5, batch_size=3)
    assert rows["sample"].tolist() == [0, 1, 2, 3, 4]
    for index in range(5):
        expected = one_by_one(model, dataset, index)
        assert written[index][: len(expected)] == expected
        assert rows.correct[index] == original(dataset, index, expected)


def test_the_models_generation_settings_do_not_leak_in(model):
    sampled = GenerationConfig(do_sample=True, temperature=5.0, repetition_penalty=9.0, eos_token_id=2, num_beams=2)
    plain = hashhop_rows(model, None, settings(), samples=6)
    model.generation_config = sampled
    assert hashhop_rows(model, None, settings(), samples=6).equals(plain)
    assert model.generation_config is sampled


def test_rows_of_both_variants(model):
    rows = hashhop_rows(model, None, settings(), samples=7, batch_size=4)
    assert list(rows.columns) == ["variant", "sample", "correct", "hops"]
    assert rows.groupby("variant").size().to_dict() == {"official": 7, "paper": 7}
    assert rows.correct.between(0, 4).all()
    assert (rows.hops == 4).all()


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


def test_the_share_of_the_papers_layout(make_tokenizer):
    text = hashhop_dataset(settings("text", paper_share=0.5), make_tokenizer(), seed=0)
    arrows = sum("→" in text.sample(index).prompt for index in range(200))
    assert 70 < arrows < 130
    assert isinstance(hashhop_dataset(settings("text"), make_tokenizer()).tasks[0], HashHopTask)
    with pytest.raises(ValueError, match=r"^form: 'words' is unknown; there are tokens, text$"):
        hashhop_dataset(settings("words"), None)
