"""Training of converted models, and low-rank adapters of PEFT on them."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_models import BY_GROUP, CASES, HEADS, MAMBA, difference, make_backbone, make_converted, make_mixed, tokens
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache, Trainer, TrainingArguments

import recurformer
from recurformer.model.convert import convert
from recurformer.model.mixers import MIXERS

LENGTH = 13


def gradients(model, ids):
    model.zero_grad()
    model(ids, labels=ids).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(("mixer", "backbone", "heads"), [case for case in CASES if case[0] != "zero"])
def test_every_parameter_gets_a_gradient(mixer, backbone, heads):
    model = make_mixed(mixer, backbone, heads).train()
    for name, gradient in gradients(model, tokens(2, 40)).items():
        assert gradient.isfinite().all() and gradient.any(), name


@pytest.mark.parametrize(("backbone", "heads"), [("llama_gqa_tied", "beta_one"), ("qwen2_gqa", "ragged")])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_leaves_the_gradients_alone(backbone, heads, use_reentrant):
    model, ids = make_converted(backbone, heads).train(), tokens(2, 40)
    expected = gradients(model, ids)
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    calls = []
    model.model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    for name, gradient in gradients(model, ids).items():
        assert torch.allclose(gradient, expected[name], rtol=1e-4, atol=1e-6), name
    assert len(calls) == 2  # it ran again for the backward pass


@pytest.mark.parametrize("heads", ["mixed", "ragged"])
@pytest.mark.parametrize("mixer", [name for name in MIXERS if name != "zero"])
def test_bfloat16_stays_near_float32(mixer, heads):
    model, ids = make_mixed(mixer, heads=heads), tokens(2, 30)
    expected = model(ids).logits
    model = model.to(torch.bfloat16)
    result = model(ids, use_cache=True)
    assert result.logits.dtype == torch.bfloat16 and difference(result.logits, expected) < 0.15
    for layer in result.past_key_values.layers:
        state = getattr(layer, "recurrent_states", {0: None})[0]
        assert state is None or state.dtype == (torch.long if mixer == "window" else torch.float32)
    pieces = model(ids[:, :17], use_cache=True)
    rest = model(ids[:, 17:], past_key_values=pieces.past_key_values, use_cache=True)
    assert difference(torch.cat([pieces.logits, rest.logits], 1), result.logits) < 0.15
    model.train()
    assert all(gradient.isfinite().all() for gradient in gradients(model, ids).values())


class Repetitions(Dataset):
    """Sequences of one repeated token: learnt within a few steps."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.full((12,), 2 + index % 8)
        return {"input_ids": ids, "labels": ids}


def test_trainer_learns_and_its_checkpoint_loads(tmp_path):
    model = make_converted("qwen2_gqa", "ragged")
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=25, per_device_train_batch_size=8, learning_rate=3e-3, logging_steps=5,
        save_steps=25, report_to=[], use_cpu=True, disable_tqdm=True, bf16=True, gradient_checkpointing=True,
        dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=Repetitions(), eval_dataset=Repetitions())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] / 2
    assert trainer.evaluate()["eval_loss"] < losses[0] / 2
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-25", dtype=torch.float32)
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in loaded.state_dict().items())


def test_forward_and_backward_compile_in_one_graph():
    torch.compiler.reset()
    base = make_backbone("qwen2_gqa", num_hidden_layers=2)
    model, ids = convert(base, [[1, 3, 4, 5], [0, 1, 2, 3, 4, 5]], **MAMBA).train(), tokens(2, 40)
    expected, expected_logits = gradients(model, ids), model(ids, use_cache=False).logits
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    model.zero_grad()
    result = compiled(ids, labels=ids, use_cache=False)
    assert difference(result.logits, expected_logits) < 1e-5
    result.loss.backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, expected[name], rtol=1e-4, atol=1e-6), name


def test_decoding_compiles_in_one_graph():
    torch.compiler.reset()
    base = make_backbone("qwen2_gqa", num_hidden_layers=2)
    model, ids = convert(base, [[1, 3, 4, 5], [0, 1, 2, 3, 4, 5]], **MAMBA), tokens(2, 14)
    expected = model(ids, use_cache=False).logits
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    cache = StaticCache(config=model.config, max_cache_len=32)
    with torch.no_grad():
        model(ids[:, :10], past_key_values=cache, use_cache=True)
        for position in range(10, 14):
            step = compiled(
                ids[:, position : position + 1],
                position_ids=torch.full((1, 1), position),
                past_key_values=cache,
                use_cache=True,
            )
            assert difference(step.logits[:, 0], expected[:, position]) < 1e-4


@torch.no_grad()
def test_compiled_code_multiplies_by_the_factors():
    """Fused weights would be frozen into it, and go stale unseen."""
    torch.compiler.reset()
    base = make_backbone("qwen2_gqa", num_hidden_layers=1)
    model, ids = convert(base, [[1, 3, 4, 5]], **MAMBA), tokens(2, 9)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with recurformer.folded(model):
        model(ids)  # fuses the weights
        assert difference(compiled(ids).logits, model(ids).logits) < 1e-5
        model.model.layers[0].self_attn.o_proj.weight.mul_(2)
        assert difference(compiled(ids).logits, model(ids).logits) < 1e-5


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_inductor():
    torch.compiler.reset()
    model, ids = convert(make_backbone("qwen2_gqa", num_hidden_layers=1), [[1, 3, 4, 5]], **MAMBA), tokens(2, 40)
    compiled = torch.compile(model, fullgraph=True)
    assert difference(compiled(ids, use_cache=False).logits, model(ids, use_cache=False).logits) < 1e-4


@pytest.mark.parametrize("mixer", [*MIXERS, BY_GROUP])  # packed numbers of a cache have no gradient
def test_gradients_pass_through_a_cache(mixer):
    model, ids = make_mixed(mixer).train(), tokens(1, LENGTH)
    gradients = []
    for cuts in ((LENGTH,), (6, 1, LENGTH - 7)):
        x = model.model.embed_tokens(ids).detach().requires_grad_()
        cache = DynamicCache(config=model.config)
        for piece in x.split(cuts, 1):
            last = model(inputs_embeds=piece, past_key_values=cache, use_cache=True).logits[:, -1]
        gradients.append(torch.autograd.grad(last.square().sum(), x)[0])
    assert difference(*gradients) < 1e-4


def test_conversion_starts_each_mixer_by_its_own_rules():
    """The library skips modules without parameters of their own, and leaves their linear layers at its own start."""
    original, ids = make_backbone("qwen2_gqa"), tokens(2, 20)
    window, both, retention = (
        convert(original, HEADS["mixed"], mixer=name, window_tokens=5, sink_tokens=2)
        for name in ("window", "window_state", "retention")
    )
    with torch.no_grad():
        torch.testing.assert_close(both(ids).logits, window(ids).logits)
    gate = retention.model.layers[0].self_attn.mixer.gate
    assert not gate.weight.any() and (gate.bias > 0).all()


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
