"""The captured decode step: replayed with all frozen that a CUDA graph freezes, it decodes as generate() does."""

import pytest
import torch
from tiny_models import PAD, difference, make_backbone, make_converted, tokens
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.utils import import_utils

from recurformer.model import step, step_cpp
from recurformer.model.decode_graph import DecodeGraph

ROWS, PROMPT, NEW = 2, 7, 6
LOOKS = ("aten::_local_scalar_dense", "aten::equal", "aten::nonzero")
GRAPHED = [("llama_mha", "mixed"), ("qwen2_gqa", "ragged"), ("llama_gqa_tied", "beta_one"), ("mistral_gqa", "mixed")]


@pytest.fixture(autouse=True)
def torch_steps(monkeypatch):
    only_torch_steps(monkeypatch)


def only_torch_steps(monkeypatch):
    """A tape hears of torch's operations only; a CUDA graph records every kernel."""
    for module in (step, step_cpp):
        monkeypatch.setattr(module, "usable", lambda rows, dense: False)


class Tape(TorchDispatchMode):
    """Records operations with the very tensors that they read and wrote, and repeats them: a CUDA graph on the CPU."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        made = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        assert function.name().split(".")[0] not in LOOKS, f"{function} looks at a value: a graph cannot"
        if not function.is_view and (made or result is None):
            self.operations.append((function, arguments, keywords or {}, made))
        return result

    def replay(self):
        for function, arguments, keywords, made in self.operations:
            again = [x for x in tree_leaves(function(*arguments, **keywords)) if isinstance(x, torch.Tensor)]
            for old, new in zip(made, again, strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Captures:
    """Counts captures and replays; capturing runs the step, as a tape cannot do without, and takes it back."""

    def __init__(self):
        self.captured = self.replayed = 0

    def __call__(self, decode_step):
        written = [x for x in tree_leaves([vars(layer) for layer in self.cache.layers]) if torch.is_tensor(x)]
        written += [self.positions]
        before = [x.clone() for x in written]
        with pytest.MonkeyPatch.context() as patch, Tape() as tape:
            patch.setattr(import_utils, "is_cuda_stream_capturing", lambda: True)
            decode_step()
        for x, value in zip(written, before, strict=True):
            x.copy_(value)
        self.captured += 1

        def replay():
            self.replayed += 1
            tape.replay()

        return replay


def make_graph(model, **sizes):
    captures = Captures()
    graph = DecodeGraph(model, **{"rows": ROWS, "max_length": PROMPT + NEW} | sizes, capture=captures)
    captures.cache, captures.positions = graph.cache, graph.positions
    return graph, captures


def prompts(seed, padded=False):
    ids, mask = tokens(ROWS, PROMPT, seed), torch.ones(ROWS, PROMPT, dtype=torch.long)
    if padded:
        ids[0, :3], mask[0, :3] = PAD, 0
    return ids, mask


def expected_logits(model, ids, mask):
    arguments = {"max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    return torch.stack(model.generate(ids, attention_mask=mask, **arguments).logits, 1)


def decode(graph, ids, mask):
    logits = [graph.start(ids, mask)]
    while len(logits) < NEW:
        logits.append(graph(logits[-1].argmax(-1)).clone())
    return torch.stack(logits, 1)


@pytest.mark.parametrize(("backbone", "heads"), GRAPHED)
def test_replayed_steps_decode_prompt_after_prompt(backbone, heads):
    model = make_converted(backbone, heads).requires_grad_(False)
    with make_graph(model)[0] as graph:
        for seed, padded in ((0, False), (1, True), (2, False)):
            ids, mask = prompts(seed, padded)
            assert difference(decode(graph, ids, mask), expected_logits(model, ids, mask)) < 1e-4
        assert graph.capture.captured == 1  # after one step operation by operation
        assert graph.capture.replayed == 3 * (NEW - 1) - 1


def test_a_backbone_decodes_too():
    model = make_backbone("qwen2_gqa").requires_grad_(False)
    ids, mask = prompts(0, padded=True)
    with make_graph(model)[0] as graph:
        assert difference(decode(graph, ids, mask), expected_logits(model, ids, mask)) < 1e-4


def test_without_graphs_the_same_steps_run_one_by_one():
    model = make_converted("qwen2_gqa", "ragged").requires_grad_(False)
    ids, mask = prompts(0)
    with DecodeGraph(model, ROWS, PROMPT + NEW) as graph:
        assert graph.capture is None
        assert difference(decode(graph, ids, mask), expected_logits(model, ids, mask)) < 1e-4


@pytest.mark.parametrize("name", ["o_proj.weight", "mamba.D", "q_proj.weight"])
def test_changed_weights_are_captured_anew(name):
    model = make_converted("llama_mha", "mixed").requires_grad_(False)
    ids, mask = prompts(0)
    with make_graph(model)[0] as graph:
        before = decode(graph, ids, mask)
        model.model.layers[0].self_attn.get_parameter(name).mul_(2)
        after = decode(graph, ids, mask)
        assert graph.capture.captured == 2
        assert difference(after, before) > 1e-3
    assert difference(after, expected_logits(model, ids, mask)) < 1e-4


def test_what_does_not_fit_is_refused():
    model = make_converted("llama_mha", "mixed").requires_grad_(False)
    ids, mask = prompts(0)
    with make_graph(model, max_length=PROMPT + 1)[0] as graph:
        with pytest.raises(RuntimeError, match="before start"):
            graph(torch.zeros(ROWS, dtype=torch.long))
        with pytest.raises(ValueError, match="prompts of 3 rows and 9 tokens: this graph takes 2 rows and at most 8"):
            graph.start(tokens(3, 9))
        next_token = graph.start(ids, mask).argmax(-1)
        graph(next_token)
        with pytest.raises(RuntimeError, match="the cache is full: 8 tokens"):
            graph(next_token)


def test_a_sliding_window_is_not_captured():
    model = make_backbone("mistral_gqa")
    model.config.sliding_window = 4
    with pytest.raises(ValueError, match="sliding attention window"):
        DecodeGraph(model, ROWS, PROMPT + NEW, capture=lambda step: step)
    DecodeGraph(model, ROWS, PROMPT + NEW)  # step by step nothing is frozen
