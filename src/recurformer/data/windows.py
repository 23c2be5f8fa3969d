"""Fixed-length windows of tokens from texts, for head profiles, contribution statistics and attention maps."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of one text without special tokens, and without the tokenizer's warning about long texts."""
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def text_prefix(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids that the tokenizer itself puts before a text: [BOS] for Llama, [] for Qwen2 and SmolLM2."""
    # of a letter, not of "": an end-of-sequence token behind an empty text, often the same id as BOS, would stand first
    ids = tokenizer("a")["input_ids"]
    return ids[:1] if ids[:1] == [tokenizer.bos_token_id] else []


def windows(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    tokens: int,
    count: int | None = None,
    seed: int = 0,
) -> torch.Tensor:
    """Disjoint windows of exactly `tokens` tokens, the beginnings of different texts first.

    The paper (appendix B) takes the first 1,024 tokens of 1,024 random articles of more than 1,030 tokens. Where there
    are fewer articles than windows, the second windows of all articles follow, then the third ones, so that the windows
    stay spread over as many articles as possible. Every window starts with what the tokenizer puts before a text, if
    anything.

    Args:
        texts: one string per article.
        tokenizer: any Hugging Face tokenizer.
        tokens: tokens of a window, the prefix included.
        count: number of windows; None takes all there are.
        seed: decides the order of the articles.

    Returns:
        Long tensor (count, tokens).

    Raises:
        ValueError: no texts, a window longer than every text, or fewer windows than asked for.
    """
    if not len(texts):
        raise ValueError("windows: there are no texts to cut windows from")
    prefix = text_prefix(tokenizer)
    body = tokens - len(prefix)
    if body < 1:
        raise ValueError(f"windows: {tokens} tokens leave no room for text after the prefix of {len(prefix)}")
    encoded = [encode_text(tokenizer, text) for text in texts]
    eligible = [index for index, ids in enumerate(encoded) if len(ids) >= body]
    if not eligible:
        longest = max(map(len, encoded)) + len(prefix)
        raise ValueError(f"windows: the longest of {len(texts)} texts has {longest} tokens, a window needs {tokens}")
    order = np.random.default_rng(seed).permutation(eligible)
    rounds = max(len(encoded[index]) for index in eligible) // body
    cut = [
        prefix + encoded[index][turn * body : (turn + 1) * body]
        for turn in range(rounds)
        for index in order
        if len(encoded[index]) >= (turn + 1) * body
    ]
    if count is not None and len(cut) < count:
        raise ValueError(
            f"windows: {count} windows of {tokens} tokens were asked for, {len(eligible)} texts give only {len(cut)}"
        )
    return torch.tensor(cut[:count], dtype=torch.long)  # (count, tokens)
