"""Small randomly initialised models with the backbones' architectures, to be trained from scratch or used in tests."""

from typing import Any

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from recurformer.backbones.shapes import random_model
from recurformer.model.families import FAMILIES
from recurformer.tasks.tokenizer import TOKENIZERS


def make_random(
    architecture: str = "llama",
    *,
    hidden_size: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    intermediate_size: int | None = None,
    vocab_size: int = 128,
    seed: int = 0,
    initializer_range: float = 0.02,
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """A model with random weights; the same arguments give the same weights, and the global generator is left alone.

    Args:
        architecture: a name in FAMILIES.
        hidden_size: width of the residual stream.
        layers: number of layers.
        heads: query heads of a layer.
        kv_heads: key-value heads of a layer; None means as many as query heads (MHA).
        head_dim: dimensions of a head; None means hidden_size / heads.
        intermediate_size: width of the MLP; None means 4 * hidden_size.
        vocab_size: rows of the embedding.
        seed: of the weights.
        initializer_range: standard deviation of the weights.
        dtype: type of the parameters.

    Raises:
        ValueError: an unknown architecture, or heads that do not divide.
    """
    if architecture not in FAMILIES:
        raise ValueError(f"there is no architecture {architecture!r}; choose one of {', '.join(FAMILIES)}")
    family, rope = FAMILIES[architecture], {"rope_type": "default", "rope_theta": 10_000.0}
    kv_heads = heads if kv_heads is None else kv_heads
    if heads % kv_heads:
        raise ValueError(f"heads {heads} is not a multiple of kv_heads {kv_heads}")
    if head_dim is None and hidden_size % heads:
        raise ValueError(f"hidden_size {hidden_size} is not a multiple of heads {heads}: give head_dim")
    config = getattr(transformers, family.config)(
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden_size // heads if head_dim is None else head_dim,
        intermediate_size=4 * hidden_size if intermediate_size is None else intermediate_size,
        vocab_size=vocab_size,
        initializer_range=initializer_range,
        max_position_embeddings=2048,
        rope_parameters={kind: dict(rope) for kind in family.ropes} or rope,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **family.small,
    )
    return random_model(config, seed, dtype)


def open_random(
    tokenizer: str | None = None, vocab_size: int | None = None, dtype: str = "float32", **shape: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """`make_random`, with a tokenizer of its vocabulary.

    Args:
        tokenizer: a name in TOKENIZERS ("hash" reads HashHop's token form, "byte" any text) or None.
        vocab_size: size of the tokenizer's vocabulary; None leaves it to the tokenizer.
        dtype: name of the torch type of the parameters.
        shape: the other arguments of `make_random`.
    """
    if tokenizer is None:
        size: dict[str, Any] = {} if vocab_size is None else {"vocab_size": vocab_size}
        return make_random(dtype=getattr(torch, dtype), **size, **shape), None
    if tokenizer not in TOKENIZERS:
        raise ValueError(f"there is no tokenizer {tokenizer!r}; choose one of {', '.join(TOKENIZERS)}")
    reader = TOKENIZERS[tokenizer](vocab_size)
    model = make_random(vocab_size=len(reader), dtype=getattr(torch, dtype), **shape)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(model.config, name, getattr(reader, name))
        setattr(model.generation_config, name, getattr(reader, name))
    return model, reader
