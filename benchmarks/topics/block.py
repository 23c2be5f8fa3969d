"""The Mamba block beside transformers' MambaMixer with the same weights, on its torch loop and on mambapy's scan."""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MambaConfig
from transformers.models.mamba.modeling_mamba import MambaMixer

from benchmarks.case import Call, Candidate, Case, Options
from benchmarks.topics.scan import QUADRATIC_UP_TO
from recurformer.model.mamba import MambaBlock

SHAPES = ((128, 4, 256), (576, 1, 1024))  # width, batch, length
SETTINGS: dict[str, Any] = {"d_state": 16, "d_conv": 4, "expand": 2, "dt_rank": 256}


def _ours(width: int) -> MambaBlock:
    torch.manual_seed(0)
    return MambaBlock(width, **SETTINGS, layer_index=0).eval()


def _mixer(width: int, mambapy: bool = False) -> MambaMixer:
    settings: dict[str, Any] = {
        "state_size": 16,
        "conv_kernel": 4,
        "expand": 2,
        "time_step_rank": 256,
    }  # SETTINGS in its words
    config = MambaConfig(hidden_size=width, num_hidden_layers=1, use_mambapy=mambapy, **settings)
    mixer = MambaMixer(config, layer_idx=0).eval()
    mixer.load_state_dict(_ours(width).state_dict())
    return mixer


BLOCKS: dict[str, Callable[[int], nn.Module]] = {
    "recurformer": _ours,
    "transformers": _mixer,
    "transformers mambapy": partial(_mixer, mambapy=True),
}


def _input(width: int, batch: int, length: int, options: Options) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, length, width, generator=generator).to(options.device)


def _forward(block: nn.Module, x: Tensor) -> Call:
    return Call(torch.no_grad()(lambda: block(x)))


def _both(block: nn.Module, x: Tensor) -> Call:
    leaves = [x.requires_grad_(), *block.parameters()]
    gradient = torch.ones_like(x)
    return Call(lambda: torch.autograd.grad(block(x), leaves, gradient))


DIRECTIONS = {"forward": _forward, "forward+backward": _both}


def _blocks(direction: str, length: int) -> list[str]:
    quadratic = direction != "forward" and length > QUADRATIC_UP_TO
    left_out = {"transformers"} if quadratic else set()
    return [name for name in BLOCKS if name not in left_out and ("mambapy" not in name or find_spec("mambapy"))]


def cases(options: Options) -> Iterator[Case]:
    """Two widths, each forward and with gradients."""
    for shape in SHAPES[: 1 if options.quick else None]:
        for direction in DIRECTIONS:
            yield _case(*shape, direction, options)


def _case(width: int, batch: int, length: int, direction: str, options: Options) -> Case:
    def prepare(name: str) -> Call:
        block, x = BLOCKS[name](width).to(options.device), _input(width, batch, length, options)
        return DIRECTIONS[direction](block, x)

    @torch.no_grad()
    def expected() -> Tensor:
        return _ours(width).double()(_input(width, batch, length, options).double().cpu())

    names = _blocks(direction, length)
    return Case(
        f"{width} wide {batch}x{length} {direction}",
        "transformers" if "transformers" in names else "transformers mambapy",
        tuple(Candidate(name, partial(prepare, name)) for name in names),
        {"batch": batch, "tokens": length, "channels": 2 * width, "states": SETTINGS["d_state"]},
        expected if direction == "forward" else None,
    )
