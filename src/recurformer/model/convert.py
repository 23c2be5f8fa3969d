"""Conversion: a pretrained causal language model in, the same model with some heads replaced by a mixer out.

Beside it: fewer key-value heads by mean pooling, the baseline of GQA; and checkpoints that carry their own code.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from .config import MODEL_TYPE_PREFIX, REPLACED_KINDS
from .families import refusal
from .layout import NORMS, check_heads, check_stock, head_layout, refuse_adapter, split_fused
from .mixers import MIXERS
from .modeling import BACKBONES, RecurFormerForCausalLMMixin

# of the base's config; the converted one has its own, and its weights are ordinary floating-point numbers
NOT_INHERITED = (
    "architectures",
    "auto_map",
    "model_type",
    "quantization_config",
    "transformers_version",
)


OF_REPLACED_KIND = re.compile(rf"\.({'|'.join(REPLACED_KINDS)})_")
"""In the name of a rotary embedding's buffer, where each kind of layer has one."""


def _head_rows(heads: Sequence[int], head_dim: int) -> list[int]:
    return [head * head_dim + row for head in heads for row in range(head_dim)]


def split_weights(state: dict[str, Tensor], config: PreTrainedConfig) -> dict[str, Tensor]:
    """Return a stock state dict as a converted model's, without the mixers' parameters.

    Rows of the query, key and value projections, which may be one, are taken by head. Queries of replaced heads and
    keys of fully replaced KV heads vanish unless the mixer reads them. Columns of the output projection are ordered
    [retained | replaced].

    Args:
        state: state dict of the stock model; not modified.
        config: the RecurFormer config, which names the replaced heads.
    """
    state = dict(state)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    reads_keys = MIXERS[config.mixer].reads_keys
    for index, replaced in enumerate(config.recurrent_heads):
        if not replaced:
            continue
        layout = head_layout(replaced, config.num_attention_heads, config.num_key_value_heads)
        prefix = f"model.layers.{index}.self_attn."
        rows, kv_rows = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
        split_fused(state, prefix, (rows, kv_rows, kv_rows))
        projected = layout.projected_heads(reads_keys)
        if not projected["q"]:
            for name in NORMS:
                state.pop(f"{prefix}{name}.weight", None)
        for projection, heads in projected.items():
            for part in ("weight", "bias"):
                stock = state.pop(f"{prefix}{projection}_proj.{part}", None)
                if stock is not None and heads:
                    state[f"{prefix}{projection}_proj.{part}"] = stock[_head_rows(heads, head_dim)]
        columns = _head_rows([*layout.retained, *layout.replaced], head_dim)
        state[f"{prefix}o_proj.weight"] = state[f"{prefix}o_proj.weight"][:, columns].contiguous()
    return state


def _converted_class(model: PreTrainedModel) -> type[Any]:
    for name, module in model.named_modules():
        refuse_adapter(module, name)
    kind = model.config.model_type
    if kind.startswith(MODEL_TYPE_PREFIX):
        raise ValueError(
            f"the model is a converted one already ({kind}): convert its original with all heads to be replaced"
        )
    converted = BACKBONES.get(kind)
    if converted is None:
        raise ValueError(refusal(kind))
    if not isinstance(model, converted.base_class):
        raise ValueError(
            f"{type(model).__name__} has no language-model head: convert needs a {converted.base_class.__name__}"
        )
    return converted


def _packed(parameter: nn.Parameter) -> str | None:
    """Name the type of unusual weights, None for ordinary ones; torchao's quantized weights report bfloat16."""
    if not parameter.is_floating_point():
        return str(parameter.dtype)
    return None if type(parameter) is nn.Parameter else type(parameter).__name__


def check_weights(model: PreTrainedModel) -> bool:
    """Return whether the whole model is on the meta device; refuse weights that cannot be sliced by head."""
    parameters = list(model.parameters())
    packed = list(filter(None, map(_packed, parameters)))
    if packed:
        raise ValueError(f"the model has weights of type {packed[0]}: load it without quantization before converting")
    for index, layer in enumerate(model.model.layers):
        check_stock(layer.self_attn, index)
    on_meta = {p.is_meta for p in parameters}
    if len(on_meta) > 1:
        raise ValueError(
            "some of the model's weights are offloaded: load it on one device (or all on meta) before converting"
        )
    devices = {str(p.device) for p in parameters}
    if len(devices) > 1:
        raise ValueError(
            f"the model's weights lie on several devices ({', '.join(sorted(devices))}): convert it on one"
        )
    return on_meta == {True}


@contextmanager
def errors_only() -> Iterator[None]:
    """Silence the library's progress bars and warnings, such as the one about newly initialised mixers."""
    verbosity, progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if progress:
            logging.enable_progress_bar()


def load(
    model_class: type[Any], config: PreTrainedConfig, state: dict[str, Tensor], like: PreTrainedModel, new: str = ""
) -> PreTrainedModel:
    """Return a model with copies of the weights in `state`, on the device and in the type of the model `like`.

    Weights may be missing in whose names `new` stands; "": none may be.

    Raises:
        ValueError: a weight is missing, or is none of the model's.
    """
    with errors_only():
        loaded: Any = model_class.from_pretrained(
            None,
            config=config,
            state_dict={name: tensor.clone() for name, tensor in state.items()},
            dtype=like.dtype,
            attn_implementation=like.config._attn_implementation,
            output_loading_info=True,
        )
    model, info = loaded
    missing = [name for name in info["missing_keys"] if not new or new not in name]
    wrong = missing + list(info["unexpected_keys"])
    if wrong:
        raise ValueError(f"the model's weights do not fit {model_class.__name__}: {', '.join(sorted(wrong))}")
    return model.to(like.device)


def _by_group(numbers: Any) -> Any:
    """Return a number for each group as a config holds them; what is none is left for the config to refuse."""
    if not isinstance(numbers, Iterable):
        return numbers
    return [list(layer) if isinstance(layer, Iterable) else layer for layer in numbers]


def convert(
    model: PreTrainedModel,
    heads: Sequence[Iterable[int]],
    mixer: str = "mamba",
    d_state: int = 16,
    d_conv: int = 4,
    expand: int = 2,
    dt_rank: int = 256,
    window_tokens: int | Sequence[Sequence[int]] = 64,
    window_bits: Sequence[Sequence[int]] | None = None,
    sink_tokens: int = 4,
    key_centers: Tensor | None = None,
) -> PreTrainedModel:
    """Replace attention heads by one mixer per layer (RecurFormer, Algorithm 1; Mamba's sizes of the paper's appendix).

    The given model is left as it is and shares no weights with the new one, whose mixers are initialised from torch's
    global random state. A model on the meta device gives one on the meta device (shapes only).

    Args:
        model: a causal language model of one of the `recurformer.model.families.FAMILIES`, such as Llama or Qwen3.
        heads: for every layer the replaced query heads; none and all are ordinary cases.
        mixer: a name in `recurformer.model.mixers.MIXERS`; the paper's is mamba.
        d_state: states per channel of a Mamba block.
        d_conv: taps of its convolution.
        expand: channels per input feature.
        dt_rank: rank of the step-size projection.
        window_tokens: tokens that the mixers `window`, `window_state` and `mean` look back on. `window` also takes a
            number for each group: for every layer a list of those of the KV heads that replaced heads read, ascending.
        window_bits: likewise for `window`, bits of the numbers in the cache: 16 (as they are; None), 8, 6, 5 or 4.
        sink_tokens: first tokens that the mixers `window` and `window_state` never forget.
        key_centers: of all key-value heads, (layers, KV heads, head_dim); taken from the keys of fewer than 16 bits,
            see `recurformer.heads.price.key_centers`. None takes nothing.

    Returns:
        the converted model: same dtype, device, training mode and generation config.

    Raises:
        ValueError: wrong heads, heads of a layer with a sliding window, an unknown mixer, a size below its least,
            centers of another shape, or a model that is converted already, of another type, quantized, partly
            offloaded, or with adapters.
    """
    converted = _converted_class(model)
    on_meta = check_weights(model)
    base = model.config
    settings = {key: value for key, value in base.to_dict().items() if key not in NOT_INHERITED}
    sizes = "group_windows" if isinstance(window_tokens, Sequence) else "window_tokens"
    config = converted.config_class(
        **settings,
        recurrent_heads=check_heads(heads, base.num_hidden_layers, base.num_attention_heads),
        mixer=mixer,
        mamba_d_state=d_state,
        mamba_d_conv=d_conv,
        mamba_expand=expand,
        mamba_dt_rank=dt_rank,
        sink_tokens=sink_tokens,
        group_bits=_by_group(window_bits),
        **{sizes: _by_group(window_tokens)},
    )
    if on_meta:
        with torch.device("meta"):
            new = converted._from_config(config, dtype=model.dtype, attn_implementation=base._attn_implementation)
    else:
        new = load(converted, config, split_weights(model.state_dict(), config), model, new=f".{mixer}.")
    stock_buffers = dict(model.named_buffers())
    for name, buffer in new.named_buffers():  # the rotary frequencies as the model has them, whatever it was cast to
        stock = stock_buffers.get(OF_REPLACED_KIND.sub(".full_attention_", name))
        if stock is not None:
            buffer.data = stock.clone()
    for name, value in vars(model.model.rotary_emb).items():  # and the length that some of them have grown to
        if isinstance(value, (int, float, Tensor)):
            for kind in ("full_attention", *REPLACED_KINDS):
                setattr(new.model.rotary_emb, name.replace("full_attention", kind), deepcopy(value))
    if key_centers is not None:
        _set_centers(new, key_centers)
    new.config._name_or_path = ""
    new.generation_config = deepcopy(model.generation_config)
    return new.train(model.training)


def _set_centers(model: Any, centers: Tensor) -> None:
    """Let the windows of fewer bits take `centers` (layers, KV heads, head_dim) from their keys."""
    layers, heads = len(model.model.layers), model.config.num_key_value_heads
    if centers.dim() != 3 or centers.shape[:2] != (layers, heads):
        raise ValueError(f"key_centers is {tuple(centers.shape)}; it must be ({layers}, {heads}, head_dim)")
    for layer, of_layer in zip(model.model.layers, centers, strict=True):
        attention = layer.self_attn
        if getattr(getattr(attention, "mixer", None), "center", None) is not None:
            layout = attention.layout
            attention.mixer.center.copy_(of_layer[[layout.kv_heads[place] for place in layout.replaced_value_heads]])


def save_with_code(model: PreTrainedModel, directory: str | PathLike[str]) -> None:
    """Save a converted model with the code that it needs.

    `AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True)` then opens it without this package; where
    the package is imported, its own classes are used.

    Args:
        model: a converted model.
        directory: where to write; made if missing.

    Raises:
        ValueError: the model is not a converted language model.
    """
    if not isinstance(model, RecurFormerForCausalLMMixin):
        raise ValueError(f"{type(model).__name__} is not a converted language model: call save_pretrained for it")
    config, language_model = type(model.config), type(model)
    classes: dict[Any, str] = {config: "AutoConfig", language_model: "AutoModelForCausalLM"}
    try:
        for owner, auto_class in classes.items():
            owner._auto_class = auto_class
        model.save_pretrained(directory)
    finally:
        for owner in classes:
            owner._auto_class = None
        model.config.__dict__.pop("auto_map", None)  # later plain saves carry no code and must not claim to


PROJECTIONS = (".self_attn.k_proj.", ".self_attn.v_proj.")


def pool_rows(rows: Tensor, query_heads: int, kv_heads: int, pooled: int) -> Tensor:
    """Return a key or value projection's rows (or bias) for `pooled` KV heads instead of `kv_heads`.

    A new head is the mean over its query heads of the old heads that they read: where groups do not nest, an old head
    counts by how many of the query heads read it. Half precision is averaged in float32.
    """
    per_query = rows.unflatten(0, (kv_heads, -1)).repeat_interleave(query_heads // kv_heads, 0)
    wide = per_query.unflatten(0, (pooled, -1)).to(torch.promote_types(rows.dtype, torch.float32))
    return wide.mean(1).flatten(0, 1).to(rows.dtype)


def pool_kv_heads(model: PreTrainedModel, kv_heads: int) -> PreTrainedModel:
    """Return a new stock model of the same class with `kv_heads` key-value heads, each the mean of old ones.

    From MHA or GQA to GQA or MQA (Ainslie et al., arXiv 2305.13245). Training afterwards ("uptraining") is the
    caller's.

    The given model is left as it is. Query heads keep their order: new head j serves the j-th run of neighbours.

    Args:
        model: a stock causal language model with `k_proj` and `v_proj`, such as Llama or Qwen3.
        kv_heads: of the new model; divides the query heads; at most the model's number.

    Raises:
        ValueError: such a number of heads cannot be, or the model is a converted one or has no such projections.
    """
    config: Any = deepcopy(model.config)
    query_heads, old = config.num_attention_heads, config.num_key_value_heads
    if config.model_type.startswith(MODEL_TYPE_PREFIX):
        raise ValueError(f"the model is a converted one ({config.model_type}): pool the heads of its original")
    if not 1 <= kv_heads <= old or query_heads % kv_heads:
        fitting = ", ".join(str(n) for n in range(1, old + 1) if query_heads % n == 0)
        raise ValueError(f"kv_heads={kv_heads} cannot serve {query_heads} query heads; possible are {fitting}")
    config.num_key_value_heads = kv_heads
    before = model.state_dict()
    if not any(PROJECTIONS[0] in name for name in before):
        raise ValueError(f"a {config.model_type} model has no k_proj and v_proj of its own: its heads cannot be pooled")
    state = {
        name: pool_rows(tensor, query_heads, old, kv_heads) if any(part in name for part in PROJECTIONS) else tensor
        for name, tensor in before.items()
    }
    pooled = type(model)._from_config(config, dtype=model.dtype, attn_implementation=model.config._attn_implementation)
    pooled.load_state_dict(state)
    pooled.generation_config = deepcopy(model.generation_config)
    return pooled.to(model.device).train(model.training)
