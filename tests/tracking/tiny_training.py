"""A tiny training by its command, for the tests of tracking."""

RECIPE = "--training-steps {steps} --training-batch-size 2 --training-learning-rate 0.01 --training-log-every 2"
MQAR = (
    "mqar results/{name}/mqar.csv --metrics results/{name}/metrics.jsonl --record results/{name}/run.json "
    "--beta {beta} --rate 0.01 --hidden-size 8 --layers 1 --heads 2 --kv-heads 1 --head-dim 4 --vocabulary 16 "
    f"--train 16:2 --test 16:2 --test-samples 2 {RECIPE}"
)
