"""Operations counted, the orders of growth of Table 1, and speed of models side by side."""

import pytest
import torch

from recurformer import convert
from recurformer.measure import speed
from recurformer.measure.growth import Operations, measure_complexity
from recurformer.measure.speed import speed_rows
from recurformer.results.cells import growth_exponent
from recurformer.study import Sizes
from tests.model.tiny_models import HEADS, MAMBA, make_backbone, tokens


def test_orders_of_table_1():
    lengths = Sizes().growth_lengths
    frame = measure_complexity(lengths)
    assert len(frame) == 2 * 2 * 2 * len(lengths)
    assert set(frame.width) == {4096}
    expected = {
        ("attention", "prefill", "cache_peak"): 2,
        ("attention", "prefill", "cache_size"): 1,
        ("attention", "generation", "cache_peak"): 1,
        ("attention", "generation", "cache_size"): 1,
        ("mamba", "prefill", "cache_peak"): 1,
        ("mamba", "prefill", "cache_size"): 0,
        ("mamba", "generation", "cache_peak"): 0,
        ("mamba", "generation", "cache_size"): 0,
    }
    for key, rows in frame.groupby(["mixer", "phase", "quantity"]):
        exponent = growth_exponent(rows.length.to_numpy(), rows.bytes.to_numpy())
        assert exponent == pytest.approx(expected[key], abs=0.05), key
    sizes = frame.pivot_table(index=["mixer", "phase", "length"], columns="quantity", values="bytes")
    assert (sizes.cache_peak >= sizes.cache_size).all()  # the cache is part of what is held
    first = frame[(frame.mixer == "attention") & (frame.quantity == "cache_size") & (frame.length == 1024)]
    assert first.bytes.tolist() == [2 * 1024 * 4096 * 4, 2 * 1025 * 4096 * 4]
    long = frame[frame.length >= lengths[-2]]  # where the projections' operations weigh little
    operations = long.pivot_table(index=["phase", "length"], columns="mixer", values="operations")
    growth = {(phase, mixer): growth_exponent(rows.index.get_level_values("length").to_numpy(), rows[mixer].to_numpy())
              for phase, rows in operations.groupby("phase") for mixer in ("attention", "mamba")}  # fmt: skip
    assert growth["prefill", "mamba"] == pytest.approx(1, abs=0.01) and abs(growth["generation", "mamba"]) < 1e-9
    assert growth["prefill", "attention"] > 1.8 and growth["generation", "attention"] > 0.9


def test_operations_of_products_and_of_numbers():
    left, right = torch.ones(3, 4), torch.ones(4, 5)
    with Operations() as operations:
        (left @ right).view(5, 3).exp()
    assert operations.total == 2 * 3 * 4 * 5 + 15


def test_the_models_take_turns_over_the_same_tokens():
    original = make_backbone("llama_gqa_tied")
    models = {"original": original, "converted": convert(original, HEADS["mixed"], **MAMBA)}
    read = []
    for name, model in models.items():
        model.register_forward_pre_hook(lambda _, words, name=name: read.append((name, words[0])))
    rows = speed_rows(models, tokens(1, 12), decoded=3, repetitions=2)
    once = [(name, length) for name in models for length in (9, 1, 1, 1)]
    assert [(name, ids.shape[1]) for name, ids in read] == 3 * once
    for name in models:
        text = torch.cat([ids for other, ids in read if other == name][:4], dim=1)
        assert torch.equal(text, tokens(1, 12))
    assert list(zip(rows.repetition, rows.model, rows.phase, rows.tokens, strict=True)) == [
        (repetition, name, phase, count)
        for repetition in range(2)
        for name in models
        for phase, count in (("prefill", 9), ("decode", 3))
    ]
    assert (rows.seconds > 0).all()


@pytest.mark.parametrize("decoded", [0, 12])
def test_both_phases_need_tokens(decoded):
    with pytest.raises(ValueError, match=f"decoded={decoded} must lie between 1 and 11"):
        speed_rows({"model": make_backbone("llama_gqa_tied")}, tokens(1, 12), decoded=decoded, repetitions=1)


def test_speed_beside_the_originals_of_a_shape(monkeypatch):
    """The seconds of each round are given, so that every number of a row is known; the reading is real."""
    read, seconds = speed._read_and_decode, iter([9, 9, 4, 1, 6, 2, 8, 1] * 2)  # original and converted in turn

    def timed(model, input_ids, decoded):
        assert min(read(model, input_ids, decoded).values()) > 0
        taken = next(seconds)
        return {"prefill": taken, "decode": 3 * taken}

    monkeypatch.setattr(speed, "_read_and_decode", timed)
    config = make_backbone("llama_gqa_tied").config
    rows = speed.measure_speed(config, "tiny", [0.5], [6, 12], decoded=3, rounds=3, device="cpu")
    assert rows.groupby(["topic", "tokens"]).beta.agg(list).tolist() == [[0.0, 0.5]] * 4
    own, ours = (rows[rows.beta == beta] for beta in (0, 0.5))
    assert (own[["ratio", "ratio_low", "ratio_high"]] == 1).all(axis=None)
    assert (own.median_seconds == 6).all() and (ours.median_seconds == 1).all()  # of a decoded token, or of a prompt
    assert (ours.ratio == 4).all()  # of 4, 3 and 8
    assert (ours.ratio_low - 3.2).abs().max() < 1e-9 and (ours.ratio_high - 7.2).abs().max() < 1e-9
    held = rows[rows.topic == "decode"].pivot(index="tokens", columns="beta", values="cache_bytes")
    assert held.loc[12, 0.0] == 2 * held.loc[6, 0.0] and held.loc[12, 0.5] - held.loc[6, 0.5] < held.loc[6, 0.0]
