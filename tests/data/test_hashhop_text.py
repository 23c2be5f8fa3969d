import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest

from recurformer.data.hashhop import HashHopTask, draw_hashes, h_gq, score_hashes


def pairs_of(prompt):
    """(key, value, quoted) of every pair in a prompt of either layout."""
    found = re.findall(r"(\w+) (?:=|→) ('?)(\w+)'?(?=[\n,.])", prompt)
    return [(key, value, quote == "'") for key, quote, value in found]


def follow(prompt, start):
    links = {key: value for key, value, _ in pairs_of(prompt)}
    chain = []
    while start in links:
        start = links[start]
        chain.append(start)
    return chain


sizes = st.tuples(st.integers(3, 9), st.integers(1, 12), st.integers(300, 3000))


@settings(max_examples=60, deadline=None)
@given(sizes, st.sampled_from(["paper", "official"]), st.integers(0, 2**32))
def test_following_the_pairs_gives_the_answer(size, variant, seed):
    length, hops, characters = size
    task = HashHopTask(variant, length, hops, characters)
    sample = task.sample(np.random.default_rng(seed))
    assert follow(sample.prompt, sample.start) == list(sample.target)
    assert len(sample.target) == hops
    assert score_hashes(sample.answer, sample.target) == hops
    pairs = pairs_of(sample.prompt)
    assert len(pairs) == task.pairs
    # No hash begins two pairs or ends two pairs, so every problem has one answer.
    assert len({key for key, *_ in pairs}) == len({value for _, value, _ in pairs}) == task.pairs
    hashes = {word for key, value, _ in pairs for word in (key, value)}
    assert len(hashes) == task.hashes_needed and all(len(word) == length for word in hashes)


def test_official_layout_at_the_papers_sizes():
    """What the public generator (hash-hop @2e635ae) makes of h_e 8, h_p 16, h_l 6144."""
    task = HashHopTask("official", hash_length=8, hops=16, characters=6144)
    sample = task.sample(np.random.default_rng(0))
    listing, completion = sample.prompt.split("\nCOMPLETION:\n")
    assert (task.chains, len(listing.splitlines()), len(listing)) == (21, 336, 6761)
    assert sum(quoted for *_, quoted in pairs_of(listing + "\n")) == 21
    chain = " = ".join(sample.target)
    assert completion + sample.answer == f"Hops=16\n\nCoT=True\n\n{sample.start} = '{chain}'\n"


def test_official_chains_all_have_full_length_and_quoted_ends():
    sample = HashHopTask("official", hops=4, characters=1000).sample(np.random.default_rng(1))
    pairs = pairs_of(sample.prompt.split("COMPLETION")[0])
    values = {value for _, value, _ in pairs}
    starts = [key for key, *_ in pairs if key not in values]
    keys = {key for key, *_ in pairs}
    assert all(len(follow(sample.prompt, start)) == 4 for start in starts)
    assert all(quoted == (value not in keys) for _, value, quoted in pairs)


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(0, 1000))
def test_paper_layout_fills_but_never_exceeds_its_characters(size, seed):
    length, hops, characters = size
    task = HashHopTask("paper", length, hops, characters)
    sample = task.sample(np.random.default_rng(seed))
    assert characters - (2 * length + 5) < len(sample.prompt) <= characters


def test_paper_layout_has_one_chain_and_lone_pairs():
    task = HashHopTask("paper")
    pairs = pairs_of(task.sample(np.random.default_rng(2)).prompt)
    occurrences = Counter(word for key, value, _ in pairs for word in (key, value))
    assert task.pairs == 292
    # The shortcut of this layout: only the chain's inner hashes occur twice.
    assert Counter(occurrences.values()) == {2: 15, 1: 2 + 2 * (292 - 16)}


def test_same_generator_same_problem_and_no_global_state():
    task = HashHopTask("official", characters=800, hops=4)
    np.random.seed(0)
    first = task.sample(np.random.default_rng(5))
    np.random.seed(1)
    assert task.sample(np.random.default_rng(5)) == first
    rng = np.random.default_rng(5)
    assert task.sample(rng) == first and task.sample(rng) != first


def test_letters_are_uniform():
    counts = Counter("".join(draw_hashes(np.random.default_rng(0), 5000, 8)))
    assert len(counts) == 52 and chisquare(list(counts.values())).pvalue > 0.01


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_pairs_of_the_chain_are_spread_uniformly(variant):
    """Position of the asked chain's first pair, as a share of the list; unshuffled it would always be 0."""
    task = HashHopTask(variant, hops=4, characters=1200)
    rng = np.random.default_rng(3)
    places = []
    for _ in range(400):
        sample = task.sample(rng)
        keys = [key for key, *_ in pairs_of(sample.prompt)]
        places.append((keys.index(sample.start) + rng.random()) / len(keys))
    assert kstest(places, "uniform").pvalue > 0.01


def test_short_hashes_stay_distinct():
    """52 possible hashes, nearly all used: independent draws would collide."""
    assert len(set(draw_hashes(np.random.default_rng(0), 50, 1))) == 50
    task = HashHopTask("paper", hash_length=1, hops=4, characters=160)
    pairs = pairs_of(task.sample(np.random.default_rng(0)).prompt)
    assert len({key for key, *_ in pairs}) == task.pairs


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


def test_h_gq():
    mean, low, high = h_gq([16, 16, 8, 0], hops=16)
    assert mean == 0.625 and 0 < low < 0.625 < high < 1
    assert h_gq([16] * 256, 16)[1:] == pytest.approx((0.985, 1.0), abs=1e-3)
