from types import SimpleNamespace

import pytest
import torch

from recurformer.data import IGNORED
from recurformer.data.datasets import item_generator
from recurformer.measure.mqar import COLUMNS, make_mqar_model, mqar_batch, mqar_rows, run_mqar

TRAINING = {"steps": 6, "batch_size": 8, "learning_rate": 9.0, "log_every": 2, "save_every": 100, "schedule": "cosine"}
MAMBA = {"d_state": 4, "dt_rank": 4}


@pytest.fixture
def settings():
    return SimpleNamespace(
        hidden_size=32,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocabulary=64,
        train=[(16, 2), (32, 4)],
        test=[(16, 2), (32, 4), (48, 12)],
        test_samples=20,
        curriculum_share=0.0,
        training=TRAINING,
        selection=SimpleNamespace(unit="head", scope="layer", by="ra_i"),
    )


@pytest.mark.parametrize(("beta", "replaced"), [(0.0, 0), (0.25, 1), (0.5, 2), (0.9, 4), (1.0, 4)])
def test_each_layer_loses_its_share_of_heads(settings, beta, replaced):
    model = make_mqar_model(beta, 0, settings, MAMBA)
    assert [len(heads) for heads in model.config.recurrent_heads] == [replaced] * 2
    again, other = make_mqar_model(beta, 0, settings, MAMBA), make_mqar_model(beta, 1, settings, MAMBA)
    weights = [torch.cat([value.flatten() for value in m.state_dict().values()]) for m in (model, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_rows(settings, tmp_path):
    rows = run_mqar(0.5, 1e-3, 0, settings, output_dir=tmp_path, mamba=MAMBA)
    assert list(rows.columns) == COLUMNS
    assert rows.split.tolist() == ["validation"] * 2 + ["test"] * 3
    assert rows.length.tolist() == [16, 32, 16, 32, 48]
    assert rows.trained_length.tolist() == [True, True, True, True, False]
    assert rows.queries.tolist() == [40, 80, 40, 80, 240]
    assert (rows.correct <= rows.queries).all()
    again = run_mqar(0.5, 1e-3, 0, settings, output_dir=tmp_path / "again", mamba=MAMBA)
    assert again.equals(rows)


class Oracle(torch.nn.Module):
    """Looks the answer up: at every position the token that followed the last earlier occurrence of the one there."""

    def __init__(self, wrong_after: int):
        super().__init__()
        self.wrong_after, self.device = wrong_after, torch.device("cpu")

    def forward(self, input_ids, use_cache):
        logits = torch.zeros(*input_ids.shape, 64)
        for row, ids in enumerate(input_ids.tolist()):
            for place, token in enumerate(ids):
                earlier = ids.index(token)
                answer = ids[earlier + 1] if earlier < place else 0
                logits[row, place, 0 if place >= self.wrong_after else answer] = 1
        return SimpleNamespace(logits=logits)


@pytest.mark.parametrize("tokens_per_batch", [16, 100, 10_000])
def test_answers_are_read_where_the_key_stands(tokens_per_batch):
    rows = mqar_rows(
        Oracle(wrong_after=10**6),
        [(16, 2), (48, 12)],
        vocabulary=64,
        samples=20,
        seed=0,
        tokens_per_batch=tokens_per_batch,
    )
    assert rows.correct.tolist() == rows.queries.tolist() == [40, 240]
    asked = mqar_batch(item_generator(0, 0, "test"), 20, 48, 12, vocabulary=64)[1][:, 1:] != IGNORED
    early = int(asked[:, :36].sum())
    half = mqar_rows(
        Oracle(wrong_after=36), [(48, 12)], vocabulary=64, samples=20, seed=0, tokens_per_batch=tokens_per_batch
    )
    assert half.correct.item() == early
    assert 0 < early < 240


def test_training_and_test_agree_on_what_is_asked(settings, tmp_path):
    """One pair is learned in a few steps, if the labels stand where the test reads them."""
    settings.train = settings.test = [(8, 1)]
    settings.test_samples = 200
    settings.training = TRAINING | {"steps": 120, "batch_size": 32, "schedule": "one_cycle"}
    rows = run_mqar(0.5, 1e-2, 0, settings, output_dir=tmp_path, mamba=MAMBA)
    assert (rows.correct / rows.queries > 0.9).all()
