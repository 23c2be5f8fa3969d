"""One source of truth for versions: pyproject.toml. The locks, the conda environment and the citation agree with it."""

import re
import tomllib
from importlib.metadata import requires

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.workflow.dry_runs import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]


def read_lock(name):
    lines = (line.split("==") for line in (ROOT / name).read_text().splitlines() if "==" in line)
    return {canonicalize_name(package): version for package, version in lines}


LOCK = read_lock("requirements.lock")


def requirements(lines):
    return {canonicalize_name(found.name): found.specifier for found in map(Requirement, lines)}


def test_the_lock_satisfies_every_range():
    """Those of what lm-eval's long tasks take, too: the paper study asks them."""
    wanted = requirements([*PROJECT["dependencies"], *EXTRAS["suite"], *EXTRAS["dev"], *EXTRAS["serve"]])
    extras = (one for name in ("ruler", "longbench") for one in requires("lm-eval") if f'extra == "{name}"' in one)
    wanted |= requirements(extras)
    assert [name for name, versions in wanted.items() if not versions.contains(LOCK[name])] == []
    assert LOCK["torch"] == "2.13.0"


def test_the_dashboard_changes_no_locked_version():
    added = read_lock("requirements-tracking.lock")
    (wanted,) = map(Requirement, EXTRAS["tracking"])
    assert wanted.specifier.contains(added[wanted.name])
    assert not set(added) & set(LOCK)


def test_a_wheel_holds_every_file_of_the_package():
    package, patterns = ROOT / "src/recurformer", PYPROJECT["tool"]["setuptools"]["package-data"]["recurformer"]
    held = {file for pattern in patterns for file in package.glob(pattern)}
    files = {file for file in package.rglob("*") if file.is_file() and file.suffix not in {".py", ".pyc"}}
    assert files - held == set()


def test_conda_takes_python_of_the_lock_and_packages_as_make_does():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *tools, packages = environment["dependencies"]
    (python,) = (Requirement(tool) for tool in tools if tool.startswith("python"))
    locked = re.findall(r"3\.\d+", (ROOT / "requirements.lock").read_text().partition("\n")[0])
    assert [minor for minor in range(20) if python.specifier.contains(f"3.{minor}")] == [
        int(version.removeprefix("3.")) for version in locked
    ]
    (install,) = re.findall(r"pip install (?:--\S+ )*(-r .*)", (ROOT / "Makefile").read_text())
    assert " ".join(packages["pip"]) == install
