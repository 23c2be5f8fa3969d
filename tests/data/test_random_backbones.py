import pytest
import torch

from recurformer.data.backbones import load_backbone, make_random, open_random, save_backbone
from recurformer.model.convert import convert
from recurformer.model.families import FAMILIES

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
