"""The command itself: light, helpful, one line for what it refuses."""

import json
import subprocess
import sys

import pytest

from recurformer.cli.main import STAGES, main


def run(*words):
    return subprocess.run(
        [sys.executable, "-m", "recurformer.cli.main", *words], capture_output=True, text=True, check=False
    )


def test_import_is_light():
    code = "import sys, recurformer.cli.main; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_names_every_stage(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(stage in printed for stage in STAGES)
    assert [line.split()[0] for line in printed.splitlines()[3:5]] == [
        "plan",
        "study",
    ]  # what nobody looks for is on top


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_explains_itself_without_torch(stage):
    code = (
        "import sys\nfrom recurformer.cli.main import main\n"
        f"try: main([{stage!r}, '--help'])\nexcept SystemExit as end: assert end.code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "usage:" in answer.stdout


def test_an_unknown_stage_is_refused():
    answer = run("brew-coffee")
    assert answer.returncode == 2
    assert "brew-coffee" in answer.stderr


def test_a_refusal_is_one_line_and_leaves_nothing(tmp_path):
    config = tmp_path / "study.yaml"
    config.write_text("study: x\nbetas: [2]\n")
    answer = run("study", str(config), "--record", str(tmp_path / "run.json"))
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1
    assert "betas.0 = 2" in answer.stderr
    assert list(tmp_path.iterdir()) == [config]


def test_a_record_says_how_a_result_came_about(tmp_path):
    answer = run("study", "--describe", "--record", str(tmp_path / "run.json"))
    assert answer.returncode == 0, answer.stderr
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["stage"] == "study"
    assert record["argv"][:3] == ["recurformer", "study", "--describe"]
    assert record["settings"] == {"describe": True}
    assert record["seconds"] >= 0
    assert record["peak_memory_bytes"] > 1e6
    assert {"python", "torch", "transformers"} <= set(record["versions"])
