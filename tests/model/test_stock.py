"""Models of windows as stock models: another process opens them without this package, with the same outputs."""

import os
import re
import subprocess
import sys

import pytest
import torch
from tiny_models import ALL, difference, make_backbone, tokens

from recurformer.cli.main import main
from recurformer.model.convert import convert
from recurformer.model.families import FAMILIES
from recurformer.model.stock import as_stock

SOME, EVERY = [ALL, [], ALL], [ALL, ALL, ALL]
WINDOW = 5
NO_OTHERS = {"layer_types": ["full_attention"] * 3}
ALIKE = {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
ALIKE["sliding_attention"] = ALIKE["full_attention"]
EXPORTED = [
    ("llama_mha", SOME, {}, "ministral"),
    ("llama_gqa_tied", EVERY, {}, "mistral"),
    ("mistral_gqa", SOME, {}, "ministral"),
    ("mistral_gqa", EVERY, {}, "mistral"),
    ("qwen2_gqa", SOME, {}, "qwen2"),
    ("qwen2_gqa", EVERY, {}, "qwen2"),
    ("qwen3", SOME, {}, "qwen3"),
    ("smollm3", SOME, {}, "smollm3"),
    ("phi3", EVERY, {}, "phi3"),
    ("gemma3_text", SOME, NO_OTHERS, "gemma3_text"),
    ("gemma3_text", SOME, {"sliding_window": WINDOW, "rope_parameters": ALIKE}, "gemma3_text"),
]
"""Backbone, replaced heads, changes of its configuration, and the model type that stands for it."""
PROCESS = """
import sys
import torch
sys.modules['recurformer'] = None  # importing the package raises ImportError
from transformers import AutoModelForCausalLM
ids, mask = torch.load("inputs.pt")
for folder in sys.argv[1:]:
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    read = model(ids[:1]).logits
    written = model.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False)
    torch.save((type(model).__module__, model.config.model_type, read, written), f"{folder}.pt")
"""


def windowed(backbone, heads, changes=None, **sizes):
    """A model with windows in whole layers, whose biases and norms are random."""
    sizes = {"window_tokens": WINDOW, "sink_tokens": 0} | sizes
    return convert(make_backbone(backbone, **(changes or {})), heads, "window", **sizes).eval()


@pytest.mark.slow
@torch.no_grad()
def test_another_process_computes_the_same_without_the_package(tmp_path):
    assert {backbone.split("_")[0] for backbone, *_ in EXPORTED} == {
        name.split("_")[0] for name, family in FAMILIES.items() if family.all_slide
    }
    ids, mask = tokens(2, 30), torch.ones(2, 30, dtype=torch.long)
    mask[1, :4] = 0
    torch.save((ids, mask), tmp_path / "inputs.pt")
    models = [windowed(backbone, heads, changes) for backbone, heads, changes, _ in EXPORTED]
    for place, model in enumerate(models):
        model.save_pretrained(tmp_path / f"converted{place}")
        assert main(["export", str(tmp_path / f"converted{place}"), str(tmp_path / f"stock{place}"), "--stock"]) == 0
    folders = [f"stock{place}" for place in range(len(models))]
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, *folders], cwd=tmp_path, env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for (backbone, _, changes, kind), model, folder in zip(EXPORTED, models, folders, strict=True):
        module, model_type, read, written = torch.load(tmp_path / f"{folder}.pt")
        assert (module, model_type) == (f"transformers.models.{kind.split('_')[0]}.modeling_{kind.split('_')[0]}", kind)
        expected = model(ids[:1]).logits
        assert difference(read, expected) < 1e-5, backbone
        assert difference(make_backbone(backbone, **changes)(ids[:1]).logits, expected) > 0.05  # windows matter here
        assert torch.equal(written, model.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False))


@torch.no_grad()
def test_sinks_are_left_out_only_when_asked(tmp_path, capsys):
    with_sinks, ids = windowed("qwen2_gqa", SOME, sink_tokens=2), tokens(1, 30)
    with_sinks.save_pretrained(tmp_path / "model")
    export = ["export", str(tmp_path / "model"), str(tmp_path / "stock"), "--stock"]
    assert main(export) == 1
    assert "sink_tokens=2: stock layers forget the first tokens" in capsys.readouterr().err
    assert not (tmp_path / "stock").exists()
    assert main([*export, "--without-sinks"]) == 0
    assert "left out: the first 2 tokens" in capsys.readouterr().out
    logits = as_stock(with_sinks, without_sinks=True)(ids).logits
    assert difference(logits, windowed("qwen2_gqa", SOME)(ids).logits) < 1e-5
    within = difference(logits[:, :WINDOW], with_sinks(ids[:, :WINDOW]).logits)
    assert within < 1e-5 and difference(logits, with_sinks(ids).logits) > 0.05


BY_GROUP = [[5, 5], [], [5, 8]]
REFUSED = [
    ("llama_mha", [ALL, [0, 1], []], {}, {}, "layer 1 has windows in 2 of its 6 heads"),
    ("qwen2_gqa", SOME, {}, {"window_tokens": BY_GROUP}, "layer 2 has windows of 5 and 8 tokens"),
    (
        "qwen2_gqa",
        SOME,
        {},
        {"window_tokens": [[5, 5], [], [8, 8]]},
        "layer 2 has a window of 8 tokens and layer 0 one",
    ),
    ("qwen2_gqa", SOME, {}, {"window_bits": [[16, 16], [], [8, 16]]}, "layer 2 keeps 8 bits of a number"),
    ("qwen2_gqa", SOME, {}, {"window_tokens": 1}, "layer 0 has windows of 1 tokens: a stock layer has one size"),
    ("qwen2_gqa", [[], [], []], {}, {}, "no head is replaced"),
    ("granite", SOME, {}, {}, "stock models of the family granite have no windows"),
    ("gemma", EVERY, {}, {}, "stock models of the family gemma have no windows"),
    ("phi3", SOME, {}, {}, "layer 1 has no window, and stock models of the family phi3 have a window in all"),
    ("gemma3_text", SOME, {}, {}, "layer 1 has a window of 6 tokens and layer 0 one of 5"),
    ("gemma3_text", SOME, {"sliding_window": WINDOW}, {}, "layer 1 is a sliding layer of the original and turns its"),
]


@pytest.mark.parametrize(
    ("backbone", "heads", "changes", "sizes", "message"), REFUSED, ids=[row[-1] for row in REFUSED]
)
def test_what_no_stock_model_computes_is_refused(backbone, heads, changes, sizes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        as_stock(windowed(backbone, heads, changes, **sizes))


def test_models_of_other_kinds_are_refused():
    stock = make_backbone("qwen2_gqa")
    with pytest.raises(ValueError, match="Qwen2ForCausalLM is not a converted language model: it is a stock"):
        as_stock(stock)
    with pytest.raises(ValueError, match="layer 0 has the mixer 'mean': a stock layer can stand for 'window' alone"):
        as_stock(convert(stock, SOME, "mean"))
    biased = make_backbone("llama_mha", attention_bias=True)
    with pytest.raises(ValueError, match=r"do not fit MinistralForCausalLM: .*q_proj\.bias"):
        as_stock(convert(biased, SOME, "window", sink_tokens=0))
