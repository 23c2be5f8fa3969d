"""Distillation: the whole converted model learns the original's predictions (Hinton et al., arXiv 1503.02531)."""

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from recurformer.recover.pair import replaced_layers
from recurformer.recover.trained import only_training
from recurformer.train.checkpoints import fingerprint
from recurformer.train.data import Item
from recurformer.train.trainer import train


def divergence(ours: Tensor, original: Tensor) -> Tensor:
    """KL(original || ours) of logits (..., V), in nats, (...), computed in float32 at least."""
    wide = torch.promote_types(ours.dtype, torch.float32)
    p, q = (F.log_softmax(logits.to(wide), dim=-1) for logits in (original, ours))
    return F.kl_div(q, p, reduction="none", log_target=True).sum(-1)


class Distillation:
    """Mean divergence from the original's predictions, in nats per token; an `Objective`.

    Args:
        original: the model that `converted` was converted from.
        converted: the model that learns.
        language_model_share: weight of the language-model loss, 0 to 1; the divergence has the rest.

    Raises:
        ValueError: the two models are not a pair, or the share is outside [0, 1].
    """

    def __init__(
        self, original: PreTrainedModel, converted: PreTrainedModel, language_model_share: float = 0.0
    ) -> None:
        if not 0 <= language_model_share <= 1:
            raise ValueError(f"language_model_share: {language_model_share} must lie in [0, 1]")
        replaced_layers(original, converted)
        self.original, self.share = original, language_model_share

    def identity(self) -> dict[str, Any]:
        """The facts that a resumed run must share with the killed one."""
        return {"name": "distillation", "original": fingerprint(self.original), "share": self.share}

    def __call__(self, model: PreTrainedModel, batch: Item) -> Tensor:
        """The value for one batch; scalar. Padding, 0 in its attention_mask, does not count."""
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        outputs = model(**(batch if self.share else inputs), use_cache=False)
        if self.share == 1:
            return outputs.loss
        with torch.no_grad():
            targets = self.original(**inputs, use_cache=False).logits
        divergences = divergence(outputs.logits, targets)  # (B, L)
        mask = batch.get("attention_mask")
        mean = divergences.mean() if mask is None else divergences[mask.bool()].mean()
        return (1 - self.share) * mean + self.share * outputs.loss if self.share else mean


def distil(
    original: PreTrainedModel,
    converted: PreTrainedModel,
    dataset: Dataset,
    *,
    output_dir: str | Path,
    trained: str = "mixers",
    language_model_share: float = 0.0,
    learning_rate: float = 5e-4,
    weight_decay: float = 0.0,
    seed: int = 0,
    **settings: Any,
) -> pd.DataFrame:
    """Train a converted model end to end, in place. Interrupted, the same call resumes from the last checkpoint.

    Args:
        original: the model that `converted` was converted from; not changed.
        converted: the model that learns.
        dataset: windows, such as `recurformer.train.data.WindowDataset`.
        output_dir: folder for metrics.jsonl and checkpoints.
        trained: the parameters that learn, a name in `recurformer.recover.trained.TRAINED`.
        language_model_share: see `Distillation`.
        learning_rate: peak learning rate.
        weight_decay: weight decay of matrices.
        seed: seed of LoRA's initial weights and of `train`.
        **settings: other arguments of `recurformer.train.trainer.train`: steps, batch_size, mixer_learning_rate, …

    Returns:
        The rows of metrics.jsonl.

    Raises:
        ValueError: as `Distillation`, `only_training` and `train` raise.
    """
    objective = Distillation(original, converted, language_model_share)
    with only_training(converted, trained, seed):
        return train(
            converted,
            dataset,
            output_dir=output_dir,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            seed=seed,
            objective=objective,
            **settings,
        )
