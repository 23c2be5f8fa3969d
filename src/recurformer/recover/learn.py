"""Training that brings a converted model back: layerwise transfer, then distillation, of chosen parameters.

Transfer: all mixers at once learn the outputs that their heads had in the original. Each reads the original's own
inputs of its layer, so no error of one layer reaches another, and the backward pass crosses neither MLPs nor the
language-model head. It is the second stage of MOHAWK (arXiv 2408.10189) and the first of RADLADS (arXiv 2505.03005).
The error is measured after the output projection, relative to the heads' contribution.

Distillation: the whole converted model learns the original's predictions (Hinton et al., arXiv 1503.02531).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from recurformer.data import IGNORED
from recurformer.data.datasets import Item
from recurformer.heads.attention import logits_of, reading
from recurformer.measure.language import divergence
from recurformer.recover.pair import PLACES, relative_error, replaced_layers
from recurformer.recover.recipe import TOKENS
from recurformer.train.checkpoints import fingerprint
from recurformer.train.optimiser import in_mixer
from recurformer.train.trainer import train

LORA_RANK = 8
LORA_TARGETS = r".*\.layers\.\d+\.(self_attn|mlp)\.\w+_proj"
"""Projections of retained heads and MLPs; a mixer's own lie one level deeper."""


TRAINED: dict[str, Callable[[str], bool]] = {
    "mixers": in_mixer,
    "attention": lambda name: ".self_attn." in name,
    "lora": lambda name: in_mixer(name) or "lora_" in name,
    "all": lambda name: True,
}
"""Whether a parameter of that name is trained: the mixers alone, whole attention layers with them, mixers in full and
all other projections by LoRA (arXiv 2106.09685), or everything."""


@contextmanager
def only_training(model: PreTrainedModel, trained: str, seed: int = 0) -> Iterator[None]:
    """Freeze the rest of a model while the block runs; adapters of LoRA are merged when it ends.

    Args:
        model: a converted model, changed in place.
        trained: a name in `TRAINED`.
        seed: of the adapters' initial weights.

    Raises:
        ValueError: an unknown name of `TRAINED`, weights in half precision, nothing to train, or LoRA without the
            package peft.
    """
    if trained not in TRAINED:
        raise ValueError(f"trained: {trained!r} is unknown; there are {', '.join(TRAINED)}")
    if model.dtype in {torch.float16, torch.bfloat16}:
        raise ValueError(f"converted: its weights are {model.dtype}, too coarse for small steps; load it in float32")
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    if trained == "mixers" and not any(map(in_mixer, before)):
        raise ValueError(f"mixer {model.config.mixer!r} has no parameters: there is nothing to train")
    adapters: Any = _adapt(model, seed) if trained == "lora" else None
    try:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(TRAINED[trained](name))
        yield
    finally:
        if adapters is not None:
            adapters.merge_and_unload()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(before[name])


def _adapt(model: PreTrainedModel, seed: int) -> Any:
    """Put LoRA adapters around the projections, in place."""
    try:
        from peft import LoraConfig
        from peft.tuners.lora import LoraModel
    except ImportError:
        raise ValueError("trained: lora needs the package peft, which is not installed") from None
    settings = LoraConfig(r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules=LORA_TARGETS)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LoraModel(model, settings, "default")


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
        errors = []
        for place, (_, arguments), ((outputs,), _) in zip(self.places, calls, heads, strict=True):
            ours = place.converted.replaced_outputs(arguments["hidden_states"], arguments["position_embeddings"])
            errors.append(relative_error(ours, outputs[..., place.features], place.output_weight.detach()))
        return torch.stack(errors)


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
        dataset: windows without padding, such as `recurformer.data.datasets.WindowDataset`.
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


class Distillation:
    """Mean divergence from the original's predictions, in nats per token; an `Objective`.

    Args:
        original: the model that `converted` was converted from.
        converted: the model that learns.
        language_model_share: weight of the language-model loss, 0 to 1; the divergence has the rest.

    Raises:
        ValueError: the two models are not a pair, or the fraction is outside [0, 1].
    """

    def __init__(
        self, original: PreTrainedModel, converted: PreTrainedModel, language_model_share: float = 0.0
    ) -> None:
        if not 0 <= language_model_share <= 1:
            raise ValueError(f"language_model_share: {language_model_share} must lie in [0, 1]")
        replaced_layers(original, converted)
        self.original, self.fraction = original, language_model_share

    def identity(self) -> dict[str, Any]:
        """The facts that a resumed run must share with the killed one."""
        return {"name": "distillation", "original": fingerprint(self.original), "fraction": self.fraction}

    def __call__(self, model: PreTrainedModel, batch: Item) -> Tensor:
        """The value for one batch; scalar. Padding, 0 in its attention_mask, does not count."""
        if self.fraction == 1:
            return model(**batch, use_cache=False).loss
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        ours = model.base_model(**inputs, use_cache=False).last_hidden_state  # (B, L, hidden)
        with torch.no_grad():
            theirs = self.original.base_model(**inputs, use_cache=False).last_hidden_state
        real = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
        values = [ours, theirs, (1 - self.fraction) * real / real.sum()]
        if self.fraction:
            following = F.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)
            told = following != IGNORED
            values += [self.fraction * told / told.sum(), following]
        if ours.shape[1] <= TOKENS:
            return self._cost(model, *values)
        # Logits of a long window fill the memory: those of each part are made again for its gradient.
        parts = zip(*(value.split(PLACES, 1) for value in values), strict=True)
        return torch.stack([checkpoint(self._cost, model, *part, use_reentrant=False) for part in parts]).sum()

    def _cost(
        self,
        model: PreTrainedModel,
        ours: Tensor,
        theirs: Tensor,
        weights: Tensor,
        told: Tensor | None = None,
        following: Tensor | None = None,
    ) -> Tensor:
        """What some tokens add to the value: their divergences, and their language-model losses where these count.

        Args:
            model: the converted one.
            ours: its last states, (B, L, hidden).
            theirs: those of the original.
            weights: of the divergences, (B, L).
            told: of the losses, likewise.
            following: the tokens that follow, (B, L).
        """
        said = logits_of(model, ours)  # (B, L, V)
        with torch.no_grad():
            expected = logits_of(self.original, theirs)
        cost = (weights * divergence(said, expected)).sum()
        if told is None or following is None:
            return cost
        losses = F.cross_entropy(said.float().mT, following, reduction="none", ignore_index=IGNORED)
        return cost + (told * losses).sum()


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
        dataset: windows, such as `recurformer.data.datasets.WindowDataset`.
        output_dir: folder for metrics.jsonl and checkpoints.
        trained: the parameters that learn: "mixers" alone; "attention", whole attention layers; "lora", mixers and, by
            LoRA, all other projections; or "all".
        language_model_share: share of the ordinary language-model loss in what is minimised; the rest is the divergence
            from the original.
        learning_rate: peak learning rate.
        weight_decay: weight decay of matrices.
        seed: seed of LoRA's initial weights and of the model's random operations.
        **settings: steps and batch_size, and other arguments of `recurformer.train.trainer.train`.

    Returns:
        The rows of metrics.jsonl: loss on the training windows by step. Nothing is measured on others.

    Raises:
        ValueError: an unknown name of parameters, weights in half precision, mixers without parameters, models of
            different sizes, a setting that `train` refuses, or a loss that is not finite.
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
