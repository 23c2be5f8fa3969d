"""HashHop, the task behind the paper's h_gq: follow a chain of random hashes through a shuffled list of pairs.

Source: https://github.com/magicproduct/hash-hop and appendix A.1 of the paper. Two layouts, in text and in tokens:

- `official`: the public generator's. Several full chains, one `H1 = H2` a line, shuffled; the last pair of a chain
  quotes its value. Every chain's start is an equally plausible query. The list has the generator's length, about a
  tenth above `characters`.
- `paper`: the appendix's. One chain and lone pairs of hashes that occur nowhere else, `H1 → H2`, in one paragraph; the
  whole prompt has at most `characters` characters. It has a shortcut: only hashes inside the chain occur twice.

Models that are trained from scratch have a tokenizer of one token a hash, or one token a byte for any text. Both put
nothing before or after a text by themselves; prompts carry their special tokens in writing.
"""

import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from transformers import PreTrainedTokenizerFast

from recurformer.data import IGNORED
from recurformer.data.interval import Estimate, bounded_mean
from recurformer.data.recall import draw_distinct
from recurformer.data.sizes import (
    BOS,
    EOS,
    HASH_SPECIALS,
    HASH_VOCABULARY,
    PAD,
    QUERY,
    SEPARATOR,
    UNKNOWN,
    HashHopTextSizes,
    HashHopTokenSizes,
)

ALPHABET = np.array(list(string.ascii_lowercase + string.ascii_uppercase))
HASH = re.compile(r"\w+")
END_OF_ANSWER = re.compile(r"[\n'.]")


@dataclass(frozen=True)
class HashHopSample:
    """One problem.

    Attributes:
        prompt: the pairs and the query; ends where the model goes on.
        answer: the right continuation of the prompt, with the end of the answer.
        target: the hashes of the answer, in order (as many as hops).
        start: the hash that the chain starts from.
    """

    prompt: str
    answer: str
    target: tuple[str, ...]
    start: str


class HashHopTask(HashHopTextSizes):
    """Generator of HashHop problems in text, of these sizes."""

    def sample(self, rng: np.random.Generator) -> HashHopSample:
        """One problem; all randomness comes from `rng`."""
        hashes = draw_hashes(rng, self.hashes_needed, self.hash_length)
        inside = self.chains * (self.hops + 1)
        chains = [hashes[first : first + self.hops + 1] for first in range(0, inside, self.hops + 1)]
        lone = list(zip(hashes[inside::2], hashes[inside + 1 :: 2], strict=True))
        order = rng.permutation(self.pairs)
        prompt, answer = LAYOUTS[self.variant](chains, lone, order)
        return HashHopSample(prompt, answer, tuple(chains[0][1:]), chains[0][0])


def draw_hashes(rng: np.random.Generator, count: int, length: int) -> list[str]:
    """`count` different random strings of `length` letters, each set of them equally likely."""
    hashes: dict[str, None] = {}
    while len(hashes) < count:
        letters = ALPHABET[rng.integers(len(ALPHABET), size=(count - len(hashes), length))]
        hashes.update(dict.fromkeys("".join(row) for row in letters))
    return list(hashes)


def _lay_out_official(chains: list[list[str]], lone: list[tuple[str, str]], order: np.ndarray) -> tuple[str, str]:
    hops = len(chains[0]) - 1
    lines = [f"{chain[hop]} = {chain[hop + 1]}" for chain in chains for hop in range(hops - 1)]
    lines += [f"{chain[-2]} = '{chain[-1]}'" for chain in chains]  # quotes mark the end of a chain
    listing = "\n".join(lines[index] for index in order)
    prompt = f"{listing}\nCOMPLETION:\nHops={hops}\n\nCoT=True\n\n{chains[0][0]} = '"
    return prompt, " = ".join(chains[0][1:]) + "'\n"


def _lay_out_paper(chains: list[list[str]], lone: list[tuple[str, str]], order: np.ndarray) -> tuple[str, str]:
    (chain,) = chains
    pairs = [*pairwise(chain), *lone]
    listing = ", ".join(" → ".join(pairs[index]) for index in order)
    return f"{listing}.\n{chain[0]} ⇒", " " + " → ".join(chain[1:]) + ".\n"


LAYOUTS: dict[str, Callable[[list[list[str]], list[tuple[str, str]], np.ndarray], tuple[str, str]]] = {
    "official": _lay_out_official,
    "paper": _lay_out_paper,
}


def score_hashes(generated: str | Sequence[object], target: Sequence[object]) -> int:
    """Number of leading hashes reproduced exactly; the first error stops the count (the paper's h_gq times h_p).

    Args:
        generated: the continuation as text (separators are ignored; only its first line, up to a closing quote or full
            stop, counts) or as a sequence of hashes or token ids.
        target: the right hashes or token ids.
    """
    if isinstance(generated, str):
        words = generated.lstrip(" \n'")
        end = END_OF_ANSWER.search(words)
        generated = HASH.findall(words[: end.start()] if end else words)
    correct = 0
    for answer, right in zip(generated, target, strict=False):
        if answer != right:
            break
        correct += 1
    return correct


def link_distances(listed: Sequence[object], chain: Sequence[object]) -> list[int]:
    """Distances in the list, in pairs, from each pair of a chain to the next: hops - 1 numbers.

    Args:
        listed: the first hash of each pair, in the order of the list; further hashes do no harm.
        chain: its start, then the hashes of the answer.

    >>> link_distances(["b", "x", "a", "c"], ["a", "b", "c", "d"])
    [2, 3]
    """
    places: dict[object, int] = {}
    for place, first in enumerate(listed):
        places.setdefault(first, place)
    return [abs(places[there] - places[here]) for here, there in pairwise(chain[:-1])]


def h_gq(correct: Sequence[int], hops: int) -> Estimate:
    """The paper's h_gq: mean of leading correct hashes / h_p over samples, with its 95 % interval (`bounded_mean`).

    Args:
        correct: leading correct hashes of each sample (`score_hashes`).
        hops: hashes of a full answer (h_p).
    """
    return bounded_mean(np.asarray(correct, dtype=np.float64) / hops)


class HashHopTokens(HashHopTokenSizes):
    """Generator of HashHop problems with one token a hash, for models small enough to learn it on a CPU.

        <bos> h7 h3 <sep> h12 h7 <sep> … <query> h12 h7 h3 … <eos>
              └───── shuffled pairs ─────┘        start └ answer ┘

    The separator stands for the line break of the text form. Without it the hash after the second element of a pair
    looks like a partner of that element: a small model did not learn the task in 1,600 steps, and takes 200 with
    separators. All samples have the same length, so batches stack without padding.
    """

    def sample_batch(self, rng: np.random.Generator, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Independent problems.

        Returns:
            input_ids (batch, length) and labels (batch, length), both int64. Labels are aligned with input_ids, as
            transformers expects (the model shifts them itself): the answer's tokens at the answer's positions, -100
            elsewhere.
        """
        hashes = len(HASH_SPECIALS) + draw_distinct(
            rng, self.vocabulary - len(HASH_SPECIALS), batch, self.hashes_needed
        )
        inside = self.full_chains * (self.hops + 1)
        chains = hashes[:, :inside].reshape(batch, self.full_chains, self.hops + 1)
        links = np.stack([chains[..., :-1], chains[..., 1:]], axis=-1).reshape(batch, -1, 2)
        pairs = np.concatenate([links, hashes[:, inside:].reshape(batch, -1, 2)], axis=1)  # (batch, pairs, 2)
        order = rng.permuted(np.tile(np.arange(self.pair_count), (batch, 1)), axis=1)
        pairs = np.take_along_axis(pairs, order[..., None], axis=1)
        separators = np.full((batch, self.pair_count, 1), HASH_SPECIALS.index(SEPARATOR))
        lines = np.concatenate([pairs, separators], axis=2)  # (batch, pairs, 3)

        input_ids = np.empty((batch, self.length), dtype=np.int64)
        answer = slice(self.prompt_length, self.prompt_length + self.hops)
        input_ids[:, 0] = HASH_SPECIALS.index(BOS)
        input_ids[:, 1 : 1 + 3 * self.pair_count] = lines.reshape(batch, -1)
        input_ids[:, self.prompt_length - 2] = HASH_SPECIALS.index(QUERY)
        input_ids[:, self.prompt_length - 1] = chains[:, 0, 0]
        input_ids[:, answer] = chains[:, 0, 1:]
        input_ids[:, -1] = HASH_SPECIALS.index(EOS)
        labels = np.full_like(input_ids, IGNORED)
        labels[:, answer] = chains[:, 0, 1:]
        return torch.from_numpy(input_ids), torch.from_numpy(labels)


BYTE_SPECIALS = (PAD, BOS, EOS)


def hash_word(token: int) -> str:
    """The word that stands for one id of the hash vocabulary: a special token's name, or h0, h1, …"""
    return HASH_SPECIALS[token] if token < len(HASH_SPECIALS) else f"h{token - len(HASH_SPECIALS)}"


def hash_tokenizer(vocabulary: int | None = None) -> PreTrainedTokenizerFast:
    """Whitespace-separated words to ids for the token form of HashHop (`HashHopTokens`).

    Args:
        vocabulary: number of ids, special tokens included (default 128), as in `HashHopTokens`.
    """
    vocabulary = HASH_VOCABULARY if vocabulary is None else vocabulary
    if vocabulary <= len(HASH_SPECIALS):
        raise ValueError(f"vocabulary is {vocabulary}; it must exceed the {len(HASH_SPECIALS)} special tokens")
    model = WordLevel({hash_word(token): token for token in range(vocabulary)}, unk_token=UNKNOWN)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _left_padded(tokenizer, unk_token=UNKNOWN, additional_special_tokens=[QUERY, SEPARATOR])


def byte_tokenizer(vocabulary: int | None = None) -> PreTrainedTokenizerFast:
    """One token a byte of UTF-8; decode(encode(text)) == text for every text, even one that spells "<eos>".

    Args:
        vocabulary: None or 259; there is no other size.
    """
    size = len(BYTE_SPECIALS) + 256
    if vocabulary not in (None, size):
        raise ValueError(f"vocabulary is {vocabulary}; a byte tokenizer has exactly {size} ids")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {word: token for token, word in enumerate((*BYTE_SPECIALS, *alphabet))}
    tokenizer = Tokenizer(BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _left_padded(tokenizer, split_special_tokens=True)


def _left_padded(tokenizer: Tokenizer, **options: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        **options,
    )


TOKENIZERS: dict[str, Callable[[int | None], PreTrainedTokenizerFast]] = {
    "hash": hash_tokenizer,
    "byte": byte_tokenizer,
}
