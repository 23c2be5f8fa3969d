"""Sizes of a model: its shape, and its number of parameters before and after conversion.

Only integers: no model is built, so that a workflow can ask for every one of its jobs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from recurformer.published import PUBLISHED

BYTE_VOCABULARY = 259  # of the byte tokenizer: 256 and three special tokens


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder of the Llama family, and of the Mamba blocks that may replace its heads; `positions` are the
    tokens of its longest input.
    """

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    positions: int = 2048
    tied: bool = False
    biased: bool = False
    d_state: int = 16
    d_conv: int = 4
    expand: int = 2
    dt_rank: int = 256

    @classmethod
    def of(cls, backbone: Mapping[str, Any], mamba: Mapping[str, Any]) -> Self:
        """The shape of a study's backbone: a published one, or a random one's own sizes."""
        if backbone.get("shape") is None:
            return cls._random(backbone, mamba)
        values = PUBLISHED[backbone["shape"]]
        return cls(
            hidden_size=values["hidden_size"],
            intermediate_size=values["intermediate_size"],
            layers=values["num_hidden_layers"],
            heads=values["num_attention_heads"],
            kv_heads=values["num_key_value_heads"],
            head_dim=values["hidden_size"] // values["num_attention_heads"],
            vocabulary=values["vocab_size"],
            positions=values["max_position_embeddings"],
            tied=values["tie_word_embeddings"],
            biased=values["architecture"] == "qwen2",
            **mamba,
        )

    @classmethod
    def _random(cls, backbone: Mapping[str, Any], mamba: Mapping[str, Any]) -> Self:
        sizes = {name: backbone[name] for name in ("hidden_size", "layers", "heads", "kv_heads", "head_dim")}
        return cls(
            **sizes,
            intermediate_size=backbone.get("intermediate_size") or 4 * backbone["hidden_size"],
            vocabulary=backbone.get("vocabulary") or BYTE_VOCABULARY,
            biased=backbone.get("architecture") == "qwen2",
            **mamba,
        )

    @property
    def width(self) -> int:
        """Width of all query heads of a layer together."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key-value heads of a layer together."""
        return self.kv_heads * self.head_dim

    @property
    def channels(self) -> int:
        """Inner width of a Mamba block that replaces all heads of a layer."""
        return self.expand * self.width

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding; an untied language-model head has as many."""
        return self.vocabulary * self.hidden_size

    @property
    def layer_parameters(self) -> int:
        """Parameters of one decoder layer before conversion."""
        attention = self.hidden_size * (2 * self.width + 2 * self.kv_width)
        biases = (self.width + 2 * self.kv_width) * self.biased
        return attention + biases + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size

    @property
    def mamba_parameters(self) -> int:
        """Parameters of the Mamba block that replaces all heads of a layer (`recurformer.model.mamba`)."""
        projections = (2 * self.kv_width + self.width) * self.channels  # into two streams, and out of one
        steps = self.channels * (2 * self.dt_rank + 2 * self.d_state + 1)
        return projections + steps + self.channels * (self.d_conv + 1) + self.channels * (self.d_state + 1)

    def parameters(self, beta: float = 0.0) -> int:
        """Parameters of the model with a share `beta` of its heads replaced by Mamba blocks: exact at 0 and where only
        whole layers are replaced, else an upper limit: a block grows with the square of the heads that it replaces.
        """
        freed = (self.hidden_size + self.biased) * (self.width + self.kv_width)  # queries and keys of the replaced
        changed = round(beta * self.layers * (self.mamba_parameters - freed))
        whole = self.layers * self.layer_parameters + self.hidden_size
        return whole + self.embedding_parameters * (1 if self.tied else 2) + max(changed, 0)

    def multiplied_parameters(self, beta: float = 0.0) -> int:
        """Parameters that every token is multiplied with: all but an embedding that is only looked up."""
        return self.parameters(beta) - (0 if self.tied else self.embedding_parameters)

    @property
    def cache_values(self) -> int:
        """Numbers that a full cache holds for each token."""
        return 2 * self.layers * self.kv_width
