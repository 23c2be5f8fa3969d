import time

import pytest
import torch

from recurformer.cli.main import main
from recurformer.data.backbones import load_shape, meta_model, random_model
from recurformer.published import PUBLISHED

# As printed on the model cards.
PARAMETERS = {
    "llama2-7b": 6_738_415_616,
    "qwen2-7b": 7_615_616_512,
    "qwen2-0.5b": 494_032_768,
    "smollm2-135m": 134_515_008,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_number_of_parameters_in_seconds_and_no_memory(name):
    start = time.perf_counter()
    model = meta_model(load_shape(name))
    assert time.perf_counter() - start < 10
    assert model.num_parameters() == PARAMETERS[name]
    assert all(parameter.is_meta and parameter.dtype == torch.bfloat16 for parameter in model.parameters())


def test_each_call_gives_its_own_configuration():
    load_shape("llama2-7b").num_hidden_layers = 1
    assert load_shape("llama2-7b").num_hidden_layers == 32


def test_random_weights_of_a_shape_are_seeded():
    config = load_shape("smollm2-135m")
    config.num_hidden_layers, config.vocab_size = 1, 64
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, second, other = (random_model(config, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.lm_head.weight, second.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    assert first.dtype == torch.bfloat16 and first.device.type == "cpu"


def test_a_shape_is_no_checkpoint(tmp_path, capsys):
    assert main(f"backbone {tmp_path}/x --source shape --shape qwen2-0.5b --downloads {tmp_path}".split()) == 1
    assert "source 'shape' has no weights" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="there is no shape 'gpt2'; choose one of llama2-7b, qwen2-7b"):
        load_shape("gpt2")
