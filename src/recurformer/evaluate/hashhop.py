"""Generation quality on HashHop: the model writes the chain by itself, greedily, with its own cache.

h_gq counts the leading hashes that are right. Teacher forcing, which shows the model the right hash after each
error, is not the metric.
"""

from collections.abc import Callable, Sequence

import pandas as pd
import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from recurformer.study import HashHopTask as HashHopSettings
from recurformer.tasks.labels import IGNORED
from recurformer.train.data import pad_batch
from recurformer.train.hashhop_data import HashHopDataset, hashhop_dataset


def hashhop_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    task: HashHopSettings,
    *,
    variants: Sequence[str] = ("official", "paper"),
    samples: int = 256,
    seed: int = 0,
    batch_size: int = 32,
    progress: Callable[[int, int], None] | None = None,
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
        progress: called with (samples done, samples of all variants).

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
            if progress is not None:
                progress(len(rows), samples * len(variants))
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
