"""Passkey retrieval: find one number in a long text of no importance, one of several, all of several, or each in turn.

Prompt of Mohtashami and Jaggi, "Landmark Attention" (arXiv 2305.16300). The hay is their repeated sentences or real
text; length and depth are set in tokens of the tokenizer that reads the prompt. Several keys are told apart by their
owners, as in the multi-key and multi-query tasks of RULER (arXiv 2404.06654).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
    "I will quiz you about the important information there."
)
PASS_KEY = "pass key"
NEEDLE = "The {what} is {key}."
REMINDER = " Remember it. {key} is the {what}."
QUESTION = "What is the {what}?"
QUESTIONS = "What are the pass keys{of} and{of_last}?"
ANSWER = " The {what} is"
TURN = "\n\nWhat is the {what}? As said above, the {what} is"
OWNERS = ("Alice", "Bob", "Carol", "David", "Emma", "Frank", "Grace", "Henry")
FACTS = (
    PASS_KEY,
    "phone of the hotel",
    "code of the back door",
    "combination of the locker",
    "price of the piano",
    "frequency of the radio",
    "population of the village",
    "account of the shop",
    "weight of the ship",
    "height of the tower",
)
FILLER = ("The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.",)
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
NUMBER = re.compile(r"\d+")
LONGEST = 0.1
DIGITS = 5  # of a key


class Turn(NamedTuple):
    """A question that follows a text: up to where the model goes on, its right continuation, and the needle's depth."""

    question: str
    answer: str
    depth: float


@dataclass(frozen=True)
class PasskeySample:
    """One problem.

    Attributes:
        prompt: ends where the model goes on; with `turns` before the question.
        answer: its right continuation: a space and the digits; after each key the words that lead to the next one.
        keys: the digits that the question asks for, in that order.
        tokens: length of the prompt in tokens, without special tokens.
        depth: fraction of the filler that stands before the queried needles, 0 to 1; the mean of several.
        turns: questions, each of which may follow the prompt.
    """

    prompt: str
    answer: str
    keys: tuple[str, ...]
    tokens: int
    depth: float
    turns: tuple[Turn, ...] = ()


@lru_cache(maxsize=1)
def sized_sentences(tokenizer: PreTrainedTokenizerBase, filler: tuple[str, ...]) -> list[tuple[str, int]]:
    """The sentences of some texts, each with its number of tokens and those of the space before it.

    The last result is kept: real text takes seconds, and every length and depth of a grid needs it again.
    """
    sentences = [part for text in filler for part in SENTENCE_END.split(text.strip()) if part]
    spaced = [f" {sentence}" for sentence in sentences]
    ids = tokenizer(spaced, add_special_tokens=False)["input_ids"] if spaced else []
    return list(zip(sentences, map(len, ids), strict=True))


class _Needle(NamedTuple):
    """A key, what it is ("pass key of Alice") and the fraction of the filler before it."""

    key: str
    what: str = PASS_KEY
    depth: float = 0.0


@dataclass(frozen=True)
class PasskeyTask:
    """Generator of passkey problems.

    Attributes:
        tokenizer: counts the tokens.
        tokens: the most tokens of a prompt; it gets as near as whole sentences allow, none of which takes more than a
            tenth of it.
        depth: where the needle stands, 0 (first) to 1 (last); None draws it for each sample. Several queried ones are
            spread evenly about it, as far as the nearer end of the text allows; all others stand anywhere.
        filler: texts to hide the needles in; each sample starts at a random sentence of them. Default: the original
            five sentences.
        needles: hidden keys; several have owners, and each stands there once, not twice.
        queries: number of them that the question asks for, one after another.
        owned: whether a single key has an owner too.
        turns: whether the needles are `FACTS` instead of pass keys, spread evenly, all of them queried in turns after
            the text; each stands there twice.
    """

    tokenizer: PreTrainedTokenizerBase
    tokens: int = 1024
    depth: float | None = None
    filler: Sequence[str] = FILLER
    needles: int = 1
    queries: int = 1
    owned: bool = False
    turns: bool = False

    def __post_init__(self) -> None:
        bare = self._count(self._write([], [_Needle("8" * DIGITS, what) for what in self._names()[: self.needles]]))
        needed = bare + max((size for _, size in self.hay), default=0)
        if needed > self.tokens:
            raise ValueError(f"tokens is {self.tokens}; the bare prompt and one sentence need up to {needed}")
        if not self.hay:
            raise ValueError(f"filler holds no sentence of at most {int(LONGEST * self.tokens)} tokens")

    @cached_property
    def hay(self) -> list[tuple[str, int]]:
        """`sized_sentences` of the filler, without those that are longer than a tenth of the prompt."""
        sentences = sized_sentences(self.tokenizer, tuple(self.filler))
        return [(sentence, size) for sentence, size in sentences if size <= LONGEST * self.tokens]

    def _count(self, text: str) -> int:
        return len(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def sample(self, rng: np.random.Generator) -> PasskeySample:
        """One problem; all randomness comes from `rng`."""
        needles = self._draw(rng)
        room = self.tokens - self._count(self._write([], needles))
        chosen: list[tuple[str, int]] = []
        for following in count(int(rng.integers(len(self.hay)))):
            sentence, size = self.hay[following % len(self.hay)]
            room -= size
            if room < 0:
                break
            chosen.append((sentence, size))
        # A sentence may take another number of tokens next to others than alone: drop some if the sum was too low.
        while (sample := self._place(chosen, needles)).tokens > self.tokens:
            chosen.pop()
        return sample

    def _draw(self, rng: np.random.Generator) -> list[_Needle]:
        """The needles, first the queried ones."""
        keys: dict[str, None] = {}
        while len(keys) < self.needles:
            keys[str(rng.integers(10 ** (DIGITS - 1), 10**DIGITS))] = None
        depth = float(rng.uniform()) if self.depth is None else self.depth
        reach = min(depth, 1 - depth)
        spread = depth + reach * ((2 * np.arange(self.queries) + 1) / self.queries - 1)
        depths = [*rng.permutation(spread), *rng.uniform(size=self.needles - self.queries)]
        names = self._names()
        names = rng.permutation(names).tolist() if len(set(names)) > 1 else names
        return [_Needle(*needle) for needle in zip(keys, names[: self.needles], map(float, depths), strict=True)]

    def _names(self) -> Sequence[str]:
        """What the keys may be called."""
        if self.turns:
            return FACTS
        return [f"{PASS_KEY} of {owner}" if self.owned or self.needles > 1 else PASS_KEY for owner in OWNERS]

    def _place(self, chosen: list[tuple[str, int]], needles: list[_Needle]) -> PasskeySample:
        """The prompt with each needle between the two sentences that come nearest to its depth."""
        ends = np.cumsum([0] + [size for _, size in chosen])
        places = [int(np.argmin(np.abs(ends - needle.depth * ends[-1]))) for needle in needles]
        prompt = self._write([sentence for sentence, _ in chosen], needles, places)
        queried = needles[: self.queries]
        depth = float(ends[places[: self.queries]].mean() / max(ends[-1], 1))
        keys, tokens = tuple(key for key, *_ in queried), self._count(prompt)
        if self.turns:
            asked = zip(needles, (ends[places] / max(ends[-1], 1)).tolist(), strict=True)
            turns = [Turn(TURN.format(what=what), f" {key}", there) for (key, what, _), there in asked]
            return PasskeySample(prompt, "", keys, tokens, depth, tuple(turns))
        answer = f" {queried[0].key}" + "".join(f".{ANSWER.format(what=what)} {key}" for key, what, _ in queried[1:])
        return PasskeySample(prompt, answer, keys, tokens, depth)

    def _write(self, hay: Sequence[str], needles: Sequence[_Needle], places: Sequence[int] | None = None) -> str:
        """The prompt; needle i stands before sentence `places[i]`."""
        pieces = list(hay)
        needle_text = NEEDLE + REMINDER * (self.turns or self.needles == 1)
        # from the back, so that earlier pieces keep their places
        for place, needle in sorted(zip(places or [0] * len(needles), needles, strict=True), reverse=True):
            pieces.insert(place, needle_text.format(key=needle.key, what=needle.what))
        if self.turns:
            return " ".join([TASK, *pieces])
        *others, last = [needle.what for needle in needles[: self.queries]]
        of, of_last = ",".join(name.removeprefix(PASS_KEY) for name in others), last.removeprefix(PASS_KEY)
        question = QUESTIONS.format(of=of, of_last=of_last) if others else QUESTION.format(what=last)
        return " ".join([TASK, *pieces, question + ANSWER.format(what=needles[0].what)])


NEEDLE_TASKS: dict[str, dict[str, Any]] = {
    "passkey": {"needles": 1, "queries": 1, "owned": True},
    "multi_key": {"needles": 2, "queries": 1},
    "multi_query": {"needles": 2, "queries": 2},
}
"""The tasks of the needle grid: numbers of hidden keys, and of those that are queried. Wording and numbers are such
that SmolLM2-135M finds keys among real text: it misses a key without an owner, and mixes up the owners of more."""
TURNS: dict[str, Any] = {"depth": 0.5, "needles": len(FACTS), "queries": len(FACTS), "turns": True}
"""Options of a task with a question in every turn. SmolLM2-135M tells keys of different things apart."""


def starts_with_key(generated: str, key: str) -> bool:
    """Whether the continuation starts, white space aside, with the number `key`, no digit after it."""
    first = NUMBER.match(generated.lstrip())
    return first is not None and first[0] == key


def score_passkey(generated: str, keys: Sequence[str]) -> int:
    """Number of `keys` that are among as many first numbers of the continuation, in any order (RULER's reading)."""
    return len({*keys} & {*NUMBER.findall(generated)[: len(keys)]})
