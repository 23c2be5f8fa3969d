"""Dry runs of the workflow, and folders to make them in."""

import json
import re
import shlex
import subprocess
import sys
from functools import cache, cached_property, partial
from pathlib import Path
from types import SimpleNamespace

import smart_open  # noqa: F401 -- Snakemake imports it when it reads its first file
from snakemake.cli import get_argument_parser, main

from recurformer import digest
from recurformer.cli.main import STAGES
from tests import forks

ROOT = Path(__file__).parents[2]
CHANGING = {
    "long": [], "long-2k": ["long"], "long-8k": ["long"], "long-text": ["long"], "record": [], "small": [],
    "recall": ["small"], "rates": [],
}  # fmt: skip
"""Studies whose files change the default one's, with those between."""
STUDIES = {
    path.stem: [
        f"config/{name}.yaml"
        for name in ([] if path.stem not in CHANGING else ["default", *CHANGING[path.stem]]) + [path.stem]
    ]
    for path in sorted((ROOT / "config").glob("*.yaml"))
}
"""Name -> its files."""
LINKED = ("Snakefile", "workflow", "config", "profiles")


def link_workflow(folder, *more, without=()):
    """Links to the workflow in a folder that holds nothing else."""
    for name in (*LINKED, *more):
        if name not in without:
            (folder / name).symlink_to(ROOT / name)
    return folder


def option(words, name):
    """The value of an option of a command, None where it is not given."""
    return words[words.index(name) + 1] if name in words[:-1] else None


def settings_of(words):
    """The settings of a command."""
    return json.loads(option(words, "--settings"))


def call_snakemake(words):
    """Snakemake's command in this process: it ends by an exit."""
    sys.argv = ["snakemake", *words]
    main()


import_plugins = cache(get_argument_parser)


def prepared(words):
    """The same, to be called in a fork: what every run imports and reads of our code is there already."""
    import_plugins()
    for stage in STAGES.values():
        digest.code_digest(stage.place)
    return partial(call_snakemake, words)


def snakemake(folder, *words, environment=None):
    """Run Snakemake in a folder; what it said. With an environment of its own it begins as a fresh process."""
    if environment is None:
        return forks.run(prepared(words), folder)
    command = [sys.executable, "-m", "snakemake", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


class DryRun:
    """What Snakemake says in a folder when it runs nothing."""

    def __init__(self, folder, *words):
        answer = snakemake(folder, *words, "--dry-run", "--printshellcmds", "--nocolor", "--cores", "2")
        self.code, self.out, self.err = answer.returncode, answer.stdout, answer.stderr

    @cached_property
    def jobs(self):
        """The jobs that make files: rule, outputs, resources."""
        assert self.code == 0, self.err
        blocks = re.findall(r"^(?:local)?rule (\S+):\n((?: {4}.*\n)+)", self.out, re.MULTILINE)
        assert len(blocks) == self.counts["total"]
        fields = [(rule, dict(re.findall(r"^ {4}(\w+): (.*)$", block, re.MULTILINE))) for rule, block in blocks]
        return [
            SimpleNamespace(
                rule=rule,
                outputs=field["output"].split(", "),
                resources=dict(item.split("=", 1) for item in field.get("resources", "").split(", ") if "=" in item),
            )
            for rule, field in fields
            if "output" in field
        ]

    @cached_property
    def counts(self):
        """Jobs by rule, as Snakemake counts them."""
        table = re.search(r"^job +count\n-[- ]+\n((?:\S+ +\d+\n)+)", self.out + self.err, re.MULTILINE)
        assert table, self.err
        return {name: int(count) for name, count in (line.split() for line in table[1].splitlines())}

    @cached_property
    def commands(self):
        """The words of every command of the package."""
        found = re.findall(r"^ *(recurformer .*?) 2>&1", self.out, re.MULTILINE | re.DOTALL)
        return [tuple(shlex.split(command)) for command in found]
