"""HashHop, the task behind the paper's h_gq: follow a chain of random hashes through a shuffled list of pairs.

Source: https://github.com/magicproduct/hash-hop and appendix A.1 of the paper. Two layouts:

- `official`: the public generator's. Several full chains, one `H1 = H2` a line, shuffled; the last pair of a chain
  quotes its value. Every chain's start is an equally plausible query. The list has the generator's length, about a
  tenth above `characters`.
- `paper`: the appendix's. One chain and lone pairs of hashes that occur nowhere else, `H1 → H2`, in one paragraph; the
  whole prompt has at most `characters` characters. It has a shortcut: only hashes inside the chain occur twice.
"""

import math
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from recurformer.tasks.hashhop_tokens import HashHopTokens
from recurformer.tasks.interval import Estimate, bounded_mean

__all__ = ["HashHopSample", "HashHopTask", "HashHopTokens", "draw_hashes", "h_gq", "score_hashes"]

ALPHABET = np.array(list(string.ascii_lowercase + string.ascii_uppercase))
HASH = re.compile(r"\w+")
END_OF_ANSWER = re.compile(r"[\n'.]")


@dataclass(frozen=True)
class HashHopSample:
    """One problem.

    Attributes:
        prompt: the pairs and the query; ends where the model goes on.
        answer: what follows the prompt, up to and with the end of the answer.
        target: the hashes of the answer, in order (as many as hops).
        start: the hash that the chain starts from.
    """

    prompt: str
    answer: str
    target: tuple[str, ...]
    start: str


@dataclass(frozen=True)
class HashHopTask:
    """Generator of HashHop problems in text.

    Attributes:
        variant: "paper" or "official".
        hash_length: letters of a hash (the paper's h_e).
        hops: pairs of a chain, and hashes of an answer (h_p).
        characters: size of the problem (h_l).
    """

    variant: str = "paper"
    hash_length: int = 8
    hops: int = 16
    characters: int = 6144

    def __post_init__(self) -> None:
        if self.variant not in LAYOUTS:
            raise ValueError(f"variant is {self.variant!r}; choose one of {', '.join(LAYOUTS)}")
        if self.hash_length < 1 or self.hops < 1:
            raise ValueError(f"hash_length {self.hash_length} and hops {self.hops} must be at least 1")
        if self.pairs < self.hops:
            raise ValueError(
                f"characters {self.characters} have room for {self.pairs} pairs, a chain needs {self.hops}"
            )
        if self.hashes_needed > len(ALPHABET) ** self.hash_length:
            raise ValueError(
                f"hash_length {self.hash_length} gives fewer than the {self.hashes_needed} different hashes needed"
            )

    @property
    def chains(self) -> int:
        """Full chains in the list."""
        return 1 if self.variant == "paper" else math.ceil(self.characters / ((2 * self.hash_length + 3) * self.hops))

    @property
    def pairs(self) -> int:
        """Pairs in the list, those of the chains and the lone ones."""
        if self.variant == "official":
            return self.chains * self.hops
        # Every pair is followed by ", " (the last one by "." and the line break), and the query is the start hash and "
        # ⇒".
        return (self.characters - self.hash_length - len(" ⇒")) // (2 * self.hash_length + len(" → , "))

    @property
    def hashes_needed(self) -> int:
        """Different hashes in one problem."""
        return self.chains * (self.hops + 1) + 2 * (self.pairs - self.chains * self.hops)

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
    found: dict[str, None] = {}
    while len(found) < count:
        letters = ALPHABET[rng.integers(len(ALPHABET), size=(count - len(found), length))]
        found.update(dict.fromkeys("".join(row) for row in letters))
    return list(found)


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
    for given, right in zip(generated, target, strict=False):
        if given != right:
            break
        correct += 1
    return correct


def h_gq(correct: Sequence[int], hops: int) -> Estimate:
    """The paper's h_gq: mean of leading correct hashes / h_p over samples, with its 95 % interval (`bounded_mean`).

    Args:
        correct: leading correct hashes of each sample (`score_hashes`).
        hops: hashes of a full answer (h_p).
    """
    return bounded_mean(np.asarray(correct, dtype=np.float64) / hops)
