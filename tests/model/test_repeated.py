"""Linear layers over repeated heads: giving each distinct head once changes nothing."""

import pytest
import torch
from tiny_models import difference

from recurformer.model.repeated import MULTIPLY_ADDS_PER_MOVE, RepeatedLinear, adding_pays

HEAD = 3


def repeated(x, copies):
    heads = x.chunk(len(copies), -1)
    return torch.cat([head for head, count in zip(heads, copies, strict=True) for _ in range(count)], -1)


@pytest.mark.parametrize("copies", [(3, 3), (1, 2, 3), (4,), (1, 1, 1)])
@pytest.mark.parametrize("rows", [1, 5000])  # the copies are multiplied, or added up first
def test_distinct_heads_equal_repeated_ones(copies, rows):
    torch.manual_seed(0)
    layer = RepeatedLinear(sum(copies) * HEAD, 7, copies).double()
    x = torch.randn(2, rows, len(copies) * HEAD, dtype=torch.float64, requires_grad=True)
    assert adding_pays(2 * rows, copies) == (rows > 1 and sum(copies) > len(copies))
    results = []
    for given in (x, repeated(x, copies)):
        layer.zero_grad()
        y = layer(given)
        (grad,) = torch.autograd.grad(y.square().sum(), x, retain_graph=True)
        y.square().sum().backward()
        results.append((y, grad, layer.weight.grad.clone()))
    for result, expected in zip(*results, strict=True):
        assert difference(result, expected) < 1e-12
    assert torch.allclose(layer(repeated(x, copies)), x @ layer.summed_weight().T, rtol=1e-12)


def test_adding_pays_for_many_rows_only():
    assert not adding_pays(10**9, (1, 1, 1))  # nothing is repeated
    for copies in ((2,), (3, 3), (7, 1)):
        total, distinct = sum(copies), len(copies)
        break_even = MULTIPLY_ADDS_PER_MOVE * (total + distinct) / (total - distinct)
        assert not adding_pays(int(break_even), copies) and adding_pays(int(break_even) + 1, copies)
