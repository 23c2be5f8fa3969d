"""What the paper study takes from the hub: small stand-ins for its models in a cache of the real layout, and articles.

The stand-ins have the repositories' names, revisions, file names, configuration keys, architectures, numbers of heads,
types and tokenizer formats, and the models' depth, since heads that they rank are counted in the real shapes; their
widths, vocabularies and weights are small and random. The articles are real ones.
"""

import json
import shutil
from collections.abc import Sequence
from hashlib import sha1, sha256
from pathlib import Path

import pyarrow as pa
import torch
import yaml
from pyarrow.parquet import write_table
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = Path(__file__).parents[2]
STUDY = yaml.safe_load((ROOT / "config/paper.yaml").read_text())
LARGE = (".safetensors", ".model")
"""Suffixes of files that the hub keeps outside git, under their SHA-256."""
VOCABULARY = 1_000
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def llama_config(layers: int, heads: int, **sizes) -> dict:
    """As in meta-llama/Llama-2-7b-hf: no rope_theta, no head_dim, float16."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 8 * heads,
        "initializer_range": 0.02,
        "intermediate_size": 128,
        "max_position_embeddings": 4096,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": heads,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "transformers_version": "4.31.0.dev0",
        "use_cache": True,
        "vocab_size": VOCABULARY,
        **sizes,
    }


def qwen2_config(layers: int, heads: int, kv_heads: int, tied: bool) -> dict:
    """As in Qwen/Qwen2-*: a vocabulary with rows that no token has, a window that is switched off, bfloat16."""
    own = {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": VOCABULARY,
        "eos_token_id": VOCABULARY,
        "max_position_embeddings": 131072,
        "max_window_layers": layers,
        "model_type": "qwen2",
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.40.1",
        "use_sliding_window": False,
        "vocab_size": VOCABULARY + 64,
    }
    rest = llama_config(layers, heads, **own)
    return {key: value for key, value in rest.items() if key not in {"pretraining_tp", "rope_scaling"}}


CONFIGS = {
    "Qwen/Qwen2-0.5B": qwen2_config(24, 14, 2, tied=True),
    "Qwen/Qwen2-7B": qwen2_config(28, 28, 4, tied=False),
    "meta-llama/Llama-2-7b-hf": llama_config(32, 32),
}
GENERATION = {
    "llama": {"bos_token_id": 1, "do_sample": True, "eos_token_id": 2, "max_length": 4096, "pad_token_id": 0}
    | {"temperature": 0.6, "top_p": 0.9, "transformers_version": "4.31.0.dev0"},
    "qwen2": {"bos_token_id": VOCABULARY, "do_sample": False, "eos_token_id": VOCABULARY, "max_new_tokens": 2048},
}


def llama_tokenizer(texts: Sequence[str]) -> tuple[Tokenizer, dict]:
    """A sentencepiece model as transformers converts it: spaces are letters, unknown characters are bytes."""
    special = ["<unk>", "<s>", "</s>"]
    tokenizer = Tokenizer(BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special + bytes_, limit_alphabet=200, max_token_length=12
    )
    # Training on words only: sentencepiece joins no letters across spaces either.
    tokenizer.train_from_iterator((word for text in texts for word in text.split()), trainer)
    model = json.loads(tokenizer.to_str())
    model["added_tokens"] = [token for token in model["added_tokens"] if token["content"] in special]
    tokenizer = Tokenizer.from_str(json.dumps(model))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": None}
    return tokenizer, names | {"add_bos_token": True, "add_eos_token": False, "tokenizer_class": "LlamaTokenizer"}


def qwen2_tokenizer(texts: Sequence[str]) -> tuple[Tokenizer, dict]:
    """Byte-level BPE without a beginning token."""
    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    names = {"bos_token": None, "eos_token": "<|endoftext|>", "unk_token": None, "pad_token": "<|endoftext|>"}
    return tokenizer, names | {"add_prefix_space": False, "errors": "replace", "tokenizer_class": "Qwen2Tokenizer"}


TOKENIZERS = {"llama": llama_tokenizer, "qwen2": qwen2_tokenizer}


def write_checkpoint(folder: Path, config: dict, texts: Sequence[str]) -> None:
    """The files of a model repository: sharded where the embeddings are not tied, as the 7B models are."""
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config)
    torch.manual_seed(0)
    settings = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(settings, dtype=settings.dtype)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.ndim > 1 or name.endswith(".bias"):  # norms stay ones
                values.normal_(std=0.2)
    model.save_pretrained(folder, max_shard_size="1GB" if config["tie_word_embeddings"] else "300KB")
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", GENERATION[config["model_type"]])
    tokenizer, names = TOKENIZERS[config["model_type"]](texts)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", names)
    if config["model_type"] == "qwen2":
        tokenizer.model.save(str(folder))  # vocab.json, merges.txt


def write_articles(folder: Path, articles: Sequence[tuple[str, str]]) -> None:
    """English Wikipedia in two files, as the data set's authors publish it in 41, with its card."""
    (folder / "20231101.en").mkdir(parents=True)
    configs = [{"config_name": "20231101.en", "data_files": [{"split": "train", "path": "20231101.en/train-*"}]}]
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n")
    for part in range(2):
        rows = [
            {"id": str(index), "url": f"https://en.wikipedia.org/wiki/{title}", "title": title, "text": text}
            for index, (title, text) in enumerate(articles)
            if index % 2 == part
        ]
        write_table(pa.Table.from_pylist(rows), folder / f"20231101.en/train-0000{part}-of-00002.parquet")


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def blob_name(file: Path) -> str:
    content = file.read_bytes()
    large = file.suffix in LARGE
    return sha256(content).hexdigest() if large else sha1(b"blob %d\0" % len(content) + content).hexdigest()


def into_cache(files: Path, cache: Path, repo: str, revision: str) -> None:
    """Move the files of a repository into the cache: the bytes under their checksums, links at their names."""
    storage = cache / f"models--{repo.replace('/', '--')}"
    for file in sorted(path for path in files.rglob("*") if path.is_file()):
        link = storage / "snapshots" / revision / file.relative_to(files)
        blob = storage / "blobs" / blob_name(file)
        for folder in (link.parent, blob.parent):
            folder.mkdir(parents=True, exist_ok=True)
        file.rename(blob)
        link.symlink_to(Path(*[".."] * (len(file.relative_to(files).parts) + 1), "blobs", blob.name))
    (storage / "refs").mkdir()
    (storage / "refs/main").write_text(revision)
    shutil.rmtree(files)


def write_hub_cache(cache: Path, texts: Sequence[str], study: dict = STUDY) -> None:
    """The models that `study` takes from the hub, in `cache` (the `hub` folder of an HF_HOME)."""
    scratch = cache / "scratch"
    for backbone in study["backbones"].values():
        write_checkpoint(scratch, CONFIGS[backbone["repo"]], texts)
        into_cache(scratch, cache, backbone["repo"], backbone["revision"])
