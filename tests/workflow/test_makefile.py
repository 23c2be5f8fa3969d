"""What `make` does in places and logins other than a developer's."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

import pytest

from tests.workflow.dry_runs import ROOT


@pytest.fixture
def folder(tmp_path):
    """The Makefile in a folder without a repository."""
    folder = tmp_path / "an archive's copy, ä"
    folder.mkdir()
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


def make(folder, *words, **environment):
    how = {"cwd": folder, "env": os.environ | environment, "capture_output": True, "text": True}
    return subprocess.run(["make", "--no-print-directory", *words], check=False, **how)


def test_clean_leaves_the_texts_about_the_folders_also_without_a_repository(folder, tmp_path):
    (tmp_path / "another disk").mkdir()
    (folder / "results").symlink_to(tmp_path / "another disk")
    tracked = {"results/README.md", "figures/README.md"}
    for name in (*tracked, "results/mqar/README.md", "results/a b.csv", "figures/a.svg"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    cleaned = make(folder, "clean")
    assert cleaned.returncode == 0, cleaned.stderr
    left = {str(path.relative_to(folder)) for place in ("results", "figures") for path in (folder / place).rglob("*")}
    assert left == tracked
    assert (folder / "results/README.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("line", "report"),
    [("study: default", "results/report.html"), ('study: "007" # of text', "results/007/report.html")],
)
def test_a_report_lies_in_the_folder_of_its_study(folder, line, report):
    (folder / "study.yaml").write_text(f"{line}\nseed: 0\n")
    said = make(folder, "--dry-run", "report", "CONFIG=study.yaml").stdout
    assert f"--report {report} " in said


@pytest.mark.parametrize("target", ["results", "ablations", "report"])
def test_a_study_that_is_not_there_is_named_in_one_line(folder, target):
    (folder / "study.yaml").write_text("study: mine\n")
    refused = make(folder, "--dry-run", target, "CONFIG=study.yaml missing.yaml")
    assert refused.returncode == 2
    (said,) = refused.stderr.splitlines()
    assert "missing.yaml: no such study; CONFIG names files such as config/default.yaml" in said
    assert make(folder, "--dry-run", target, "CONFIG=study.yaml").returncode == 0


def test_a_copied_profile_takes_its_executors_plugin_and_the_words_of_a_site(folder):
    (folder / "study.yaml").write_text("study: mine\n")
    shutil.copytree(ROOT / "workflow/profiles/slurm", folder / "mine")
    words = ("--dry-run", "results", "CONFIG=study.yaml")
    site = "--default-resources slurm_account=me"
    said = make(folder, *words, "PROFILE=mine", f"SNAKEMAKE_ARGS={site}").stdout
    assert "--editable '.[slurm]'" in said
    assert f"--workflow-profile mine/ --configfile study.yaml {site}\n" in said
    (folder / "mine/profile.yaml").write_text("executor: lsf\n")
    assert ".[lsf]" not in make(folder, *words, "PROFILE=mine").stdout
    refused = make(folder, *words, "PROFILE=yours")
    assert refused.returncode == 2
    assert "yours: no such profile; PROFILE names a folder of workflow/profiles, or " in refused.stderr


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="takes on a user id without a name")
@pytest.mark.parametrize("home", [{}, {"HOME": "/nonexistent"}])
def test_a_user_without_a_name_gets_one_and_a_home(home):
    """Else Snakemake fails: "uid not found", or no permission to make a folder."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to others
        shutil.copy(ROOT / "Makefile", folder)
        os.chown(folder, 12345, -1)
        words = ["make", "--eval", 'shown: ; @mkdir -p "$$HOME/.cache" && echo "$$USER $$HOME"', "shown"]
        nobody = ["setpriv", "--reuid", "12345", "--clear-groups", *words]
        environment = {"PATH": os.defpath} | home
        said = subprocess.run(nobody, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert said.stdout == f"12345 {folder}/results/.home\n", said.stderr


PYTHON = f"""#!{sys.executable}
import json, os, pathlib, sys
if sys.argv[1:3] == ["-m", "venv"]:
    commands = pathlib.Path.cwd() / sys.argv[3] / "bin"
    commands.mkdir(parents=True, exist_ok=True)
    (commands / "activate").write_text(f'VIRTUAL_ENV="{{commands.parent}}"')
    (commands / "python").write_bytes(pathlib.Path(__file__).read_bytes())
    (commands / "python").chmod(0o755)
if sys.argv[1:3] == ["-m", "pip"]:
    with open("pip.jsonl", "a") as file:
        print(json.dumps([sys.argv[3:], {{**os.environ}}]), file=file)
    sys.exit(os.environ.get("KILLED"))
"""
"""Stands for Python: makes an environment, and notes what pip is asked for, and its variables."""


@pytest.fixture
def install(folder):
    """Makes the environment of a folder; the calls of pip."""
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)

    def run(folder, code=0, **environment):
        noted = folder / "pip.jsonl"
        noted.unlink(missing_ok=True)
        made = make(folder, "install", "PYTHON=./python", **environment)
        assert made.returncode == code, made.stderr
        calls = noted.read_text().splitlines() if noted.exists() else []
        return made.stdout, [json.loads(line) for line in calls]

    return run


def test_a_login_with_packages_of_its_own_installs_the_same(folder, install):
    login = {"PYTHONPATH": "/old/pandas", "PYTHONHOME": sys.prefix, "PIP_TARGET": "/mine", "PIP_USER": "1"}
    _, calls = install(folder, **login)
    assert len(calls) == 1
    for _, variables in calls:
        assert {name: variables[name] for name in login if name in variables} == {"PIP_USER": "0"}
    said, calls = install(folder)
    assert "Nothing to be done" in said
    assert calls == []


def test_an_environment_of_another_folder_is_named_and_kept(folder, install, tmp_path):
    install(folder)
    moved = folder.rename(tmp_path / "renamed")
    said, calls = install(moved, code=2)
    assert said == "make: .venv was made in another folder or by a Python that is gone; remove it: rm -r .venv\n"
    assert calls == []
    assert (moved / ".venv/.installed").exists()


def test_an_install_that_was_killed_is_made_again(folder, install):
    assert len(install(folder, code=2, KILLED="killed")[1]) == 1
    assert len(install(folder)[1]) == 1
    assert install(folder)[1] == []
