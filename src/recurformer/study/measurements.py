"""The settings of what is measured: tasks, maps, perplexity, sizes."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from recurformer.study.block import NUMBER, Block, Count, Index, Rate, Several, Share, Text
from recurformer.study.inputs import check_heads
from recurformer.study.method import Selection, Training
from recurformer.tasks.sizes import HashHopTextSizes, HashHopTokenSizes, check_mqar

# flags are words, and a choice of numbers does not turn them into numbers by itself
RulerLength = Annotated[Literal[4096, 8192, 16384, 32768, 65536, 131072], BeforeValidator(int)]


class Maps(Block):
    """Averaged attention maps and value contributions (Figures 1, 2 and 5, Table 5)."""

    samples: Several
    """Windows of text."""
    tokens: Several
    """Length of a window in tokens."""
    sink_tokens: Several = 32
    """Tokens shown in Figure 2, and around the query in Figure 1."""


class SinkHead(Block):
    """The head that Figure 2 shows of a backbone."""

    layer: Index | None = None
    """Its layer, counted from 0. Without layer and head: the head that gives the first token the most attention."""
    head: Index | None = None
    """Its place among the layer's query heads, counted from 0."""

    @model_validator(mode="after")
    def whole(self) -> Self:
        """A layer has many heads, and a head's number is one in every layer."""
        if (self.layer is None) != (self.head is None):
            raise ValueError(f"layer {self.layer} and head {self.head}: give both or neither")
        return self


class Perplexity(Block):
    """Perplexity on held-out articles (Table 3)."""

    tokens: Several
    """Length of a window; each token but the first is predicted once."""
    windows: Count | None = None
    """Windows of each article; all of them when absent."""
    bos: bool | None = None
    """Whether a beginning-of-sequence token stands before each window; as the tokenizer itself begins a text when
    absent."""


class Tasks(Block):
    """lm-eval tasks, run by lm-eval's own HFLM."""

    names: list[Text] = []
    """`passkey`, `hashhop` and `wikipedia` run without a hub; any other name is one of lm-eval's own."""
    samples: Count | None = None
    """Samples of each task; all of them when absent."""
    limits: list[tuple[Text, Count]] = []
    """Tasks of which fewer samples are taken, of a group of each of its tasks: (name, samples)."""
    tokens: Count = 1024
    """Length of a passkey prompt, and of the window that `wikipedia` shows the model."""
    ruler_lengths: list[RulerLength] = [4096]
    """Lengths of the prompts of lm-eval's RULER tasks, in tokens."""
    batch_size: Count = 1
    """Requests answered together: changes speed and memory, not the result. A processor is fastest with one."""

    @model_validator(mode="after")
    def limits_asked(self) -> Self:
        """A limit of a task that is not asked for is a misspelt name."""
        for name, _ in self.limits:
            if name not in self.names:
                raise ValueError(f"limits: {name!r} is not in names; add it there, or leave it out here")
        return self


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

    @model_validator(mode="after")
    def sizes_fit(self) -> Self:
        """The training's layouts have room for their chains, and different hashes for all of them."""
        shares = {"official": 1 - self.paper_share, "paper": self.paper_share}
        for variant in (name for name, share in shares.items() if share):
            self.sizes(variant)
        return self

    def sizes(self, variant: str) -> HashHopTokenSizes | HashHopTextSizes:
        """The sizes of a problem in one layout.

        Raises:
            ValueError: they do not fit each other.
        """
        if self.form == "text":
            return HashHopTextSizes(variant, self.hash_length, self.hops, self.characters)
        return HashHopTokenSizes(self.vocabulary, self.chains, self.hops, self.pairs, variant)

    def resized(self, hops: int, size: int) -> "HashHopTask":
        """The task with chains of other lengths: `size` full chains in form tokens, so many characters in form text."""
        if self.form == "text":
            return self.model_copy(update={"hops": hops, "characters": size})
        return self.model_copy(update={"hops": hops, "chains": size, "pairs": hops * size})


class HashHopEvaluation(Block):
    """How h_gq is measured."""

    variants: Annotated[list[Literal["official", "paper"]], Field(min_length=1)] = ["official", "paper"]
    """Layouts: several full chains, or one chain among lone pairs (appendix A.1)."""
    samples: Count = 256
    """Test samples of each variant."""
    batch_size: Count = 32
    """Answers generated together: changes speed and memory, not the result."""


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
    train: Annotated[list[tuple[Count, Count]], Field(min_length=1)]
    """Trained slices: (tokens, pairs)."""
    curriculum_share: Share = 0.0
    """Share of the steps over which the slices join, in their order; with 0 all are there from the first step."""
    test: Annotated[list[tuple[Count, Count]], Field(min_length=1)]
    """Tested slices: (tokens, pairs)."""
    test_samples: Count = 64
    """Samples of each tested slice."""
    training: Training
    """The recipe, at the learning rates of the sweep. `batch_size` counts samples of the longest slice; of shorter ones
    a batch has as many more as make the same number of tokens."""
    selection: Selection = Selection(unit="head", scope="layer")
    """The text selects heads in each layer."""

    @model_validator(mode="after")
    def sizes_fit(self) -> Self:
        """The sizes make a model, and every slice has room for its pairs."""
        check_heads(self.heads, self.kv_heads, self.head_dim, self.hidden_size)
        for name in ("train", "test"):
            for length, pairs in getattr(self, name):
                try:
                    check_mqar(self.vocabulary, length, pairs)
                except ValueError as error:
                    raise ValueError(f"{name}: [{length}, {pairs}]: {error}") from None
        return self


class Sizes(Block):
    """What is counted and computed for every shape."""

    lengths: Annotated[list[Count], Field(min_length=1)] = [10240, 61440]
    """Tokens in the cache: cs_10k and cs_60k."""
    units: Annotated[list[Literal["kv_group", "head"]], Field(min_length=1)] = ["kv_group", "head"]
    """Selection units that are compared."""
    memory_gib: Rate = 80.0
    """Memory of the card for which the longest input is computed, and measured."""
    chunk: Count = 1024
    """Tokens of a chunk where the longest prompt is read in chunks."""
    growth_lengths: Annotated[list[Count], Field(min_length=2)] = [1024, 2048, 4096, 8192, 16384]
    """Lengths over which growth exponents are fitted (Table 1)."""


class Search(Block):
    """The search for the longest input on a card."""

    tolerance: Annotated[float, NUMBER, Field(gt=0, lt=1)] = 0.01
    """A prompt longer by this share does not fit any more."""
    maximum: Count = 2097152
    """Tokens beyond which nothing is tried."""
    whole: bool = False
    """Whether prompts are read from end to end also in chunks. Otherwise first and last chunks are, between which the
    memory of such a prefill does not change: seconds instead of hours.
    """
    prefill_minutes: Rate | None = None
    """A prompt that would take longer to read from end to end is not tried: l_m is then at least the longest tried."""


class Caches(Block):
    """Cache sizes, memory model and growth exponents (Tables 1, 2 and 4)."""

    backbones: Annotated[list[str], Field(min_length=1)]
    """Names in `backbones`; only their shapes are used."""
    sizes: Sizes = Sizes()
    """The same for all of them."""
    measured: list[str] = []
    """Those of them whose longest input is also measured, with random weights on a card sold with that memory or
    more.
    """
    search: Search = Search()
    """How closely it is measured."""


class DeviceMeasurements(Block):
    """What only a device itself tells: measured where a study names it, and by default not at all."""

    device: Literal["cuda", "cpu"] = "cuda"
    """What is measured; a processor shows that the rules run, no more."""
    tests: Text | None = None
    """Which of the project's tests are run there: an expression of pytest's markers, such as `gpu`."""
    backbones: list[str] = []
    """Names in `backbones`: their cache sizes and peaks, with random weights, at `betas` and `caches.sizes`."""
    speed: list[
        Literal["scan", "block", "layer", "prefill", "decode", "throughput", "training", "profiling", "stages"]
    ] = []
    """Topics of the benchmarks, each a job of its own; `training` on a processor only, `throughput` on a card only."""
    speed_seconds: Count = 20
    """For which each case of a topic is repeated."""

    @model_validator(mode="after")
    def topics_of_the_device(self) -> Self:
        """A topic without any case on the device would fail as a job."""
        for topic, device in {"training": "cpu", "throughput": "cuda"}.items():
            if topic in self.speed and self.device != device:
                raise ValueError(
                    f"speed: {topic!r} is measured on {device} only; leave it out for device {self.device}"
                )
        return self
