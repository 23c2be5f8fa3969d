"""Sizes of tasks, their rules, and published shapes: plain numbers, so a study is refused before torch is loaded."""

import math
from dataclasses import dataclass
from typing import Any

_MODELS = ("llama2-7b", "qwen2-7b", "qwen2-0.5b", "smollm2-135m")
_VALUES: dict[str, tuple[Any, ...]] = {
    "architecture": ("llama", "qwen2", "qwen2", "llama"),
    "hidden_size": (4096, 3584, 896, 576),
    "intermediate_size": (11008, 18944, 4864, 1536),
    "num_hidden_layers": (32, 28, 24, 30),
    "num_attention_heads": (32, 28, 14, 9),
    "num_key_value_heads": (32, 4, 2, 3),
    "vocab_size": (32000, 152064, 151936, 49152),
    "max_position_embeddings": (4096, 131072, 131072, 8192),
    "rms_norm_eps": (1e-5, 1e-6, 1e-6, 1e-5),
    "rope_theta": (10_000.0, 1_000_000.0, 1_000_000.0, 100_000.0),
    "tie_word_embeddings": (False, False, True, True),
    "bos_token_id": (1, 151643, 151643, 1),
    "eos_token_id": (2, 151643, 151643, 2),
    "pad_token_id": (None, None, None, 2),
}
PUBLISHED: dict[str, dict[str, Any]] = {
    name: {key: values[n] for key, values in _VALUES.items()} for n, name in enumerate(_MODELS)
}
PUBLISHED["gemma3-270m"] = {
    "architecture": "gemma3_text",
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 512,
    "sliding_window_pattern": 6,  # the last of so many layers sees all tokens
    "vocab_size": 262144,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
"""Shapes of the paper's backbones, SmolLM2 and Gemma 3, as the config.json that their authors publish has them."""

IN_WHEELS = ("smollm2-135m", "gemma3-270m")
"""Shapes of which the package index has a model with weights."""

LETTERS = 52
"""Letters of which hashes in text are made."""
PAD, BOS, EOS, UNKNOWN, QUERY, SEPARATOR = "<pad>", "<bos>", "<eos>", "<unk>", "<query>", "<sep>"
BYTE_SPECIALS = (PAD, BOS, EOS)
BYTE_VOCABULARY = 256 + len(BYTE_SPECIALS)
"""Ids of the byte tokenizer, and the fewest of one that learns words of text: every byte has an id."""
# Ids 0-5 of the hash vocabulary, in this order; the hashes follow.
HASH_SPECIALS = (PAD, BOS, EOS, UNKNOWN, QUERY, SEPARATOR)
HASH_VOCABULARY = 128
"""Ids of the hash vocabulary by default."""
RANDOM_LENGTH = 2048
"""Tokens that a random backbone reads."""


def check_mqar(vocabulary: int, length: int, pairs: int) -> None:
    """Raise a ValueError that names what does not fit in a sample of associative recall."""
    if length % 2 or 4 * pairs > length:
        raise ValueError(f"length is {length}; it must be even and at least 4 times the {pairs} pairs")
    if vocabulary // 2 - 1 < pairs:
        raise ValueError(f"vocabulary is {vocabulary}; {pairs} pairs need {pairs} keys, so {2 * (pairs + 1)} ids")


@dataclass(frozen=True)
class HashHopTokenSizes:
    """Sizes of HashHop in tokens.

    Attributes:
        vocabulary: number of token ids, the special ones of `hash_tokenizer` included.
        chains: full chains in the list of "official"; "paper" has one.
        hops: pairs of a chain, and hashes of the answer (the paper's h_p).
        pairs: pairs in the list; of "official" chains · hops.
        variant: "official" or "paper".
    """

    vocabulary: int
    chains: int
    hops: int
    pairs: int
    variant: str

    def __post_init__(self) -> None:
        if self.variant == "official" and self.pairs != self.chains * self.hops:
            raise ValueError(
                f"pairs is {self.pairs}; {self.chains} full chains of {self.hops} hops have {self.chains * self.hops}"
            )
        if self.pairs < self.hops:
            raise ValueError(f"pairs is {self.pairs}; a chain of {self.hops} hops needs at least as many")
        if self.hashes_needed > self.vocabulary - len(HASH_SPECIALS):
            least = self.hashes_needed + len(HASH_SPECIALS)
            raise ValueError(
                f"vocabulary is {self.vocabulary}; the task needs {self.hashes_needed} different hashes, so {least} ids"
            )

    @property
    def full_chains(self) -> int:
        """Chains of full length in the list."""
        return self.chains if self.variant == "official" else 1

    @property
    def hashes_needed(self) -> int:
        """Different hashes in one problem."""
        return self.full_chains * (self.hops + 1) + 2 * (self.pairs - self.full_chains * self.hops)

    @property
    def prompt_length(self) -> int:
        """Tokens before the answer: BOS, the pairs and their separators, the query token and the start."""
        return 3 * self.pairs + 3

    @property
    def length(self) -> int:
        """Tokens of a sample: the prompt, the answer and EOS."""
        return self.prompt_length + self.hops + 1


@dataclass(frozen=True)
class HashHopTextSizes:
    """Sizes of HashHop in text.

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
        if self.pairs < self.hops:
            raise ValueError(
                f"characters {self.characters} have room for {self.pairs} pairs, a chain needs {self.hops}"
            )
        if self.hashes_needed > LETTERS**self.hash_length:
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
