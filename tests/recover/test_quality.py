"""Likelihood and divergence of held-out windows."""

import pandas as pd
import pytest
import torch

from recurformer import convert
from recurformer.recover.adapt_measures import quality_of
from recurformer.recover.quality import quality_rows
from tests.model.tiny_models import HEADS, MAMBA, make_backbone, tokens


@pytest.mark.parametrize("changed", [False, True])
def test_each_window_is_measured_over_its_predicted_tokens(changed):
    original = make_backbone("llama_gqa_tied")
    model = convert(original, HEADS["mixed"], **MAMBA).eval() if changed else original
    rows = quality_rows(original, model, tokens(3, 12))
    assert rows.window.tolist() == [0, 1, 2] and set(rows.tokens) == {11}
    for row, window in zip(rows.itertuples(), tokens(3, 12), strict=True):
        with torch.no_grad():
            loss = model(window[None], labels=window[None]).loss.item()
            log_p, log_q = (one(window[None]).logits[0, :-1].log_softmax(-1) for one in (original, model))
        assert row.negative_log_likelihood == pytest.approx(loss, rel=1e-5)
        expected = (log_p.exp() * (log_p - log_q)).sum(-1).mean().item()
        assert row.divergence == pytest.approx(expected, rel=1e-4, abs=1e-9)
    assert (rows.divergence > 0).all() == changed


def test_no_divergence_is_below_zero(monkeypatch):
    rows = pd.DataFrame({"negative_log_likelihood": [1.0, 1.0], "divergence": [-1e-9, -2e-9]})
    monkeypatch.setattr("recurformer.recover.adapt_measures.quality_rows", lambda *arguments: rows)
    found = quality_of(None, None, None)
    assert (found["divergence"], found["divergence_interval"]) == (0, [0, pytest.approx(0, abs=1e-8)])
