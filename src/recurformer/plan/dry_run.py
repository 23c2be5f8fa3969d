"""The jobs that a dry run of the workflow announces, with the reason of each in plain words.

It knows how Snakemake words a dry run and nothing of what the jobs do. That listing is the one machine-made text that
has reasons, threads and resources (`--summary` has neither); its count of jobs tells whether all of it was understood.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

BLOCK = re.compile(r"^(?:local)?(?:rule|checkpoint) (\S+):\n((?: {4}.*\n)+)", re.MULTILINE)
FIELD = re.compile(r"^ {4}(\w+): (.*)$", re.MULTILINE)
TOTAL = re.compile(r"^total +(\d+)$", re.MULTILINE)
NOTHING = "Nothing to be done"

REASONS = {
    "Forced execution": "asked for by force",
    "Missing output files: ": "outputs are missing",
    "Incomplete output files: ": "an interrupted run left outputs unfinished",
    r"Updated input files: [^;\s]": "inputs are newer than outputs",
    "Set of input files has changed": "reads other files than last time",
    "Code has changed": "its rule has changed",
    "Software environment definition has changed": "its environment has changed",
}
PARAMS = re.compile(r"Params have changed since last execution: .*?before: (.*) now: (.*)")
CODE = re.compile(r"'[0-9a-f]{16}'")
FLAG = re.compile(r"--[a-z][\w-]*(?: (?!--)\S+)*")
LISTED = re.compile(r"[\[\],'\"]+")
"""The signs between the words of a parameter that is a list."""
UPDATED = "Input files updated by another job"


@dataclass(frozen=True)
class Job:
    """One job as the dry run announces it; `resources` are what its rule asks for, with Snakemake's names."""

    rule: str
    outputs: tuple[str, ...]
    reasons: tuple[str, ...]
    wildcards: dict[str, str]
    threads: int
    resources: dict[str, str]

    @property
    def record(self) -> str:
        """The run record that it writes; empty where it writes none."""
        return next((name for name in self.outputs if name.endswith("run.json")), "")

    def requested(self, name: str) -> int | None:
        """A resource that its rule asks for as a number: `mem_mb` in megabytes, `runtime` in minutes."""
        value = self.resources.get(name, "")
        return int(value) if value.isdigit() else None

    @property
    def gpu(self) -> str | None:
        """The cards that it asks for, in either spelling."""
        asked = self.resources.get("gpu") or self.resources.get("gres")
        return None if asked == "0" else asked


def _changed_params(before: str, now: str) -> list[str]:
    """A rule's params are the digest of its stage's code, and settings; settings are named where they are flags."""
    found = ["the code of its stage has changed"] if CODE.search(before + now) else []
    settings = re.sub(r"<nothing exclusive>|[,\s]", "", CODE.sub("", before + now))
    if settings:
        old, new = (set(FLAG.findall(LISTED.sub("", CODE.sub("", words)))) for words in (before, now))
        flags = {flag.split()[0] for flag in old ^ new}
        found.append("settings have changed" + (f" ({', '.join(sorted(flags))})" if flags else ""))
    return found


def _reasons(text: str) -> tuple[str, ...]:
    """Snakemake's reason in plain words; that inputs are made anew counts only where nothing else does."""
    found = [words for pattern, words in REASONS.items() if re.search(pattern, text)]
    if changed := PARAMS.search(text):
        found += _changed_params(*changed.groups())
    if not found and UPDATED in text:
        found = ["inputs are made anew"]
    return tuple(found or [text])


def _pairs(text: str) -> dict[str, str]:
    return dict(item.split("=", 1) for item in text.split(", ") if "=" in item)


def _job(rule: str, block: str) -> Job:
    fields = dict(FIELD.findall(block))
    return Job(
        rule=rule,
        outputs=tuple(fields["output"].split(", ")) if "output" in fields else (),
        reasons=_reasons(fields.get("reason", "")),
        wildcards=_pairs(fields.get("wildcards", "")),
        threads=int(fields.get("threads", 1)),
        resources=_pairs(fields.get("resources", "")),
    )


def read_dry_run(text: str) -> list[Job]:
    """The jobs of a dry run that make files, in the order of their rules and outputs.

    Raises:
        ValueError: the text is no dry run, or a job of it was not understood.
    """
    if NOTHING in text:
        return []
    jobs = [_job(rule, block) for rule, block in BLOCK.findall(text)]
    announced = TOTAL.search(text)
    if announced is None or int(announced[1]) != len(jobs):
        raise ValueError(
            f"the dry run announces {announced[1] if announced else 'no'} jobs, of which {len(jobs)} could be read: "
            "this version of Snakemake, or the profile in use, words it in another way"
        )
    return sorted((job for job in jobs if job.outputs), key=lambda job: (job.rule, job.outputs))


def dry_run(targets: Sequence[str], configfiles: Sequence[str], cores: int, profile: str | None = None) -> list[Job]:
    """The jobs that `snakemake` would run in this folder for `targets`, or for its default target.

    Raises:
        ValueError: Snakemake refuses, in its own words.
    """
    command = [sys.executable, "-m", "snakemake", *targets, "--dry-run", "--nocolor", "--cores", str(cores)]
    command += ["--workflow-profile", profile] if profile else []
    command += ["--configfile", *configfiles]
    in_utf8 = {**os.environ, "PYTHONUTF8": "1"}
    answer = subprocess.run(command, capture_output=True, encoding="utf-8", env=in_utf8, check=False)
    if answer.returncode != 0:
        lines = (answer.stdout.strip() or answer.stderr.strip()).splitlines()
        raise ValueError(lines[-1] if lines else f"snakemake ended with exit code {answer.returncode}")
    return read_dry_run(answer.stdout)
