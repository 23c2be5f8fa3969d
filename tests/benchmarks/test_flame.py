"""What a sampled process did: operators, code between them, or its start and end."""

import sys
from shutil import which

import pandas as pd
import pytest

from benchmarks import flame
from benchmarks.flame import BETWEEN, OPERATOR, PROCESS

ABOVE = 'process 5:"snakemake all";process 6:"bash -c set -euo pipefail; recurformer x"'
MAIN = f'{ABOVE};process 7:"";thread (7): MainThread;0x7f (libc.so.6);main (recurformer/cli/main.py:151)'
STAGE = f"{MAIN};run (recurformer/cli/stage.py:136);profile_hashhop (recurformer/cli/heads.py:55)"
LINEAR = "Linear.forward (torch/nn/modules/linear.py:134)"


def only(line: str) -> flame.Sample:
    (found,) = flame.samples([line])
    return found


@pytest.mark.parametrize(
    ("stack", "kind"),
    [
        (f"{STAGE};{LINEAR};at::_ops::linear::call (libtorch_cpu.so);malloc (libc.so.6)", OPERATOR),
        (f"{STAGE};call (recurformer/model/native.py:90);scan_forward (mamba-avx2-0d89e02440c293b8.so)", OPERATOR),
        (f"{STAGE};add (torch/_refs/__init__.py:1102);_check_with (torch/__init__.py:1700)", OPERATOR),
        (f"{STAGE};at::backward (libtorch_cpu.so);{LINEAR};malloc (libc.so.6)", BETWEEN),
        (f"{STAGE};_find_and_load (<frozen importlib._bootstrap>:1176);c10::start (libc10.so)", PROCESS),
        (f"{MAIN};<module> (recurformer:8);collect (libpython3.11.so.1.0)", PROCESS),
    ],
)
def test_the_native_code_above_python_decides(stack, kind):
    assert only(f"{stack} 3")[2::2] == (kind, 3)


def test_a_sample_names_its_stage_and_its_last_two_python_frames():
    found = only(f"{STAGE};outer (a.py:1);inner (b.py:2);malloc (libc.so.6) 1")
    assert (found.process, found.stage, found.top) == (7, "profile-hashhop", "outer (a.py) > inner (b.py)")


def test_threads_beside_the_main_one_are_left_out():
    assert not list(flame.samples([f'{ABOVE};process 7:"";thread (8): Thread-1;wait (threading.py:3) 9']))


def test_seconds_and_shares_of_a_stage():
    lines = [f"{MAIN} 10", f"{STAGE};{LINEAR};gemm (libtorch_cpu.so) 30", f"{STAGE};{LINEAR} 10"]
    snakemake = 'process 5:"snakemake";thread (5): MainThread;wait (threading.py:3) 99'
    found = pd.DataFrame(flame.samples([*lines, snakemake]), columns=list(flame.Sample._fields))
    stages = flame.by_stage(found, rate=10)
    assert list(stages.index) == ["profile-hashhop"], "a process without a stage is none"
    assert stages.iloc[0].to_dict() == {
        "processes": 1, OPERATOR: 3, BETWEEN: 1, PROCESS: 1, "share between": 0.25, "share outside operators": 0.4,
    }  # fmt: skip
    (between,) = flame.rows_between(found, rate=10).itertuples(index=False)
    assert between == ("profile-hashhop", f"profile_hashhop (recurformer/cli/heads.py) > {LINEAR[:-5]})", 1)


@pytest.mark.skipif(not which("py-spy"), reason="py-spy is not installed")
def test_a_stage_under_other_processes_is_sampled_and_read_again(tmp_path, capfd):
    """As Snakemake starts one: from Python, through a shell whose command spans lines."""
    where = ["--rate", "50", "--stages", str(tmp_path / "flame.csv")]
    shell = f"\n{sys.executable} -m recurformer.cli.main backends; exit 3"
    start = f"import subprocess, sys; sys.exit(subprocess.run(['bash', '-c', {shell!r}]).returncode)"
    assert flame.main([*where, "--", sys.executable, "-c", start]) == 3, "the command's own exit code"
    assert pd.read_csv(tmp_path / "flame.csv").stage.tolist() == ["backends"]
    said = capfd.readouterr().out
    assert flame.main(where) == 0
    assert capfd.readouterr().out.strip() in said


def test_without_a_run_one_line_says_so(tmp_path, capsys):
    assert flame.main(["--stages", str(tmp_path / "flame.csv")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
