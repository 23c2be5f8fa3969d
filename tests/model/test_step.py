"""One token: the state step against the scan, and the kernels for a whole block and for few rows."""

import copy

import pytest
import torch
from tiny_models import difference

from recurformer.model import cpp_step, few_rows, native
from recurformer.model.cpp_step import BlockInputs, StepInputs
from recurformer.model.mamba import FusedMamba, MambaBlock, state_step
from recurformer.model.scan import selective_scan


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.02)]
)
def test_steps_equal_the_scan(dtype, tolerance):
    torch.manual_seed(0)
    batch, channels, states, length = 2, 5, 3, 7
    wide = torch.promote_types(dtype, torch.float32)
    u, delta, z = (torch.randn(batch, channels, length, dtype=dtype) for _ in range(3))
    B, C = (torch.randn(batch, states, length, dtype=dtype) for _ in range(2))
    A, D = -torch.rand(channels, states, dtype=wide), torch.randn(channels, dtype=wide)
    initial = torch.randn(batch, channels, states, dtype=wide)
    y, last = selective_scan(
        u, delta, A, B, C, D, z, delta_softplus=True, initial_state=initial, return_last_state=True
    )
    state, address, steps = initial, initial.data_ptr(), []
    for u1, d1, B1, C1, z1 in zip(*(x.unbind(-1) for x in (u, delta, B, C, z)), strict=True):
        steps.append(state_step(StepInputs(u1, d1, A, B1, C1, D, z1, state)))
    assert steps[0].dtype == dtype and state.dtype == wide and state.data_ptr() == address
    assert difference(torch.stack(steps, -1), y) < tolerance
    assert difference(state, last) < tolerance


def block_and_fused(sizes, folds_step):
    """A Mamba block with weights of some size, and its fused weights, of the block's precision."""
    width, states, taps, rank = sizes
    torch.manual_seed(0)
    block = MambaBlock(width, states, taps, expand=2, dt_rank=rank, layer_index=0).requires_grad_(False)
    for parameter in (block.in_proj.weight, block.x_proj.weight, block.dt_proj.weight, block.conv1d.weight):
        parameter.normal_(0, 0.3)
    block.D.normal_()

    def fused(block):
        selection = None
        if folds_step:
            step, others = block.x_proj.weight.split([rank, 2 * states])
            bias = torch.cat([block.dt_proj.bias, others.new_zeros(2 * states)])
            selection = torch.cat([block.dt_proj.weight @ step, others]), bias
        return FusedMamba(None, selection, *block.transition())

    return block, fused


@pytest.mark.skipif(native.refuses() is not None, reason="needs the C++ kernels")
@pytest.mark.parametrize("folds_step", [False, True])
@pytest.mark.parametrize("sizes", [(24, 16, 4, 7), (5, 3, 3, 2), (200, 8, 4, 40)], ids=str)
@pytest.mark.parametrize("batch", [1, 3, cpp_step.MOST_ROWS, cpp_step.MOST_ROWS + 1])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.bfloat16, 0.06)])
def test_a_whole_blocks_step_equals_its_parts_in_float64(sizes, batch, folds_step, dtype, tolerance, monkeypatch):
    block, fused = block_and_fused(sizes, folds_step)
    block = block.to(dtype)
    width, states, taps, _ = sizes
    windows, state = torch.randn(batch, 2 * width, taps, dtype=dtype), torch.randn(batch, 2 * width, states)
    block_step, called = cpp_step.block_step, []
    monkeypatch.setattr(cpp_step, "block_step", lambda inputs: called.append(1) or block_step(inputs))
    exact, rounded = (windows.double(), state.double()), (windows.clone(), state)
    for _ in range(3):
        x = torch.randn(batch, 3 * width, dtype=dtype)[:, width : 2 * width]  # rows with gaps
        with torch.no_grad():
            got = block._step(x, rounded, None, fused(block))
            twin = copy.deepcopy(block).double()
            expected = twin._step(x.double(), exact, None, fused(twin))
        assert difference(got.double(), expected) < tolerance
    for result, twins in zip(rounded, exact, strict=True):
        assert difference(result.double(), twins) < tolerance
    assert len(called) == (3 if batch <= cpp_step.MOST_ROWS else 0)


@pytest.mark.parametrize("field", [name for name in BlockInputs._fields if name != "x"])
@pytest.mark.parametrize("change", ["half precision", "gaps"])
def test_what_the_kernel_cannot_take_goes_through_torch(field, change):
    """A window from a prompt that was read under autocast; a cache or a weight that is a view of another tensor."""
    block, fused = block_and_fused((24, 16, 4, 7), folds_step=field == "selection_bias")
    inputs = block.step_inputs(torch.randn(2, 24), (torch.randn(2, 48, 4), torch.randn(2, 48, 16)), fused(block))
    if getattr(inputs, field) is None:
        pytest.skip("the step is folded or it is not")
    given = getattr(inputs, field)
    wide = torch.stack([given, given], -1)[..., 0]
    changed = inputs._replace(**{field: given.bfloat16() if change == "half precision" else wide})
    with torch.no_grad():
        assert inputs.taken() == (native.refuses() is None)
        assert not changed.taken()


@pytest.mark.parametrize("batch", [1, cpp_step.MOST_ROWS + 1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [3, 700])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-7)])
def test_few_rows_equal_a_linear_layer(batch, bias, outputs, dtype, tolerance, monkeypatch):
    torch.manual_seed(0)
    products, called = few_rows.products, []
    monkeypatch.setattr(few_rows, "products", lambda *given: called.append(1) or products(*given))
    layer, x = torch.nn.Linear(70, outputs, bias=bias, dtype=dtype), torch.randn(batch, 2, 70, dtype=dtype)
    exact = copy.deepcopy(layer).double()
    for rows in (x, x[:, 1:]):
        with torch.no_grad():
            found = few_rows.product(rows, layer.weight, layer.bias)
            assert found.dtype == dtype and difference(found.double(), exact(rows.double())) < tolerance
    assert len(called) == (batch == 1 and native.refuses() is None)
