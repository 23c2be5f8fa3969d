"""How much a model needs each head to look a value up by its key: ablation on a probe, as Retrieval-Aware Distillation
(arXiv 2602.11374) chooses the heads that it keeps.
"""

import sys

import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurformer.heads.replaced import loss_rises
from recurformer.heads.run import Progress
from recurformer.tasks.labels import IGNORED


@torch.no_grad()
def lookup_accuracy(model: PreTrainedModel, input_ids: Tensor, labels: Tensor) -> float:
    """Share of the labels (aligned with input_ids, -100 where nothing is asked) that the model finds most likely."""
    asked = labels[:, 1:] != IGNORED
    hidden = model.base_model(input_ids.to(model.device), use_cache=False).last_hidden_state[:, :-1]
    found = model.get_output_embeddings()(hidden[asked.to(model.device)]).argmax(-1).cpu()
    return float((found == labels[:, 1:][asked]).double().mean())


def _nothing(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    return torch.zeros_like(query).transpose(1, 2)


def retrieval_scores(
    model: PreTrainedModel,
    input_ids: Tensor,
    labels: Tensor,
    minimum_accuracy: float = 0.5,
    progress: Progress = None,
) -> Tensor:
    """Minus the rise of the looked-up values' loss when a head's output is zero: (layers, heads), nats, float64.

    Args:
        model: see `loss_rises`.
        input_ids: prompts with the values that are asked, (samples, L) without padding.
        labels: (samples, L), the asked values at their places, -100 elsewhere.
        minimum_accuracy: share of the values that the model must find as it is.
        progress: called with (layers done, layers).

    Raises:
        ValueError: the model knows too few of the values for an ablation to say something.
    """
    accuracy = lookup_accuracy(model, input_ids, labels)
    if accuracy < minimum_accuracy:
        raise ValueError(
            f"retrieval: with all its heads the model looks up {accuracy:.0%} of the values, below "
            f"minimum_accuracy={minimum_accuracy}: list fewer pairs, or lower it"
        )
    print(f"retrieval: with all its heads the model looks up {accuracy:.0%} of the values", file=sys.stderr, flush=True)
    return -loss_rises(model, input_ids, labels, _nothing, progress)
