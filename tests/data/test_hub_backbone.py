import json

import pytest
import torch
from safetensors.torch import load_file

from recurformer.data.backbones import base_facts, fetch_newest, open_hub
from recurformer.data.fetch import ResourceError, fetch_snapshot
from tests.paper.hub_cache import CONFIGS, into_cache, write_checkpoint

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


def test_the_client_is_asked_for_the_files_of_one_commit(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("recurformer.data.fetch.snapshot_download", lambda *a, **k: asked.append((a, k)) or tmp_path)
    assert fetch_snapshot("owner/name", ("*.json", "*.txt"), REVISION) == tmp_path
    assert asked == [(("owner/name",), {"revision": REVISION, "allow_patterns": ["*.json", "*.txt"]})]
