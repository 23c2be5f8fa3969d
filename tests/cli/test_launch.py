"""Trainings launched over several processes: how they end, and what they leave."""

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest

from recurformer.cli import main
from recurformer.data.backbones import make_random
from recurformer.data.hashhop import hash_tokenizer
from recurformer.model.convert import convert
from recurformer.records import read_record

SHAPE = {"architecture": "llama", "hidden_size": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "seed": 0}
RECIPE = {"steps": 24, "batch_size": 4, "learning_rate": 0.003, "log_every": 1, "save_every": 2}
TASK = {"hops": 4, "chains": 2, "pairs": 8}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder, tokenizer = tmp_path_factory.mktemp("backbone") / "converted", hash_tokenizer()
    convert(make_random(**SHAPE, vocab_size=len(tokenizer)), [[0, 1], [0, 1, 2, 3]], dt_rank=4).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def words(checkpoint, folder, **distributed):
    settings = (
        RECIPE | {"task": TASK} | ({"distributed": {"precision": "float32"} | distributed} if distributed else {})
    )
    files = ["--metrics", str(folder / "metrics.jsonl"), "--record", str(folder / "run.json"), "--name", "tiny"]
    return ["train-hashhop", checkpoint, str(folder / "trained"), *files, "--settings", json.dumps(settings)]


def started(checkpoint, folder, step, **spread):
    """A launched training that has written the checkpoint of `step`: the launcher, and its processes by rank."""
    command = [sys.executable, "-m", "recurformer.cli.main", *words(checkpoint, folder, processes=2, **spread)]
    launcher = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not list(folder.glob(f"trained.checkpoints/*/checkpoint-{step}/complete")):
        assert launcher.poll() is None, launcher.stderr.read()
        time.sleep(0.05)
    found = psutil.Process(launcher.pid).children(recursive=True)
    return launcher, {process.environ()["RANK"]: process for process in found if "RANK" in process.environ()}


def all_end(processes):
    """Whether the processes end by themselves; those that do not are killed."""
    left = psutil.wait_procs(processes, timeout=60)[1]
    for process in left:
        process.kill()
    return not left


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_killed_training_ends_whole_says_why_and_is_resumed(checkpoint, tmp_path):
    launcher, processes = started(checkpoint, tmp_path, 2)
    processes["1"].kill()
    said = launcher.communicate()[1].splitlines()
    assert launcher.returncode == 1
    assert said[-1] == "recurformer train-hashhop: process 1 of 2: killed by SIGKILL; the others were ended"
    assert not [process for process in processes.values() if process.is_running()]

    assert [path.name for path in tmp_path.iterdir()] == ["trained.checkpoints"]

    launcher, _ = started(checkpoint, tmp_path, 8)
    assert launcher.wait() == 0
    assert "keeps a run by other settings" not in launcher.communicate()[1]
    record = read_record(tmp_path / "run.json")
    assert record["training"].pop("samples_per_second") > 0
    assert record["training"] == {"processes": 2, "strategy": "fsdp"}
    assert {path.name for path in tmp_path.iterdir()} == {"trained", "metrics.jsonl", "run.json"}

    one = tmp_path / "one"
    assert main.main(words(checkpoint, one)) == 0
    assert losses(tmp_path) == pytest.approx(losses(one), rel=1e-3)
    assert read_record(one / "run.json")["training"]["processes"] == 1


@pytest.mark.slow
def test_a_launcher_that_is_asked_to_end_ends_its_processes(checkpoint, tmp_path):
    launcher, processes = started(checkpoint, tmp_path, 2)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.communicate()[1].splitlines()[-1].startswith("recurformer train-hashhop: ended by SIGTERM")
    assert launcher.returncode == 1
    assert all_end(processes.values())


def test_a_process_gives_its_reason_to_the_launcher(checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    monkeypatch.setenv("RANK", "1")
    assert main.main(words(checkpoint, tmp_path, processes="many")) == 1
    assert "--settings distributed.processes = 'many'" in json.loads((tmp_path / "error.json").read_text())["message"]
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_another_number_of_processes_starts_again_and_says_so(checkpoint, tmp_path):
    launcher, _ = started(checkpoint, tmp_path, 2)
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate()
    command = [sys.executable, "-m", "recurformer", *words(checkpoint, tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "trained.checkpoints: keeps a run by other settings or other code; this one starts anew" in done.stderr
    assert len(losses(tmp_path)) == 24


@pytest.mark.slow
def test_a_training_that_a_scheduler_ends_says_so_and_is_resumed(checkpoint, tmp_path):
    command = [sys.executable, "-m", "recurformer", *words(checkpoint, tmp_path)]
    training = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("trained.checkpoints/*/checkpoint-4/complete")):
        assert training.poll() is None
    training.terminate()
    said = training.communicate()[1].splitlines()
    assert said[-1] == "recurformer train-hashhop: stopped; the same command continues where it stopped"
    assert "Traceback" not in "".join(said)
    assert training.returncode == 130
    assert [path.name for path in tmp_path.iterdir()] == ["trained.checkpoints"]
    assert subprocess.run(command, check=False).returncode == 0

    one = tmp_path / "one"
    assert main.main(words(checkpoint, one)) == 0
    assert losses(tmp_path) == losses(one)
