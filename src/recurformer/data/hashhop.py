"""HashHop, the task behind the paper's h_gq: follow a chain of random hashes through a shuffled list of pairs.

Source: https://github.com/magicproduct/hash-hop and appendix A.1 of the paper. Two layouts, in text and in tokens:

- `official`: the public generator's. Several full chains, one `H1 = H2` a line, shuffled; the last pair of a chain
  quotes its value. Every chain's start is an equally plausible query. The list has the generator's length, about a
  tenth above `characters`.
- `paper`: the appendix's. One chain and lone pairs of hashes that occur nowhere else, `H1 → H2`, in one paragraph; the
  whole prompt has at most `characters` characters. It has a shortcut: only hashes inside the chain occur twice.
"""

import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from recurformer.data import IGNORED
from recurformer.data.datasets import Item, ItemDataset, draw_distinct, item_generator, pad_token
from recurformer.data.sizes import (
    BOS,
    EOS,
    HASH_SPECIALS,
    QUERY,
    SEPARATOR,
    HashHopTextSizes,
    HashHopTokenSizes,
)
from recurformer.study import HashHopTask

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


def text_sample(sizes: HashHopTextSizes, rng: np.random.Generator) -> HashHopSample:
    """One problem in text; all randomness comes from `rng`."""
    hashes = draw_hashes(rng, sizes.hashes_needed, sizes.hash_length)
    inside = sizes.chains * (sizes.hops + 1)
    chains = [hashes[first : first + sizes.hops + 1] for first in range(0, inside, sizes.hops + 1)]
    lone = list(zip(hashes[inside::2], hashes[inside + 1 :: 2], strict=True))
    order = rng.permutation(sizes.pairs)
    prompt, answer = LAYOUTS[sizes.variant](chains, lone, order)
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


def token_samples(sizes: HashHopTokenSizes, rng: np.random.Generator, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Independent problems with one token a hash, for models small enough to learn it on a CPU.

        <bos> h7 h3 <sep> h12 h7 <sep> … <query> h12 h7 h3 … <eos>
              └───── shuffled pairs ─────┘        start └ answer ┘

    The separator stands for the line break of the text form. Without it the hash after the second element of a pair
    looks like a partner of that element: a small model did not learn the task in 1,600 steps, and takes 200 with
    separators.

    Returns:
        input_ids (batch, length) and labels (batch, length), both int64. Labels are aligned with input_ids, as
        transformers expects (the model shifts them itself): the answer's tokens at the answer's positions, -100
        elsewhere.
    """
    hashes = len(HASH_SPECIALS) + draw_distinct(rng, sizes.vocabulary - len(HASH_SPECIALS), batch, sizes.hashes_needed)
    inside = sizes.full_chains * (sizes.hops + 1)
    chains = hashes[:, :inside].reshape(batch, sizes.full_chains, sizes.hops + 1)
    links = np.stack([chains[..., :-1], chains[..., 1:]], axis=-1).reshape(batch, -1, 2)
    pairs = np.concatenate([links, hashes[:, inside:].reshape(batch, -1, 2)], axis=1)  # (batch, pairs, 2)
    order = rng.permuted(np.tile(np.arange(sizes.pairs), (batch, 1)), axis=1)
    pairs = np.take_along_axis(pairs, order[..., None], axis=1)
    separators = np.full((batch, sizes.pairs, 1), HASH_SPECIALS.index(SEPARATOR))
    lines = np.concatenate([pairs, separators], axis=2)  # (batch, pairs, 3)

    input_ids = np.empty((batch, sizes.length), dtype=np.int64)
    answer = slice(sizes.prompt_length, sizes.prompt_length + sizes.hops)
    input_ids[:, 0] = HASH_SPECIALS.index(BOS)
    input_ids[:, 1 : 1 + 3 * sizes.pairs] = lines.reshape(batch, -1)
    input_ids[:, sizes.prompt_length - 2] = HASH_SPECIALS.index(QUERY)
    input_ids[:, sizes.prompt_length - 1] = chains[:, 0, 0]
    input_ids[:, answer] = chains[:, 0, 1:]
    input_ids[:, -1] = HASH_SPECIALS.index(EOS)
    labels = np.full_like(input_ids, IGNORED)
    labels[:, answer] = chains[:, 0, 1:]
    return torch.from_numpy(input_ids), torch.from_numpy(labels)


BLOCK = 64
"""Items that are drawn at a time, which costs far less than one by one."""


class HashHopTokenDataset(ItemDataset):
    """HashHop with one token a hash; only the answer has labels.

    Args:
        tasks: the layouts and the fraction of the items that each gets; all with the same pairs and hops.
        seed: of all items.
        stream: a name in `STREAMS`.
    """

    def __init__(self, tasks: Mapping[HashHopTokenSizes, float], seed: int, stream: str = "train") -> None:
        super().__init__(seed, stream)
        self.tasks, self.fractions = list(tasks), list(tasks.values())
        self._number, self._block = -1, (torch.empty(0), torch.empty(0))

    def __getitem__(self, index: int) -> Item:
        number, place = divmod(index, BLOCK)
        if number != self._number:
            self._number, self._block = number, self._draw(item_generator(self.seed, number, self.stream))
        input_ids, labels = self._block
        return {"input_ids": input_ids[place], "labels": labels[place]}

    def _draw(self, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """A block: input_ids and labels, both (BLOCK, L)."""
        which = rng.choice(len(self.tasks), size=BLOCK, p=self.fractions)
        input_ids = torch.empty(BLOCK, self.tasks[0].length, dtype=torch.long)
        labels = torch.empty_like(input_ids)
        for task_number, task in enumerate(self.tasks):
            rows = torch.from_numpy(np.flatnonzero(which == task_number))
            if len(rows):
                input_ids[rows], labels[rows] = token_samples(task, rng, len(rows))
        return input_ids, labels

    def correct(self, index: int, generated: Sequence[int]) -> int:
        """Leading hashes of item `index`'s answer that `generated`, token ids after its prompt, reproduces."""
        labels = self[index]["labels"]
        return score_hashes(list(generated), labels[labels != IGNORED].tolist())

    def distances(self, index: int) -> list[int]:
        """Pairs between the linked pairs of item `index`: see `link_distances`."""
        input_ids, labels = (self[index][name].tolist() for name in ("input_ids", "labels"))
        query = input_ids.index(HASH_SPECIALS.index(QUERY))
        return link_distances(input_ids[1:query:3], [input_ids[query + 1], *filter(IGNORED.__ne__, labels)])


class HashHopTextDataset(ItemDataset):
    """HashHop in letters, for a pretrained language model; only the answer and the end of the text have labels.

    Args:
        tasks: the layouts and the fraction of the items that each gets.
        tokenizer: of the model; begins a text as it always does.
        seed: of all items.
        stream: a name in `STREAMS`.
    """

    def __init__(
        self,
        tasks: Mapping[HashHopTextSizes, float],
        tokenizer: PreTrainedTokenizerBase,
        seed: int,
        stream: str = "train",
    ) -> None:
        super().__init__(seed, stream)
        self.tasks, self.fractions, self.tokenizer = list(tasks), list(tasks.values()), tokenizer
        self.pad_token_id = pad_token(tokenizer)

    def sample(self, index: int) -> HashHopSample:
        """Item `index` as text."""
        rng = item_generator(self.seed, index, self.stream)
        return text_sample(self.tasks[rng.choice(len(self.tasks), p=self.fractions)], rng)

    def __getitem__(self, index: int) -> Item:
        sample = self.sample(index)
        prompt = self.tokenizer(sample.prompt, verbose=False).input_ids
        answer = self.tokenizer(sample.answer, add_special_tokens=False).input_ids
        if self.tokenizer.eos_token_id is not None:
            answer = [*answer, self.tokenizer.eos_token_id]
        return {
            "input_ids": torch.tensor(prompt + answer),
            "labels": torch.tensor([IGNORED] * len(prompt) + answer),
        }

    def correct(self, index: int, generated: Sequence[int]) -> int:
        """Leading hashes of item `index`'s answer that `generated`, token ids after its prompt, reproduces."""
        return score_hashes(self.tokenizer.decode(list(generated), skip_special_tokens=True), self.sample(index).target)

    def distances(self, index: int) -> list[int]:
        """Pairs between the linked pairs of item `index`: see `link_distances`."""
        sample = self.sample(index)
        return link_distances(HASH.findall(sample.prompt)[::2], [sample.start, *sample.target])


def hashhop_dataset(
    task: HashHopTask,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    seed: int = 0,
    variant: str | None = None,
    stream: str = "train",
) -> HashHopTokenDataset | HashHopTextDataset:
    """Samples of a task for training, profiling or testing.

    Args:
        task: the sizes.
        tokenizer: of the model; not used by the form "tokens".
        seed: of all samples.
        variant: "official" or "paper"; None: both, "paper" with the fraction that the task sets.
        stream: a name in `STREAMS`.
    """
    fractions = {"official": 1 - task.paper_share, "paper": task.paper_share} if variant is None else {variant: 1.0}
    tasks: dict[Any, float] = {task.sizes(name): fraction for name, fraction in fractions.items() if fraction}
    if task.form == "tokens":
        return HashHopTokenDataset(tasks, seed, stream)
    if tokenizer is None:
        raise ValueError("hashhop: the form text needs a tokenizer")
    return HashHopTextDataset(tasks, tokenizer, seed, stream)
