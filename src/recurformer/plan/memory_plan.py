"""On how many GPUs each training of a study fits: a table by formula, of what need not be tried to be known."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tabulate import tabulate

from recurformer.plan.resources import CONTEXT_MB, MB
from recurformer.plan.training_memory import STRATEGIES, Training, training_bytes
from recurformer.plan.work_training import train

CARDS = (1, 2, 4, 8)
GIB = 2**30
SENTENCE = (
    "Memory of a training on each GPU, by formula: bfloat16 with float32 weights, gradients and AdamW's moments, one "
    "sequence at a time; the longest training of each backbone, at its largest share of replaced heads."
)


def trainings(study: Mapping[str, Any]) -> Iterator[tuple[str, Training]]:
    """For each backbone that a study trains, its longest training at the largest share of replaced heads."""
    betas = {"language": max(study["language"]["betas"]), "hashhop": max(study["betas"])}
    for name in study["backbones"]:
        works = [
            train(task)(study, {"backbone": name, "beta": str(beta)})
            for task, beta in betas.items()
            if name in study[task]["backbones"]
        ]
        if works:
            longest = max(works, key=lambda work: work.tokens)
            yield name, Training(longest.shape, longest.beta, longest.tokens)


def memory_table(study: Mapping[str, Any]) -> str:
    """Every backbone's training on 1 to 8 GPUs, as a Markdown table below a sentence."""
    capacity = study["caches"]["sizes"]["memory_gib"]
    ways = [("ddp", CARDS[0]), *((strategy, cards) for strategy in STRATEGIES for cards in CARDS[1:])]
    rows = []
    for name, alone in trainings(study):
        for strategy, cards in ways:
            training = replace(alone, devices=cards, strategy=strategy)
            usual, lean = (
                (training_bytes(replace(training, checkpointing=kept)) + CONTEXT_MB * MB) / GIB
                for kept in (False, True)
            )
            fits = "yes" if usual <= capacity else "with checkpointing" if lean <= capacity else "no"
            rows.append(
                {
                    "backbone": name,
                    "parameters": f"{training.shape.parameters(training.beta) / 1e9:.2f} B",
                    "β": training.beta,
                    "tokens": training.tokens,
                    "GPUs": cards,
                    "sharing": "none" if cards == 1 else strategy.upper(),
                    "GiB each": f"{usual:.1f}",
                    "with checkpointing": f"{lean:.1f}",
                    f"fits {capacity:g} GiB": fits,
                }
            )
    return f"{SENTENCE}\n\n{tabulate(rows, headers='keys', tablefmt='github', disable_numparse=True)}"
