"""Trainings launched over several processes: how they end, what they leave, and that all others stay as they are."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from recurformer.cli import launch, main
from recurformer.cli.resumable import resumable_folder
from recurformer.cli.stage import STAGES, code_of
from recurformer.data.backbones import make_random
from recurformer.data.hashhop import hash_tokenizer
from recurformer.digest import files_used
from recurformer.model.convert import convert
from recurformer.records import read_record
from recurformer.study import Distributed

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

    launcher, processes = started(checkpoint, tmp_path, 8, strategy="ddp")
    launcher.kill()
    assert all_end(processes.values())
    launcher.communicate()
    assert [path.name for path in tmp_path.iterdir()] == ["trained.checkpoints"]

    launcher, _ = started(checkpoint, tmp_path, 14, gradient_accumulation=2)
    assert launcher.wait() == 0
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


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the interpreter must be free")
def test_a_process_ends_with_its_launcher_though_native_code_holds_the_interpreter():
    stuck = "import ctypes; from recurformer.cli import distributed; distributed._end_with_launcher(); "
    stuck += "print(flush=True); ctypes.PyDLL(None).sleep(600)"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {stuck!r}])"
    launcher = subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE)
    launcher.stdout.readline()
    (process,) = psutil.Process(launcher.pid).children()
    launcher.kill()
    assert all_end([process])
    launcher.communicate()


def test_a_process_ends_whose_launcher_was_gone_before_it_looked():
    late = "import time; from recurformer.cli import distributed; distributed._end_with_launcher(); time.sleep(600)"
    gone = os.environ | {launch.LAUNCHER: "0"}
    assert subprocess.run([sys.executable, "-c", late], check=False, env=gone, timeout=60).returncode == 1


def test_a_process_gives_its_reason_to_the_launcher(checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    monkeypatch.setenv("RANK", "1")
    assert main.main(words(checkpoint, tmp_path, processes="many")) == 1
    assert "--settings distributed.processes = 'many'" in json.loads((tmp_path / "error.json").read_text())["message"]
    assert capsys.readouterr().err == ""


def test_a_training_in_one_process_knows_nothing_of_others(checkpoint, tmp_path):
    """Neither its code, nor the folder from which it resumes."""
    assert not [file for file in files_used(code_of("train_hashhop")) if "distributed" in file.name]
    stage = STAGES["train-hashhop"]
    alone, spread = (
        main.arguments_of(stage, words(checkpoint, tmp_path, **processes)[1:]) for processes in ({}, {"processes": 3})
    )
    assert main.take_settings(stage, alone)[1] is None
    assert main.take_settings(stage, spread)[1] == Distributed(processes=3, precision="float32")
    assert resumable_folder(alone, "out") == resumable_folder(spread, "out")
