"""The closed form: every mixer's last linear layer by ridge regression against the removed heads' outputs.

It goes layer by layer on the converted model's own inputs, so each layer corrects the errors of the layers before it.
It needs only forward passes. We found no published recipe that does this for attention heads; the data-aware start of
Taylor-Calibrate (arXiv 2606.16429) is the nearest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from recurformer.heads.attention import reading
from recurformer.model.layout import refuse_adapter
from recurformer.model.mamba import MambaBlock
from recurformer.recover.kept import KeptSteps
from recurformer.recover.pair import ReplacedLayer, replaced_layers

RIDGES = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Ridge parameters that are tried, as fractions of the mean square of a feature."""
HELD_OUT = 0.125
"""Fraction of the windows, the last ones, that choose the ridge parameter; the final solution uses all."""
START_TOKENS = 8192
"""Tokens that a start reads."""

ERRORS = ("layer", "heads", "ridge", "before", "after")
"""Columns of the closed form's report on each layer."""
Row = tuple[int, int, float, float, float]

Start = Callable[[Any, Tensor], None]
"""Sets the weights before a mixer's readout, in place; gets the mixer and the values (B, L, features) that it reads."""


@dataclass
class Moments:
    """Sums over tokens, float64, of features x and targets t: all that a linear fit needs of them.

    Attributes:
        xx: sum of x x^T, (features, features).
        xt: sum of x t^T, (features, targets).
        tt: sum of t t^T, (targets, targets).
        whole: sum of w w^T, where w is t and the output beside the fit; errors are fractions of it.
    """

    xx: Tensor
    xt: Tensor
    tt: Tensor
    whole: Tensor

    @classmethod
    def of(cls, features: Tensor, targets: Tensor, beside: Tensor) -> "Moments":
        """Moments of features (..., features) that should give `targets` minus the output `beside`, (..., targets)."""
        x, w, constant = (rows.flatten(0, -2).double() for rows in (features, targets, beside))
        t = w - constant
        return cls(x.mT @ x, x.mT @ t, t.mT @ t, w.mT @ w)

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(self.xx + other.xx, self.xt + other.xt, self.tt + other.tt, self.whole + other.whole)

    def relative_error(self, solution: Tensor, metric: Tensor) -> float:
        """Error of predicting t by x solution, in the metric t^T metric t; see `pair.relative_error`."""
        cross = solution.mT @ self.xt
        wrong = solution.mT @ self.xx @ solution - cross - cross.mT + self.tt
        return float((wrong * metric).sum() / (self.whole * metric).sum())

    def ridge(self, ridges: Sequence[float]) -> list[Tensor]:
        """Solutions (features, targets) of the least squares with each ridge parameter.

        They are the same in every metric in which both the error and the penalty are measured, W_O's among them.
        """
        values, vectors = torch.linalg.eigh(self.xx)
        mean, rotated = values.mean(), vectors.mT @ self.xt
        return [vectors @ (rotated / (values.clamp(min=0) + ridge * mean).unsqueeze(1)) for ridge in ridges]


@torch.no_grad()
def calibrate(
    original: PreTrainedModel,
    converted: PreTrainedModel,
    windows: Tensor,
    *,
    batch_size: int = 4,
    ridges: Sequence[float] = RIDGES,
    start: str = "random",
    alone: bool = False,
    output_dir: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Solve the mixers' last linear layers in place; killed, it goes on from the last solved layer when called again.

    In addition to the models, memory holds both models' hidden states of all windows, in the models' dtype, and the
    sums of one layer.

    Args:
        original: the model that `converted` was converted from; not changed.
        converted: its mixers end in a linear layer (`readout`), such as Mamba blocks. Other parts of their output,
            such as a window's, stay; the readout is solved for the difference.
        windows: (windows, L) token ids, without padding.
        batch_size: windows in one forward pass; changes the result by rounding only.
        ridges: parameters to choose from, as fractions of the mean square of a feature.
        start: a name in `STARTS`: how the mixers' other parameters are set before; random leaves them unchanged.
        alone: each layer reads what the original's layers before it give, as if no other layer were converted.
        output_dir: folder for the solved layers; without one, an interrupted call begins again.
        progress: called with (layers done, layers).

    Returns:
        One row for each layer with replaced heads: layer, heads (replaced), ridge, before and after (relative error in
        the residual stream on the held-out windows, of the readout as it was and as fitted without these windows).

    Raises:
        ValueError: fewer than two windows, two models that are not a pair (`replaced_layers`), a start that is unknown
            or not for this mixer, or a mixer without a last linear layer or with an output of zeros.
        OSError: `output_dir` cannot be written.
    """
    places = {place.index: place for place in replaced_layers(original, converted)}
    if windows.ndim != 2 or len(windows) < 2:
        raise ValueError(f"windows: expected (windows, tokens) with at least 2 windows, got {tuple(windows.shape)}")
    if start not in STARTS:
        raise ValueError(f"start: {start!r} is unknown; there are {', '.join(STARTS)}")
    for place in places.values():
        readout_of(place)
    last = min(max(1, round(HELD_OUT * len(windows))), len(windows) - 1)
    parts = [part.to(converted.device).split(batch_size) for part in windows.split([len(windows) - last, last])]
    batches = [batch for part in parts for batch in part]
    fitted, chosen_on = range(len(parts[0])), range(len(parts[0]), len(batches))
    settings = {"batch_size": batch_size, "held_out": last, "ridges": list(ridges), "start": start, "alone": alone}
    kept = KeptSteps(output_dir, (original, converted), [windows], **settings) if output_dir is not None else None
    before, after = _Stream(original, batches), _Stream(original if alone else converted, batches)

    def solve(place: ReplacedLayer) -> Row:
        if begin := STARTS[start]:  # from the values of the first batches, about `START_TOKENS` of them
            first = range(min(len(batches), 1 + START_TOKENS // batches[0].numel()))
            values = [place.converted.read(after.normed(place.index, number)) for number in first]
            begin(place.converted.mixer, torch.cat(values))
        fit, held_moments = (_moments(place, before, after, numbers) for numbers in (fitted, chosen_on))
        return _solve(place, fit, held_moments, ridges)

    rows = []
    for index in range(len(before.layers)):
        name = f"layer-{index}"
        if index not in places or (kept is not None and name in kept.seconds):
            before.advance(index)
        if index in places:
            mixer, make = dict(places[index].converted.mixer.named_parameters()), partial(solve, places[index])
            rows.append(make() if kept is None else kept.change(name, mixer, make))
        after.advance(index)
        if progress is not None:
            progress(index + 1, len(before.layers))
    return pd.DataFrame(rows, columns=ERRORS)


def readout_of(place: ReplacedLayer) -> nn.Linear:
    """The linear layer that ends a mixer.

    Raises:
        ValueError: it has none, or PEFT has wrapped it.
    """
    mixer: Any = place.converted.mixer
    readout = getattr(mixer, "readout", None)
    if readout is None:
        raise ValueError(
            f"mixer {place.converted.config.mixer!r} has no linear layer at its end: there is nothing to solve for"
        )
    refuse_adapter(readout, f"the readout of layer {place.index}")
    return readout


class _Waiting(nn.Module):
    """Stands in for a layer: hands its input on, and remembers it and the arguments beside it."""

    def forward(self, hidden: Tensor, **named: Any) -> Tensor:
        self.read = hidden, named
        return hidden


class _Stream:
    """The hidden states of all batches in front of one layer, moved on layer by layer."""

    def __init__(self, model: PreTrainedModel, batches: Sequence[Tensor]) -> None:
        self.layers: Any = model.base_model.layers
        self.hidden, self.arguments = map(list, zip(*(self._enter(model, batch) for batch in batches), strict=True))

    def _enter(self, model: PreTrainedModel, batch: Tensor) -> tuple[Tensor, list[dict[str, Any]]]:
        """The hidden states (B, L, hidden) that enter the first layer, and the other arguments of each layer."""
        base: Any = model.base_model
        waiting = [_Waiting() for _ in self.layers]
        try:
            base.layers = nn.ModuleList(waiting)
            base(batch, use_cache=False)
        finally:
            base.layers = self.layers
        return waiting[0].read[0], [layer.read[1] for layer in waiting]

    def advance(self, index: int, numbers: Sequence[int] | None = None) -> None:
        """Run batches, by default all, through layer `index`."""
        for number in range(len(self.hidden)) if numbers is None else numbers:
            self.hidden[number] = self.layers[index](self.hidden[number], **self.arguments[number][index])

    def normed(self, index: int, number: int) -> Tensor:
        """The input of the attention of layer `index`."""
        return self.layers[index].input_layernorm(self.hidden[number])


def _moments(place: ReplacedLayer, before: _Stream, after: _Stream, numbers: Sequence[int]) -> Moments:
    """Moments of the readout's inputs in `after` and the heads' outputs in `before`, which advances by this layer."""
    moments: Moments | None = None
    readout = readout_of(place)
    for number in numbers:
        with reading([place.original.o_proj]) as heads, reading([readout]) as inputs:
            before.advance(place.index, [number])
            positions = after.arguments[number][place.index]["position_embeddings"]
            mixed = place.converted.replaced_outputs(after.normed(place.index, number), positions)
        ((outputs,), _), ((features,), _) = heads[0], inputs[0]
        new = Moments.of(features, outputs[..., place.features], mixed - readout(features))
        moments = new if moments is None else moments + new
    assert moments is not None
    return moments


def _solve(place: ReplacedLayer, fit: Moments, held_out: Moments, ridges: Sequence[float]) -> Row:
    readout = readout_of(place)
    if not fit.xx.any():
        raise ValueError(f"the mixer of layer {place.index} gives zeros: a readout cannot be solved for")
    weight = place.output_weight.double()
    metric = weight.mT @ weight
    errors = [held_out.relative_error(solution, metric) for solution in fit.ridge(ridges)]
    error, ridge = min(zip(errors, ridges, strict=True))
    before = held_out.relative_error(readout.weight.double().mT, metric)
    (solution,) = (fit + held_out).ridge([ridge])
    readout.weight.copy_(solution.mT)
    return place.index, len(place.converted.layout.replaced), ridge, before, error


OPEN = 1.278464542761
"""SiLU(OPEN) = 1: a gate that lets a channel through as it is."""
SIZE = 0.3
"""Standard deviation of a channel's input, whose mean the convolution's bias takes away: so SiLU is nearly linear."""
START_RIDGE = 1e-4
"""Ridge parameter of the fit of the number one, as a fraction of the mean square of a feature."""
RANDOM_FRACTION = 1 / 3
"""Of the channels, or somewhat more, stay as they were: no average of values can replace products of values."""


class Kernel(NamedTuple):
    """Weights of earlier values in a channel: the one `lag` tokens before, or all by exp(-lag / `reach`)."""

    lag: int = 0
    reach: float = 0.0


KERNELS = (Kernel(reach=6), Kernel(lag=1), Kernel(lag=0), Kernel(reach=40), Kernel(lag=2), Kernel(reach=2))
"""The kernels that read a value, in the order of their worth, as many as there are channels for."""


def _constant(features: Tensor) -> Tensor:
    """The weights (features,) by which rows of `features` come nearest to 1, by ridge regression in float64."""
    x = features.double()
    squares = x.mT @ x
    squares += START_RIDGE * squares.diagonal().mean() * torch.eye(len(squares), dtype=x.dtype, device=x.device)
    return torch.linalg.solve(squares, x.sum(0))


@torch.no_grad()
def linear_start(block: MambaBlock, values: Tensor) -> None:
    """Set the parameters of a freshly initialised block, all but `out_proj`, in place.

    Its channels become linear in the values, with known weights by lag. A block that starts at random multiplies every
    channel by a random gate and writes into its state by random factors. No combination of its channels is the plain
    average of values that a local head computes. MOHAWK (arXiv 2408.10189) opens the gate by a bias; the paper's block
    has none. But the mean of the values is not zero, so a linear function of them is nearly constant: the least-squares
    fit of the number one. It takes the place of the missing biases of the gate, of B and of C.

    Args:
        block: of any sizes.
        values: its inputs on ordinary text, (B, L, features).

    Raises:
        ValueError: the mixer is no Mamba block.
    """
    if not isinstance(block, MambaBlock):
        raise ValueError(f"start: linear is for Mamba blocks, not for a {type(block).__name__}")
    tokens = values.flatten(0, -2)
    channels, features = len(block.D), tokens.shape[1]
    kernels = [kernel for kernel in KERNELS if kernel.lag < block.d_conv]
    groups = max(1, min(len(kernels), round((1 - RANDOM_FRACTION) * channels / features)))
    gate = OPEN * _constant(tokens)
    spread = tokens.double().std(0)
    least = max(1e-3 * float(spread.square().mean().sqrt()), torch.finfo(torch.float32).eps)  # some may be constant
    scale = SIZE / spread.clamp(min=least)
    taps, bias = block.conv1d.weight, block.conv1d.get_parameter("bias")
    for group, kernel in enumerate(kernels[:groups]):
        rows = slice(group * features, (group + 1) * features)
        block.in_proj.weight[:channels][rows] = torch.diag(scale).to(block.in_proj.weight)
        block.in_proj.weight[channels:][rows] = gate.to(block.in_proj.weight)
        taps[rows], block.A_log[rows], block.dt_proj.weight[rows] = 0, 0, 0
        bias[rows] = (-scale * tokens.double().mean(0)).to(bias)
        taps[rows, ..., block.d_conv - 1 - kernel.lag] = 1
        block.D[rows] = float(kernel.reach == 0)
        step = torch.tensor(1 / kernel.reach if kernel.reach else 1e-4)
        block.dt_proj.bias[rows] = step + torch.log(-torch.expm1(-step))  # the inverse of softplus
    convolved = block.conv1d(block.in_proj(values)[..., :channels], None).flatten(0, -2)
    states = max(1, block.d_state // 2)  # the others keep the random factors that the random channels need
    constant = (_constant(convolved) / states**0.5).to(block.x_proj.weight)
    for matrix in block.x_proj.weight[block.dt_rank :].split(block.d_state):  # of B and C
        matrix[:states] = constant


STARTS: dict[str, Start | None] = {"random": None, "linear": linear_start}
"""Starts by name. The paper's is random."""
