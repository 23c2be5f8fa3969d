"""A tiny training by its command, for the tests of tracking."""

import json

TASK = {"hidden_size": 8, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 4, "vocabulary": 16}
TASK |= {"train": [[16, 2]], "test": [[16, 2]], "test_samples": 2}


def mqar(name="a", beta=0.5, steps=6, save_every=200):
    """The words of a training whose files lie in a folder of that name."""
    files = {"--metrics": "metrics.jsonl", "--record": "run.json"}
    training = {"steps": steps, "batch_size": 2, "learning_rate": 0.01, "log_every": 2, "save_every": save_every}
    return [
        "mqar", f"results/{name}/mqar.csv", "--beta", str(beta), "--rate", "0.01",
        *(word for flag, file in files.items() for word in (flag, f"results/{name}/{file}")),
        "--settings", json.dumps(TASK | {"training": training}),
    ]  # fmt: skip
