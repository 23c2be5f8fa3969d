"""Memory of a training on each device, alone or shared among several.

AdamW with float32 weights, gradients and moments; products in bfloat16 on cards. Two ways to share a model:

    ddp    every device holds all (Li et al., arXiv 2006.15704)
    fsdp   weights, gradients and moments are sharded; layers are gathered as they are needed (Zhao et al., arXiv
           2304.11277; the same as stage 3 of ZeRO, arXiv 1910.02054)

What stays out: CUDA's context, and the allocator's fragmentation, which costs real cards some gigabytes more.
"""

from recurformer.plan.shapes import Shape
from recurformer.plan.work import Work

ADAMW_BYTES = 16
"""For each parameter: float32 weight, gradient and two moments (ZeRO, section 3.1, counts as many)."""
BF16, FLOAT32 = 2, 4
LOGITS_BYTES = 12
"""For each token and word of the vocabulary: float32 logits, what the loss derives from them, and their gradient."""
GATHERED_LAYERS = 2
"""Layers of fsdp that are whole at the same time: the one that computes and the one that is prefetched."""


def layer_values(shape: Shape, beta: float) -> float:
    """Numbers of one layer and token that the backward pass wants again: what projections, norms and the activation
    read (Korthikanti et al., arXiv 2205.05198, section 4.1, without the attention matrix, which fused kernels
    recompute), and the streams of a Mamba block. The factors are counted on real layers (tests/plan).
    """
    attention = 8 * shape.hidden_size + 2 * shape.kv_width
    return attention + 4 * shape.intermediate_size + beta * 7 * shape.channels


def largest_layer(work: Work) -> int:
    """Parameters of the largest decoder layer: with any head replaced, one whose heads are all replaced."""
    shape = work.shape
    converted = shape.parameters(1.0) - shape.parameters()
    return shape.layer_parameters + (converted // shape.layers if work.beta else 0)


def ddp_bytes(work: Work, number_bytes: int) -> int:
    """Weights, gradients and moments; under autocast its bfloat16 copies of the weights; among several devices the
    buckets in which gradients travel, as large as all gradients (`gradient_as_bucket_view` would save them).
    """
    copies = BF16 if number_bytes == BF16 else 0
    buckets = FLOAT32 if work.processes > 1 else 0
    return work.parameters * (ADAMW_BYTES + copies + buckets)


def fsdp_bytes(work: Work, number_bytes: int) -> int:
    """A device's shard of all, and what is whole, in float32: two layers, the gradient of one, and the root unit, which
    is the embedding and the language-model head, with its gradient.
    """
    root = work.shape.embedding_parameters * (1 if work.shape.tied else 2)
    gathered = FLOAT32 * ((GATHERED_LAYERS + 1) * largest_layer(work) + 2 * root)
    return ADAMW_BYTES * work.parameters // work.processes + gathered


STRATEGIES = {"ddp": ddp_bytes, "fsdp": fsdp_bytes}
"""Name -> bytes on each device before any activation."""


def activation_bytes(work: Work, number_bytes: int = BF16) -> float:
    """Activations of one pass. Checkpointing keeps the input of every layer and computes the rest again, layer by
    layer (Chen et al., arXiv 1604.06174).
    """
    shape = work.shape
    layers = shape.layers * layer_values(shape, work.beta)
    if work.checkpointing:
        layers = shape.layers * shape.hidden_size + layer_values(shape, 1.0 if work.beta else 0.0)
    return work.batch * work.tokens * (number_bytes * layers + LOGITS_BYTES * shape.vocabulary)


def training_bytes(work: Work, number_bytes: int = BF16) -> float:
    """All tensors on each device; `number_bytes` of an activation: 2 under bfloat16 autocast, 4 without."""
    return STRATEGIES[work.strategy](work, number_bytes) + activation_bytes(work, number_bytes)
