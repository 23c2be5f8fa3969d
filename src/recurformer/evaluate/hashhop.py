"""Generation quality on HashHop: the model writes the chain by itself, greedily, with its own cache.

h_gq counts the leading hashes that are right. Teacher forcing, which shows the model the right hash after each
error, is not the metric.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from recurformer.study import HashHopTask as HashHopSettings
from recurformer.tasks.hashhop import HashHopTask
from recurformer.tasks.hashhop_tokens import HashHopTokens
from recurformer.train.data import IGNORED, HashHopTextDataset, HashHopTokenDataset, pad_batch

HashHopDataset = HashHopTokenDataset | HashHopTextDataset
Form = Callable[..., HashHopDataset]


def _tokens(task: HashHopSettings, tokenizer: Any, shares: dict[str, float], **where: Any) -> HashHopTokenDataset:
    sizes: dict[str, Any] = {
        "vocabulary": task.vocabulary,
        "chains": task.chains,
        "hops": task.hops,
        "pairs": task.pairs,
    }
    return HashHopTokenDataset({HashHopTokens(variant=name, **sizes): share for name, share in shares.items()}, **where)


def _text(task: HashHopSettings, tokenizer: Any, shares: dict[str, float], **where: Any) -> HashHopTextDataset:
    sizes: dict[str, Any] = {"hash_length": task.hash_length, "hops": task.hops, "characters": task.characters}
    layouts = {HashHopTask(variant=name, **sizes): share for name, share in shares.items()}
    return HashHopTextDataset(layouts, tokenizer, **where)


FORMS: dict[str, Form] = {"tokens": _tokens, "text": _text}


def hashhop_dataset(
    task: HashHopSettings,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    size: int | None = None,
    seed: int = 0,
    variant: str | None = None,
    stream: str = "train",
) -> HashHopDataset:
    """Samples of a task for training, profiling or testing.

    Args:
        task: the sizes.
        tokenizer: of the model; not used by the form "tokens".
        size: what `len` of the dataset reports.
        seed: of all samples.
        variant: "official" or "paper"; None: both, "paper" with the share that the task says.
        stream: "train" or "test".
    """
    if task.form not in FORMS:
        raise ValueError(f"form: {task.form!r} is unknown; there are {', '.join(FORMS)}")
    mixed = {"official": 1 - task.paper_share, "paper": task.paper_share}
    shares = {name: share for name, share in mixed.items() if share} if variant is None else {variant: 1.0}
    return FORMS[task.form](task, tokenizer, shares, seed=seed, stream=stream, size=size)


def hashhop_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    task: HashHopSettings,
    *,
    variants: Sequence[str] = ("official", "paper"),
    samples: int = 256,
    seed: int = 0,
    batch_size: int = 32,
) -> pd.DataFrame:
    """Generate and score the answers to test samples of every variant.

    Args:
        model: a causal language model, in evaluation mode.
        tokenizer: its tokenizer; not used by the form "tokens".
        task: the sizes.
        variants: layouts.
        samples: of each variant.
        seed: of the samples; they differ from the training samples of the same seed.
        batch_size: answers generated together; changes the speed, not the result.

    Returns:
        One row a sample: variant, sample, correct (leading hashes), hops.
    """
    rows = []
    for variant in variants:
        dataset = hashhop_dataset(task, tokenizer, seed=seed, variant=variant, stream="test")
        for start in range(0, samples, batch_size):
            indices = range(start, min(start + batch_size, samples))
            for index, answer in zip(indices, _answers(model, dataset, indices), strict=True):
                rows.append((variant, index, dataset.correct(index, answer), task.hops))
    return pd.DataFrame(rows, columns=["variant", "sample", "correct", "hops"])


@torch.no_grad()
def _answers(model: PreTrainedModel, dataset: HashHopDataset, indices: Sequence[int]) -> list[list[int]]:
    """What the model writes after each prompt, at most as many tokens as the longest right answer has."""
    items = [dataset[index] for index in indices]
    prompts, longest = [], 0
    for item in items:
        asked = item["labels"] != IGNORED
        first = int(asked.nonzero()[0])
        prompts.append({"input_ids": item["input_ids"][:first]})
        longest = max(longest, len(asked) - first)
    batch = pad_batch(prompts, dataset.pad_token_id, side="left")
    batch = {key: value.to(model.device) for key, value in batch.items()}
    batch.setdefault("attention_mask", torch.ones_like(batch["input_ids"]))
    # nothing of the model's own configuration but its end: no sampling, no repetition penalty
    greedy = GenerationConfig(
        do_sample=False,
        max_new_tokens=longest,
        pad_token_id=dataset.pad_token_id,
        eos_token_id=model.generation_config.eos_token_id,
    )
    own, model.generation_config = model.generation_config, greedy
    try:
        written: torch.Tensor = model.generate(**batch)  # type: ignore[operator]
    finally:
        model.generation_config = own
    return written[:, batch["input_ids"].shape[1] :].tolist()
