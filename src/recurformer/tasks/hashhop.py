"""HashHop, the task behind the paper's h_gq: follow a chain of random hashes through a shuffled list of pairs.

Source: https://github.com/magicproduct/hash-hop and appendix A.1 of the paper. Two layouts:

- `official`: the public generator's. Several full chains, one `H1 = H2` a line, shuffled; the last pair of a chain
  quotes its value. Every chain's start is an equally plausible query. The list has the generator's length, about a
  tenth above `characters`.
- `paper`: the appendix's. One chain and lone pairs of hashes that occur nowhere else, `H1 → H2`, in one paragraph; the
  whole prompt has at most `characters` characters. It has a shortcut: only hashes inside the chain occur twice.
"""

import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from recurformer.tasks.interval import Estimate, bounded_mean
from recurformer.tasks.sizes import HashHopTextSizes

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
