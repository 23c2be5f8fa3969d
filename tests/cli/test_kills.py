"""Stages that are killed while they write, and started again, end with the bytes of a run that nobody disturbed.

Between two changes of files a kill leaves no more than at the next one. So the moments are changes of files, drawn by a
seed, and places inside a file, where the system ends the process because the file may not grow any further.
"""

import json
import os
import random
import resource
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import pytest

from recurformer.cli.main import main
from recurformer.files import atomic_path
from tests.one_thread import one_thread

__all__ = ["one_thread"]  # a child would have only one of several

CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir"}
OF_A_TRAINING, OF_A_RESUMED_ONE = 120, 40  # changes, and more; a later one that the seed draws would not be met
WEIGHTS, MOMENTS = 200_000, 400_000  # about the bytes of the two largest files
DRAWN = random.Random(22)
TWO_KILLS = [
    (DRAWN.randrange(changes), size and DRAWN.randrange(size // 2, size), DRAWN.randrange(OF_A_RESUMED_ONE))
    for changes, size in ([(OF_A_TRAINING, None), (2 * OF_A_TRAINING // 3, WEIGHTS), (OF_A_TRAINING // 2, MOMENTS)])
]
"""The change before which the training dies, or from which on no file can outgrow so many bytes; and the change before
which the one that resumes it dies."""


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def pause():
    os.kill(os.getpid(), signal.SIGSTOP)


def let_files_grow_to(size):
    """From now on the process dies in the middle of writing a larger one."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def child(run, folder, number=-1, act=kill):
    """A process that runs this and calls `act` before its change of that number, opened files in `folder` among them.

    Its exit code is 0 where the run has an end, and then a file beside the folder says how many changes there were.
    """
    if process := os.fork():
        return process
    done = 0

    def watch(event, words):
        nonlocal done
        if event in CHANGES or (event == "open" and str(words[0]).startswith(str(folder))):
            if done == number:
                act()
            done += 1

    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            sys.addaudithook(watch)
            run()
            Path(f"{folder}-changes").write_text(str(done))
            os._exit(0)
    finally:
        os._exit(1)


def ended(process):
    """The exit code of a child, or its signal as a negative number."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def content(folder):
    """Every file with its bytes: a metric log without its seconds, a run's record only as being there."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    found = {name: path.read_bytes() for name, path in files.items() if path.name != "run.json"}
    rows = [json.loads(line) for line in found.pop("metrics.jsonl", b"").splitlines()]
    return files.keys(), found, [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.fixture(scope="module")
def run_in(training):
    """A training by the command line in a folder."""
    return lambda folder: partial(main, training(folder, steps=8, batch_size=2))


@pytest.fixture(scope="module")
def undisturbed(run_in, tmp_path_factory):
    """What a training leaves that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    assert ended(child(run_in(folder), folder)) == 0
    assert int(Path(f"{folder}-changes").read_text()) >= OF_A_TRAINING
    return content(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "size", "then"), TWO_KILLS)
def test_a_training_killed_twice_ends_with_the_same_bytes(number, size, then, run_in, undisturbed, tmp_path):
    run, folder = run_in(tmp_path / "run"), tmp_path / "run"
    if size is None:
        assert ended(child(run, folder, number)) == -signal.SIGKILL
    else:
        assert ended(child(run, folder, number, lambda: let_files_grow_to(size))) == -signal.SIGXFSZ
    assert ended(child(run, folder, then)) == -signal.SIGKILL
    assert ended(child(run, folder)) == 0
    assert content(folder) == undisturbed


def test_a_second_training_for_the_same_output_is_refused(run_in, undisturbed, tmp_path, capsys):
    run, folder = run_in(tmp_path / "run"), tmp_path / "run"
    first = child(run, folder, OF_A_TRAINING // 2, pause)
    os.waitpid(first, os.WUNTRACED)
    capsys.readouterr()
    try:
        assert run() == 1
        said = capsys.readouterr().err.splitlines()
    finally:
        os.kill(first, signal.SIGCONT)
    refused = f"recurformer train-hashhop: {folder}/trained.checkpoints: another run works in this folder; "
    assert said[-1] == f"{refused}wait for it or stop it"
    assert ended(first) == 0
    assert content(folder) == undisturbed


def written(folder, words, directory):
    """Replace a file, or a folder of files, whole."""
    with atomic_path(folder / "result", directory) as path:
        for name in words:
            (path / name if directory else path).write_text(words)


@pytest.mark.parametrize("directory", [False, True])
def test_what_is_replaced_is_old_or_new_or_absent_whatever_the_moment(directory, tmp_path):
    def left(folder):
        return content(folder / "result")[1] if directory else (folder / "result").read_text()

    whole = []
    for words in ("old", "new"):
        written(tmp_path, words, directory)
        whole.append(left(tmp_path))
    number = 0
    while True:
        folder = tmp_path / str(number)
        written(folder, "old", directory)
        code = ended(child(lambda folder=folder: written(folder, "new", directory), folder, number))
        assert not (folder / "result").exists() or left(folder) in whole
        written(folder, "new", directory)
        assert left(folder) == whole[1]
        assert [path.name for path in folder.iterdir()] == ["result"]
        if code == 0:
            break
        number += 1
    assert number > 4


@pytest.mark.parametrize("number", sorted(DRAWN.sample(range(18), 2)))
def test_a_kept_study_is_whole_after_a_kill(number, tmp_path):
    """The folder that the stage replaces holds the recording of another run."""
    for place in ("results/tables/table1.csv", "figures/figure1.svg", "kept/results/tables/old.csv"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(place)
    record = {"run": "1", "argv": [], "outputs": ["old.csv"], "git": {"dirty": False}}
    (tmp_path / "results/tables/table1.run.json").write_text(json.dumps(record))
    (tmp_path / "kept/runs.jsonl").write_text(json.dumps({"place": "results/tables/old.run.json", **record}) + "\n")
    before, after = (content(tmp_path / "kept")[0], {"figures/figure1.svg", "results/tables/table1.csv", "runs.jsonl"})
    words = ["keep", *(str(tmp_path / name) for name in ("results", "figures", "kept"))]
    assert ended(child(lambda: main(words), tmp_path, number)) == -signal.SIGKILL
    if (tmp_path / "kept").exists():
        assert content(tmp_path / "kept")[0] in (before, after)
    assert main(words) == 0
    assert content(tmp_path / "kept")[0] == after
