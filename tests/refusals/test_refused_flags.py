"""Flags that cannot be meant are refused in one line that names the flag, its value and what is right."""

import shlex

import pytest

TRAIN = "train backbone trained --metrics m.jsonl --name x --articles articles.parquet --tokens 32"
RECIPE = "steps: 1, batch_size: 1, learning_rate: 0.1"
LEARN = f"{TRAIN} --settings '{{{RECIPE}}}'"
COPY = "train-copying backbone thesis --articles articles.parquet --metrics m.jsonl --name x --settings "
COPY += f"'{{{{{RECIPE}, words: {{words}}, lengths: [{{length}}]}}}}'"
MQAR = "mqar mqar.csv --metrics m.jsonl --beta 0.5 --rate {rate} --settings "
RECALL = f"train: [[16, 2]], test: [[16, 2]], training: {{{RECIPE}}}"
CONTINUE = "continuation backbone c.csv --original backbone --articles articles.parquet --name x"
CONTINUE += " --settings '{prompt: 8, tokens: 8, windows: 1}'"
CONVERT = "convert backbone out --heads heads.json --settings"
ADAPT = "adapt backbone out --text articles.parquet"
SELECT = "select profile.parquet out.json --beta 0.5 --settings "
USAGE = [
    ("brew-coffee", "no command 'brew-coffee'; there are: study"),
    ("select", "the following arguments are required: profile, heads, --beta"),
    ("select profile.parquet out.json --beta 1.5", "--beta: 1.5: "),
    ("select profile.parquet out.json --beta 0.5 --wrong 1", "unrecognized arguments: --wrong 1"),
    (f"{MQAR.format(rate=0)} '{{{RECALL}}}'", "--rate: 0"),
    (f"{ADAPT} --minutes 0", "--minutes: 0: "),
    (f"{ADAPT} --cache 1", "--cache: 1: Input should be less than 1"),
]
VALUES = [
    (f"{ADAPT} --minutes 1", "too short: the 1 training documents have 1,440 tokens, which give 2 windows of 512"),
    (f"{ADAPT} --tokens 4096", "--tokens 4096: the model reads at most 2048"),
    (f"{ADAPT} --beta 0.1", "beta=0.1 of 4 groups of heads replaces none; the least is 0.250"),
    (ADAPT.replace("backbone", "./nowhere"), "./nowhere: no such folder"),
    (ADAPT.replace("backbone", "converted"), "the model is already converted; give the model that it was conv"),
    (f"{SELECT} '{{by: charm}}'", "--settings by = 'charm': "),
    (f"{SELECT} '{{unti: layer}}'", "--settings unti: unknown key; did you mean 'unit'?"),
    (f"{SELECT} layer", "--settings layer: give a mapping in YAML or JSON"),
    (f"{CONVERT} '{{d_state: 8}}'", "--settings d_state: unknown key; choose one of mamba"),
    (f"{TRAIN} --settings '{{steps: 1, batch_size: 1}}'", "--settings learning_rate: this key is missing"),
    (f"{LEARN} --recovery r.csv", "--recovery and --original: give both or neither"),
    (f"{TRAIN} --settings '{{{RECIPE}, weight_decay: .nan}}'", "--settings weight_decay = nan: "),
    (f"{LEARN} --tokens 1900", "windows: the longest of 1 texts has 1800 tokens, a window needs 1900"),
    (f"{LEARN} --tokens 99999", "backbone: windows of 99999 tokens: the model reads at most 2048"),
    (COPY.format(words=2, length=99999), "backbone: windows of 99999 tokens: the model reads at most 2048"),
    (COPY.format(words=999, length=8), "words: the texts have "),
    ("export converted thesis --without-sinks", "--without-sinks is of --stock"),
    ("table table9 profile.parquet --out t.csv", "table9"),
    ("table table3 m.csv --out t.csv", "m.csv"),
    ("claims --fail-on doubt", "--fail-on doubt: no such verdict; there are: reproduced"),
    ("keep nowhere elsewhere kept", "nowhere: no run records in it; run the study first"),
    (f"{CONTINUE} --subject evicted/h2o", "--settings change.budgets: evicted/h2o keeps fractions of the cache"),
    (f"{CONTINUE} --subject evicted", "--subject evicted: not a subject; there are original, "),
    (f"{CONTINUE} --subject replaced/ra_i-kv_group-0/mean", "--profile and --settings change.betas: replaced/ra_i-kv"),
]


@pytest.mark.parametrize(("words", "named"), USAGE, ids=[words for words, _ in USAGE])
def test_wrong_usage(words, named, refuses, world):
    refuses(world, shlex.split(words), named, code=2)


@pytest.mark.parametrize(("words", "named"), VALUES, ids=[words for words, _ in VALUES])
def test_a_value(words, named, refuses, world):
    refuses(world, shlex.split(words), named)
