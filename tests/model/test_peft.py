"""Low-rank adapters of PEFT on converted models: train, merge, and what must be merged first."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_models import HEADS, difference, make_backbone, make_converted, tokens

import recurformer


def adapted(backbone, heads, targets):
    """A converted model with adapters that are no longer zero."""
    torch.manual_seed(0)
    model = get_peft_model(make_converted(backbone, heads), LoraConfig(r=2, target_modules=targets)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1)
    return model


@pytest.mark.parametrize(
    ("backbone", "heads", "targets"),
    [
        ("llama_mha", "mixed", "all-linear"),
        ("llama_gqa_tied", "beta_one", ["in_proj"]),
        ("qwen2_gqa", "ragged", ["in_proj"]),
        ("qwen2_gqa", "ragged", "all-linear"),
    ],
)
def test_adapters_learn_and_merge(backbone, heads, targets):
    model, ids = adapted(backbone, heads, targets), tokens(2, 12)
    model(input_ids=ids, labels=ids).loss.backward()
    trained = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    blocks = sum(map(bool, HEADS[heads]))
    assert sum("in_proj.lora_A" in name for name in trained) == blocks
    assert all(grad is not None and grad.abs().max() > 0 for grad in trained.values())
    with torch.no_grad():
        logits = model(input_ids=ids).logits
        with model.disable_adapter():
            assert difference(model(input_ids=ids).logits, logits) > 1e-2
        assert difference(model.merge_and_unload()(ids).logits, logits) < 1e-5


def test_adapters_are_to_be_merged_before_folding():
    model, ids = adapted("qwen2_gqa", "ragged", "all-linear"), tokens(2, 9)
    with pytest.raises(ValueError, match=r"folded: o_proj of layer 0 has an adapter.*merge_and_unload\(\)") as error:
        recurformer.folded(model).__enter__()
    assert "\n" not in str(error.value)
    merged = model.merge_and_unload()
    with torch.no_grad():
        logits = merged(ids).logits
        with recurformer.folded(merged):
            assert difference(merged(ids).logits, logits) < 1e-5
    attending = adapted("qwen2_gqa", "ragged", ["q_proj"])  # what is not folded may keep its adapters
    with torch.no_grad(), recurformer.folded(attending):
        attending(input_ids=ids)


@pytest.mark.parametrize("of", [lambda wrapped: wrapped, lambda wrapped: wrapped.base_model.model], ids=["peft", "own"])
def test_adapters_are_to_be_merged_before_converting(of):
    wrapped = get_peft_model(make_backbone("llama_mha"), LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn\.q_proj has an adapter.*merge_and_unload\(\)"):
        recurformer.convert(of(wrapped), HEADS["mixed"])
