"""A linear layer over grouped values: several of its input heads are the same head, repeated.

With r copies of one head, W_1 v + ... + W_r v = (W_1 + ... + W_r) v: multiply once by the sum, not r times.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# What reading or writing one number costs; between a CPU's (30, measured) and a GPU's (190, by data sheet).
MULTIPLY_ADDS_PER_MOVE = 128


def adding_pays(rows: int, copies: Sequence[int]) -> bool:
    """Return whether adding up the weight anew costs less than multiplying `rows` rows by every copy.

    Both sides are in multiply-adds per output feature and feature of a head: the sum reads the weight of every copy and
    writes that of every distinct head.
    """
    total, distinct = sum(copies), len(copies)
    return rows * (total - distinct) > MULTIPLY_ADDS_PER_MOVE * (total + distinct)


class RepeatedLinear(nn.Linear):
    """A linear layer without bias, whose input may be given with each distinct head once.

    Args:
        in_features: features with every copy counted.
        out_features: features of the output.
        copies: how often every distinct head stands in the input, one head's copies side by side; (3, 2) reads a, b as
            a a a b b.
    """

    def __init__(self, in_features: int, out_features: int, copies: Sequence[int]):
        super().__init__(in_features, out_features, bias=False)
        self.copies = tuple(copies)

    def summed_weight(self) -> Tensor:
        """Return the weight for an input of distinct heads (out_features, distinct features)."""
        if len(self.copies) == sum(self.copies):
            return self.weight
        heads = self.weight.unflatten(1, (sum(self.copies), -1)).split(self.copies, 1)
        return torch.stack([copies.sum(1) for copies in heads], 1).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply x (..., in_features), or x with distinct heads only; their copies then cost nothing in large x."""
        if x.shape[-1] == self.in_features:
            return F.linear(x, self.weight)
        if adding_pays(x.shape[:-1].numel(), self.copies):
            return F.linear(x, self.summed_weight())
        heads = zip(x.chunk(len(self.copies), -1), self.copies, strict=True)
        return F.linear(torch.cat([head for head, count in heads for _ in range(count)], -1), self.weight)
