"""The inputs of a study: pretrained Transformers and text."""

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from recurformer.data.sizes import BYTE_VOCABULARY, HASH_SPECIALS, IN_WHEELS, PUBLISHED
from recurformer.model.families import FAMILIES
from recurformer.study.block import NUMBER, Block, Commit, Count, Rate, Seed

if TYPE_CHECKING:
    Architecture = str
else:
    Architecture = Literal[tuple(FAMILIES)]


def check_heads(heads: int, kv_heads: int, head_dim: int, width: int | None) -> None:
    """Raise a ValueError that names a size that does not fit; `width` where it binds the heads, as in Llama."""
    if heads % kv_heads:
        raise ValueError(f"kv_heads: {kv_heads} must divide the {heads} heads")
    if head_dim % 2:
        raise ValueError(f"head_dim: {head_dim} must be even, because rotary embeddings turn pairs")
    if width and width % heads:
        raise ValueError(f"heads: {heads} must divide hidden_size {width}")


class Backbone(Block):
    """Where a pretrained Transformer comes from, before any conversion."""

    source: Literal["wheel", "shape", "random", "hub", "folder"]
    """wheel: SmolLM2 or Gemma 3 from the package index; shape: a published shape, no weights; random: initialised here;
    hub: a checkpoint on the model hub; folder: a checkpoint on this machine."""
    shape: str | None = None
    """For `wheel` and `shape`: the name of the published shape, such as llama2-7b. For `hub` it may be absent: the
    sizes are then those of the checkpoint's config.json."""
    folder: str | None = None
    """For `folder`: the folder of the checkpoint, with its tokenizer; from the working folder, if it is relative."""
    repo: str | None = None
    """For `hub`: owner/name of the checkpoint."""
    revision: Commit | None = None
    """For `hub`: the pinned commit."""
    architecture: Architecture | None = None
    """For `random`: the architecture; the next keys are its sizes."""
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
    tokenizer: Literal["byte", "bpe", "hash"] | None = None
    """For `random`: byte or bpe for text, hash for HashHop with one token a hash. The words of bpe, byte pair encoding,
    are learned from the training articles."""
    vocabulary: Count | None = None
    """For `random` with bpe or hash tokens: number of different tokens; with hash tokens the same as in the task."""
    seed: Seed | None = None
    """For `random`: the seed of the initial weights."""

    @model_validator(mode="after")
    def complete(self) -> Self:
        """Every source has the keys that it needs."""
        needed = {
            "wheel": ("shape",),
            "shape": ("shape",),
            "hub": ("repo", "revision"),
            "folder": ("folder",),
            "random": ("architecture", "hidden_size", "layers", "heads", "kv_heads", "head_dim", "tokenizer"),
        }[self.source]
        missing = [key for key in needed if getattr(self, key) is None]
        if missing:
            raise ValueError(f"source {self.source!r} needs {', '.join(missing)}")
        if self.shape is not None and self.shape not in PUBLISHED:
            raise ValueError(f"shape: {self.shape!r} is not a published shape; choose one of {', '.join(PUBLISHED)}")
        if self.source == "wheel" and self.shape not in IN_WHEELS:
            raise ValueError(f"shape: no wheel holds {self.shape}; write one of {', '.join(IN_WHEELS)}")
        return self

    @model_validator(mode="after")
    def sizes_fit(self) -> Self:
        """The sizes of a random backbone make a model, and a vocabulary that its tokenizer can have."""
        if self.heads and self.kv_heads and self.head_dim:
            width = self.hidden_size if FAMILIES[self.architecture or "llama"].whole_heads else None
            check_heads(self.heads, self.kv_heads, self.head_dim, width)
        if self.tokenizer == "byte" and self.vocabulary is not None:
            raise ValueError("vocabulary: a byte tokenizer has its own; leave it out, or choose tokenizer hash")
        least = BYTE_VOCABULARY if self.tokenizer == "bpe" else len(HASH_SPECIALS) + 1
        if self.tokenizer == "bpe" and self.vocabulary is None:
            raise ValueError("vocabulary: this key is missing; name the number of tokens that bpe learns")
        if self.vocabulary is not None and self.vocabulary < least:
            held = "every byte" if self.tokenizer == "bpe" else "a hash"
            raise ValueError(f"vocabulary: {self.vocabulary} must be at least {least}, for special tokens and {held}")
        return self


class Planted(Block):
    """Pairs of words among those of the articles, each told twice: text that cannot be predicted without recall."""

    words: Annotated[Count, Field(ge=2)]
    """The most frequent words of the training articles, of which pairs are drawn."""
    every: Count
    """Words of text between the first tellings of two pairs."""
    back: Count
    """A pair comes again so many words later, or up to twice as many."""
    lists: Count
    """Lists of such words, told again and again, in one more training article."""


class Corpus(Block):
    """English Wikipedia articles, split by article."""

    source: Literal["wheel", "hub"]
    """wheel: the excerpt of the dump that the gensim wheel carries; hub: wikimedia/wikipedia, dump 20231101.en."""
    minimum_characters: Count = 8000
    """Articles that are shorter without their markup are left out."""
    validation_share: Annotated[float, Field(gt=0, lt=1), NUMBER] = 0.2
    """Share of the articles that are held out from all trainings."""
    articles: Count | None = None
    """For `hub`: how many articles are drawn."""
    revision: Commit | None = None
    """For `hub`: the pinned commit of the dataset."""
    planted: Planted | None = None
    """Pairs of words in all articles; absent: none."""

    @model_validator(mode="after")
    def complete(self) -> Self:
        """The hub source needs a number of articles and a commit."""
        if self.source == "hub" and (self.articles is None or self.revision is None):
            raise ValueError("source 'hub' needs articles and revision")
        return self
