"""Passkey retrieval: find one number in a long text of no importance.

Prompt of Mohtashami and Jaggi, "Landmark Attention" (arXiv 2305.16300). The hay is their repeated sentences or real
text; length and depth are set in tokens of the tokenizer that reads the prompt.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count

import numpy as np
from transformers import PreTrainedTokenizerBase

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
    "I will quiz you about the important information there."
)
NEEDLE = "The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "What is the pass key? The pass key is"
FILLER = ("The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.",)
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class PasskeySample:
    """One problem.

    Attributes:
        prompt: ends where the model goes on.
        answer: what follows: a space and the digits.
        key: the digits.
        tokens: length of the prompt in tokens, without special tokens.
        depth: share of the filler that stands before the needle, 0 to 1.
    """

    prompt: str
    answer: str
    key: str
    tokens: int
    depth: float


@dataclass(frozen=True)
class PasskeyTask:
    """Generator of passkey problems.

    Attributes:
        tokenizer: counts the tokens.
        tokens: the most tokens of a prompt; it gets as near as whole sentences allow.
        depth: where the needle stands, 0 (first) to 1 (last); None draws it for each sample.
        digits: digits of the key.
        filler: texts to hide the needle in; each sample starts at a random sentence of them. Default: the original five
            sentences.
    """

    tokenizer: PreTrainedTokenizerBase
    tokens: int = 1024
    depth: float | None = None
    digits: int = 5
    filler: Sequence[str] = FILLER

    def __post_init__(self) -> None:
        if self.depth is not None and not 0 <= self.depth <= 1:
            raise ValueError(f"depth is {self.depth}; it must be between 0 and 1")
        if self.digits < 1:
            raise ValueError(f"digits is {self.digits}; a key needs at least one")
        if not self.sentences:
            raise ValueError("filler holds no sentence")
        bare = self._count(self._write([], 0, "8" * self.digits))
        if bare + max(self.sizes) > self.tokens:
            raise ValueError(
                f"tokens is {self.tokens}; the bare prompt and one sentence need up to {bare + max(self.sizes)}"
            )

    @cached_property
    def sentences(self) -> list[str]:
        """The sentences of the filler, in order."""
        return [part for text in self.filler for part in SENTENCE_END.split(text.strip()) if part]

    @cached_property
    def sizes(self) -> list[int]:
        """Tokens of each sentence with the space before it."""
        return [self._count(" " + sentence) for sentence in self.sentences]

    def _count(self, text: str) -> int:
        return len(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _write(self, hay: Sequence[str], before: int, key: str) -> str:
        return " ".join([TASK, *hay[:before], NEEDLE.format(key=key), *hay[before:], QUESTION])

    def sample(self, rng: np.random.Generator) -> PasskeySample:
        """One problem; all randomness comes from `rng`."""
        key = str(rng.integers(10 ** (self.digits - 1), 10**self.digits))
        depth = float(rng.uniform()) if self.depth is None else self.depth
        room = self.tokens - self._count(self._write([], 0, key))
        chosen: list[int] = []
        for following in count(int(rng.integers(len(self.sentences)))):
            index = following % len(self.sentences)
            room -= self.sizes[index]
            if room < 0:
                break
            chosen.append(index)
        # A sentence may take another number of tokens next to others than alone: drop some if the sum was too low.
        while (sample := self._place(chosen, depth, key)).tokens > self.tokens:
            chosen.pop()
        return sample

    def _place(self, chosen: list[int], depth: float, key: str) -> PasskeySample:
        """The prompt with the needle between the two sentences that come nearest to `depth`."""
        ends = np.cumsum([0] + [self.sizes[index] for index in chosen])
        before = int(np.argmin(np.abs(ends - depth * ends[-1])))
        prompt = self._write([self.sentences[index] for index in chosen], before, key)
        return PasskeySample(prompt, f" {key}", key, self._count(prompt), float(ends[before] / max(ends[-1], 1)))


def score_passkey(generated: str, key: str) -> bool:
    """Whether the first number of the continuation is the key."""
    found = NUMBER.search(generated)
    return found is not None and found.group() == key
