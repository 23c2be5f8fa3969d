"""A study: the typed configuration of one run of the whole workflow. Unknown keys are refused, every key is described.

Each block below is also the settings of one command: `cli.arguments` turns its keys into flags and their descriptions
into `--help`. This module knows neither files nor models.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]


class Block(BaseModel):
    """A group of settings: immutable, and a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Backbone(Block):
    """Where a pretrained Transformer comes from, before any conversion."""

    source: Literal["wheel", "shape", "random", "hub"]
    """wheel: SmolLM2 from the package index; shape: a published shape, no weights; random: initialised here; hub."""
    shape: str | None = None
    """For all sources but `random`: the name of the published shape, such as llama2-7b."""
    repo: str | None = None
    """For `hub`: owner/name of the checkpoint."""
    revision: str | None = None
    """For `hub`: the pinned commit."""
    architecture: Literal["llama", "qwen2", "mistral"] | None = None
    """For `random`: the architecture, and below it its sizes."""
    hidden_size: Count | None = None
    """For `random`: the width of the residual stream."""
    layers: Count | None = None
    """For `random`: the number of decoder layers."""
    heads: Count | None = None
    """For `random`: query heads in a layer."""
    kv_heads: Count | None = None
    """For `random`: key-value heads in a layer."""
    head_dim: Count | None = None
    """For `random`: the size of a head."""
    intermediate_size: Count | None = None
    """For `random`: the width of the feed-forward layer."""
    initializer_range: Rate | None = None
    """For `random`: the standard deviation of the initial weights."""
    tokenizer: Literal["byte", "hash"] | None = None
    """For `random`: byte for text, hash for HashHop with one token a hash."""
    vocabulary: Count | None = None
    """For `random` with hash tokens: different tokens, the same as in the task."""
    seed: int | None = None
    """For `random`: the seed of the initial weights."""

    @model_validator(mode="after")
    def complete(self) -> Self:
        """Every source has the keys that it needs."""
        needed = {
            "wheel": ("shape",),
            "shape": ("shape",),
            "hub": ("repo", "revision", "shape"),
            "random": ("architecture", "hidden_size", "layers", "heads", "kv_heads", "head_dim", "tokenizer"),
        }[self.source]
        missing = [key for key in needed if getattr(self, key) is None]
        if missing:
            raise ValueError(f"source {self.source!r} needs {', '.join(missing)}")
        return self


class Corpus(Block):
    """English Wikipedia articles, split by article."""

    source: Literal["wheel", "hub"]
    """wheel: the excerpt of the dump that the gensim wheel carries; hub: wikimedia/wikipedia."""
    minimum_characters: Count = 8000
    """Shorter articles are left out, after the markup is gone."""
    validation_share: Share = 0.2
    """Share of the articles that no training sees."""
    articles: Count | None = None
    """For `hub`: how many articles are drawn."""
    revision: str | None = None
    """For `hub`: the pinned commit of the dataset."""

    @model_validator(mode="after")
    def complete(self) -> Self:
        """The hub needs to be told what to draw."""
        if self.source == "hub" and (self.articles is None or self.revision is None):
            raise ValueError("source 'hub' needs articles and revision")
        return self


class Profiling(Block):
    """How recency ratios are measured (equation 1, appendix B)."""

    samples: Count
    """Windows of text (or task samples) over which heads are profiled."""
    tokens: Count
    """Length of a window in tokens."""
    window: Count
    """k of equation 1: a key at most this far from its query is recent."""
    threshold: Share = 0.5
    """alpha: a sample counts towards a head's RA-I when its recency ratio exceeds this."""


class Selection(Block):
    """Which heads are replaced."""

    unit: Literal["kv_group", "head"] = "kv_group"
    """kv_group: whole query groups, so that their KV heads are freed; head: single query heads, as the text says."""
    scope: Literal["global", "layer"] = "global"
    """global: ranked over all layers; layer: the same share in each layer."""
    by: str = "ra_i"
    """The ranking, a name in recurformer.heads.select.SELECTORS."""


class Mamba(Block):
    """The Mamba block (appendix B)."""

    d_state: Count = 16
    """State size of each channel."""
    d_conv: Count = 4
    """Width of the causal convolution."""
    expand: Count = 2
    """Inner width over the width of the replaced heads."""
    dt_rank: Count = 256
    """Rank of the step-size projection."""


class Training(Block):
    """One training run."""

    steps: Count
    """Optimiser steps."""
    batch_size: Count
    """Samples in one optimiser step."""
    learning_rate: Rate
    """Peak learning rate."""
    mamba_learning_rate: Rate | None = None
    """Peak learning rate of the Mamba blocks; the same as the others' when absent."""
    schedule: Literal["one_cycle", "cosine", "constant"] = "cosine"
    """Shape of the learning rate over the steps."""
    warmup_share: Share = 0.1
    """Share of the steps over which the learning rate rises."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """AdamW's weight decay."""
    gradient_clip: Rate = 1.0
    """Largest norm of the gradient."""
    log_every: Count = 10
    """Steps between two lines of metrics.jsonl."""
    save_every: Count = 200
    """Steps between two checkpoints to resume from."""


class Maps(Block):
    """Averaged attention maps and value contributions (Figures 1, 2 and 5, Table 5)."""

    samples: Count
    """Windows of text."""
    tokens: Count
    """Length of a window in tokens."""
    sink_tokens: Count = 32
    """Tokens shown in Figure 2, and around the query in Figure 1."""


class Perplexity(Block):
    """Perplexity on held-out articles (Table 3)."""

    tokens: Count
    """Length of a window; each token but the first is predicted once."""
    windows: Count | None = None
    """Windows of each article; all of them when absent."""


class Tasks(Block):
    """lm-eval tasks, run by lm-eval's own HFLM."""

    names: list[str] = []
    """`passkey`, `hashhop` and `wikipedia` run without a hub; any other name is one of lm-eval's own."""
    samples: Count | None = None
    """Samples of each task; all of them when absent."""
    tokens: Count = 1024
    """Length of a passkey prompt, and of the window that `wikipedia` shows the model."""


class Language(Block):
    """Continual training and perplexity on Wikipedia (Table 3, Figure 3), and all that profiles heads on text."""

    backbones: Annotated[list[str], Field(min_length=1)]
    """Names in `backbones`."""
    betas: Annotated[list[Share], Field(min_length=1)]
    """Shares of heads replaced in the continual training; 0 is the original, trained likewise."""
    profiling: Profiling
    """Head profile: Figure 6 and the choice of heads."""
    maps: Maps
    """Attention maps and contributions."""
    tokens: Count
    """Length of a training window."""
    training: Training
    """The same recipe for every share of replaced heads."""
    perplexity: Perplexity
    """Perplexity before and after."""
    tasks: Tasks = Tasks()
    """Downstream tasks of the trained models."""


class HashHopTask(Block):
    """The chains that must be followed (section 4.1, appendix A.1)."""

    form: Literal["tokens", "text"] = "tokens"
    """tokens: one token a hash, for small models; text: hashes of letters, for pretrained language models."""
    hops: Count = 8
    """h_p: links of the chain that must be reproduced."""
    vocabulary: Count = 128
    """For `tokens`: different hashes."""
    chains: Count = 2
    """For `tokens`: full chains in the official variant."""
    pairs: Count = 16
    """For `tokens`: pairs in the prompt."""
    hash_length: Count = 8
    """For `text`: h_e, letters of a hash."""
    characters: Count = 6144
    """For `text`: h_l, characters of the prompt."""
    paper_share: Share = 0.0
    """Share of the training samples in the paper's layout: one chain among lone pairs."""


class HashHopEvaluation(Block):
    """How h_gq is measured."""

    variants: Annotated[list[Literal["official", "paper"]], Field(min_length=1)] = ["official", "paper"]
    """Layouts: several full chains, or one chain among lone pairs (appendix A.1)."""
    samples: Count = 256
    """Test samples of each variant."""


class HashHop(Block):
    """Generation quality h_gq on HashHop (Tables 2 and 4)."""

    backbones: Annotated[list[str], Field(min_length=1)]
    """Names in `backbones`; a random one is first trained on the task."""
    task: HashHopTask = HashHopTask()
    """The task's sizes."""
    pretraining: Training
    """Training of a random backbone, before it is profiled and converted."""
    profiling: Profiling
    """Head profile on task samples. `tokens` is not used: a prompt has the length it has."""
    training: Training
    """Continual training, the same for every share of replaced heads."""
    evaluation: HashHopEvaluation = HashHopEvaluation()
    """Generation and scoring."""


class MqarTask(Block):
    """One run on multi-query associative recall: the model, the samples, the recipe."""

    hidden_size: Count = 128
    """Width of the randomly initialised Transformer."""
    layers: Count = 2
    """Its decoder layers."""
    heads: Count = 8
    """Its query heads in a layer."""
    kv_heads: Count = 4
    """Its key-value heads in a layer."""
    head_dim: Count = 32
    """The size of its heads."""
    vocabulary: Count = 512
    """Tokens: the lower half are keys, the upper half values."""
    train: list[tuple[int, int]]
    """Trained slices: (tokens, pairs)."""
    curriculum_share: Share = 0.0
    """Share of the steps over which the slices join, in their order; with 0 all are there from the first step."""
    test: list[tuple[int, int]]
    """Tested slices: (tokens, pairs)."""
    test_samples: Count = 64
    """Samples of each tested slice."""
    training: Training
    """The recipe, at the learning rates of the sweep. `batch_size` counts samples of the longest slice; of shorter ones
    a batch has as many more as make the same number of tokens."""
    selection: Selection = Selection(unit="head", scope="layer")
    """The text selects heads in each layer."""


class Mqar(Block):
    """Multi-query associative recall at every share of replaced heads (Figure 4)."""

    task: MqarTask
    """The same for every share."""
    learning_rates: Annotated[list[Rate], Field(min_length=1)]
    """Every share of replaced heads is trained at each of them."""
    seeds: Annotated[list[int], Field(min_length=1)] = [0]
    """One run for each."""


class Sizes(Block):
    """What is counted and computed for every shape."""

    lengths: list[Count] = [10240, 61440]
    """Tokens in the cache: cs_10k and cs_60k."""
    units: list[Literal["kv_group", "head"]] = ["kv_group", "head"]
    """Selection units that are compared."""
    memory_gib: Rate = 80.0
    """Memory of the card for which the longest input is computed."""
    growth_lengths: list[Count] = [1024, 2048, 4096, 8192, 16384]
    """Lengths over which growth exponents are fitted (Table 1)."""


class Caches(Block):
    """Cache sizes, memory model and growth exponents (Tables 1, 2 and 4)."""

    backbones: Annotated[list[str], Field(min_length=1)]
    """Names in `backbones`; only their shapes are used."""
    sizes: Sizes = Sizes()
    """The same for all of them."""


class Study(Block):
    """One study: all that the workflow needs to know."""

    study: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]
    """Its name: `default` writes to results/ and figures/, any other below them."""
    seed: int = 0
    """Seed of all that is drawn at random."""
    betas: Annotated[list[Share], Field(min_length=1)]
    """Shares of heads replaced."""
    backbones: dict[str, Backbone]
    """Every Transformer that the study speaks of, by name."""
    corpus: Corpus
    """The text."""
    selection: Selection = Selection()
    """Choice of heads everywhere but in MQAR."""
    mamba: Mamba = Mamba()
    """The block that replaces heads."""
    language: Language
    """Wikipedia."""
    hashhop: HashHop
    """HashHop."""
    mqar: Mqar
    """MQAR."""
    caches: Caches
    """Sizes."""

    @model_validator(mode="after")
    def name_free(self) -> Self:
        """The folders of the default study lie beside those of the others."""
        taken = {"backbones", "benchmarks", "caches", "corpus", "hashhop", "language", "logs", "mqar", "tables"}
        if self.study in taken:
            raise ValueError(f"study: {self.study!r} is the name of a folder of the default study; choose another")
        return self

    @model_validator(mode="after")
    def names_known(self) -> Self:
        """Every name of a backbone has an entry."""
        for block in ("language", "hashhop", "caches"):
            for name in getattr(self, block).backbones:
                if name not in self.backbones:
                    known = ", ".join(sorted(self.backbones))
                    raise ValueError(f"{block}.backbones: {name!r} has no entry in backbones (there are: {known})")
                if block != "caches" and self.backbones[name].source == "shape":
                    raise ValueError(f"{block}.backbones: {name!r} is a shape without weights; name one that has some")
        return self


def load_study(settings: Mapping[str, Any]) -> Study:
    """The study that `settings` describe.

    Raises:
        ValueError: in one line, a key that is unknown, missing or out of its range, its value and what would be right.
    """
    try:
        return Study.model_validate(settings)
    except ValidationError as error:
        # An unknown key is often the misspelt name of a missing one: say it first.
        first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
        key = ".".join(str(part) for part in first["loc"])
        value = "" if first["type"] in {"missing", "extra_forbidden"} or not key else f" = {first['input']!r}"
        message = {"extra_forbidden": "unknown key", "missing": "this key is missing"}.get(first["type"], first["msg"])
        raise ValueError(f"study: {key}{value}: {message}" if key else f"study: {message}") from None
