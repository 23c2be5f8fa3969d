"""Importing the package is enough for transformers' auto classes, in whichever order the two are imported."""

import subprocess
import sys

import pytest

ORDERS = {
    "package first": "import recurformer\nfrom transformers import AutoConfig, AutoModelForCausalLM",
    "library first": "from transformers import AutoConfig, AutoModelForCausalLM\nimport recurformer",
    "configuration only": "import recurformer\nfrom transformers import AutoConfig",
    "models only": "import recurformer\nfrom transformers import AutoModelForCausalLM",
}


@pytest.mark.parametrize("imports", ORDERS.values(), ids=ORDERS)
def test_the_auto_classes_know_the_converted_models(imports):
    code = (
        f"{imports}\n"
        "if 'AutoConfig' in dir():\n"
        "    config = AutoConfig.for_model('recurformer_llama')\n"
        "    assert type(config).__name__ == 'RecurFormerLlamaConfig'\n"
        "if 'AutoModelForCausalLM' in dir():\n"
        "    names = [model.__name__ for model in AutoModelForCausalLM._model_mapping.values()]\n"
        "    assert 'RecurFormerLlamaForCausalLM' in names\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


def test_without_the_package_they_do_not():
    code = "from transformers import AutoConfig\nAutoConfig.for_model('recurformer_llama')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode != 0
