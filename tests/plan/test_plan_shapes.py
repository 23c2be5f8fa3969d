"""Parameters counted from sizes alone are those that real models have."""

import pytest

from recurformer.data.backbones import load_shape, make_random, meta_model
from recurformer.model.convert import convert
from recurformer.plan.shapes import Shape
from recurformer.published import PUBLISHED

MAMBA = {"d_state": 16, "d_conv": 4, "expand": 2, "dt_rank": 256}
SIZES = {"hidden_size": 32, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 8, "intermediate_size": 64}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_shape_has_the_models_parameters(name):
    model = meta_model(load_shape(name))
    assert Shape.of({"shape": name}, MAMBA).parameters() == model.num_parameters()


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_whole_layers_are_counted_exactly_and_scattered_heads_at_most(architecture):
    model = make_random(architecture, **SIZES, vocab_size=40)
    shape = Shape.of({"architecture": architecture, **SIZES, "vocabulary": 40}, MAMBA)
    everything, nothing, half = [0, 1, 2, 3], [], [0, 1]
    assert shape.parameters() == model.num_parameters()
    whole = convert(model, [everything, nothing, nothing], "mamba", **MAMBA)
    assert shape.parameters(1 / 3) == whole.num_parameters()
    scattered = convert(model, [half, half, half], "mamba", **MAMBA)
    assert model.num_parameters() < scattered.num_parameters() <= shape.parameters(1 / 2)
