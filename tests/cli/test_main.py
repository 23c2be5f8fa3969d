"""The command itself: light, helpful, one line for what it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from recurformer.cli.main import STAGES, main
from recurformer.cli.runs import LEDGERS
from recurformer.cli.stage import NAME, checkpoint, progress, stage
from recurformer.results.frames import COLUMNS
from recurformer.study import Mamba, Perplexity
from tests.worlds import FURTHER, TRAINED


def test_every_stage_explains_itself_without_torch():
    """In one process: what one stage imports, the next one finds."""
    code = (
        "import sys\nfrom recurformer.cli.main import STAGES, main\n"
        "for stage in STAGES:\n"
        "    try: main([stage, '--help'])\n    except SystemExit as end: assert end.code == 0, stage\n"
        "assert not {'torch', 'transformers', 'pandas'} & set(sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert [line.split()[2] for line in answer.stdout.splitlines() if line.startswith("usage:")] == list(STAGES)


def test_what_needs_no_model_and_no_tracker_imports_none():
    modules = "tracking study.needs paper claims.ledger render.tables render.figures render.adaptation"
    code = "".join(f"import recurformer.{name}\n" for name in modules.split())
    code += "import sys\nassert not {'torch', 'transformers', 'trackio', 'mlflow'} & set(sys.modules)\n"
    code += "import recurformer.heads.select\nassert 'transformers' not in sys.modules, 'only torch'"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


RECORDED = Path(__file__).parents[2] / "recorded/cpu"
NOT_UTF8 = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
# Of this backend matplotlib says that it is missing; it takes modules of which it knows nothing.
NOTEBOOK = {"MPLBACKEND": "module://matplotlib_inline.backend_inline", "MATPLOTLIBRC": "../matplotlibrc"}
TASTE = "backend: module://that_is_not_installed\naxes.facecolor: red\nfont.size: 40\nsavefig.bbox: tight\n"
COMMANDS = [
    ["--help"],
    ["study", "--describe"],
    ["trace", f"{RECORDED}/figures/figure4.svg"],
    ["claims", "--ledger", f"{RECORDED}/results/claims.json"],
    ["claims", f"{RECORDED}/measurements/complexity.parquet", "--out", "claims.html", "claims.md"],
    ["figure", "figure4", f"{RECORDED}/measurements/mqar.parquet", "--out", "figure4.svg"],
]
"""Whose output has signs beyond ASCII: help, the keys of a study, runs, verdicts, a page, a figure."""


def test_the_surroundings_change_no_byte_of_a_file_and_stop_no_command(tmp_path):
    """A locale that knows no sign beyond ASCII, a notebook that started the process, a user's own style of figures."""
    (tmp_path / "matplotlibrc").write_text(TASTE)
    found = []
    code = f"from recurformer.cli.main import main\nfor words in {COMMANDS}: assert main(words) == 0, words"
    for name, surroundings in (("usual", {}), ("strange", NOT_UTF8 | NOTEBOOK)):
        (tmp_path / name).mkdir()
        how = {"cwd": tmp_path / name, "env": os.environ | surroundings, "capture_output": True, "text": True}
        answer = subprocess.run([sys.executable, "-c", code], **how, check=False)
        assert answer.returncode == 0, answer.stderr
        assert not answer.stderr
        files = {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()}
        assert len(files) >= 3
        found.append((files, answer.stdout.encode("ascii", "backslashreplace").decode()))
    assert found[0] == found[1]


def test_a_reader_that_leaves_is_no_fault():
    command = f"{sys.executable} -m recurformer.cli.main study --schema | (exec 0<&-; sleep 1); exit ${{PIPESTATUS[0]}}"
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (141, "")


@pytest.mark.parametrize("words", ["--help", "study --schema"])
def test_a_full_disk_below_the_output_is_one_line(words):
    command = [sys.executable, "-m", "recurformer.cli.main", *words.split()]
    with open("/dev/full", "w") as full:
        answer = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1 and "No space left on device" in answer.stderr


@pytest.fixture
def toy():
    """A stage that somebody adds."""

    @stage("weigh a file", checkpoint(), NAME, rows="one row")
    def weigh_it(args, settings: Perplexity, mamba: Mamba):
        """Weigh a file (Table 6)."""
        return pd.DataFrame({"model": [args.name], "tokens": [settings.tokens], "d_state": [mamba.d_state]})

    yield weigh_it
    del STAGES["weigh-it"]


def test_a_declared_function_is_a_stage(toy, tmp_path, capsys):
    words = ["weigh-it", "model", str(tmp_path / "weight.csv"), "--name", "tiny", "--settings"]
    assert main([*words, "{tokens: 8, mamba: {d_state: 4}}", "--record", str(tmp_path / "weight.run.json")]) == 0
    assert pd.read_csv(tmp_path / "weight.csv").to_dict("records") == [{"model": "tiny", "tokens": 8, "d_state": 4}]
    record = json.loads((tmp_path / "weight.run.json").read_text())
    assert (record["stage"], record["outputs"]) == ("weigh-it", ["weight.csv"])
    assert record["argv"][:3] == ["recurformer", "weigh-it", "model"] and record["peak_memory_bytes"] > 1e6
    assert [file["path"] for file in record["inputs"]] == ["model"]
    assert record["settings"].items() >= {"name": "tiny", "tokens": 8, "mamba_d_state": 4}.items()
    assert main(["--help"]) == 0 and "  weigh-it " in capsys.readouterr().out
    assert main([*words, "{tokens: 0}"]) == 1
    assert capsys.readouterr().err.startswith("recurformer weigh-it: --settings tokens = 0: ")


@pytest.mark.parametrize(("load", "told"), [(0.1, False), (40.0, True)])
def test_a_user_hears_of_a_busy_machine(load, told, capsys, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # so that it comes back, whatever it was
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert main(["chat", "nowhere/at/all"]) == 1
    assert ("its load is 40.0, and it has 2 cores" in capsys.readouterr().err) is told
    assert main(["chat", "nowhere/at/all", "--threads", "1"]) == 1
    assert "busy" not in capsys.readouterr().err


@pytest.mark.parametrize("module", ["recurformer.cli.main", "torch"])
def test_a_stop_during_an_import_is_one_line(module, tmp_path):
    code = (
        "import os, signal, sys, time, wrapt\nfrom recurformer.__main__ import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job inherits that it is ignored
        f"wrapt.register_post_import_hook(lambda _: os.kill(os.getpid(), signal.SIGINT), '{module}')\n"
        "sys.exit(main())"
    )
    words = ["convert", "nowhere", str(tmp_path / "out"), "--heads", "heads.json"]
    answer = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (130, "\nrecurformer convert: stopped\n")


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "\nrecurformer weigh-it: stopped\n"),
        (KeyError("text"), 1, "recurformer weigh-it: KeyError: 'text' (unexpected; with RECURFORMER_DEBUG=1"),
        (PermissionError(13, "Permission denied", "a.csv"), 1, "recurformer weigh-it: a.csv: Permission denied\n"),
    ],
)
def test_no_end_of_a_stage_is_a_traceback(toy, capsys, monkeypatch, raised, code, said):
    def stop(*_):
        raise raised

    monkeypatch.setattr("recurformer.cli.main.Stage.run", stop)
    assert main([*["weigh-it", "model", "weight.csv", "--name", "tiny", "--settings"], "{tokens: 8}"]) == code
    assert capsys.readouterr().err.startswith(said)


def test_a_rule_gives_arguments_by_name(toy):
    """Positional ones first, and none for what is not there; a name that the stage does not have is a mistake."""
    weigh = STAGES["weigh-it"]
    values = {"rows": "weight.csv", "name": "tiny", "checkpoint": "model", "threads": None, "record": []}
    assert weigh.command(values) == ["recurformer", "weigh-it", "model", "weight.csv", "--name", "tiny"]
    with pytest.raises(ValueError, match="recurformer weigh-it has no argument articles"):
        weigh.command(values | {"articles": "articles.parquet"})


def test_metrics_are_of_columns_that_the_rows_have():
    kinds = {name.replace("-", "_"): stage for name, stage in STAGES.items()}
    for kind in sorted(kinds.keys() & COLUMNS.keys()):
        for metric in kinds[kind].metrics:
            read = {metric.column, metric.over, *metric.by} - {""}
            assert read <= {*COLUMNS[kind], *FURTHER.get(kind, []), *(["fall"] if kind in TRAINED else [])}, kind


def test_the_time_left_of_a_second_series_does_not_count_the_first(capsys, monkeypatch):
    clock = iter([0.0, 100.0, 200.0, 220.0, 240.0])  # its start, two of 100 seconds, two of 20
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    show = progress("prompt")
    for done, total in ((1, 2), (2, 2), (1, 5), (2, 5)):
        show(done, total)
    said = capsys.readouterr().err.splitlines()
    assert said == [f"prompt {part} s left" for part in ("1/2, 100", "2/2, 0", "1/5, 80", "2/5, 60")]


def test_an_option_of_several_values_may_be_repeated():
    words = ["model", "out", "--text", "a", "b", "--text", "c"]
    assert STAGES["adapt"].parser().parse_args(words).text == ["a", "b", "c"]
    for given, ledgers in ((["id", "--ledger", "x", "--ledger", "y"], ["x", "y"]), (["id"], LEDGERS)):
        assert STAGES["trace"].parser().parse_args(given).ledger == ledgers
