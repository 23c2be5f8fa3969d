"""A folder to run the workflow in, and what runs it under a profile."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROFILES = sorted(path.parent.name for path in (ROOT / "workflow/profiles").glob("*/profile.yaml"))


def needs(executor):
    """Skip a test where the plugin is missing."""
    if find_spec(f"snakemake_executor_plugin_{executor.replace('-', '_')}") is None:
        pytest.skip(f"needs the plugin {executor}: pip install --editable '.[{executor}]'")


def run(*command, folder):
    """Run `command` with this environment's programs; what it said."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def snakemake(profile, *words, folder):
    return run(sys.executable, "-m", "snakemake", *words, "--workflow-profile", str(profile), folder=folder)
