"""Importing the package is enough for transformers' auto classes, in whichever order the two are imported."""

import subprocess
import sys

import pytest

AUTO = "from transformers import AutoConfig, AutoModelForCausalLM"
ORDERS = {
    "library first": f"{AUTO}\nimport recurformer",
    "a stock model first": f"import recurformer\nfrom transformers import LlamaForCausalLM\n{AUTO}",
}


@pytest.mark.parametrize("imports", ORDERS.values(), ids=ORDERS)
def test_the_auto_classes_know_the_converted_models(imports):
    code = f"""{imports}
import sys
assert "recurformer.model.modeling" not in sys.modules, "a model of the library may wait for the auto classes"
if "recurformer.model.config" in sys.modules:
    config = sys.modules["recurformer.model.config"].RecurFormerLlamaConfig
else:
    config = type(AutoConfig.for_model("recurformer_llama"))
    assert config.__name__ == "RecurFormerLlamaConfig"
assert AutoModelForCausalLM._model_mapping[config].__name__ == "RecurFormerLlamaForCausalLM"
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
