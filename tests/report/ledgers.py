"""A ledger of claims in the shape of claims.json, varied as a real one; its numbers are made up."""

import uuid
from collections import Counter
from itertools import cycle

from recurformer.claims import make_ledger
from recurformer.claims.runs import environment
from recurformer.results.words import MARKS

VERDICTS = tuple(MARKS)
XEON = {"system": "Linux-6.1-x86_64", "processor": "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "cores": 2}
INJECTION = '<script>document.title = "broken"</script> & "quoted" <b>text</b>'


def record(stage: str, seconds: float, accelerator: str | None = None, dirty: bool = False) -> dict:
    """What `recurformer.records` writes, as far as a page needs it."""
    return {
        "run": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{stage}{seconds}")),
        "stage": stage,
        "git": {"commit": ("8633e02f" if dirty else "0d6b7ee4") + 32 * "a", "dirty": dirty, "difference": None},
        "lock": 64 * "b",
        "versions": {"python": "3.11.7", "torch": "2.13.0+cu130" if accelerator else "2.13.0"},
        "host": XEON,
        "accelerator": {"name": accelerator, "peak_memory_bytes": 2**33} if accelerator else None,
        "argv": ["recurformer", stage, "--threads", "1"],
        "seconds": seconds,
        "peak_memory_bytes": 2**30,
    }


RECORDS = {
    "cache": record("cache", 18.6),
    "backbone": record("backbone", 3.0),
    "mqar": record("mqar", 3480.5),
    "hashhop": record("hashhop", 1512.0, accelerator="NVIDIA H200", dirty=True),
    "perplexity": record("perplexity", 204.0),
    "contribution": record("contribution", 161.2),
}


MANY = {
    "files": [f"recorded/cpu/results/mqar/beta-{beta / 200}/length-512.csv" for beta in range(200)],
    "runs": [str(uuid.uuid5(uuid.NAMESPACE_URL, f"mqar {beta}")) for beta in range(200)],
}
"""What a claim about a whole study names. docutils refuses a line of more than 10,000 characters."""


def runs(*stages: str) -> dict[str, dict]:
    """The records of some stages by their ids."""
    return {RECORDS[stage]["run"]: RECORDS[stage] for stage in stages}


def evidence(*stages: str, scale: str = "paper", samples: int | None = None) -> dict:
    """What a claim rests on: the runs of these stages."""
    costs = environment(runs(*stages))["runs"]
    return {
        "source": "this study",
        "scale": scale,
        "seeds": 1,
        "samples": samples,
        "files": [f"results/{stage}/{stage}.csv" for stage in stages],
        "runs": list(costs),
        "rests_on": list(costs),
        "hardware": f"{XEON['processor']}, 2 cores",
        "core_minutes": sum(cost["core_minutes"] for cost in costs.values()),
        "gpu_minutes": sum(cost["gpu_minutes"] for cost in costs.values()),
    }


def claim(
    name: str, place: str, statement: str, verdict: str, ours: str | None, rests_on: dict | None, **other: str
) -> dict:
    """One entry; what is not given reads as in a claim about a counted number."""
    return {
        "id": name,
        "place": place,
        "statement": statement,
        "kind": "analytic",
        "test": "ours, rounded to three decimals, equals the printed value",
        "tolerance": "0.0005: half of the last printed decimal",
        "verdict": verdict,
        "ours": ours,
        "paper": statement,
        "reason": "counted from the cache objects of a model of that shape",
        "evidence": rests_on,
    } | other


def cells() -> list[dict]:
    """The cells of Table 4, of every verdict."""
    found, verdicts = [], cycle(VERDICTS[:-1])
    for model, label in (("llama2-7b", "Llama2-7B"), ("qwen2-0.5b", "Qwen2-0.5B"), ("qwen2-7b", "Qwen2-7B")):
        for beta in ("0.25", "0.50", "0.75", "0.90", "1.00"):
            where = f"{label}, {beta}"
            cache = claim(
                f"table4/{model}/{beta}/cs_10k", f"Table 4, cs_10k, {where}", f"{1 - float(beta):.4f}", next(verdicts),
                f"{1.0035 - float(beta):.4f}", evidence("backbone", "cache"),
            )  # fmt: skip
            quality = claim(
                f"table4/{model}/{beta}/h_gq", f"Table 4, h_gq, {where}", "0.839", "not-run", None, None,
                kind="trained", reason="needs the published weights and a GPU (config/paper.yaml)",
            )  # fmt: skip
            found += [cache, quality]
    return found


def statements() -> list[dict]:
    """Claims of the text and of figures."""
    trend = {"kind": "trend", "test": "accuracy at β = 1 is below half of that at β = 0.75 at every length"}
    return [
        claim(
            "figure4/attention-needed", "Figure 4", "“RecurFormer, with all attention heads replaced by Mamba blocks, "
            "still exhibited poor accuracy, indicating that retaining the attention mechanism in RecurFormer is "
            "necessary.”", "consistent", "1.00 up to β = 0.75, 0.09 at β = 1",
            evidence("mqar", scale="smaller", samples=4096) | MANY, **trend,
            reason="the trend holds in a model of half the width; the one without attention heads had not learned",
        ),
        claim(
            "table2/llama2-7b/pyramidinfer/cs_10k", "Table 2, cs_10k, Llama2-7B, PyramidInfer", "0.1054", "reproduced",
            "0.1054", evidence("cache"),
        ),
        claim(
            "table2/llama2-7b/recurformer/h_gq", "Table 2, h_gq, Llama2-7B, RecurFormer", "0.839", "consistent",
            "0.994 [0.989, 0.999]", evidence("backbone", "hashhop", scale="smaller", samples=256), kind="trained",
        ),
        claim(
            "table3/qwen2-0.5b/recurformer", "Table 3, Qwen2-0.5B, RecurFormer", "1.18", "contradicted", "8.69",
            evidence("perplexity", scale="smaller", samples=96), kind="trained", paper="1.18 times the original",
        ),
        claim(
            "table5/first-token", "Table 5", "The first token contributes less than the others", "contradicted",
            "0.644 against 0.049", evidence("contribution", scale="smaller", samples=64), kind="measured",
        ),
        claim(
            "abstract/escaped", "Abstract", INJECTION, "not-run", None, None,
            reason=f"a text must stay a text: {INJECTION}",
        ),
    ]  # fmt: skip


def ledger() -> dict:
    """All of it, with the environment that its records give."""
    claims = cells() + statements()
    found = Counter(claim["verdict"] for claim in claims)
    return {
        "study": "default",
        "counts": {verdict: found[verdict] for verdict in VERDICTS},
        "reviewers": {verdict: 0 for verdict in VERDICTS},
        "findings": [{"fact": "The cache is smaller", "verdicts": {"reproduced": 2}, "claims": ["table4"]}],
        "claims": claims,
        "audit": make_ledger("default", []).to_dict()["audit"],
        "by_definition": 1,
        "environment": environment(runs(*RECORDS)),
    }
