from functools import partial

import numpy as np
import pytest
import torch

from recurformer.data import IGNORED
from recurformer.data.backbones import byte_tokenizer
from recurformer.data.datasets import Curriculum, WindowDataset, pad_batch
from recurformer.data.hashhop import HashHopTextDataset, HashHopTokenDataset
from recurformer.data.sizes import HashHopTextSizes, HashHopTokenSizes
from recurformer.measure.mqar import mqar_batch


def token_dataset(seed=0, **where):
    official, paper = (HashHopTokenSizes(128, 2, 4, 8, variant) for variant in ("official", "paper"))
    return HashHopTokenDataset({official: 0.75, paper: 0.25}, seed, **where)


def text_dataset(seed=0, **where):
    tasks = {HashHopTextSizes("official", 3, 4, 150): 0.5, HashHopTextSizes("paper", 3, 4, 150): 0.5}
    return HashHopTextDataset(tasks, byte_tokenizer(), seed, **where)


def mqar_batches(seed=0, **where):
    return Curriculum(partial(mqar_batch, vocabulary=128), [(32, 4), (64, 8)], 8, seed, **where)


def window_dataset(seed=0):
    return WindowDataset(torch.arange(70).view(10, 7), seed)


@pytest.mark.parametrize("make", [token_dataset, text_dataset, mqar_batches, window_dataset])
def test_an_item_depends_on_the_seed_and_its_number_alone(make):
    one, other, later = make(3), make(4), make(3)
    indices = [*range(20), 64, 1000]
    forwards = {index: one[index] for index in indices}
    for index in reversed(indices):
        again = later[index]
        assert all(torch.equal(forwards[index][key], again[key]) for key in ("input_ids", "labels"))
    assert any(not torch.equal(forwards[index]["input_ids"], other[index]["input_ids"]) for index in indices)


@pytest.mark.parametrize("make", [token_dataset, text_dataset])
def test_streams_do_not_meet(make):
    train = {tuple(make(0)[index]["input_ids"].tolist()) for index in range(100)}
    assert len(train) == 100
    for seed, stream in [(0, "test"), (0, "validation"), (1, "train"), (1, "test")]:
        assert train.isdisjoint(tuple(make(seed, stream=stream)[index]["input_ids"].tolist()) for index in range(100))


def test_the_layouts_get_their_share_within_every_block():
    dataset = token_dataset()
    paper = []
    for index in range(400):
        item = dataset[index]
        listing = item["input_ids"][: int((item["labels"] != IGNORED).nonzero()[0]) - 2]
        # once in the list: the ends of two chains, or the ends of one and both hashes of four lone pairs
        paper.append((np.unique(listing, return_counts=True)[1] == 1).sum() > 7)
    assert 0.17 < np.mean(paper) < 0.33
    assert 0 < np.mean(paper[:64]) < 1


@pytest.mark.parametrize("make", [token_dataset, text_dataset])
def test_counting_correct_hashes(make):
    dataset = make()
    for index in range(8):
        item = dataset[index]
        asked = item["labels"] != IGNORED
        assert torch.equal(item["labels"][asked], item["input_ids"][asked])
        answer = item["labels"][asked].tolist()
        assert dataset.correct(index, answer) == 4
        assert dataset.correct(index, []) == 0
        assert dataset.correct(index + 1, answer) == 0
        broken = list(answer)
        broken[-3 if make is text_dataset else -1] += 1  # text: the last letter before the closing mark and the end
        assert dataset.correct(index, broken) in ({3} if make is token_dataset else {3, 4})
    text = text_dataset()
    target = text.sample(0).target
    wrong = text.tokenizer(" = ".join([*target[:2], "zzz", target[3]])).input_ids
    assert text.correct(0, wrong) == 2


def test_text_is_read_back():
    dataset = text_dataset()
    for index in range(6):
        item, sample = dataset[index], dataset.sample(index)
        asked = item["labels"] != IGNORED
        assert dataset.tokenizer.decode(item["input_ids"][~asked]) == sample.prompt
        assert dataset.tokenizer.decode(item["input_ids"][asked]) == sample.answer + "<eos>"


def test_slices_of_mqar_join_one_after_the_other():
    """Each batch has the tokens of the others, and its keys are asked for; the model shifts the labels itself."""
    found = []
    for index in range(40):
        batch = mqar_batches(curriculum=20)[index]
        found.append(tuple(batch["input_ids"].shape))
        pairs = batch["input_ids"].shape[1] // 8
        for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
            meaning = dict(zip(ids[: 2 * pairs : 2], ids[1 : 2 * pairs : 2], strict=True))
            asked = {ids[place - 1]: label for place, label in enumerate(labels) if label != IGNORED}
            assert asked == meaning
    assert found == [(16, 32)] * 10 + [(16, 32), (8, 64)] * 15


def test_windows_come_once_in_each_round():
    dataset = window_dataset()
    rounds = [[int(dataset[number * 10 + place]["input_ids"][0]) // 7 for place in range(10)] for number in range(4)]
    assert all(sorted(order) == list(range(10)) for order in rounds)
    assert len({tuple(order) for order in rounds}) == 4
    item = dataset[0]
    assert item["labels"].tolist() == [IGNORED, *item["input_ids"][1:].tolist()]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(side):
    items = [{"input_ids": torch.tensor(ids), "labels": torch.tensor(ids)} for ids in ([1, 2, 3], [4])]
    batch = pad_batch(items, 9, side)
    row = {
        "left": ([9, 9, 4], [IGNORED, IGNORED, 4], [0, 0, 1]),
        "right": ([4, 9, 9], [4, IGNORED, IGNORED], [1, 0, 0]),
    }
    assert (batch["input_ids"][1].tolist(), batch["labels"][1].tolist(), batch["attention_mask"][1].tolist()) == row[
        side
    ]
    assert batch["input_ids"][0].tolist() == [1, 2, 3]
    assert "attention_mask" not in pad_batch(items[:1] * 2, 9, side)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"at least one window, got \(0, 4\)$"):
        WindowDataset(torch.zeros(0, 4, dtype=torch.long))


def test_sizes_join_one_after_the_other_with_equally_many_tokens():
    drawn = []

    def draw(rng, samples, length):
        drawn.append(length)
        return torch.zeros(samples, length), torch.zeros(samples, length)

    dataset = Curriculum(draw, [(8,), (16,), (32,)], batch_size=4, seed=0, curriculum=12)
    assert {dataset[index]["input_ids"].numel() for index in range(24)} == {4 * 32}
    assert set(drawn[:4]) == {8} and set(drawn[4:8]) == {8, 16} and set(drawn[8:12]) == set(drawn[12:]) == {8, 16, 32}
