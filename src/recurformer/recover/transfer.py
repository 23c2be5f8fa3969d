"""Layerwise transfer: all mixers at once learn the outputs that their heads had in the original.

Each mixer reads the original's own inputs of its layer, so no error of one layer reaches another, and the backward pass
crosses neither MLPs nor the language-model head. Second stage of MOHAWK (arXiv 2408.10189), first of RADLADS (arXiv
2505.03005). The error is measured after the output projection, relative to the heads' contribution.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from recurformer.heads.attention import reading
from recurformer.recover.pair import ReplacedLayer, relative_error, replaced_layers
from recurformer.recover.trained import only_training
from recurformer.train.checkpoints import fingerprint
from recurformer.train.data import Item
from recurformer.train.trainer import train


class Transfer:
    """Mean relative error over the layers; an `Objective`.

    Args:
        original: the model that `converted` was converted from.
        converted: the model that learns.
    """

    def __init__(self, original: PreTrainedModel, converted: PreTrainedModel) -> None:
        self.original, self.places = original, replaced_layers(original, converted)

    def identity(self) -> dict[str, Any]:
        """The facts that a resumed run must share with the killed one."""
        return {"name": "transfer", "original": fingerprint(self.original)}

    def __call__(self, model: PreTrainedModel, batch: Item) -> Tensor:
        """The value for one batch; scalar.

        Raises:
            ValueError: the windows have padding.
        """
        if "attention_mask" in batch:
            raise ValueError("transfer: the windows of a batch differ in length; give windows without padding")
        return self.errors(batch["input_ids"]).mean()

    def errors(self, input_ids: Tensor) -> Tensor:
        """The relative error of each layer with replaced heads, (layers,), on the original's inputs (B, L)."""
        attentions = [place.original for place in self.places]
        projections = [attention.o_proj for attention in attentions]
        with torch.no_grad(), reading(attentions) as calls, reading(projections) as heads:
            self.original.base_model(input_ids, use_cache=False)
        return torch.stack(
            [
                self._error(place, arguments, outputs)
                for place, (_, arguments), ((outputs,), _) in zip(self.places, calls, heads, strict=True)
            ]
        )

    @staticmethod
    def _error(place: ReplacedLayer, arguments: dict[str, Any], heads: Tensor) -> Tensor:
        ours = place.converted.replaced_outputs(arguments["hidden_states"], arguments["position_embeddings"])
        return relative_error(ours, heads[..., place.features], place.output_weight.detach())


def transfer(
    original: PreTrainedModel,
    converted: PreTrainedModel,
    dataset: Dataset,
    *,
    output_dir: str | Path,
    learning_rate: float = 2e-3,
    weight_decay: float = 0.0,
    **settings: Any,
) -> pd.DataFrame:
    """Train only the mixers, in place. Interrupted, the same call resumes from the last checkpoint.

    Args:
        original: the model that `converted` was converted from; not changed.
        converted: its mixers have parameters.
        dataset: windows without padding, such as `recurformer.train.data.WindowDataset`.
        output_dir: folder for metrics.jsonl, whose loss is the mean relative error, and checkpoints.
        learning_rate: peak learning rate.
        weight_decay: weight decay of the mixers' matrices.
        **settings: other arguments of `recurformer.train.trainer.train`: steps, batch_size, seed, …

    Returns:
        The rows of metrics.jsonl.

    Raises:
        ValueError: two models that are not a pair (`replaced_layers`), mixers without parameters, or as `train` raises.
    """
    with only_training(converted, "mixers"):
        return train(
            converted,
            dataset,
            output_dir=output_dir,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            objective=Transfer(original, converted),
            **settings,
        )
