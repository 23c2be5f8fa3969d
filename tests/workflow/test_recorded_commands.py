"""What the recording shows was rendered by rules of the workflow: its records name their very commands."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from recurformer.records import read_record

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "recorded/cpu"
RENDERED = [
    record
    for pattern in ("results/**/claims.run.json", "results/tables/*.run.json", "figures/*.run.json")
    for record in sorted(RECORDED.glob(pattern))
]
COMMAND = re.compile(r"^ *(recurformer (?:claims|table|figure) .*?) 2>&1", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """The commands of the default study and its ablations that render something, word by word."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("Snakefile", "workflow", "config", "environment.yml", "profiles"):
        (folder / name).symlink_to(ROOT / name)
    words = [sys.executable, "-m", "snakemake", "all", "ablations", "--dry-run", "--printshellcmds", "--nocolor"]
    answer = subprocess.run([*words, "--cores", "2"], cwd=folder, capture_output=True, text=True, check=True)
    return {tuple(shlex.split(command)) for command in COMMAND.findall(answer.stdout)}


@pytest.mark.parametrize("record", RENDERED, ids=lambda path: path.name.removesuffix(".run.json"))
def test_a_rule_runs_the_recorded_command(commands, record):
    assert tuple(read_record(record)["argv"]) in commands
