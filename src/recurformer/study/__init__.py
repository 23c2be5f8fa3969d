"""A study: the typed configuration of one run of the whole workflow. Unknown keys are refused, every key is described.

Each block is also the settings of one command, which takes them as `--settings`. This package knows neither files nor
models.
"""

from collections.abc import Callable
from math import ceil
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from recurformer.data.sizes import HASH_VOCABULARY, RANDOM_LENGTH, HashHopTokenSizes
from recurformer.study.ablations import Ablations, Change, Continuation, MixerPrices, Needle, Prices, Turns
from recurformer.study.block import Beta, Block, Count, Name, Rate, Seed, Several
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
    MEASURED,
    MIXER_PRICE,
    Copying,
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
    """One conversion and training for each, the ablations' too: new weights and order; the study's seed where there is
    none."""
    copying: Copying | None = None
    """What a random backbone learns before `pretraining`: a small one finds recall in lists, but not in text; absent:
    none."""
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
        """Keys of one backbone are keys of this block, and lists are copied before a training on text alone."""
        if self.copying and not self.pretraining:
            raise ValueError("copying: nothing would be trained after it; give pretraining too, or leave it out")
        for name in self.own:
            self.of(name)
        return self

    def of(self, backbone: str) -> Self:
        """The block as it is for one of its backbones.

        Raises:
            ValueError: in one line, a key of `own` that is wrong.
        """
        shared = {name: value for name, value in self if name not in {"own", *self.own.get(backbone, {})}}
        return self.read(shared | self.own.get(backbone, {}), f"own.{backbone}")


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
    """One conversion and training for each, the ablations' too: new weights, samples and order; the study's seed where
    there is none."""
    evaluation: HashHopEvaluation = HashHopEvaluation()
    """Generation and scoring."""


class Mqar(Block):
    """Multi-query associative recall at every fraction of replaced heads (Figure 4)."""

    task: MqarTask
    """The same for every training, except for the steps of `longer`."""
    learning_rates: Annotated[list[Rate], Field(min_length=1)]
    """Every fraction of replaced heads is trained at each of them."""
    longer: list[tuple[Beta, Rate, Count]] = []
    """Trainings that get more steps, because their loss still falls at the usual number: each is a fraction, a learning
    rate and the factor of the steps. The rate may be one at which no other fraction is trained."""
    seeds: list[Seed] = []
    """One run for each; the study's seed when empty."""

    @model_validator(mode="after")
    def longer_once(self) -> Self:
        """Each training has one number of steps."""
        trainings = [(beta, rate) for beta, rate, _ in self.longer]
        if twice := [training for training in trainings if trainings.count(training) > 1]:
            beta, rate = twice[0]
            raise ValueError(f"longer: {beta:g} at {rate:g} stands there {len(twice)} times; give it once")
        return self


class Study(Block):
    """One study: all settings of the workflow."""

    study: Name
    """Its name, of letters, digits, `_` and `-`: `default` writes to results/ and figures/, any other below them."""
    seed: Seed = 0
    """Seed of everything random."""
    device: Literal["cpu", "gpu"] = "cpu"
    """Device that trains and measures models. With gpu, each such job asks for one GPU, its memory and its time."""
    betas: Annotated[list[Beta], Field(min_length=1)]
    """Fractions of replaced heads. Each is rounded to whole heads, or what `selection.unit` replaces at once; two that
    round alike are both measured. Ablations need 0.0, the original, among them."""
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
        """Check that the blocks fit each other: each of `RULES` names the key which the others do not allow."""
        for check in RULES:
            check(self)
        return self


# Rules between the blocks. A study that breaks one would fail late, or show something else than it says. What a single
# job refuses at once in one line has no rule here.


def _name(study: Study) -> None:
    """The folders of the default study lie beside those of the others."""
    folders = "ablations backbones bench caches corpus device hashhop language logs mqar tables tracking"
    if study.study.lower() in folders.split():
        raise ValueError(f"study: {study.study!r} is the name of a folder of the default study; choose another")
    if "." in study.study:
        raise ValueError(f"study: {study.study!r} could be a file of the default study; leave out the dot")


def _random_backbones(study: Study) -> None:
    """A random backbone knows nothing until it is trained, and no text to be profiled on."""
    for name in study.hashhop.backbones:
        missing = [key for key in ("pretraining", "profiling") if getattr(study.hashhop, key) is None]
        if missing and name in study.backbones and study.backbones[name].source == "random":
            raise ValueError(f"hashhop.{missing[0]}: this key is missing; {name!r} is random and needs it")


def _known(study: Study, key: str, name: str) -> Backbone:
    if name not in study.backbones:
        names = ", ".join(sorted(study.backbones))
        raise ValueError(f"{key}: {name!r} has no entry in backbones (there are: {names})")
    return study.backbones[name]


def _backbones(study: Study) -> None:
    """Every name of a backbone has an entry."""
    for name in study.language.own:
        _known(study, "language.own", name)
    for name in study.language.sink_heads:
        if name not in study.language.backbones:
            raise ValueError(f"language.sink_heads: {name!r} is not in language.backbones; add it there")
    for name in study.caches.measured:
        if name not in study.caches.backbones:
            raise ValueError(f"caches.measured: {name!r} is not in caches.backbones; add it there")
    for name in study.device_measurements.timed:
        _known(study, "device_measurements.timed", name)
    shapes = ("caches", "device_measurements")
    for block in ("language", "hashhop", *shapes):
        for name in getattr(study, block).backbones:
            if _known(study, f"{block}.backbones", name).source == "shape" and block not in shapes:
                raise ValueError(f"{block}.backbones: {name!r} is a shape without weights; name one that has some")


def _batches(study: Study) -> None:
    """Every process of a distributed training gets the same number of samples in every pass."""
    for name, spread in study.distributed.items():
        _known(study, "distributed", name)
        parts = spread.processes * spread.gradient_accumulation
        for task, block in (("language", study.language.of(name)), ("hashhop", study.hashhop)):
            if name in block.backbones and block.training and block.training.batch_size % parts:
                raise ValueError(
                    f"distributed.{name}: processes times gradient_accumulation is {parts};"
                    f" choose a divisor of {task}.training.batch_size {block.training.batch_size}"
                )


def _originals(study: Study) -> None:
    """Ablations have a profile, and on HashHop the original, trained likewise, to be compared with."""
    for task in ("language", "hashhop"):
        for name in getattr(study.ablations, task).backbones:
            if name not in getattr(study, task).backbones:
                raise ValueError(f"ablations.{task}.backbones: {name!r} is not in {task}.backbones; add it there")
    seeds = [("language", study.language.of(name).seeds) for name in study.language.backbones]
    for task, named in [("hashhop", study.hashhop.seeds), *seeds]:
        if named and study.seed not in named:
            raise ValueError(
                f"{task}.seeds: {named} lack the study's seed {study.seed}, which baselines and ablations have; add it"
            )
    if 0 not in study.betas:
        raise ValueError("betas: ablations on HashHop are compared with beta = 0 after the same training; add 0.0")


def _choice_of_heads(study: Study) -> None:
    """Rankings of heads are measured where the choice needs them, and some heads are replaced."""
    for key, selection in (("selection", study.selection), ("mqar.task.selection", study.mqar.task.selection)):
        if selection.by in MEASURED:
            raise ValueError(
                f"{key}.by: {selection.by!r} is measured for ablations only; choose ra_i, mean_rr or a control here"
            )
    ablations, on_text = study.ablations, study.ablations.language
    if MIXER_PRICE in ablations.hashhop.selectors:
        raise ValueError("ablations.hashhop.selectors: mixer_price is measured on text; it is for language.selectors")
    priced = ablations.mixer_prices.mixers[0]
    if MIXER_PRICE in on_text.selectors and priced not in (*on_text.trained, *on_text.untrained):
        raise ValueError(
            f"ablations.language.selectors: mixer_price chooses heads for {priced!r}, the first of mixer_prices.mixers;"
            " add it to trained or untrained"
        )
    if study.selection.scope == "layer" and (study.ablations.language.layers or study.ablations.hashhop.layers):
        raise ValueError("selection.scope: ablations of whole layers rank all of them; choose 'global'")
    for name in study.language.backbones:
        block = study.language.of(name)
        changed = study.ablations.language if name in study.ablations.language.backbones else None
        if block.training is None and (block.betas or (changed and (changed.trained or changed.kv_heads))):
            raise ValueError(f"language.training: this key is missing; {name!r} is trained and needs it")
    if not any(any(study.language.of(name).betas) for name in study.language.backbones):
        raise ValueError("language.betas: Figure 1 needs a model with replaced heads; add a fraction above 0")


def _tokenizers(study: Study) -> None:
    """A random backbone has the tokenizer of its task."""
    for name in study.language.backbones:
        if study.backbones[name].tokenizer == "hash":
            raise ValueError(f"language.backbones: {name!r} reads hashes, not text; give it tokenizer byte or bpe")
    task = study.hashhop.task
    for name in study.hashhop.backbones:
        if study.backbones[name].tokenizer != "hash":
            continue
        if task.form == "text":
            raise ValueError(f"hashhop.task.form: {name!r} reads hashes, not text; choose form tokens")
        vocabulary = study.backbones[name].vocabulary or HASH_VOCABULARY
        if vocabulary != task.vocabulary:
            raise ValueError(
                f"backbones.{name}.vocabulary: {vocabulary} is not the {task.vocabulary} of hashhop.task;"
                " make them the same"
            )


def _lengths(study: Study) -> None:
    """A random backbone is trained before it is measured: a prompt that it cannot read would fail late."""
    ablations = study.ablations
    long = ablations.long_inputs and ablations.long_inputs.continuation
    blocks = {"continuation": ablations.continuation, "long_inputs.continuation": long}
    blocks |= {key: getattr(ablations, key) for key in ("positions", "written")}
    for name in ablations.language.backbones:
        for key, block in blocks.items():
            if block and study.backbones[name].source == "random" and block.prompt + block.tokens > RANDOM_LENGTH:
                raise ValueError(
                    f"ablations.{key}: prompt and tokens are {block.prompt + block.tokens:,} together; {name!r} is"
                    f" random and reads {RANDOM_LENGTH:,}"
                )


def _windows(study: Study) -> None:
    """A window as long as its sample would make every head recency-aware."""
    longest = max(study.ablations.recency.windows)
    tokens = min(study.language.of(name).profiling.tokens for name in study.ablations.language.backbones)
    if longest >= tokens:
        raise ValueError(
            f"ablations.recency.windows: {longest} must be below the {tokens} tokens of language.profiling"
        )
    sizes = study.hashhop.task.sizes(study.hashhop.evaluation.variants[0])
    if study.hashhop.profiling and isinstance(sizes, HashHopTokenSizes):
        window = study.hashhop.profiling.window
        if window >= sizes.length:
            raise ValueError(f"hashhop.profiling.window: {window} must be below the {sizes.length} tokens of a sample")


def _recoveries(study: Study) -> None:
    """Recipes have names of their own, and models with a recovery curve are trained in one process."""
    blocks = {name: study.language.of(name) for name in study.language.backbones}
    if not any(block.recovery for block in blocks.values()):
        return
    for backbone, language in blocks.items():
        if language.recovery is None:
            raise ValueError(
                f"language.recovery: {backbone!r} has none, but others measure curves; give it to all or none"
            )
        if backbone in study.distributed:
            raise ValueError(f"language.recovery: {backbone!r} is trained by several processes, which measure no curve")
        for name, arm in language.recovery.arms.items():
            if language.training is None:
                raise ValueError(f"language.training: this key is missing; recovery.arms.{name} needs it")
            key, batch = f"language.recovery.arms.{name}", language.training.batch_size
            if name in {"original", "paper"}:
                raise ValueError(f"{key}: this is the name of a training of its own; choose another")
            steps = arm.steps or language.training.steps
            if arm.transfer_steps + ceil(arm.calibrate_windows / batch) > steps:
                raise ValueError(
                    f"{key}: the closed form and transfer take more than its {steps} steps of {batch} windows"
                )


RULES: tuple[Callable[[Study], None], ...] = (
    _name, _random_backbones, _backbones, _batches, _originals, _choice_of_heads, _tokenizers, _lengths, _windows,
    _recoveries,
)  # fmt: skip
"""In this order: the later ones rely on the earlier ones."""
