"""Without the extra `suite` a model is adapted and answers; a command that needs the extra names it in one line."""

import subprocess
import sys

import pytest

from recurformer.cli.main import SUITE
from tests.recover.adapt_world import write_world
from tests.test_architecture import SUITE as PACKAGES

WITHOUT = f"import sys\nsys.modules.update(dict.fromkeys({sorted(PACKAGES)}))\n"
"""Of a module that is None in there, Python says that it is not installed."""


def run(*words, said=None):
    code = f"{WITHOUT}from recurformer.cli.main import main\nsys.exit(main({[str(word) for word in words]}))"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, input=said, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_model_is_adapted_and_answers(tmp_path):
    write_world(tmp_path)
    texts = sorted(tmp_path.glob("text*.txt"))
    out = tmp_path / "out"
    answer = run("adapt", tmp_path / "backbone", out, "--cache", "0.6", "--tokens", "64", "--text", *texts)
    assert answer.returncode == 0, answer.stderr
    assert f"README.md but no pictures ({SUITE} " in answer.stdout
    assert not list(out.glob("*.png")) and ".png" not in (out / "README.md").read_text()
    answer = run("chat", out, "--tokens", "4", said="Hello\n")
    assert answer.returncode == 0 and len(answer.stdout.splitlines()) > 1, answer.stderr


@pytest.mark.parametrize(
    ("words", "package"),
    [
        (["figure", "figure4", "measured.csv", "--out", "figure4.svg"], "matplotlib"),
        (["prices", "model", "prices.parquet", "--articles", "articles.parquet", "--name", "one"], "pyarrow"),
        (["adapt", "model", "out", "--text", "owner/name"], "datasets"),
    ],
)
def test_the_extra_is_named_before_any_work(words, package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "measured.csv").write_text("a\n1\n")
    answer = run(*words)
    name = words[0]
    assert answer.returncode == 1
    assert answer.stderr == f"recurformer {name}: needs the package {package}, which is not installed: {SUITE}\n"
