"""Saving, loading in another process with and without the package, damaged files, settings that are refused."""

import copy
import json
import os
import re
import subprocess
import sys
from functools import partial

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file, save_file
from tiny_models import (
    BY_GROUP,
    HEADS,
    OTHERS,
    PACKED,
    PAIRS,
    difference,
    make_backbone,
    make_converted,
    make_mixed,
    shared_converted,
    shared_mixed,
    tokens,
)
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, DynamicCache

from recurformer.cli.main import main
from recurformer.data.backbones import byte_tokenizer
from recurformer.model.convert import convert, pool_kv_heads, save_with_code

MODELS = {name: partial(shared_converted, name, heads) for name, heads in [("llama_gqa_tied", "mixed"), *PAIRS]}
MODELS |= {mixer: partial(shared_mixed, mixer, heads="ragged") for mixer in OTHERS}
PROCESS = """
import sys
import torch
sys.modules['recurformer'] = None  # importing the package raises ImportError
from transformers import AutoModelForCausalLM
for directory in sys.argv[1:]:
    model = AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True).eval()
    ids = torch.load(f"{directory}/ids.pt")
    logits = model(ids).logits
    generated = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)
    torch.save((type(model).__module__, logits, generated), f"{directory}/result.pt")
"""


@pytest.mark.slow
def test_a_fresh_process_without_the_package_opens_every_model(tmp_path):
    models, ids = {tmp_path / name: model() for name, model in MODELS.items()}, tokens(2, 9)
    for directory, model in models.items():
        save_with_code(model, directory)
        torch.save(ids, directory / "ids.pt")
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", PROCESS, *map(str, models)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for directory, model in models.items():
        module, logits, generated = torch.load(directory / "result.pt")
        assert "transformers_m" in module
        assert torch.allclose(logits, model(ids).logits, rtol=0, atol=1e-5)  # no C++ sources there: torch scans
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)
        assert torch.equal(generated, expected)


def export(model, directory):
    """By the command, of a plain checkpoint."""
    plain = directory.with_name(f"{directory.name}-plain")
    model.save_pretrained(plain)
    byte_tokenizer().save_pretrained(plain)
    assert main(["export", str(plain), str(directory)]) == 0


def test_package_and_exported_code_meet_in_one_process(tmp_path, monkeypatch):
    model, ids = shared_converted("qwen2_gqa", "ragged"), tokens(2, 9)
    save_with_code(model, tmp_path / "checkpoint")
    both = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint", trust_remote_code=False)
    assert type(both) is type(model)
    assert torch.equal(both(ids).logits, model(ids).logits)


def test_an_exported_folder_holds_what_the_function_saves_and_the_tokenizer_if_there_is_one(tmp_path, capsys):
    export(shared_converted("qwen2_gqa", "ragged"), tmp_path / "with")
    save_with_code(shared_converted("qwen2_gqa", "ragged"), tmp_path / "function")
    for file in (tmp_path / "function").iterdir():
        assert (tmp_path / "with" / file.name).read_bytes() == file.read_bytes()
    assert AutoTokenizer.from_pretrained(tmp_path / "with")("ab") == byte_tokenizer()("ab")
    shared_converted("qwen2_gqa", "ragged").save_pretrained(tmp_path / "plain")
    assert main(["export", str(tmp_path / "plain"), str(tmp_path / "without")]) == 0
    assert "plain has no tokenizer" in capsys.readouterr().out
    assert not list((tmp_path / "without").glob("tokenizer*"))


def test_a_stock_model_needs_no_code(tmp_path, capsys):
    make_backbone("qwen2_gqa").save_pretrained(tmp_path / "stock")
    assert main(["export", str(tmp_path / "stock"), str(tmp_path / "out")]) == 1
    assert "Qwen2ForCausalLM is not a converted language model" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_exporting_leaves_no_trace(tmp_path):
    model = make_converted("llama_mha", "mixed")
    save_with_code(model, tmp_path / "with")
    model.save_pretrained(tmp_path / "plain")
    assert "auto_map" not in json.loads((tmp_path / "plain" / "config.json").read_text())
    assert not list((tmp_path / "plain").glob("*.py"))


SAVED = [("mamba", *pair) for pair in [("llama_gqa_tied", "mixed"), *PAIRS]]
SAVED += [(mixer, "llama_mha", "mixed") for mixer in [*OTHERS, BY_GROUP, PACKED]]


@pytest.mark.parametrize(("mixer", "backbone", "heads"), SAVED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saved_weights_are_complete_and_exact(tmp_path, mixer, backbone, heads, dtype):
    model = make_mixed(mixer, backbone, heads).to(dtype)
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    saved, tied = load_file(tmp_path / "model.safetensors"), model.config.tie_word_embeddings
    assert ("lm_head.weight" in saved) != tied
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in loaded.state_dict().items())
    own = {
        "mamba": "mamba",
        "gated": "gated",
        "retention": "retention",
        "window_state": "window_state",
        PACKED: "window",
    }
    assert any(f".{own.get(mixer)}." in name for name in saved) == (mixer in own)
    assert type(AutoModel.from_pretrained(tmp_path)) is type(model.model)
    assert AutoConfig.from_pretrained(tmp_path).to_diff_dict() == loaded.config.to_diff_dict()
    if dtype == torch.float32:  # `.to(dtype)` casts the rotary frequencies too, loading does not
        assert torch.equal(loaded(tokens(2, 9)).logits, model(tokens(2, 9)).logits)


def test_a_plain_backbone_made_from_a_config_is_initialised(tmp_path):
    config = shared_converted("qwen2_gqa", "ragged").config
    model = AutoModelForCausalLM.from_config(config)
    assert torch.equal(model.model.layers[1].self_attn.mamba.D, torch.ones(2 * 4 * 8))


@pytest.mark.parametrize(("backbone", "heads"), [("qwen2_gqa", "ragged"), ("llama_gqa_tied", "beta_one")])
def test_a_model_built_on_meta_needs_only_the_checkpoint_and_the_librarys_rotary_embedding(backbone, heads):
    model, ids = shared_converted(backbone, heads), tokens(2, 9)
    with torch.device("meta"):
        built = type(model)(copy.deepcopy(model.config)).eval()
    built.load_state_dict(model.state_dict(), assign=True)
    built.tie_weights()
    built.model.rotary_emb = copy.deepcopy(model.model.rotary_emb)
    assert not any(tensor.is_meta for tensor in (*built.parameters(), *built.buffers()))
    for implementation in ("sdpa", "eager"):
        for each in (model, built):
            each.set_attn_implementation(implementation)
        caches = [DynamicCache(config=model.config) for _ in range(2)]
        for piece in ids.split([8, 1], 1):
            logits = [
                each(piece, past_key_values=cache).logits for each, cache in zip((built, model), caches, strict=True)
            ]
            assert difference(*logits) < 1e-5
    model.set_attn_implementation("sdpa")


def test_a_wide_input_projection_of_an_earlier_version_is_refused(tmp_path):
    make_converted("qwen2_gqa", "ragged").save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.self_attn.mamba.in_proj.weight"  # four replaced heads read two value heads
    save_file(state | {name: state[name].repeat(1, 2)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="convert the backbone again") as error:
        AutoModelForCausalLM.from_pretrained(tmp_path)
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


def test_a_disk_offloaded_model_gives_the_same_logits(tmp_path):
    model = make_converted("llama_mha", "mixed")
    model.save_pretrained(tmp_path / "checkpoint")
    here = ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head")
    placement = dict.fromkeys(here, "cpu") | {f"model.layers.{layer}": "disk" for layer in range(3)}
    offloaded = AutoModelForCausalLM.from_pretrained(
        tmp_path / "checkpoint", device_map=placement, offload_folder=tmp_path / "offload"
    )
    ids = tokens(2, 9)
    assert difference(offloaded(ids).logits, model(ids).logits) < 1e-6


@pytest.mark.parametrize(
    ("name", "value"), [("mixer", "window"), ("recurrent_heads", [[0], [], []]), ("mamba_d_state", 8)]
)
def test_a_config_that_was_changed_after_building_is_not_saved(name, value, tmp_path):
    for part in (lambda model: model, lambda model: model.model):
        model = make_converted("llama_mha", "mixed")
        setattr(model.config, name, value)
        with pytest.raises(ValueError, match=rf"^(config\.)?{name}=") as error:
            part(model).save_pretrained(tmp_path / "changed")
        assert "\n" not in str(error.value) and not (tmp_path / "changed").exists()


def test_settings_of_generation_that_contradict_each_other_are_kept(tmp_path):
    """The library saves such ones only where nobody has changed them since they were read."""
    make_backbone("llama_mha").save_pretrained(tmp_path / "base")
    settings = {"temperature": 0.6, "do_sample": False}
    (tmp_path / "base/generation_config.json").write_text(json.dumps(settings))
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    for name, model in {"converted": convert(base, HEADS["mixed"]), "pooled": pool_kv_heads(base, 3)}.items():
        model.save_pretrained(tmp_path / name)
        assert settings.items() <= json.loads((tmp_path / name / "generation_config.json").read_text()).items()


def test_a_config_without_the_keys_is_of_mamba(tmp_path):
    written = make_mixed("mamba").config.to_dict()
    for key in ("mixer", "window_tokens", "sink_tokens"):
        del written[key]
    config = type(make_mixed("mamba").config)(**written)
    assert (config.mixer, config.window_tokens, config.sink_tokens) == ("mamba", 64, 4)


@pytest.mark.parametrize(
    ("mixer", "sizes", "message"),
    [
        ("window", {"window_tokens": [[3], [], [3] * 6]}, "group_windows names [1, 0, 6] KV heads by layer"),
        ("window", {"window_tokens": [3, [], [3] * 6]}, "group_windows"),
        ("window_state", {"window_tokens": [[3] * 3, [], [3] * 6]}, "of the mixer window alone, not of window_state"),
        ("window", {"window_bits": [[8], [], [8] * 6]}, "group_bits names [1, 0, 6] KV heads by layer"),
        ("window", {"window_bits": [[8, 7, 8], [], [8] * 6]}, "group_bits: 7 is none of 16, 8, 6, 5, 4"),
        ("window", {"window_bits": 8}, "group_bits"),
        ("mamba", {"window_bits": [[8] * 3, [], [8] * 6]}, "of the mixer window alone, not of mamba"),
    ],
)
def test_windows_and_bits_that_fit_no_group_are_refused(mixer, sizes, message):
    with pytest.raises((ValueError, StrictDataclassError), match=re.escape(message)):
        convert(make_backbone("llama_mha"), HEADS["mixed"], mixer, **sizes)
