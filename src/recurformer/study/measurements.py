"""The settings of the measurements: tasks, maps, perplexity, sizes."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from recurformer.data.sizes import HashHopTextSizes, HashHopTokenSizes, check_mqar
from recurformer.study.block import NUMBER, WHOLE, Block, Count, Index, Name, Rate, Several, Share
from recurformer.study.inputs import check_heads
from recurformer.study.method import Selection, Training

LOCAL = frozenset({"hashhop", "passkey", "wikipedia"})
"""This project's own tasks of lm-eval, beside the library's."""
LONGER_RULER = {"ruler", "ruler_vt", "ruler_cwe"}
"""RULER's tasks whose example and instruction alone fill 512 tokens: lm-eval would look for a shorter one for ever."""


class TextWindows(Block):
    """Windows of text over which a measurement is averaged."""

    samples: Several
    """Windows of text."""
    tokens: Several
    """Length of a window in tokens."""


class SinkHead(Block):
    """The head of a backbone that Figure 2 shows."""

    layer: Index | None = None
    """Its layer, counted from 0. Without layer and head: the head that gives the first token the most attention."""
    head: Index | None = None
    """Its place among the layer's query heads, counted from 0."""

    @model_validator(mode="after")
    def whole(self) -> Self:
        """A head is identified by layer and number together."""
        if (self.layer is None) != (self.head is None):
            raise ValueError(f"layer {self.layer} and head {self.head}: give both or neither")
        return self


class Perplexity(Block):
    """Perplexity on held-out articles (Table 3)."""

    tokens: Several
    """Length of a window in tokens; each token except the first is predicted once."""
    windows: Count | None = None
    """Windows of each article; absent: all."""
    bos: bool | None = None
    """Whether a beginning-of-sequence token precedes each window; absent: as the tokenizer begins a text."""


class Tasks(Block):
    """lm-eval tasks, run by lm-eval's own HFLM."""

    names: list[Name] = []
    """`passkey`, `hashhop` and `wikipedia` are this project's; all other names are lm-eval's own tasks. Those of RULER
    that have no text of the hub in them need no network: `ruler_vt`, `ruler_cwe`, `ruler_fwe`, `niah_single_1`,
    `niah_multikey_2`, `niah_multikey_3`. Each task is a job with a file of its own."""
    samples: Count | None = None
    """Samples of each task; absent: all."""
    limits: list[tuple[str, Count]] = []
    """Tasks with fewer samples: (name, samples). For a group, each of its tasks has so many."""
    num_fewshot: list[tuple[str, Index]] = []
    """Tasks of lm-eval with another number of solved examples in the prompt: (name, examples)."""
    tokens: Count = 1024
    """Tokens of a passkey prompt, and of a window of `wikipedia`."""
    ruler_length: Annotated[Literal[512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072], WHOLE] = 4096
    """Length of the prompts of lm-eval's RULER tasks, in tokens."""
    batch_size: Count = 1
    """Requests in a batch: changes speed and memory, not the result. 1 is fastest on a CPU."""

    @model_validator(mode="after")
    def limits_asked(self) -> Self:
        """A task that is not in `names` is a misspelt name; what a task cannot take would run for nothing."""
        for key in ("limits", "num_fewshot"):
            for name, _ in getattr(self, key):
                if name not in self.names:
                    raise ValueError(f"{key}: {name!r} is not in names; add it there, or leave it out here")
        for name, _ in self.num_fewshot:
            if name in LOCAL:
                raise ValueError(f"num_fewshot: {name!r} has no solved examples; leave it out here")
        if self.ruler_length < 1024 and (short := sorted(LONGER_RULER.intersection(self.names))):
            raise ValueError(f"ruler_length: {self.ruler_length} is too short for {', '.join(short)}; give 1024")
        return self

    def alone(self, name: str) -> "Tasks":
        """One task of them, as the job that runs it alone is told."""
        keys = {key: [pair for pair in getattr(self, key) if pair[0] == name] for key in ("limits", "num_fewshot")}
        return self.model_copy(update={"names": [name], **keys})


class HashHopTask(Block):
    """The chains of the task (section 4.1, appendix A.1)."""

    form: Literal["tokens", "text"] = "tokens"
    """tokens: one token a hash, for small models; text: hashes of letters, for pretrained language models."""
    hops: Count = 8
    """h_p: hops of the chain that the model must reproduce."""
    vocabulary: Count = 128
    """For `tokens`: different hashes."""
    chains: Count = 2
    """For `tokens`: number of full chains in the official variant."""
    pairs: Count = 16
    """For `tokens`: number of pairs in the prompt."""
    hash_length: Count = 8
    """For `text`: h_e, the letters of a hash."""
    characters: Count = 6144
    """For `text`: h_l, the characters of the prompt."""
    paper_share: Share = 0.0
    """Share of the training samples in the paper's layout: one chain among unconnected pairs. 0 for models that
    learn the task from nothing: on this layout alone they stop at its shortcut, that only hashes of the chain occur
    twice."""

    @model_validator(mode="after")
    def sizes_fit(self) -> Self:
        """The training's layouts have room and enough different hashes for their chains."""
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
    """Evaluation of h_gq."""

    variants: Annotated[list[Literal["official", "paper"]], Field(min_length=1)] = ["official", "paper"]
    """Layouts. official: several full chains; paper: one chain among unconnected pairs (appendix A.1)."""
    samples: Count = 256
    """Test samples of each variant."""
    batch_size: Count = 32
    """Answers in a batch: changes speed and memory, not the result."""


class MqarTask(Block):
    """One run on multi-query associative recall: the model, the samples, the recipe."""

    hidden_size: Count = 128
    """Width of the randomly initialised Transformer."""
    layers: Count = 2
    """Decoder layers."""
    heads: Count = 8
    """Query heads in a layer."""
    kv_heads: Count = 4
    """Key-value heads in a layer."""
    head_dim: Count = 32
    """Size of a head."""
    vocabulary: Count = 512
    """Number of tokens: the lower half are keys, the upper half values."""
    train: Annotated[list[tuple[Count, Count]], Field(min_length=1)]
    """Trained slices: (tokens, pairs)."""
    curriculum_share: Share = 0.0
    """Share of the steps in which the slices join one after the other; 0: all are trained from the first step."""
    test: Annotated[list[tuple[Count, Count]], Field(min_length=1)]
    """Tested slices: (tokens, pairs)."""
    test_samples: Count = 64
    """Samples of each tested slice."""
    training: Training
    """The recipe; `mqar.learning_rates` replaces its learning rate. `batch_size` counts samples of the longest slice.
    A batch of a shorter slice has more samples and the same number of tokens."""
    selection: Selection = Selection(unit="head", scope="layer")
    """Choice of heads: in each layer, as in the paper's text."""

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
    """Counts and computations for every shape."""

    lengths: Annotated[list[Count], Field(min_length=1)] = [10240, 61440]
    """Tokens in the cache: cs_10k and cs_60k."""
    units: Annotated[list[Literal["kv_group", "head"]], Field(min_length=1)] = ["kv_group", "head"]
    """Selection units that are compared."""
    memory_gib: Rate = 80.0
    """Memory of the GPU for which the longest input is computed and measured, in GiB."""
    chunk: Count = 1024
    """Tokens of a chunk, where the longest prompt is read in chunks."""
    growth_lengths: Annotated[list[Count], Field(min_length=2)] = [2**power for power in range(10, 21)]
    """Lengths over which growth exponents are fitted (Table 1)."""


class Search(Block):
    """The search for the longest input on a GPU."""

    tolerance: Annotated[float, Field(gt=0, lt=1), NUMBER] = 0.01
    """Relative precision: a prompt longer by this fraction no longer fits."""
    maximum: Count = 2097152
    """Longest prompt that is tried, in tokens."""
    prefill_minutes: Rate | None = None
    """Time limit of a prefill in one pass: longer prompts are not tried, and l_m is then a lower bound."""


class Caches(Block):
    """Cache sizes, memory model and growth exponents (Tables 1, 2 and 4)."""

    backbones: Annotated[list[str], Field(min_length=1)]
    """Names in `backbones`; only their shapes are used."""
    sizes: Sizes = Sizes()
    """Sizes, the same for all of them."""
    measured: list[str] = []
    """Those whose longest input is also measured: with random weights, on a GPU with at least that memory.
    """
    search: Search = Search()
    """Precision and limits of this measurement."""


class Speed(Block):
    """Prefill and decoding beside the original's, at batch 1, all models in turns."""

    betas: Annotated[list[Share], Field(min_length=1)] = [0.5, 0.9]
    """Fractions of replaced heads."""
    lengths: Annotated[list[Count], Field(min_length=1)] = [512, 2048]
    """Tokens of a prompt."""
    decoded: Count = 32
    """Single tokens after it."""
    rounds: Several = 4
    """Rounds that count; three at least have a spread."""


class DeviceMeasurements(Block):
    """What is measured on the device itself, with random weights; by default nothing."""

    backbones: list[str] = []
    """Names in `backbones` whose cache sizes and peaks are measured, at `betas` and `caches.sizes`."""
    timed: list[str] = []
    """Names in `backbones` whose speed is measured."""
    speed: Speed = Speed()
    """How it is measured."""
