"""The recipe of the image: what it copies is there and suffices to install, and the lock decides on versions."""

import re
import subprocess
import tomllib
from pathlib import PurePosixPath

import pytest

from tests.cluster.workspace import ROOT

FOLDER = ROOT / "containers"
HOME = PurePosixPath("/opt/recurformer")


def oci():
    """What the Containerfile copies: places in the image and their sources."""
    for line in re.findall(r"^COPY (.+)$", (FOLDER / "Containerfile").read_text(), re.MULTILINE):
        *sources, place = line.split()
        for source in sources:
            yield (f"{place}{source}" if place.endswith("/") else place), source


@pytest.mark.parametrize(("place", "source"), list(oci()))
def test_what_is_copied_is_there_and_keeps_its_place(place, source):
    assert (ROOT / source).exists()
    assert PurePosixPath(place).relative_to(HOME) == PurePosixPath(source)


def test_what_installs_the_package_is_copied():
    copied = dict(oci()).values()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    script = (FOLDER / "install").read_text()
    assert {"pyproject.toml", "src", project["readme"]} <= set(copied)
    assert set(re.findall(r"\S+\.lock", script)) <= set(copied)
    (extra,) = re.findall(r"'\.\[([\w-]+)\]'", script)
    assert extra in project["optional-dependencies"]


def test_the_script_is_sound():
    script = FOLDER / "install"
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert script.stat().st_mode & 0o111
    assert len(re.findall(r"pip install .*(?:--requirement|--constraint) requirements\.lock", script.read_text())) == 2
