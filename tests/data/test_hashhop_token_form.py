import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from recurformer.data import IGNORED
from recurformer.data.backbones import make_random
from recurformer.data.hashhop import HASH_SPECIALS, HashHopTokens, hash_tokenizer, hash_word, score_hashes

tasks = st.builds(
    lambda variant, chains, hops, lone: HashHopTokens(
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
    input_ids, labels = task.sample_batch(np.random.default_rng(seed), 3)
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
        assert len(links) == task.pair_count
        here, chain = prompt[-1], []
        while here in links:
            chain.append(here := links[here])
        assert chain == ids[task.prompt_length : -1] and len(chain) == task.hops
        assert marks == [-100] * task.prompt_length + chain + [-100]
        assert min({*links, *links.values()}) >= len(HASH_SPECIALS) and max(ids) < task.vocabulary
        assert len({*links, *links.values()}) == task.hashes_needed


@settings(max_examples=30, deadline=None)
@given(tasks, st.integers(0, 1000))
def test_text_reads_back_to_the_same_ids(task, seed):
    (ids,), (marks,) = (part.tolist() for part in task.sample_batch(np.random.default_rng(seed), 1))
    tokenizer = hash_tokenizer(task.vocabulary)
    assert len(tokenizer) == task.vocabulary
    assert tokenizer(" ".join(map(hash_word, ids)))["input_ids"] == ids
    target = [token for token in marks if token != IGNORED]
    assert score_hashes(tokenizer.decode(target), [hash_word(token) for token in target]) == task.hops


def test_official_chains_are_all_full():
    task = HashHopTokens(vocabulary=128, chains=3, hops=5)
    (ids,), _ = task.sample_batch(np.random.default_rng(0), 1)
    pairs = ids[1 : task.prompt_length - 2].reshape(-1, 3)[:, :2].tolist()
    links, values = dict(pairs), {value for _, value in pairs}
    starts = [key for key in links if key not in values]
    assert len(starts) == 3
    for here in starts:
        steps = 0
        while here in links:
            here, steps = links[here], steps + 1  # noqa: PLW2901 (walking the chain)
        assert steps == 5


def test_hashes_positions_and_query_are_uniform():
    task = HashHopTokens(vocabulary=26, chains=2, hops=4)
    ids, _ = task.sample_batch(np.random.default_rng(0), 4000)
    starts = torch.bincount(ids[:, task.prompt_length - 1], minlength=26)[6:]
    assert chisquare(starts.numpy()).pvalue > 0.01
    keys = ids[:, 1 : task.prompt_length - 2 : 3]
    place = (keys == ids[:, task.prompt_length - 1 : task.prompt_length]).int().argmax(dim=1)
    assert chisquare(torch.bincount(place, minlength=8).numpy()).pvalue > 0.01


def test_labels_fit_transformers_convention():
    """A model that always continues correctly has zero loss: labels[i] is predicted from position i - 1."""
    task = HashHopTokens(vocabulary=32, chains=1, hops=3)
    input_ids, labels = task.sample_batch(np.random.default_rng(0), 2)
    model = make_random("llama", vocab_size=32)
    logits = torch.zeros(*input_ids.shape, 32)
    logits[:, :-1].scatter_(-1, input_ids[:, 1:, None], 100.0)
    assert model.loss_function(logits, labels, vocab_size=32) < 1e-6
    logits[:, task.prompt_length - 1] = 0  # negative control: forget the first answer
    assert model.loss_function(logits, labels, vocab_size=32) > 1
