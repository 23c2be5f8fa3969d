"""The crate of a finished run: complete, true to the records, and the same for the same run."""

import json
import shutil
import zipfile
from datetime import datetime
from hashlib import sha256
from pathlib import Path

import pytest

from recurformer.cli.main import main
from recurformer.records import read_record, run_record

ROOT = Path(__file__).parents[2]
COMMAND = ["crate", "results", "figures", "results/run.crate.zip", "--configfile", "config/smoke.yaml"]
COMMAND += ["--parts", "README.md", "workflow/rules/mqar.smk", "--record", "results/run.crate.run.json"]
MEASUREMENT = "results/mqar/seed-0/mqar.csv"
TABLE = "results/tables/table9.csv"


def made(stage, record, inputs, outputs):
    """Outputs and the record of the run that wrote them, as a stage leaves them."""
    for name in outputs:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        if Path(name).suffix:
            Path(name).write_text(f"{name} by {stage}\n")
        else:
            Path(name).mkdir()
            Path(name, "config.json").write_text("{}")
    with run_record(record, stage, [stage, *inputs, *outputs], {}, inputs=inputs, outputs=outputs):
        pass


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project after a tiny run: a text, a checkpoint, a measurement, a table and a figure of it."""
    for name in ("Snakefile", "CITATION.cff", "README.md", "workflow/rules/mqar.smk", "config/smoke.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    text, checkpoint = "results/corpus/articles.parquet", "results/backbones/tiny"
    made("corpus", "results/corpus/run.json", [], [text])
    made("backbone", "results/backbones/tiny.run.json", [], [checkpoint])
    made("mqar", "results/mqar/seed-0/run.json", [checkpoint, text], [MEASUREMENT])
    Path("results/mqar/seed-0/benchmark.tsv").write_text("s\n1.0\n")
    made("table", "results/tables/table9.run.json", [MEASUREMENT], [TABLE, "results/tables/table9.md"])
    made("figure", "figures/figure9.run.json", [MEASUREMENT], ["figures/figure9.svg"])
    made("table", "results/other/tables/table9.run.json", [], ["results/other/tables/table9.csv"])
    return tmp_path


def packed():
    """The graph by ids, and the other files of the archive."""
    with zipfile.ZipFile("results/run.crate.zip") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    entities = json.loads(files.pop("ro-crate-metadata.json"))["@graph"]
    assert len({entity["@id"] for entity in entities}) == len(entities)
    return {entity["@id"]: entity for entity in entities}, files


def of_type(graph, name):
    return {key: entity for key, entity in graph.items() if name in (entity["@type"], *entity["@type"])}


def named(value):
    """All ids that a value refers to."""
    if isinstance(value, dict):
        yield from [value["@id"]] if set(value) == {"@id"} else named(list(value.values()))
    elif isinstance(value, list):
        for item in value:
            yield from named(item)


def action_of(graph, record):
    return graph[f"#{read_record(record)['run']}"]


def test_all_that_is_named_is_there(project):
    assert main(COMMAND) == 0
    graph, files = packed()
    specification = "https://w3id.org/ro/crate/1.1"
    assert set(named(list(graph.values()))) - set(graph) == {specification}
    described = of_type(graph, "File")
    assert set(described) == set(files) == set(named(graph["./"]["hasPart"]))
    for name, entity in described.items():
        assert files[name] == Path(name).read_bytes()
        assert entity["sha256"] == sha256(files[name]).hexdigest()
        assert entity["contentSize"] == str(len(files[name]))


def test_weights_texts_and_other_studies_are_left_out(project):
    assert main(COMMAND) == 0
    graph, files = packed()
    assert not [name for name in files if "articles" in name or "config.json" in name or "other" in name]
    assert graph["#results/backbones/tiny"]["description"].startswith("a folder; left out")
    assert graph["#results/corpus/articles.parquet"]["description"].startswith("a file; left out")


def test_each_record_is_an_action_that_links_what_it_read_and_wrote(project):
    assert main(COMMAND) == 0
    graph, files = packed()
    records = [name for name in files if name.endswith("run.json")]
    actions = {action_of(graph, record)["@id"] for record in records}
    whole = "#the-smoke-study"
    assert len(records) == 5
    assert set(of_type(graph, "CreateAction")) == set(named(graph["./"]["mentions"])) == actions | {whole}
    mqar, table = (action_of(graph, f"results/{name}run.json") for name in ("mqar/seed-0/", "tables/table9."))
    assert set(named(mqar["object"])) == {"#results/backbones/tiny", "#results/corpus/articles.parquet"}
    assert list(named(mqar["result"])) == list(named(table["object"])) == [MEASUREMENT]
    assert set(named(table["result"])) == {TABLE, "results/tables/table9.md"}
    for name in ("results/mqar/seed-0/run.json", "results/mqar/seed-0/benchmark.tsv"):
        assert graph[name]["about"] == {"@id": mqar["@id"]}
    stage = graph[mqar["instrument"]["@id"]]
    assert (stage["@type"], stage["name"]) == ("SoftwareApplication", "recurformer mqar")
    commit = read_record("results/mqar/seed-0/run.json")["git"]["commit"]
    assert commit is None or commit[:12] in stage["softwareVersion"]


def test_the_study_is_a_run_of_its_workflow(project):
    assert main(COMMAND) == 0
    graph, files = packed()
    root, whole, workflow = graph["./"], graph["#the-smoke-study"], graph["Snakefile"]
    assert root["mainEntity"] == whole["instrument"] == {"@id": "Snakefile"}
    assert "ComputationalWorkflow" in workflow["@type"]
    assert {"workflow/rules/mqar.smk", "#recurformer-table"} <= {
        key.split("-0.")[0] for key in named(workflow["hasPart"])
    }
    assert list(named(whole["object"])) == ["config/smoke.yaml"]
    assert set(named(whole["result"])) == {TABLE, "results/tables/table9.md", "figures/figure9.svg"}
    starts = [read_record(name)["started"] for name in files if name.endswith("run.json")]
    assert datetime.fromisoformat(whole["startTime"]) == min(map(datetime.fromisoformat, starts))
    assert root["datePublished"] == whole["endTime"] >= max(starts)
    paper = graph[root["citation"]["@id"]]
    assert (paper["@type"], paper["identifier"]) == ("ScholarlyArticle", "arXiv:2410.12850")
    assert graph[paper["author"][0]["@id"]]["name"] == "Ruiqing Yan"


def test_every_file_of_a_changed_study_is_described(project):
    Path("mine.yaml").write_text("study: mine\nseed: 3\n")
    assert main([*COMMAND, "--configfile", "config/smoke.yaml", "mine.yaml"]) == 0
    graph, files = packed()
    assert list(named(graph["#the-mine-study"]["object"])) == ["config/smoke.yaml", "mine.yaml"]
    assert files["mine.yaml"] == Path("mine.yaml").read_bytes()
    assert list(named(graph["#configfile"]["workExample"])) == ["config/smoke.yaml", "mine.yaml"]
    assert graph["mine.yaml"]["exampleOfWork"] == {"@id": "#configfile"}


def test_the_same_run_gives_the_same_bytes(project):
    assert main(COMMAND) == 0
    first = Path("results/run.crate.zip").read_bytes()
    Path("results/run.crate.benchmark.tsv").write_text("s\n1.0\n")
    for file in project.rglob("*.csv"):
        file.touch()
    assert main(COMMAND) == 0
    assert Path("results/run.crate.zip").read_bytes() == first


def test_an_input_that_was_replaced_since_is_not_taken_for_the_new_one(project):
    old = read_record("results/mqar/seed-0/run.json")["run"]
    made("mqar", "results/mqar/seed-0/run.json", [], [MEASUREMENT])
    assert main(COMMAND) == 0
    graph, _ = packed()
    (read,) = named(action_of(graph, "results/tables/table9.run.json")["object"])
    assert read == f"#{MEASUREMENT}@{old}"
    assert graph[read]["description"] == "a file; made by a run that is not in this crate"


@pytest.mark.parametrize(
    ("word", "replaced", "complaint"),
    [
        ("results", "empty", "no run records"),
        ("config/smoke.yaml", "../elsewhere.yaml", "outside"),
        ("figures", "unreadable", "figure9.run.json: not a run record"),
    ],
)
def test_what_cannot_be_described_is_refused_in_one_line(word, replaced, complaint, project, capsys):
    shutil.rmtree("figures")
    shutil.copyfile("config/smoke.yaml", "../elsewhere.yaml")
    Path("unreadable").mkdir()
    Path("unreadable/figure9.run.json").write_text("{}")
    assert main([replaced if part == word else part for part in COMMAND]) == 1
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
    assert not Path("results/run.crate.zip").exists()
