"""The scores of heads that are measured on the model, by name; the highest is replaced first."""

from collections.abc import Callable

from torch import Tensor
from transformers import PreTrainedModel

from recurformer.heads.probes import Probes
from recurformer.heads.repeated import echo_scores, induction_scores
from recurformer.heads.retrieval import retrieval_scores
from recurformer.heads.run import Progress
from recurformer.heads.sensitivity import sensitivity_scores
from recurformer.study import HeadScores


def _retrieval(model: PreTrainedModel, probes: Probes, settings: HeadScores, progress: Progress) -> Tensor:
    return retrieval_scores(model, *probes.lookups(), settings.minimum_accuracy, progress)


def _echo(model: PreTrainedModel, probes: Probes, settings: HeadScores, progress: Progress) -> Tensor:
    return echo_scores(model, *probes.repeats(), progress)


def _induction(model: PreTrainedModel, probes: Probes, settings: HeadScores, progress: Progress) -> Tensor:
    return induction_scores(model, *probes.repeats(), progress)


def _sensitivity(model: PreTrainedModel, probes: Probes, settings: HeadScores, progress: Progress) -> Tensor:
    return sensitivity_scores(model, *probes.language(), settings.window_tokens, settings.sink_tokens, progress)


SCORES: dict[str, Callable[[PreTrainedModel, Probes, HeadScores, Progress], Tensor]] = {
    "retrieval": _retrieval,
    "echo": _echo,
    "induction": _induction,
    "sensitivity": _sensitivity,
}
