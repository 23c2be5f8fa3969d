"""Speed of models side by side: what is timed, and in which order."""

import pytest
import torch

from recurformer import convert
from recurformer.measure.device import speed_rows
from tests.model.tiny_models import HEADS, MAMBA, make_backbone, tokens


def test_the_models_take_turns_over_the_same_tokens():
    original = make_backbone("llama_gqa_tied")
    models = {"original": original, "converted": convert(original, HEADS["mixed"], **MAMBA)}
    read = []
    for name, model in models.items():
        model.register_forward_pre_hook(lambda _, words, name=name: read.append((name, words[0])))
    rows = speed_rows(models, tokens(1, 12), decoded=3, repetitions=2)
    once = [(name, length) for name in models for length in (9, 1, 1, 1)]
    assert [(name, ids.shape[1]) for name, ids in read] == 3 * once
    for name in models:
        text = torch.cat([ids for other, ids in read if other == name][:4], dim=1)
        assert torch.equal(text, tokens(1, 12))
    assert list(zip(rows.repetition, rows.model, rows.phase, rows.tokens, strict=True)) == [
        (repetition, name, phase, count)
        for repetition in range(2)
        for name in models
        for phase, count in (("prefill", 9), ("decode", 3))
    ]
    assert (rows.seconds > 0).all()


@pytest.mark.parametrize("decoded", [0, 12])
def test_both_phases_need_tokens(decoded):
    with pytest.raises(ValueError, match=f"decoded={decoded} must lie between 1 and 11"):
        speed_rows({"model": make_backbone("llama_gqa_tied")}, tokens(1, 12), decoded=decoded, repetitions=1)
