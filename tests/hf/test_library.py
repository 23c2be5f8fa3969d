"""transformers' own tests of a model, on every mixer in Llama, and on one in every other family;
`make test-hf` runs them.
"""

import unittest
from itertools import cycle
from unittest import mock

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES
from transformers_tests import test_modeling_common
from transformers_tests.test_configuration_common import ConfigTester
from transformers_tests.test_modeling_common import ModelTesterMixin, ids_tensor, random_attention_mask

from recurformer.model.families import FAMILIES
from recurformer.model.mixers import MIXERS
from recurformer.model.modeling import BACKBONES

HEADS = [[1], [0, 1, 2, 3]]  # a ragged layer and one in which nothing attends
SHAPE = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": len(HEADS),
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,  # Gemma's usual 256 would make models too large for these tests
    "intermediate_size": 37,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

for language_model in BACKBONES.values():  # the library looks up by name what takes labels
    kind = language_model.config_class.model_type
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind] = language_model.__name__
    MODEL_MAPPING_NAMES[kind] = language_model.model_class.__name__


class ModelTester:
    """What the library's tests ask for: a small config of one mixer in one backbone, and inputs."""

    batch_size, seq_length, is_training = 3, 7, True
    hidden_size, num_hidden_layers, num_attention_heads = 32, len(HEADS), 3  # heads that attend in the first layer

    def __init__(self, config_class, mixer):
        self.config_class, self.mixer = config_class, mixer

    def get_config(self):
        mixer = {"mixer": self.mixer, "mamba_d_state": 4, "mamba_dt_rank": 3, "window_tokens": 4, "sink_tokens": 1}
        full = {"layer_types": ["full_attention"] * len(HEADS)}  # no layer slides
        return self.config_class(**SHAPE, **mixer, **full, recurrent_heads=HEADS)

    def prepare_config_and_inputs_for_common(self):
        config = self.get_config()
        ids = ids_tensor([self.batch_size, self.seq_length], config.vocab_size)
        return config, {"input_ids": ids, "attention_mask": random_attention_mask([self.batch_size, self.seq_length])}


def has(owner, name):
    """As `hasattr`, but for the window: the tests set it where they see it; our configs have it only to refuse it."""
    return name != "sliding_window" and hasattr(owner, name)


class LibraryTests(ModelTesterMixin):
    """The library's tests, and all that is different about ours."""

    test_can_init_all_missing_weights_before_2023 = True  # the year is read from a header that our files lack
    test_generation_tester_mixin_inheritance = None  # the source has no tests of generate() to inherit from

    def setUp(self):
        if "rope_scaling" in self._testMethodName and FAMILIES[self.backbone].ropes:
            self.skipTest("the library sets rotary values flat here; this family has them by kind of layer")
        self.enterContext(mock.patch.object(test_modeling_common, "hasattr", has, create=True))
        self.test_all_params_have_gradient = self.mixer != "zero"  # which reads nothing, hence no gradient
        language_model = BACKBONES[self.backbone]
        self.all_model_classes = (language_model.model_class, language_model)
        self.model_tester = ModelTester(language_model.config_class, self.mixer)
        self.config_tester = ConfigTester(self, language_model.config_class, **SHAPE, mixer=self.mixer)

    def test_config(self):
        self.config_tester.run_common_tests()


READING = ("window", "linear", "retention", "window_state")  # queries and keys, which families make in their own ways
PAIRS = [*(("llama", mixer) for mixer in MIXERS), *zip(BACKBONES, cycle(READING), strict=False)]
for backbone, mixer in dict.fromkeys(PAIRS):
    name = f"Test_{mixer}_{backbone}"
    globals()[name] = type(name, (LibraryTests, unittest.TestCase), {"backbone": backbone, "mixer": mixer})
