"""Flags that cannot be meant are refused in one line that names the flag, its value and what is right."""

import pytest

TRAIN = "train backbone trained --metrics m.jsonl --name x --articles articles.parquet --tokens 32"
RECIPE = "--steps 1 --batch-size 1 --learning-rate 0.1"
MQAR = "mqar mqar.csv --metrics m.jsonl --beta 0.5 --rate 0.1 --train 16:2 --test 16:2"
MQAR_RECIPE = "--training-steps 1 --training-batch-size 1 --training-learning-rate 0.1"
HOP = "train-hashhop backbone trained --metrics m.jsonl --name x"
SIZES = "--backbone-source shape --backbone-shape"
RANDOM = "backbone out --downloads . --source random --architecture llama --layers 1 --tokenizer byte"
CONTINUE = (
    "continuation backbone c.csv --original backbone --articles articles.parquet --name x --prompt 8 --tokens 8"
    " --windows 1"
)
ADAPT = "adapt backbone out --text articles.parquet"
PROFILE = "profile backbone p.parquet --articles articles.parquet --name x --samples 2"
USAGE = [
    ("brew-coffee", "no stage 'brew-coffee'; there are: study"),
    ("select", "the following arguments are required: profile, heads, --beta"),
    ("select profile.parquet out.json --beta half", "--beta: half: Input should be a valid number"),
    ("select profile.parquet out.json --beta 1.5", "--beta: 1.5: Input should be less than or equal to 1"),
    ("select profile.parquet out.json --beta 0.5 --wrong 1", "unrecognized arguments: --wrong 1"),
    ("select profile.parquet out.json --beta", "argument --beta: expected one argument"),
    (f"{MQAR} {MQAR_RECIPE} --rate 0", "--rate: 0"),
    (f"{ADAPT} --minutes 0", "--minutes: 0: Input should be greater than 0"),
    ("cache-peak c.csv --name x --betas 0.5 --device tpu", "argument --device: invalid choice: 'tpu'"),
]
VALUES = [
    (
        ADAPT,
        "too short: the 1 training documents have 1,440 tokens, which give 2 windows of 512; 8 are needed, so 4,096 t",
    ),
    (f"{ADAPT} --tokens 4096", "--tokens 4096: the model reads at most 2048"),
    (f"{ADAPT} --beta 0.1", "beta=0.1 of 4 groups of heads replaces none; the least is 0.250"),
    (ADAPT.replace("backbone", "./nowhere"), "./nowhere: no such folder"),
    (ADAPT.replace("backbone", "converted"), "the model is already converted; give the model that it was conv"),
    ("study", "name a YAML file, or ask for --describe"),
    ("select profile.parquet out.json --beta 0.5 --by charm", "--by charm: Input should be 'ra_i', 'mean_rr'"),
    ("select profile.parquet out.json --beta 0.5 --unit layer --scope layer", "scope: unit 'layer' ranks whole layers"),
    (f"{TRAIN} --steps 1 --batch-size 1", "--learning-rate: Field required"),
    (f"{TRAIN} {RECIPE} --recovery r.csv", "--recovery and --original: give both or neither"),
    (
        f"{TRAIN} {RECIPE} --recovery r.csv --original backbone --distributed-processes 1",
        "--recovery: several processes measure no curve; leave it out, or --distributed-processes",
    ),
    (f"{TRAIN} {RECIPE} --weight-decay nan", "--weight-decay nan: Input should be"),
    (f"{TRAIN} {RECIPE} --tokens 99999", "windows: the longest of 1 texts has 1800 tokens, a window needs 99999"),
    (f"{MQAR} {MQAR_RECIPE} --heads 3", "kv_heads: 4 must divide the 3 heads"),
    (f"{MQAR} {MQAR_RECIPE} --vocabulary 4", "train: [16, 2]: vocabulary is 4; 2 pairs need 2 keys, so 6 ids"),
    (f"{MQAR} {MQAR_RECIPE} --train 16:2:1", "--train ['16', '2', '1']"),
    (f"{HOP} {RECIPE} --task-vocabulary 1", "--task-…: vocabulary is 1; the task needs"),
    (f"memory m.csv --name x --betas 0.5 {SIZES} llama9", "'llama9' is not a published shape; choose one of llama2-7b"),
    (f"cache c.csv --name x --betas 0.5 {SIZES} llama2-7b --lengths 8 8", "--lengths ['8', '8']: 8 is in the list"),
    (f"{RANDOM} --hidden-size 8", "source 'random' needs heads, kv_heads, head_dim"),
    ("table table9 profile.parquet --out t.csv", "table9"),
    ("table table3 m.csv --out t.csv", "m.csv"),
    ("claims --fail-on doubt", "--fail-on doubt: no such verdict; there are: reproduced"),
    ("claims --ledger nowhere.json", "nowhere.json: no ledger there"),
    ("compare nowhere elsewhere", "nowhere: no such folder"),
    ("keep nowhere elsewhere kept", "nowhere: no tables in it; run the study first"),
    ("study nowhere.yaml", "nowhere.yaml: No such file or directory"),
    (
        "needle backbone n.csv --original backbone --articles articles.parquet --name x --evict h2o",
        "--evict and --budge",
    ),
    (f"{CONTINUE} --match m.csv", "--match: only --evict keeps as much as others held"),
    (f"{CONTINUE} --replace mean", "--replace and --betas: give both or neither"),
    (
        f"{CONTINUE} --evict h2o --budgets 0.5 --family mixer",
        "--evict: one change of the original is measured at a tim",
    ),
    (f"{PROFILE} --tokens 32 --window 4 --threshold 1.5", "--threshold 1.5: Input should be less than or equal to 1"),
    (f"{PROFILE} --window 4", "--tokens: Field required"),
    (
        "ablation-lm-eval backbone l.csv --original backbone --name x --articles articles.parquet --limits mmlu:5",
        "limits: 'mmlu' is not in names",
    ),
    (
        "head-scores backbone s.parquet --profile profile.parquet --name x --articles articles.parquet --by retrieval "
        "--pairs 2 --questions 3",
        "questions: 3 need as many pairs, but pairs is 2",
    ),
    (f"{PROFILE} --tokens 32 --window 32", "window: 32 must be below the 32 tokens of a sample"),
]


@pytest.mark.parametrize(("words", "named"), USAGE, ids=[words for words, _ in USAGE])
def test_wrong_usage(words, named, refuses, world):
    refuses(world, words.split(), named, code=2)


@pytest.mark.parametrize(("words", "named"), VALUES, ids=[words for words, _ in VALUES])
def test_a_value(words, named, refuses, world):
    refuses(world, words.split(), named)
