"""The code blocks of a document, for tests that run them as a reader would."""

import os
import re
import shlex
import subprocess
import sys
from functools import partial
from glob import glob
from pathlib import Path
from typing import NamedTuple

from recurformer.__main__ import main
from tests import forks
from tests.workflow.dry_runs import prepared

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
NOT_RUN = ("text", "mermaid")


class Block(NamedTuple):
    """One code block."""

    language: str
    code: str


def blocks(document: str) -> list[Block]:
    """The blocks of a document, without output and diagrams."""
    text = (ROOT / document).read_text()
    found = [Block(*match) for match in BLOCK.findall(text)]
    assert 2 * len(found) == len(re.findall("^```", text, re.M)), f"{document}: a block does not name its language"
    return [block for block in found if block.language not in NOT_RUN]


def recurformer(words: list[str]) -> int:
    """The package's command in this process."""
    sys.argv = ["recurformer", *words]
    return main()


IN_FORKS = {"snakemake": prepared, "recurformer": lambda words: partial(recurformer, words)}
"""Commands that need not import their libraries anew, as functions to be called in a fork."""


def words_of(line: str) -> list[str]:
    """The words of a plain call of such a command; none of a line that a shell must read."""
    words = shlex.split(line, comments=True)
    if {"|", "&&", ">", "<"} & set(words) or "$" in line or words[:1] not in ([name] for name in IN_FORKS):
        return []
    return [name for word in words for name in (sorted(glob(word)) or [word])]


def run_line(line: str):
    """Run a command of a shell, where that is possible in a fork of this process."""
    if words := words_of(line):
        return forks.run(IN_FORKS[words[0]](words[1:]), ".")
    own = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line], env=os.environ | {"PATH": own}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def run(block: Block, names: dict) -> None:
    """Run a block in the current folder: Python with these names, a shell's lines until one fails; YAML is written to
    the file that its first line names.
    """
    if block.language == "python":
        exec(compile(block.code, "snippet", "exec"), names)
        return
    if block.language == "yaml":
        Path(block.code.partition("\n")[0].removeprefix("# ")).write_text(block.code)
        return
    assert block.language == "sh", f"no way to run a block of {block.language}"
    for line in block.code.replace("\\\n", "").splitlines():
        done = run_line(line)
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
