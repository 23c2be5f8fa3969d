"""Tiny backbones with large weights, sets of heads to replace, and the matrix of mixers and families, in whose models a
wrong state or mask shows.
"""

from functools import cache, partial
from itertools import cycle

import pytest
import torch
import transformers
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from recurformer.model.convert import convert
from recurformer.model.families import FAMILIES
from recurformer.model.mixers import MIXERS

QUERY_HEADS, LAYERS, VOCABULARY = 6, 3, 40
PAD = 1  # an ordinary token: embedding rows of the config's pad token are zero and would hide a leak
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": QUERY_HEADS,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": None,
}
BACKBONES = {
    "llama_mha": (LlamaForCausalLM, lambda: LlamaConfig(**SHAPE, num_key_value_heads=6)),
    "llama_gqa_tied": (LlamaForCausalLM, lambda: LlamaConfig(**SHAPE, num_key_value_heads=3, tie_word_embeddings=True)),
    "qwen2_gqa": (Qwen2ForCausalLM, lambda: Qwen2Config(**SHAPE, num_key_value_heads=2)),
    "mistral_gqa": (MistralForCausalLM, lambda: MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=None)),
}
SMALL = {  # other settings than a family's own for small models, so that a layer of each kind has replaced heads
    "smollm3": {"no_rope_layers": [0, 1, 1]},
    "phi3": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    "gemma3_text": {"layer_types": ["full_attention", "sliding_attention", "full_attention"], "sliding_window": 6},
}
COVERED = {"llama", "qwen2", "mistral"}
"""Families that are tested with several sets of heads; each of the others is with one, that in `PAIRS`."""
for _name, _family in FAMILIES.items():
    if _name not in COVERED:
        _settings = {**SHAPE, "num_key_value_heads": 2, "head_dim": 8, **SMALL.get(_name, _family.small)}
        BACKBONES[_name] = (
            getattr(transformers, _family.language_model),
            partial(getattr(transformers, _family.config), **_settings),
        )
ALL = list(range(QUERY_HEADS))
HEADS = {
    "mixed": [[0, 1, 2], [], ALL],
    "attention_free_first": [ALL, [3, 4, 5], []],
    "beta_one": [ALL, ALL, ALL],
    "ragged": [[0], [1, 3, 4, 5], [0, 2, 5]],
}
MAMBA = {"d_state": 4, "d_conv": 4, "expand": 2, "dt_rank": 3}
PAIRS = [(name, "mixed" if name in SMALL else "ragged") for name in BACKBONES if name in FAMILIES]
MATRIX = [
    ("llama_mha", "mixed"),
    ("llama_mha", "attention_free_first"),
    ("llama_gqa_tied", "beta_one"),
    ("llama_gqa_tied", "ragged"),
    *(("qwen2_gqa", heads) for heads in HEADS),
    ("mistral_gqa", "mixed"),
    *PAIRS,
]


def make_backbone(name: str, seed: int = 0, **changes) -> PreTrainedModel:
    """Return a new stock model in evaluation mode; biases are random too."""
    model_class, make_config = BACKBONES[name]
    config = make_config()
    for key, value in changes.items():
        setattr(config, key, value)
    torch.manual_seed(seed)
    model = model_class(config).eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def without_zeros(model: PreTrainedModel) -> PreTrainedModel:
    """Fill the parameters that start at zero, behind which an error would not show."""
    for parameter in model.parameters():
        if not parameter.is_meta and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def carrying_far(model: PreTrainedModel) -> PreTrainedModel:
    """Enlarge the weights of Mamba blocks, so that a forgotten state shows."""
    for name, parameter in model.named_parameters():
        if ".mamba." in name and name.endswith(("in_proj.weight", "x_proj.weight", "out_proj.weight")):
            parameter.data *= 2
    return model


def make_converted(backbone: str, heads: str) -> PreTrainedModel:
    """Return a new converted model in evaluation mode."""
    return carrying_far(convert(make_backbone(backbone), HEADS[heads], **MAMBA))


@cache
def shared_converted(backbone: str, heads: str) -> PreTrainedModel:
    """Return a converted model that several tests read; do not change it."""
    return make_converted(backbone, heads).requires_grad_(False)


OTHERS = [name for name in MIXERS if name != "mamba"]
BY_GROUP, PACKED = "windows", "packed"  # the mixer `window` with a size for each KV head; and bits
WINDOW = {"window_tokens": 5, "sink_tokens": 2}  # shorter than the inputs
SHARING = [("llama_mha", "mixed"), ("qwen2_gqa", "mixed"), ("qwen2_gqa", "ragged")]
"""Heads of which every query has its own key and value, whole groups, and parts of groups."""
READING = ["window", "linear", "retention", "window_state"]
FAMILY_CASES = [(mixer, *pair) for mixer, pair in zip(cycle(READING), PAIRS, strict=False)]
"""Every family with a mixer that reads queries and keys."""
CASES = [("mamba", *pair) for pair in MATRIX] + FAMILY_CASES
CASES += [(mixer, *pair) for mixer in [*OTHERS, BY_GROUP, PACKED] for pair in SHARING]
CASES = list(dict.fromkeys(CASES))
every_case = pytest.mark.parametrize(("mixer", "backbone", "heads"), CASES)
every_mixer = pytest.mark.parametrize("mixer", [*MIXERS, BY_GROUP, PACKED])


def by_group(backbone: str, heads: str, in_turn: tuple[int, ...]) -> list[list[int]]:
    """Return numbers in turn for the KV heads that replaced heads read."""
    per_group = QUERY_HEADS // make_backbone(backbone).config.num_key_value_heads
    numbers = cycle(in_turn)
    return [[next(numbers) for _ in {head // per_group for head in layer}] for layer in HEADS[heads]]


def named(mixer: str, backbone: str, heads: str) -> tuple[str, dict[str, list[list[int]]]]:
    """Return the name of a mixer in the registry, and the sizes that it stands for, windows shorter than the inputs."""
    sizes = {}
    if mixer in (BY_GROUP, PACKED):
        sizes["window_tokens"] = by_group(backbone, heads, (5, 3, 8))
    if mixer == PACKED:
        sizes["window_bits"] = by_group(backbone, heads, (4, 6, 16, 8, 5))
    return ("window" if sizes else mixer), sizes


def make_mixed(mixer: str, backbone: str = "qwen2_gqa", heads: str = "mixed") -> PreTrainedModel:
    """Return a new model of a mixer, none of whose parameters is zero."""
    name, sizes = named(mixer, backbone, heads)
    torch.manual_seed(0)
    model = without_zeros(carrying_far(convert(make_backbone(backbone), HEADS[heads], name, **MAMBA | WINDOW | sizes)))
    for buffer_name, buffer in model.named_buffers():
        if buffer_name.endswith(".center"):
            buffer.normal_()
    return model.double() if mixer == PACKED else model  # float32 would round the numbers of two ways apart


@cache
def shared_mixed(mixer: str, backbone: str = "qwen2_gqa", heads: str = "mixed") -> PreTrainedModel:
    """Return a model of a mixer that several tests read; do not change it."""
    return make_mixed(mixer, backbone, heads).requires_grad_(False)


def tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    """Return random token ids (batch, length), without the padding token."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(PAD + 1, VOCABULARY, (batch, length), generator=generator)


def difference(a: Tensor, b: Tensor) -> float:
    """Return the largest deviation as a share of the second tensor's largest entry."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).abs().max() / b.abs().max())


@pytest.fixture
def no_gradients():
    with torch.no_grad():
        yield
