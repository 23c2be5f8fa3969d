"""GPUs given out by file locks, with real processes and made-up ones."""

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from recurformer.cli import main as command
from recurformer.cli.stage import STAGES
from recurformer.gpus import STUDY_DEVICE, own_gpus

GPUS = ["GPU-aaaa", "GPU-bbbb"]
WORK = """
import os, sys, time
from recurformer.gpus import own_gpus
count, seconds, log = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
with own_gpus(count):
    for moment in range(2):
        with open(log, "a") as file:
            file.write(f"{os.getpid()} {os.environ['CUDA_VISIBLE_DEVICES']} {time.monotonic()}\\n")
        time.sleep(seconds * (1 - moment))
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with two GPUs and no lock taken; where processes write when they had which."""
    driver = tmp_path / "bin/nvidia-smi"
    driver.parent.mkdir()
    driver.write_text("#!/bin/sh\n" + "".join(f"echo {gpu}\n" for gpu in GPUS))
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(driver.parent), prepend=os.pathsep)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "log"


def start(log, count=1, seconds=0.3):
    return subprocess.Popen([sys.executable, "-c", WORK, str(count), str(seconds), str(log)], stderr=subprocess.DEVNULL)


def started(log, count):
    """A process that holds so many GPUs until it is killed."""
    process = start(log, count, seconds=600)
    while f"{process.pid} " not in (log.read_text() if log.exists() else ""):
        assert process.poll() is None
        time.sleep(0.02)
    return process


def held(log):
    """(start, end) of every time that a gpu was held, by gpu."""
    times = defaultdict(list)
    for line in log.read_text().splitlines():
        process, gpus, moment = line.split()
        for gpu in gpus.split(","):
            times[gpu, process].append(float(moment))
    spans = defaultdict(list)
    for (gpu, _), span in times.items():
        spans[gpu].append(tuple(span))
    return spans


def test_no_two_processes_share_a_gpu_and_all_get_one(machine):
    processes = [start(machine, count) for count in (1, 1, 2, 1, 1, 2, 1, 1)]
    assert [process.wait(timeout=120) for process in processes] == [0] * 8
    spans = held(machine)
    assert set(spans) == set(GPUS)
    assert sum(map(len, spans.values())) == 6 + 2 * 2
    for times in spans.values():
        assert all(end <= after for (_, end), (after, _) in zip(sorted(times), sorted(times)[1:], strict=False))


def test_a_killed_process_frees_its_gpus(machine):
    holder = started(machine, count=2)
    waiting = start(machine)
    time.sleep(1)
    assert waiting.poll() is None
    assert f"{waiting.pid} " not in machine.read_text()
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert waiting.wait(timeout=60) == 0


def test_who_has_decided_is_not_overruled(machine, monkeypatch):
    holder = started(machine, count=2)
    try:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
        with own_gpus(1):  # without waiting
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    finally:
        holder.kill()
        holder.wait()


def test_more_gpus_than_there_are_are_refused(machine):
    with pytest.raises(ValueError, match="3 GPUs are asked for, this machine has 2"), own_gpus(3):
        pass
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_a_machine_without_gpus_changes_nothing_and_a_stage_that_only_changes_weights_sees_none(machine, monkeypatch):
    with own_gpus(0):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    monkeypatch.setenv("PATH", str(machine.parent))
    with own_gpus(1):
        assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_a_stage_of_the_command_has_a_gpu_for_itself(machine, monkeypatch):
    seen = []
    look = replace(STAGES["sink"], rows="", function=lambda args: seen.append(os.environ["CUDA_VISIBLE_DEVICES"]))
    monkeypatch.setitem(STAGES, "sink", look)
    words = ["sink", "model", "--articles", "a", "--name", "x"]
    assert command.main(words) == 0
    assert seen == GPUS[:1]
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_job_of_a_study_for_gpus_does_not_compute_on_a_processor(monkeypatch, capsys):
    ran = []
    monkeypatch.setitem(STAGES, "sink", replace(STAGES["sink"], rows="", function=ran.append))
    words = ["sink", "model", "--articles", "a", "--name", "x"]
    for device, expected in (("gpu", 1), ("cpu", 0)):
        monkeypatch.setenv(STUDY_DEVICE, device)
        assert command.main(words) == expected
        assert len(ran) == 1 - expected
    assert "the study's device is gpu, but torch finds no GPU here" in capsys.readouterr().err
