"""The code blocks of a document, for tests that run them as a reader would."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

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
    own = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.code],
        env=os.environ | {"PATH": own},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{block.code}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
