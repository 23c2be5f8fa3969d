import re
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest
from transformers import AutoTokenizer

from recurformer.data import IGNORED
from recurformer.data.backbones import byte_tokenizer, hash_tokenizer, hash_word, make_random
from recurformer.data.hashhop import draw_hashes, score_hashes, text_sample, token_samples
from recurformer.data.sizes import HASH_SPECIALS, HashHopTextSizes, HashHopTokenSizes


def pairs_of(prompt):
    """(key, value, quoted) of every pair in a prompt of either layout."""
    found = re.findall(r"(\w+) (?:=|→) ('?)(\w+)'?(?=[\n,.])", prompt)
    return [(key, value, quote == "'") for key, quote, value in found]


def chain_from(start, links):
    chain = []
    while start in links:
        chain.append(start := links[start])
    return chain


def follow(prompt, start):
    return chain_from(start, {key: value for key, value, _ in pairs_of(prompt)})


sizes = st.tuples(st.integers(3, 9), st.integers(1, 12), st.integers(300, 3000))


@settings(max_examples=60, deadline=None)
@given(sizes, st.sampled_from(["paper", "official"]), st.integers(0, 2**32))
def test_following_the_pairs_gives_the_answer(size, variant, seed):
    length, hops, characters = size
    task = HashHopTextSizes(variant, length, hops, characters)
    sample = text_sample(task, np.random.default_rng(seed))
    assert follow(sample.prompt, sample.start) == list(sample.target)
    assert len(sample.target) == hops
    assert score_hashes(sample.answer, sample.target) == hops
    pairs = pairs_of(sample.prompt)
    assert len(pairs) == task.pairs
    keys, values = {key for key, *_ in pairs}, {value for _, value, _ in pairs}
    lengths = [len(follow(sample.prompt, start)) for start in keys - values]
    assert lengths.count(hops) >= task.chains and set(lengths) <= ({hops} if variant == "official" else {hops, 1})
    assert variant == "paper" or all(quoted == (value not in keys) for _, value, quoted in pairs)
    # No hash begins two pairs or ends two pairs, so every problem has one answer.
    assert len(keys) == len(values) == task.pairs
    hashes = {word for key, value, _ in pairs for word in (key, value)}
    assert len(hashes) == task.hashes_needed and all(len(word) == length for word in hashes)


def test_official_layout_at_the_papers_sizes():
    """What the public generator (hash-hop @2e635ae) makes of h_e 8, h_p 16, h_l 6144."""
    task = HashHopTextSizes("official", hash_length=8, hops=16, characters=6144)
    sample = text_sample(task, np.random.default_rng(0))
    listing, completion = sample.prompt.split("\nCOMPLETION:\n")
    assert (task.chains, len(listing.splitlines()), len(listing)) == (21, 336, 6761)
    assert sum(quoted for *_, quoted in pairs_of(listing + "\n")) == 21
    chain = " = ".join(sample.target)
    assert completion + sample.answer == f"Hops=16\n\nCoT=True\n\n{sample.start} = '{chain}'\n"


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(0, 1000))
def test_paper_layout_fills_but_never_exceeds_its_characters(size, seed):
    length, hops, characters = size
    task = HashHopTextSizes("paper", length, hops, characters)
    sample = text_sample(task, np.random.default_rng(seed))
    assert characters - (2 * length + 5) < len(sample.prompt) <= characters


def test_paper_layout_has_one_chain_and_lone_pairs():
    task = HashHopTextSizes("paper")
    pairs = pairs_of(text_sample(task, np.random.default_rng(2)).prompt)
    occurrences = Counter(word for key, value, _ in pairs for word in (key, value))
    assert task.pairs == 292
    # The shortcut of this layout: only the chain's inner hashes occur twice.
    assert Counter(occurrences.values()) == {2: 15, 1: 2 + 2 * (292 - 16)}


def test_letters_are_uniform():
    counts = Counter("".join(draw_hashes(np.random.default_rng(0), 5000, 8)))
    assert len(counts) == 52 and chisquare(list(counts.values())).pvalue > 0.01


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_pairs_of_the_chain_are_spread_uniformly(variant):
    """Position of the asked chain's first pair, as a fraction of the list; unshuffled it would always be 0."""
    task = HashHopTextSizes(variant, hops=4, characters=1200)
    rng = np.random.default_rng(3)
    places = []
    for _ in range(400):
        sample = text_sample(task, rng)
        keys = [key for key, *_ in pairs_of(sample.prompt)]
        places.append((keys.index(sample.start) + rng.random()) / len(keys))
    assert kstest(places, "uniform").pvalue > 0.01


def test_short_hashes_stay_distinct():
    """52 possible hashes, nearly all used: independent draws would collide."""
    assert len(set(draw_hashes(np.random.default_rng(0), 50, 1))) == 50


@pytest.mark.parametrize(
    ("generated", "expected"),
    [
        ("aa = bb = cc'", 3),
        (" aa → bb → cc.", 3),
        ("aa = bb", 2),
        ("aa = xx = cc", 1),
        ("aa\nbb\ncc", 1),
        ("aa = bb'\ncc", 2),
        ("aa = bbb = cc", 1),
        ("AA = bb", 0),
        (["aa", "bb"], 2),
    ],
)
def test_score_stops_at_the_first_error(generated, expected):
    assert score_hashes(generated, ["aa", "bb", "cc"]) == expected


tasks = st.builds(
    lambda variant, chains, hops, lone: HashHopTokenSizes(
        vocabulary=160,
        chains=chains,
        hops=hops,
        pairs=chains * hops if variant == "official" else hops + lone,
        variant=variant,
    ),
    st.sampled_from(["official", "paper"]),
    st.integers(1, 4),
    st.integers(1, 8),
    st.integers(0, 20),
)


@settings(max_examples=60, deadline=None)
@given(tasks, st.integers(0, 2**32))
def test_layout_and_labels(task, seed):
    input_ids, labels = token_samples(task, np.random.default_rng(seed), 3)
    assert input_ids.shape == labels.shape == (3, task.length)
    assert input_ids.dtype == labels.dtype == torch.int64
    for ids, marks in zip(input_ids.tolist(), labels.tolist(), strict=True):
        prompt = ids[: task.prompt_length]
        assert (ids[0], prompt[-2], ids[-1]) == (
            HASH_SPECIALS.index("<bos>"),
            HASH_SPECIALS.index("<query>"),
            HASH_SPECIALS.index("<eos>"),
        )
        links = dict(zip(prompt[1:-2:3], prompt[2:-2:3], strict=True))
        assert set(prompt[3:-2:3]) == {HASH_SPECIALS.index("<sep>")}
        assert len(links) == task.pairs
        chain = chain_from(prompt[-1], links)
        assert chain == ids[task.prompt_length : -1] and len(chain) == task.hops
        lengths = [len(chain_from(start, links)) for start in links.keys() - links.values()]
        assert lengths.count(task.hops) >= task.full_chains and set(lengths) <= {1, task.hops}
        assert marks == [-100] * task.prompt_length + chain + [-100]
        assert min({*links, *links.values()}) >= len(HASH_SPECIALS) and max(ids) < task.vocabulary
        assert len({*links, *links.values()}) == task.hashes_needed


@settings(max_examples=30, deadline=None)
@given(tasks, st.integers(0, 1000))
def test_text_reads_back_to_the_same_ids(task, seed):
    (ids,), (marks,) = (part.tolist() for part in token_samples(task, np.random.default_rng(seed), 1))
    tokenizer = hash_tokenizer(task.vocabulary)
    assert len(tokenizer) == task.vocabulary
    assert tokenizer(" ".join(map(hash_word, ids)))["input_ids"] == ids
    target = [token for token in marks if token != IGNORED]
    assert score_hashes(tokenizer.decode(target), [hash_word(token) for token in target]) == task.hops


def test_hashes_positions_and_query_are_uniform():
    task = HashHopTokenSizes(vocabulary=26, chains=2, hops=4, pairs=8, variant="official")
    ids, _ = token_samples(task, np.random.default_rng(0), 4000)
    starts = torch.bincount(ids[:, task.prompt_length - 1], minlength=26)[6:]
    assert chisquare(starts.numpy()).pvalue > 0.01
    keys = ids[:, 1 : task.prompt_length - 2 : 3]
    place = (keys == ids[:, task.prompt_length - 1 : task.prompt_length]).int().argmax(dim=1)
    assert chisquare(torch.bincount(place, minlength=8).numpy()).pvalue > 0.01


def test_labels_fit_transformers_convention():
    """A model that always continues correctly has zero loss: labels[i] is predicted from position i - 1."""
    task = HashHopTokenSizes(vocabulary=32, chains=1, hops=3, pairs=3, variant="official")
    input_ids, labels = token_samples(task, np.random.default_rng(0), 2)
    model = make_random("llama", vocab_size=32)
    logits = torch.zeros(*input_ids.shape, 32)
    logits[:, :-1].scatter_(-1, input_ids[:, 1:, None], 100.0)
    assert model.loss_function(logits, labels, vocab_size=32) < 1e-6
    logits[:, task.prompt_length - 1] = 0  # negative control: forget the first answer
    assert model.loss_function(logits, labels, vocab_size=32) > 1


BYTES = byte_tokenizer()


@settings(max_examples=60, deadline=None)
@given(st.text())
@example("<eos> <bos>x<pad>")
@example("a  b\n\tc , 日本 naïve do n't , it 's .")
def test_bytes_are_lossless_and_one_a_token_also_of_special_words(text):
    ids = BYTES(text)["input_ids"]
    assert len(ids) == len(text.encode()) and min(ids, default=3) >= 3
    assert BYTES.decode(ids) == text


def test_special_ids():
    assert (BYTES.pad_token_id, BYTES.bos_token_id, BYTES.eos_token_id, len(BYTES)) == (0, 1, 2, 259)
    hashes = hash_tokenizer(64)
    assert (hashes.pad_token_id, hashes.bos_token_id, hashes.eos_token_id, len(hashes)) == (0, 1, 2, 64)
    assert hashes("<bos> h0 h57 <sep> <query> h58 nonsense")["input_ids"] == [1, 6, 63, 5, 4, 3, 3]
    assert hashes.decode([1, 6, 63, 5, 4, 2], skip_special_tokens=True) == "h0 h57"


@pytest.mark.parametrize("make", [lambda: hash_tokenizer(64), byte_tokenizer])
def test_survives_saving(make, tmp_path):
    before = make()
    before.save_pretrained(tmp_path)
    after = AutoTokenizer.from_pretrained(tmp_path)
    text = "<bos> h0 h5 <query> h3"
    assert after(text)["input_ids"] == before(text)["input_ids"]
    assert after.padding_side == "left" and after.pad_token_id == 0
    assert after.decode(after(text)["input_ids"]) == text
