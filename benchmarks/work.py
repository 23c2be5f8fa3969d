"""The work that a pass of a model cannot avoid, counted from its modules and its cache."""

from typing import Any

from torch import nn

from benchmarks.case import Work
from recurformer.model.mamba import MambaBlock


def scan_work(batch: int, length: int, channels: int, states: int, element_bytes: int) -> Work:
    """One forward scan: exp(delta A), h = a h + b u, y = C h; reads u, delta, z, B, C and writes y."""
    updates = batch * length * channels * states
    moved = batch * length * (4 * channels + 2 * states) * element_bytes
    return Work(flops=6 * updates, bytes=moved, exponentials=updates)


def scan_backward_work(batch: int, length: int, channels: int, states: int, element_bytes: int) -> Work:
    """The backward alone: states and decays again (to keep them would move more), five products, twice the bytes."""
    forward = scan_work(batch, length, channels, states, element_bytes)
    return Work(16 * forward.exponentials, 2 * forward.bytes, forward.exponentials)


def scan_of_block(block: MambaBlock, batch: int, length: int) -> Work:
    """The forward scan within a Mamba block."""
    channels, states = block.A_log.shape
    return scan_work(batch, length, channels, states, block.A_log.element_size())


def linear_flops(module: nn.Module, tokens: int) -> int:
    """Of all linear layers in a module, for this many tokens."""
    return sum(2 * tokens * part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))


def weight_bytes(module: nn.Module) -> int:
    """Bytes of all parameters that have to be read, shared ones once."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def block_work(block: MambaBlock, batch: int, length: int) -> Work:
    """One forward pass of a Mamba block."""
    return scan_of_block(block, batch, length) + Work(linear_flops(block, batch * length), weight_bytes(block))


def attention_flops(query_heads: int, head_dim: int, tokens: int, seen: int) -> float:
    """Scores and weighted values of `tokens` queries after `seen` others, causal."""
    return 4 * query_heads * head_dim * tokens * (seen + (tokens + 1) / 2)


def model_work(model: Any, batch: int, tokens: int, seen: int = 0, cache_bytes: int = 0) -> Work:
    """One pass of `tokens` tokens after `seen` others, with the logits of the last; the cache is read once."""
    config = model.config
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    replaced = getattr(config, "recurrent_heads", None) or [[]] * config.num_hidden_layers
    attending = sum(config.num_attention_heads - len(layer) for layer in replaced)
    flops = linear_flops(model.base_model, batch * tokens) + linear_flops(model.lm_head, batch)
    work = Work(flops + batch * attention_flops(attending, dim, tokens, seen), weight_bytes(model) + cache_bytes)
    for block in model.modules():
        if isinstance(block, MambaBlock):
            work += scan_of_block(block, batch, tokens)
    return work
