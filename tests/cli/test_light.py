"""Without the extra `suite` a model is adapted and answers; a command that needs the extra names it in one line."""

import re
import subprocess
import sys
from importlib.metadata import requires

import pytest

from recurformer.cli.main import SUITE
from tests.recover.adapt_world import write_world

PACKAGES = {
    re.split(r"[\[<>=]", one)[0].replace("-", "_") for one in requires("recurformer") if 'extra == "suite"' in one
}
"""The modules of the packages of the extra `suite`, which have the packages' names."""
WITHOUT = f"import sys\nsys.modules.update(dict.fromkeys({sorted(PACKAGES)}))\n"
"""Of a module that is None in there, Python says that it is not installed."""
LINE = "=" * 20


def run(*commands, said=None):
    """Commands in one process, each of which begins with a line; it ends by the highest of their exit codes."""
    code = f"{WITHOUT}from recurformer.cli.main import main\n"
    code += f"sys.exit(max(print({LINE!r}) or main(words) for words in {commands}))"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, input=said, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_model_is_adapted_and_answers(tmp_path):
    texts, out = write_world(tmp_path), str(tmp_path / "out")
    adapt = ["adapt", str(tmp_path / "backbone"), out, "--cache", "0.6", "--tokens", "64", "--text", *texts]
    answer = run(adapt, ["chat", out, "--tokens", "4"], said="Hello\n")
    assert answer.returncode == 0, answer.stderr
    _, adapting, answering = answer.stdout.split(f"{LINE}\n")
    assert "README.md but no pictures (pip install matplotlib " in adapting and len(answering.splitlines()) > 1
    assert not list(tmp_path.glob("out/*.png")) and ".png" not in (tmp_path / "out/README.md").read_text()


def test_the_extra_is_named_before_any_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "measured.csv").write_text("a\n1\n")
    needs = {
        "figure": ("matplotlib", ["figure4", "measured.csv", "--out", "figure4.svg"]),
        "prices": ("pyarrow", ["model", "prices.parquet", "--articles", "articles.parquet", "--name", "one"]),
        "adapt": ("datasets", ["model", "out", "--text", "owner/name"]),
    }
    answer = run(*([name, *words] for name, (_, words) in needs.items()))
    assert answer.returncode == 1
    assert answer.stderr.splitlines() == [
        f"recurformer {name}: needs the package {package}, which is not installed: {SUITE}"
        for name, (package, _) in needs.items()
    ]
