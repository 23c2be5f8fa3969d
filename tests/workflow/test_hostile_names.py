"""Names, paths and values of a study never run as commands."""

import json
import re
import sys

import pytest
import yaml

from tests.workflow.dry_runs import ROOT, link_workflow, settings_of, snakemake

RULES = sorted((ROOT / "workflow/rules").glob("*.smk"))
NUMBERS = {"threads"}
"""What a command line shows that no user can write: whole numbers by Snakemake."""
RECORDER = f"""#!{sys.executable}
import json, pathlib, sys
with open("argv.jsonl", "a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
for word in sys.argv[1:]:
    path = pathlib.Path(word)
    if word.startswith("results/") and not path.exists():
        path.touch() if path.suffix in {{".parquet", ".json", ".csv", ".jsonl"}} else path.mkdir()
"""
"""Stands for `recurformer`: notes its words, and makes what they name."""
NOT_UTF8 = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
CHANGED = "heads/ra_i-kv_group-0/beta-0.5/mamba/seed-0"
NAME, REPO = "$(touch PWN1)", "owner/`touch PWN3` {wildcards.nothing}"


def test_every_value_in_a_shell_line_is_quoted():
    text = "".join(file.read_text() for file in RULES)
    blocks = re.findall(r'^    shell:\s+"""(.*?)"""', text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == text.count("shell:") == 2  # that all stages are made of, and one that copies
    values = [value for block in blocks for value in re.findall(r"\{([^{}]*)\}", block)]
    assert [value for value in values if not value.endswith(":q") and value not in NUMBERS] == []


@pytest.fixture
def folder(tmp_path):
    """The workflow in a folder whose own name is hostile, with a study whose values are."""
    folder = tmp_path / "it's $(touch PWN4) a folder; touch PWN5"
    (folder / "bin").mkdir(parents=True)
    link_workflow(folder, "README.md", "CITATION.cff")
    (folder / "bin/recurformer").write_text(RECORDER)
    (folder / "bin/recurformer").chmod(0o755)
    study = yaml.safe_load((ROOT / "config/smoke.yaml").read_text())
    study["backbones"]["remote"] = {"source": "hub", "repo": REPO, "revision": "0" * 40, "shape": "llama2-7b"}
    (folder / "$(touch PWN6) study.yaml").write_text(yaml.safe_dump(study))
    return folder


def run(folder, *words):
    """In a locale that knows no sign beyond ASCII."""
    environment = {"PATH": f"{folder}/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src"), "HOME": str(folder)}
    environment |= NOT_UTF8
    words = (*words, "--cores", "1", "--configfile", "$(touch PWN6) study.yaml")
    return snakemake(folder, *words, environment=environment)


def made_by_commands(folder):
    return [path for path in folder.parent.rglob("PWN*") if path.is_file()]


def test_no_value_runs_as_a_command(folder):
    targets = [
        f"results/smoke/language/tiny/{CHANGED}/tasks/passkey/ablation_lm_eval.csv",
        "results/smoke/backbones/remote",
    ]
    for words in (["all", "--dry-run", "--printshellcmds"], targets):
        answer = run(folder, *words)
        assert answer.returncode == 0, answer.stderr
    assert made_by_commands(folder) == []
    called = [json.loads(line) for line in (folder / "argv.jsonl").read_text().splitlines()]
    (evaluated,) = (words for words in called if words[0] == "ablation-lm-eval")
    assert settings_of(evaluated)["names"] == ["passkey"]
    fetched = [settings_of(words) for words in called if words[0] == "backbone"]
    assert [one["repo"] for one in fetched if one["source"] == "hub"] == [REPO]


def name_a_backbone(study):
    study["backbones"][NAME] = study["backbones"].pop("tiny")
    for block in (study["language"], study["caches"], study["ablations"]["language"]):
        block["backbones"] = [NAME]
    return f"backbones.{NAME}"


def name_a_task(study):
    """It is a folder of the results."""
    study["language"]["tasks"]["names"] = [NAME]
    return "language.tasks.names.0"


@pytest.mark.parametrize("change", [name_a_backbone, name_a_task])
def test_a_hostile_name_starts_nothing(folder, change):
    path = folder / "$(touch PWN6) study.yaml"
    study = yaml.safe_load(path.read_text())
    key = change(study)
    path.write_text(yaml.safe_dump(study))
    answer = snakemake(folder, "all", "--cores", "1", "--configfile", path.name)
    assert made_by_commands(folder) == [] and answer.returncode != 0
    (said,) = (line for line in answer.stderr.splitlines() if "study:" in line)
    assert said.startswith(f"study: {key} = {NAME!r}: a name is made of letters, digits, ")
    assert not (folder / "results").exists()
