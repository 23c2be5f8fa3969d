"""One token: the state step against the scan, and how few operations a decode step launches."""

import pytest
import torch
from tiny_models import difference, make_converted, tokens
from torch.utils._python_dispatch import TorchDispatchMode

from recurformer.model import conv, mamba
from recurformer.model.fold import folded
from recurformer.model.mamba import MambaBlock
from recurformer.model.scan import selective_scan
from recurformer.model.scan_inputs import StepInputs
from recurformer.model.step import conv_step, state_step


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


class Launches(TorchDispatchMode):
    """Names of the operations that do more than look at a tensor in another way."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if not function.is_view and "_unsafe_view" not in str(function):
            self.names.append(str(function))
        return function(*arguments, **(keywords or {}))


@pytest.fixture
def as_kernels(monkeypatch):
    """Each step function as one operator, as a compiled or Triton version would be."""

    @torch.library.custom_op("test_step::conv", mutates_args=("window",))
    def conv_kernel(x: torch.Tensor, window: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return conv_step(x, window, weight, bias)

    @torch.library.custom_op("test_step::state", mutates_args=("state",))
    def state_kernel(
        u: torch.Tensor, delta: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor, D: torch.Tensor,
        z: torch.Tensor, state: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        return state_step(StepInputs(u, delta, A, B, C, D, z, state))

    monkeypatch.setattr(conv, "conv_step", conv_kernel)
    monkeypatch.setattr(mamba, "state_step", lambda inputs: state_kernel(*inputs))


@pytest.mark.parametrize("backbone", ["llama_mha", "qwen2_gqa"])
def test_the_mamba_branch_of_a_decode_step_launches_little(backbone, as_kernels, monkeypatch):
    model = make_converted(backbone, "mixed").requires_grad_(False)
    counted, forward = [], MambaBlock.forward

    def counting(*arguments, **keywords):
        with Launches() as launches:
            result = forward(*arguments, **keywords)
        counted.append(launches.names)
        return result

    with torch.no_grad(), folded(model):
        cache = model(tokens(1, 5), use_cache=True).past_key_values
        model(tokens(1, 1), past_key_values=cache)  # the products are there now
        monkeypatch.setattr(MambaBlock, "forward", counting)
        model(tokens(1, 1), past_key_values=cache)
    expected = ["aten.mm.default", "test_step.conv.default", "aten.mm.default", "aten.addmm.default"]
    assert counted == [[*expected, "test_step.state.default"]] * 2  # out_proj comes on top where it is not folded
