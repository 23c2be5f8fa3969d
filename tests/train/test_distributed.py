"""Training over several processes: the curve, samples and weights of one, and resumption by others than the killed."""

import functools
import json
import os
import signal

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.multiprocessing.spawn import ProcessException

from recurformer.data import IGNORED
from recurformer.study import Distributed, Training
from recurformer.train.data import ItemDataset, item_generator
from recurformer.train.distributed import train_distributed
from recurformer.train.metrics import TrainingDiverged
from recurformer.train.sharded import whole_weights
from recurformer.train.time_limit import VARIABLE
from recurformer.train.trainer import train
from tests.model.tiny_models import make_converted

BATCH = 8
RECIPE = Training(
    steps=6, batch_size=BATCH, learning_rate=1e-3, mixer_learning_rate=3e-3, log_every=1, save_every=2, weight_decay=0.1
)
SPREADS = {
    "alone": Distributed(processes=1, strategy="fsdp", precision="float32"),
    "ddp": Distributed(processes=2, strategy="ddp", precision="float32"),
    "fsdp": Distributed(processes=2, strategy="fsdp", precision="float32"),
    "ddp in passes": Distributed(processes=2, strategy="ddp", precision="float32", gradient_accumulation=4),
    "fsdp in passes": Distributed(
        processes=2, strategy="fsdp", precision="float32", gradient_accumulation=2, activation_checkpointing=True
    ),
    "bf16": Distributed(processes=2, strategy="fsdp"),
}


class Ragged(ItemDataset):
    """Texts that count upwards, of uneven lengths, of which uneven parts are asked."""

    def __init__(self, killer: int | None = None):
        super().__init__(0, "train", None)
        self.killer = killer
        self.seen: list[int] = []

    def __getitem__(self, index):
        if index == self.killer:
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen.append(index)
        rng = item_generator(self.seed, index)
        input_ids = (torch.arange(int(rng.integers(8, 17))) + int(rng.integers(40))) % 40
        labels = input_ids.clone()
        labels[: int(rng.integers(1, 7))] = IGNORED
        return {"input_ids": input_ids, "labels": labels}


def model():
    """Tied embeddings, layers with all, some and none of their heads replaced."""
    return make_converted("llama_gqa_tied", "mixed")


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Losses and weights of the run in one process that knows nothing of others."""
    trained = model()
    rows = train(trained, Ragged(), output_dir=tmp_path_factory.mktemp("one"), **RECIPE.model_dump())
    return rows, dict(trained.named_parameters())


def process(rank, folder, spread, killer):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous-{spread.processes}-{killer}"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=spread.processes)
    trained, dataset, logged = model(), Ragged(killer), []
    train_distributed(trained, dataset, RECIPE, spread, output_dir=folder / "run", on_log=logged.append)
    weights = whole_weights(trained)
    torch.save((weights, dataset.seen, logged), folder / f"process-{rank}.pt")
    dist.destroy_process_group()


def run(folder, spread, killer=None):
    """Losses, weights, and the items that each process read."""
    multiprocessing.start_processes(process, (folder, spread, killer), nprocs=spread.processes, start_method="fork")
    left = [torch.load(folder / f"process-{rank}.pt") for rank in range(spread.processes)]
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert left[0][2] == rows[-len(left[0][2]) :]
    assert all(not weights and not logged for weights, _, logged in left[1:])
    return rows, left[0][0], [seen for _, seen, _ in left]


def assert_same(found, expected):
    rows, weights = expected
    assert [row["step"] for row in found[0]] == rows.step.tolist()
    assert [row["tokens"] for row in found[0]] == rows.tokens.tolist()
    assert [row["learning_rate"] for row in found[0]] == rows.learning_rate.tolist()
    assert [row["loss"] for row in found[0]] == pytest.approx(rows.loss.tolist(), rel=1e-5)
    assert found[1].keys() == weights.keys()
    for name, weight in weights.items():
        assert torch.allclose(found[1][name], weight, rtol=1e-4, atol=1e-4), name


@pytest.mark.parametrize("name", [name for name in SPREADS if name != "bf16"])
def test_the_curve_and_the_weights_are_those_of_one_process(name, expected, tmp_path):
    found = run(tmp_path, SPREADS[name])
    assert_same(found, expected)
    read = sorted(index for seen in found[2] for index in seen)
    assert read == [0, *range(RECIPE.steps * BATCH)], "each item once, the first also for the run's description"


def test_bf16_computes_coarsely_on_float32_weights(expected, tmp_path):
    rows, weights, _ = run(tmp_path, SPREADS["bf16"])
    losses = [row["loss"] for row in rows]
    assert losses == pytest.approx(expected[0].loss.tolist(), rel=0.03)
    assert losses != pytest.approx(expected[0].loss.tolist(), rel=1e-5)
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


@pytest.mark.parametrize(
    ("killed", "resuming"), [("alone", "fsdp"), ("fsdp", "alone"), ("ddp", "fsdp in passes"), ("fsdp", "ddp")]
)
def test_a_killed_run_is_resumed_on_any_number_of_processes(killed, resuming, expected, tmp_path):
    with pytest.raises(ProcessException):
        run(tmp_path, SPREADS[killed], killer=5 * BATCH - 1)
    kept = sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*"))
    assert kept == ["checkpoint-4"]
    found = run(tmp_path, SPREADS[resuming])
    assert_same(found, expected)
    assert min(index for seen in found[2] for index in seen[1:]) >= 4 * BATCH


def test_pieces_of_a_limited_time_make_the_whole_run(expected, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "1e-6")
    for step, name in enumerate(("ddp", "fsdp", "alone"), start=1):
        with pytest.raises(ProcessException, match=rf"StoppedForTime: stopped after .* at step {step} of 6: run again"):
            run(tmp_path, SPREADS[name], killer=-step)
        assert (tmp_path / "run" / f"checkpoint-{step}" / "complete").exists()
    monkeypatch.setenv(VARIABLE, "1e6")
    assert_same(run(tmp_path, SPREADS["fsdp"]), expected)


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield functools.partial(train_distributed, dataset=Ragged(), recipe=RECIPE, spread=SPREADS["alone"])
    dist.destroy_process_group()


def test_another_recipe_or_precision_starts_again(one_process, tmp_path):
    for change in ({}, {"recipe": RECIPE.model_copy(update={"steps": 5})}, {"spread": Distributed(processes=1)}):
        logged = []
        one_process(model(), output_dir=tmp_path, on_log=logged.append, **change)
        assert logged[0]["step"] == 1


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_what_is_not_finite_ends_the_run_and_keeps_the_checkpoint(what, one_process, tmp_path):
    poisoned, calls = model(), []

    def poison(value):
        calls.append(1)
        return value * float("nan") if len(calls) == 3 else value

    if what == "gradient":
        poisoned.model.norm.weight.register_hook(poison)
    else:
        poisoned.lm_head.register_forward_hook(lambda module, inputs, output: poison(output))
    spread = SPREADS["ddp"] if what == "gradient" else SPREADS["alone"]
    with pytest.raises(TrainingDiverged, match=f"^step 3: the {what} is nan; lower"):
        one_process(poisoned, output_dir=tmp_path, spread=spread)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]


def test_what_cannot_be_spread_is_refused(one_process, tmp_path):
    uneven = SPREADS["alone"].model_copy(update={"gradient_accumulation": 3})
    with pytest.raises(ValueError, match="batch_size 8: not divisible by processes 1 times gradient_accumulation 3"):
        one_process(model(), output_dir=tmp_path, spread=uneven)
    dropping = model()
    dropping.config.attention_dropout = 0.1
    with pytest.raises(ValueError, match=r"^attention_dropout: "):
        one_process(dropping, output_dir=tmp_path)
    assert not list(tmp_path.iterdir())
