"""Tokenizers of models that are trained from scratch: one token a hash, or one token a byte for any text.

Both put nothing before or after a text by themselves; prompts carry their special tokens in writing.
"""

from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from transformers import PreTrainedTokenizerFast

from recurformer.data.sizes import BOS, EOS, HASH_SPECIALS, HASH_VOCABULARY, PAD, QUERY, SEPARATOR, UNKNOWN

BYTE_SPECIALS = (PAD, BOS, EOS)


def hash_word(token: int) -> str:
    """The word that stands for one id of the hash vocabulary: a special token's name, or h0, h1, …"""
    return HASH_SPECIALS[token] if token < len(HASH_SPECIALS) else f"h{token - len(HASH_SPECIALS)}"


def hash_tokenizer(vocabulary: int | None = None) -> PreTrainedTokenizerFast:
    """Whitespace-separated words to ids for the token form of HashHop (`token_samples`).

    Args:
        vocabulary: number of ids, special tokens included (default 128), as in `HashHopTokenSizes`.
    """
    vocabulary = HASH_VOCABULARY if vocabulary is None else vocabulary
    model = WordLevel({hash_word(token): token for token in range(vocabulary)}, unk_token=UNKNOWN)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _left_padded(tokenizer, unk_token=UNKNOWN, additional_special_tokens=[QUERY, SEPARATOR])


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte of UTF-8; decode(encode(text)) == text for every text, even one that spells "<eos>"."""
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
