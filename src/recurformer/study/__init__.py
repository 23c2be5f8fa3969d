"""A study: the typed configuration of one run of the whole workflow. Unknown keys are refused, every key is described.

Each block is also the settings of one command, which takes them as `--settings`. This package knows neither files nor
models.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from recurformer.study.ablations import Ablations, Change, Continuation, MixerPrices, Needle, Prices, Turns
from recurformer.study.agreement import check_agreement
from recurformer.study.block import Beta, Block, Name, Rate, Seed, Several, refusal
from recurformer.study.inputs import Backbone, Corpus
from recurformer.study.measurements import (
    Caches,
    DeviceMeasurements,
    HashHopEvaluation,
    HashHopTask,
    MqarTask,
    Perplexity,
    Search,
    SinkHead,
    Sizes,
    Speed,
    Tasks,
    TextWindows,
)
from recurformer.study.method import (
    Distributed,
    HeadScores,
    Mamba,
    Profiling,
    RecencyRatio,
    RecencySettings,
    Recipe,
    Recovery,
    Selection,
    Training,
    Window,
)


class Language(Block):
    """Continual training and perplexity on Wikipedia (Table 3, Figure 3), and all head profiles on text."""

    backbones: Annotated[list[str], Field(min_length=1)]
    """Names in `backbones`; a random one may first be trained on the text."""
    own: dict[Name, dict[str, Any]] = {}
    """Keys of this block that are others for one backbone, by its name."""
    betas: list[Beta] = []
    """Fractions of replaced heads in the continual training; 0 is the original, trained with the same recipe. None: no
    training."""
    seeds: list[Seed] = []
    """One conversion and training for each: new weights and order; the study's seed where there is none."""
    pretraining: Training | None = None
    """Training of a random backbone on the text, before it is profiled and converted; absent: none."""
    profiling: Profiling
    """Head profile: Figure 6 and the choice of heads."""
    maps: TextWindows
    """Attention maps and contributions: Figure 5 and Table 5."""
    beginnings: TextWindows
    """The first tokens of texts, with the value norms, weights and contributions of Figures 1 and 2."""
    sink_heads: dict[str, SinkHead] = {}
    """Heads that Figure 2 shows, by backbone. Default: the head that gives the first token the most attention."""
    tokens: Several
    """Length of a training window."""
    training: Training | None = None
    """The same recipe for every fraction of replaced heads; needed where there is one."""
    recovery: Recovery | None = None
    """Quality during the training, and recipes other than the paper's; absent: not measured."""
    perplexity: Perplexity
    """Perplexity before and after."""
    tasks: Tasks = Tasks()
    """Downstream tasks of the trained models."""

    @model_validator(mode="after")
    def own_keys_fit(self) -> Self:
        """Keys of one backbone are keys of this block."""
        for name in self.own:
            self.of(name)
        return self

    def of(self, backbone: str) -> Self:
        """The block as it is for one of its backbones.

        Raises:
            ValueError: in one line, a key of `own` that is wrong.
        """
        shared = {name: value for name, value in self if name not in {"own", *self.own.get(backbone, {})}}
        try:
            return type(self).model_validate(shared | self.own.get(backbone, {}))
        except ValidationError as error:
            raise ValueError(refusal(type(self), error, f"own.{backbone}")) from None


class HashHop(Block):
    """Generation quality h_gq on HashHop (Tables 2 and 4)."""

    backbones: Annotated[list[str], Field(min_length=1)]
    """Names in `backbones`; a random one is first trained on the task."""
    task: HashHopTask = HashHopTask()
    """The task's sizes."""
    pretraining: Training | None = None
    """Training of a random backbone, before it is profiled and converted; needed when there is one."""
    profiling: RecencyRatio | None = None
    """Head profile of a random backbone, on task samples; needed when there is one. Others are profiled on text."""
    training: Training
    """Continual training, the same for every fraction of replaced heads."""
    seeds: list[Seed] = []
    """One conversion and training for each: new weights, samples and order; the study's seed where there is none."""
    evaluation: HashHopEvaluation = HashHopEvaluation()
    """Generation and scoring."""


class Mqar(Block):
    """Multi-query associative recall at every fraction of replaced heads (Figure 4)."""

    task: MqarTask
    """The same for every fraction, except for the steps of `doubled`."""
    learning_rates: Annotated[list[Rate], Field(min_length=1)]
    """Every fraction of replaced heads is trained at each of them."""
    doubled: list[Beta] = []
    """Fractions that are trained for twice the steps: they fail at the usual number while their loss still falls."""
    seeds: list[Seed] = []
    """One run for each; the study's seed when empty."""


class Study(Block):
    """One study: all settings of the workflow."""

    study: Name
    """Its name, of letters, digits, `_` and `-`: `default` writes to results/ and figures/, any other below them."""
    seed: Seed = 0
    """Seed of everything random."""
    device: Literal["cpu", "gpu"] = "cpu"
    """Device that trains and measures models. With gpu, each such job asks for one GPU, its memory and its time."""
    betas: Annotated[list[Beta], Field(min_length=1)]
    """Fractions of replaced heads."""
    evaluation_dtype: Literal["float32", "bfloat16"] | None = None
    """Type of the weights with which trained models and the models beside them are measured; absent: the saved type,
    float32 for trained models."""
    backbones: dict[Name, Backbone]
    """All Transformers of the study, by name: letters, digits, `.`, `_` and `-`."""
    corpus: Corpus
    """The text."""
    selection: Selection = Selection()
    """Choice of heads; MQAR has its own."""
    mamba: Mamba = Mamba()
    """The block that replaces heads."""
    language: Language
    """Measurements on Wikipedia."""
    hashhop: HashHop
    """Measurements on HashHop."""
    mqar: Mqar
    """Measurements on MQAR."""
    caches: Caches
    """Cache sizes and memory."""
    distributed: dict[str, Distributed] = {}
    """Backbones, by name, whose trainings run over several processes; all others use one process."""
    ablations: Ablations
    """Experiments that the reviewers asked for; the target `ablations` runs them, `all` does not."""
    device_measurements: DeviceMeasurements = DeviceMeasurements()
    """Caches and speed, measured on a device."""

    @model_validator(mode="after")
    def blocks_agree(self) -> Self:
        """Check that the blocks fit each other."""
        check_agreement(self)
        return self


def load_study(settings: Mapping[str, Any]) -> Study:
    """The study that `settings` describe.

    Raises:
        ValueError: in one line, a key that is unknown, missing or out of its range, its value and the right ones.
    """
    try:
        return Study.model_validate(settings)
    except ValidationError as error:
        raise ValueError(refusal(Study, error)) from None
