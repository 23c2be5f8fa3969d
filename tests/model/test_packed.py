"""Keys and values of few bits, against the definition written out number by number."""

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard as sylvester

from recurformer.model.packed import BITS, FULL_BITS, as_kept, hadamard, pack, packed_bytes, unpack


def vectors(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dim", [1, 2, 6, 8, 64, 80, 96, 128])
@torch.no_grad()
def test_hadamards_product(dim):
    width = dim & -dim
    matrix = np.kron(np.eye(dim // width), sylvester(width)) / width**0.5
    x = vectors(3, 2 * dim)[:, :dim]  # rows with gaps
    assert torch.allclose(hadamard(x), x @ torch.from_numpy(matrix), atol=1e-12)
    assert torch.allclose(hadamard(hadamard(x)), x, atol=1e-12)
    assert torch.allclose(hadamard(x.float()).double(), hadamard(x), atol=1e-5)  # by the C++ kernel, where there is one


@pytest.mark.parametrize("bits", BITS[1:])
@pytest.mark.parametrize("dim", [6, 16, 18])  # few bits of 6 and 18 numbers do not fill their bytes
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_number_is_the_middle_of_its_step(bits, dim, dtype):
    x = (vectors(5, 3, dim) * torch.tensor([1e-6, 1.0, 1e4]).view(3, 1)).to(dtype)
    packed = pack(x, bits)
    assert packed.dtype == torch.uint8 and packed.shape == (5, 3, packed_bytes(dim, bits))
    kept = unpack(packed, bits, torch.float64)
    for vector, row in zip(x.flatten(0, 1).double(), kept.flatten(0, 1), strict=True):
        step = float((vector.abs().max() * 2 / 2**bits).bfloat16())
        for number, found in zip(vector.tolist(), row.tolist(), strict=True):
            place = min(max(np.floor(number / step), -(2 ** (bits - 1))), 2 ** (bits - 1) - 1)
            near = abs(number / step - round(number / step)) < 1e-3  # between two steps either will do
            assert near or found == pytest.approx((place + 0.5) * step, rel=1e-6)
            assert abs(found - number) <= 0.51 * step + 2**-8 * abs(number)


@pytest.mark.parametrize("bits", BITS[1:])
def test_extreme_vectors(bits):
    zero = torch.zeros(2, 8)
    assert unpack(pack(zero, bits), bits, torch.float32).abs().max() < 1e-30
    large = torch.full((1, 8), 1e30)
    assert torch.allclose(unpack(pack(large, bits), bits, torch.float32), large, rtol=2.0**-bits * 2)
    assert unpack(pack(torch.tensor([[1.0, torch.nan]]), bits), bits, torch.float32).isnan().all()


def test_the_center_is_taken_away_alone():
    key, value, center = vectors(2, 5, 16), vectors(2, 5, 16, seed=1), vectors(16, seed=2)
    assert as_kept(key, value, FULL_BITS) == (key, value)
    kept, _ = as_kept(key + center, value, 8, center)
    assert torch.equal(kept, as_kept(key + center - center, value, 8)[0])
    errors = [float((as_kept(key, value, bits)[1] - value).norm() / value.norm()) for bits in BITS]
    assert errors == sorted(errors) and errors[0] == 0 and errors[1] < 0.01 < errors[-1] < 0.15
