"""The mixer of a saved model, and the settings that are refused."""

import pytest
import torch
from safetensors.torch import load_file
from test_mixers import every_mixer, make, shared
from tiny_models import HEADS, make_backbone, tokens
from transformers import AutoModelForCausalLM

from recurformer.model.config import RecurFormerLlamaConfig
from recurformer.model.convert import convert
from recurformer.model.mixers import MIXERS


@every_mixer
def test_saving_and_loading_keeps_everything(mixer, tmp_path):
    model = shared(mixer, "llama_mha", "mixed")
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert loaded.config.mixer == mixer and loaded.config.window_tokens == 5 and loaded.config.sink_tokens == 2
    assert torch.equal(loaded(tokens(2, 9)).logits, model(tokens(2, 9)).logits)
    own = {name for name in load_file(tmp_path / "model.safetensors") if f".{mixer}." in name}
    assert bool(own) == (mixer not in {"window", "linear", "mean", "zero"})


def test_a_config_without_the_keys_is_of_mamba(tmp_path):
    written = make("mamba").config.to_dict()
    for key in ("mixer", "window_tokens", "sink_tokens"):
        del written[key]
    config = type(make("mamba").config)(**written)
    assert (config.mixer, config.window_tokens, config.sink_tokens) == ("mamba", 64, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"mixer": "hyena"},
            f"mixer='hyena' is unknown; there are {', '.join(MIXERS)}",
        ),
        ({"window_tokens": 0}, "window_tokens=0 must be a whole number of at least 1"),
        ({"sink_tokens": -1}, "sink_tokens=-1 must be a whole number of at least 0"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(changes, message):
    for refuse in (
        lambda: RecurFormerLlamaConfig(**changes),
        lambda: convert(make_backbone("llama_mha"), HEADS["mixed"], **changes),
    ):
        with pytest.raises(ValueError, match=f"{message}$") as error:
            refuse()
        assert "\n" not in str(error.value)
