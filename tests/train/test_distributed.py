"""Training over several processes: the curve, samples and weights of one, and resumption after a kill."""

import json
import os
import signal
import socket

import pytest
import torch
from torch import multiprocessing
from torch.multiprocessing.spawn import ProcessException

from recurformer.data import IGNORED
from recurformer.data.datasets import ItemDataset, item_generator
from recurformer.study import Distributed, Training
from recurformer.train import trainer
from recurformer.train.trainer import train, whole_weights
from tests.model.tiny_models import make_converted

BATCH = 8
RECIPE = Training(
    steps=6, batch_size=BATCH, learning_rate=1e-3, mixer_learning_rate=3e-3, log_every=1, save_every=2, weight_decay=0.1
)
SPREADS = {
    "ddp": Distributed(processes=2, strategy="ddp", precision="float32"),
    "fsdp": Distributed(processes=2, strategy="fsdp", precision="float32"),
    "ddp in passes": Distributed(processes=2, strategy="ddp", precision="float32", gradient_accumulation=4),
    "fsdp in passes": Distributed(
        processes=2, strategy="fsdp", precision="float32", gradient_accumulation=2, activation_checkpointing=True
    ),
    "bf16 by ddp": Distributed(processes=2, strategy="ddp"),
    "bf16 by fsdp": Distributed(processes=2, strategy="fsdp"),
}


class Ragged(ItemDataset):
    """Texts that count upwards, of uneven lengths, of which uneven parts are asked."""

    def __init__(self, killer: int | None = None):
        super().__init__(0)
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


def process(rank, folder, spread, killer, poison, port):
    torch.set_num_threads(1)
    trainer.fast_bf16 = lambda device: True
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": spread.processes, "LOCAL_WORLD_SIZE": spread.processes}
    os.environ.update({name: str(number) for name, number in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"})
    os.environ["MASTER_PORT"] = str(port)
    trained, dataset, logged = model(), Ragged(killer), []
    if poison:
        trained.lm_head.register_forward_hook(poison())
    options = {**RECIPE.model_dump(), **spread.training()}
    train(trained, dataset, output_dir=folder / "run", on_log=logged.append, **options)
    weights = whole_weights(trained)
    torch.save((weights, dataset.seen, logged), folder / f"process-{rank}.pt")
    torch.distributed.destroy_process_group()


def run(folder, spread, killer=None, poison=None):
    """Losses, weights, and the items that each process read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    arguments = (folder, spread, killer, poison, port)
    multiprocessing.start_processes(process, arguments, nprocs=spread.processes, start_method="fork")
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


@pytest.mark.parametrize("name", ["fsdp", "ddp in passes"])  # the others are killed and resumed
def test_the_curve_and_the_weights_are_those_of_one_process(name, expected, tmp_path):
    found = run(tmp_path, SPREADS[name])
    assert_same(found, expected)
    read = sorted(index for seen in found[2] for index in seen)
    assert read == [0, *range(RECIPE.steps * BATCH)], "each item once, the first also for the run's description"


@pytest.mark.parametrize("name", ["bf16 by ddp", "bf16 by fsdp"])
def test_bf16_computes_coarsely_on_float32_weights(name, expected, tmp_path):
    rows, weights, _ = run(tmp_path, SPREADS[name])
    losses = [row["loss"] for row in rows]
    assert losses == pytest.approx(expected[0].loss.tolist(), rel=0.03)
    assert losses != pytest.approx(expected[0].loss.tolist(), rel=1e-5)
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


@pytest.mark.parametrize("name", ["ddp", "fsdp in passes"])
def test_a_killed_run_is_resumed(name, expected, tmp_path):
    with pytest.raises(ProcessException):
        run(tmp_path, SPREADS[name], killer=6 * BATCH - 1)
    assert (tmp_path / "run/checkpoint-4/complete").exists()
    found = run(tmp_path, SPREADS[name])
    assert_same(found, expected)
    assert min(index for seen in found[2] for index in seen if index) >= 4 * BATCH


def test_other_processes_start_again(expected, tmp_path):
    with pytest.raises(ProcessException):
        run(tmp_path, SPREADS["ddp"], killer=6 * BATCH - 1)
    alone = model()
    rows = train(alone, Ragged(), output_dir=tmp_path / "run", **RECIPE.model_dump())
    assert rows.step.tolist() == expected[0].step.tolist() and rows.loss.equals(expected[0].loss)


def poisoned():
    """A hook that makes the logits of the third step infinite."""
    calls = []

    def poison(module, inputs, output):
        calls.append(1)
        return output * float("inf") if len(calls) == 3 else output

    return poison


def test_what_is_not_finite_ends_the_run_and_keeps_the_checkpoint(tmp_path):
    with pytest.raises(ProcessException, match=r"ValueError: step 3: the loss is (nan|inf); lower"):
        run(tmp_path, SPREADS["fsdp"], poison=poisoned)
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-2"]


def test_dropout_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer.OneDeviceArguments, "world_size", 2)
    dropping = model()
    dropping.config.attention_dropout = 0.1
    with pytest.raises(ValueError, match=r"^attention_dropout: "):
        train(dropping, Ragged(), output_dir=tmp_path / "run", **RECIPE.model_dump())
    assert not list(tmp_path.iterdir())
