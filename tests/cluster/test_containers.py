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
            yield (place + PurePosixPath(source).name if place.endswith("/") else place), source


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
    extras = re.findall(r"'\.\[([\w-]+)\]'", script)
    assert extras == ["suite", "cuda"] and set(extras) <= set(project["optional-dependencies"])
    assert {"containers/install", "containers/install-cuda"} <= set(copied)


@pytest.mark.parametrize(
    ("tools", "said"), [((), "there is no nvcc on PATH"), (("nvcc",), "has no torch built for CUDA")], ids=str
)
def test_without_its_needs_nothing_is_installed_for_a_gpu(tmp_path, tools, said):
    """A Python that would note a call of pip, and has no torch."""
    (tmp_path / "dirname").symlink_to("/usr/bin/dirname")
    for name in ("python", *tools):
        (tmp_path / name).write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit 1\necho called >> {tmp_path}/pip\n')
        (tmp_path / name).chmod(0o755)
    answer = subprocess.run(
        ["/bin/bash", FOLDER / "install-cuda", "."],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.returncode == 1 and said in answer.stderr and len(answer.stderr.splitlines()) == 1
    assert not (tmp_path / "pip").exists()
