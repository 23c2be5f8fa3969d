"""The closed form: exact where a linear layer suffices, and the same as a slow solution of whole models, float64."""

from itertools import cycle

import pandas as pd
import pytest
import torch

from recurformer import calibrate, convert
from recurformer.heads.attention import reading
from recurformer.recover.calibrate import Moments
from recurformer.recover.pair import relative_error, replaced_layers
from tests.model.tiny_models import HEADS, MAMBA, MATRIX, make_backbone, tokens

SOLVED = ("mamba", "retention", "window_state")  # mixers that end in a linear layer


def pair(backbone="llama_gqa_tied", heads=HEADS["mixed"], mixer="mamba"):
    original = make_backbone(backbone).double()
    torch.manual_seed(1)
    return original, convert(original, heads, mixer=mixer, window_tokens=4, sink_tokens=1, **MAMBA)


def readouts(converted):
    return [layer.self_attn.mixer.readout for layer in converted.model.layers if hasattr(layer.self_attn, "mixer")]


def test_moments_solve_least_squares_as_the_library_does():
    generator = torch.Generator().manual_seed(0)
    x, t = (torch.randn(200, size, generator=generator, dtype=torch.float64) for size in (7, 5))
    beside = torch.randn(200, 5, generator=generator, dtype=torch.float64)
    whole = t + beside
    moments = Moments.of(x[:120], whole[:120], beside[:120]) + Moments.of(x[120:], whole[120:], beside[120:])
    for ridge, solution in zip((0.0, 1e-2, 1.0), moments.ridge([0.0, 1e-2, 1.0]), strict=True):
        torch.testing.assert_close(solution, least_squares(x, t, ridge))
        weight = torch.randn(11, 5, generator=generator, dtype=x.dtype)
        direct = relative_error(x @ solution + beside, whole, weight)
        assert moments.relative_error(solution, weight.mT @ weight) == pytest.approx(float(direct))


def least_squares(x, t, ridge):
    """Of ||x s - t||^2 + ridge * (mean square of a feature, summed over tokens) ||s||^2, by rows that stand for it."""
    penalty = (ridge * x.square().sum(0).mean()).sqrt() * torch.eye(x.shape[1], dtype=x.dtype)
    return torch.linalg.lstsq(torch.cat([x, penalty]), torch.cat([t, t.new_zeros(len(penalty), t.shape[1])])).solution


@pytest.mark.parametrize("mixer", SOLVED)
def test_a_linear_layer_is_recovered_exactly(mixer):
    original, converted = pair(heads=[[], [], [0, 1, 3]], mixer=mixer)  # all before the layer is exact
    (place,) = replaced_layers(original, converted)
    readout = place.converted.mixer.readout
    start, wanted = readout.weight.detach().clone(), torch.randn_like(readout.weight)
    read = {}

    def as_wanted(_, arguments):
        """The original's heads give what the readout with the wanted weights would give."""
        readout.weight.data, kept = wanted, readout.weight.data
        outputs = arguments[0].clone()
        outputs[..., place.features] = place.converted.replaced_outputs(
            read["hidden_states"], read["position_embeddings"]
        )
        readout.weight.data = kept
        return (outputs,)

    place.original.register_forward_pre_hook(lambda _, arguments, named: read.update(named), with_kwargs=True)
    place.original.o_proj.register_forward_pre_hook(as_wanted)
    report = calibrate(original, converted, tokens(24, 24), ridges=[1e-13])
    assert report.after.item() < 1e-12 < report.before.item()
    torch.testing.assert_close(readout.weight, wanted, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(start, wanted)


@pytest.mark.parametrize(("model", "mixer"), [*zip(MATRIX, cycle(SOLVED)), *((MATRIX[1], mixer) for mixer in SOLVED)])
def test_it_is_layer_after_layer_on_the_converted_models_own_inputs(model, mixer):
    backbone, heads = model
    original, converted = pair(backbone, HEADS[heads], mixer)
    reference = pair(backbone, HEADS[heads], mixer)[1]
    windows = tokens(12, 20)
    report = calibrate(original, converted, windows, batch_size=5, ridges=[1e-3])
    with torch.no_grad():
        for place in replaced_layers(original, reference):
            readout = place.converted.mixer.readout
            ours, theirs = place.converted.o_proj, place.original.o_proj
            with reading([theirs, readout, ours]) as calls:
                original(windows)
                reference(windows)
            outputs, features, mixed = (arguments[0] for arguments, _ in calls)
            x, whole = features.flatten(0, 1), outputs[..., place.features].flatten(0, 1)
            beside = mixed[..., -whole.shape[-1] :].flatten(0, 1) - readout(x)
            t = whole - beside
            held = 2 * windows.shape[1]
            fitted = least_squares(x[:-held], t[:-held], 1e-3)
            weight = place.output_weight
            row = report[report.layer == place.index].iloc[0]
            expected = relative_error(x[-held:] @ readout.weight.mT + beside[-held:], whole[-held:], weight)
            assert row.before == pytest.approx(float(expected))
            after = relative_error(x[-held:] @ fitted + beside[-held:], whole[-held:], weight)
            assert row.after == pytest.approx(float(after))
            readout.weight.copy_(least_squares(x, t, 1e-3).mT)
    for ours, expected in zip(readouts(converted), readouts(reference), strict=True):
        torch.testing.assert_close(ours.weight, expected.weight)
    solved = {id(readout.weight) for readout in readouts(converted)}
    untouched = [name for name, parameter in converted.named_parameters() if id(parameter) not in solved]
    fresh = pair(backbone, HEADS[heads], mixer)[1]
    assert all(torch.equal(converted.get_parameter(name), fresh.get_parameter(name)) for name in untouched)


def test_the_ridge_parameter_is_the_best_on_the_held_out_windows():
    windows, found = tokens(6, 16), {}
    for ridges in ([1e-6], [1e-2], [10.0], [1e-6, 1e-2, 10.0]):
        found[tuple(ridges)] = calibrate(*pair(heads=[[], [], [0, 1, 3]]), windows, ridges=ridges).iloc[0]
    chosen = found.pop((1e-6, 1e-2, 10.0))
    best = min(found.values(), key=lambda row: row.after)
    assert (chosen.ridge, chosen.after) == (best.ridge, best.after)
    assert len({row.after for row in found.values()}) == 3


@pytest.mark.parametrize("start", ["random", "linear"])
def test_a_killed_call_goes_on_from_the_last_solved_layer(tmp_path, start):
    windows, seen = tokens(6, 16), []
    original, whole = pair(heads=HEADS["beta_one"])
    expected = calibrate(original, whole, windows, start=start)

    def say(done, total):
        seen.append((done, total))
        if seen == [(1, 3), (2, 3)]:
            raise KeyboardInterrupt

    def again(**settings):
        converted = pair(heads=HEADS["beta_one"])[1]
        return calibrate(original, converted, windows, output_dir=tmp_path, progress=say, **settings), converted

    with pytest.raises(KeyboardInterrupt):
        again(start=start)
    solved = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("layer-*")}
    assert len(solved) == 4
    report, converted = again(start=start)
    assert seen == [(1, 3), (2, 3), (1, 3), (2, 3), (3, 3)]
    assert solved.items() <= {file: file.stat().st_mtime_ns for file in tmp_path.rglob("layer-*")}.items()
    pd.testing.assert_frame_equal(report, expected, check_exact=True)
    assert all(torch.equal(a, b) for a, b in zip(converted.parameters(), whole.parameters(), strict=True))
    other = again(start=start, ridges=[1.0])[0]  # settings that differ keep nothing
    assert set(other.ridge) == {1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda original, converted: (converted, converted, tokens(4, 8)), "original: this model is a converted one"),
        (lambda original, converted: (original, original, tokens(4, 8)), "converted: a llama model has no mixers"),
        (lambda original, converted: (original.train(), converted, tokens(4, 8)), "original: it is in training mode"),
        (
            lambda original, converted: (original.float(), converted, tokens(4, 8)),
            "original: its weights are torch.float32",
        ),
        (lambda original, converted: (original, converted, tokens(1, 8)), r"at least 2 windows, got \(1, 8\)"),
        (lambda original, converted: (original, convert(original, [[], [], []]), tokens(4, 8)), "no head is replaced"),
        (
            lambda original, converted: (make_backbone("llama_mha"), converted, tokens(4, 8)),
            "original: its num_key_value_heads is 6, the converted model's 3",
        ),
        (
            lambda original, converted: (original, convert(original, HEADS["mixed"], mixer="window"), tokens(4, 8)),
            "mixer 'window' has no linear layer at its end",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(change, message):
    with pytest.raises(ValueError, match=message) as error:
        calibrate(*change(*pair()))
    assert "\n" not in str(error.value)
