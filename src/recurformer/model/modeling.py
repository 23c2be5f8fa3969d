"""The converted models: the library's own backbone classes with `RecurFormerAttention` in layers with replaced heads.

Importing this module registers them with the auto classes. families.py lists the families.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, Cache, DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.import_utils import is_tracing

from .attention import RecurFormerAttention
from .caches import check_cache, record_mask
from .config import CONFIGS, MIXED_LAYERS, REPLACED_KINDS
from .families import FAMILIES, Family
from .mamba import MambaBlock
from .masks import PLACES, PaddingAfterEnd, masks_by_kind, masks_for_generation, real_places, recurrent_mask
from .mixer import Mixer
from .mixers import MIXERS

_Backbone: Any = object  # the mixins stand before a backbone class, whose methods and modules they use

PACKING_ARGUMENTS = ("cu_seq_lens_q", "seq_idx")
PACKING_REFUSED = (
    "packed sequences (position_ids that restart) are not supported: a mixer would carry its state from one into"
    " the next; give one sequence per row with an attention_mask"
)


def _refuse_packing(mask: Tensor | None, places: Tensor, position_ids: Tensor | None, arguments: Mapping) -> None:
    """Check that the real tokens of a row stand side by side; their positions may count the padding between them."""
    if any(arguments.get(name) is not None for name in PACKING_ARGUMENTS):
        raise ValueError(PACKING_REFUSED)
    if position_ids is None or position_ids.shape[-1] == 1 or position_ids.is_meta:
        return
    columns = torch.arange(position_ids.shape[-1], device=position_ids.device)
    shift = position_ids - places
    real = torch.ones_like(shift, dtype=torch.bool) if mask is None else mask.bool()
    first = real.int().argmax(1, keepdim=True)
    counted, spaced = (
        ((x == x.gather(1, first)) | ~real).all(1) for x in (shift, (position_ids - columns).expand_as(shift))
    )
    consecutive = (counted | spaced).all()
    if is_tracing(position_ids):
        torch._assert_async(consecutive, PACKING_REFUSED)
    elif not consecutive:
        raise ValueError(PACKING_REFUSED)


class RecurFormerPreTrainedMixin(_Backbone):
    """The part that base model and language model share."""

    _is_stateful = True  # a recurrent state cannot be rolled back: the library then refuses assisted decoding
    _can_compile_fullgraph = True

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        """Load as the library does; damaged weight files are reported by name of the checkpoint.

        Raises:
            ValueError: a safetensors file is corrupt or truncated, or its weights have not the model's shapes.
        """
        try:
            return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        except SafetensorError as error:
            raise ValueError(
                f"{pretrained_model_name_or_path}: a safetensors file is corrupt or incomplete ({error}); copy it again"
            ) from error
        except RuntimeError as error:
            if "ignore_mismatched_sizes" not in str(error):
                raise
            raise ValueError(
                f"{pretrained_model_name_or_path}: some weights do not have the shapes that its config.json names; if"
                " they are in_proj's, an earlier version wrote them: convert the backbone again"
            ) from error

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save as the library does.

        Raises:
            ValueError: the config was changed since the model was built, so that the weights would not fit it.
        """
        self.config.check()
        for name, built in self.base_model.built_by.items():
            if getattr(self.config, name) != built:
                raise ValueError(
                    f"config.{name}={getattr(self.config, name)!r} is not what the model was built by ({built!r}): set"
                    " it back, or convert the original with it"
                )
        super().save_pretrained(*args, **kwargs)

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # in classes that are not its own the library takes a module without parameters of its own for a filled one
        super()._initialize_weights(module, is_custom_code and not isinstance(module, Mixer))

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, (MambaBlock, Mixer)):
            module.init_weights()


class RecurFormerModelMixin(RecurFormerPreTrainedMixin):
    """The backbone without language-model head."""

    by_kind: bool  # whether the stock forward pass takes one mask for each kind of layers

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config)
        self.built_by = deepcopy(config.architecture())
        for index, layer in enumerate(self.layers):
            if config.recurrent_heads[index]:
                layer.self_attn = RecurFormerAttention(layer.self_attn, config, index)
        self.post_init()

    def _open_cache(self, cache: Cache | None, rows: int, use_cache: bool | None) -> Cache | None:
        """Return the cache to read into, checked; a new one where the library would make it itself."""
        if cache is None:
            wanted = self.config.use_cache if use_cache is None else use_cache
            if not wanted or (self.gradient_checkpointing and self.training):
                return None
            cache = DynamicCache(config=self.config)
        check_cache(cache, self.config, rows)
        return cache

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | Mapping[str, Tensor | None] | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPast:
        """Run the backbone's own forward pass, whose layers hand the mixers' mask on; arguments as of the library's.

        Args:
            input_ids: tokens (B, L); or give `inputs_embeds` (B, L, hidden).
            attention_mask: padding mask (B, tokens so far), or the masks by kind that generate() prepares. It cannot
                take a token back: cached tokens stay padding, or real, in the mixers' states.
            position_ids: positions (B, L) or (1, L) for the retained heads; by default the real tokens of each row are
                counted. Mixers always count these.
            past_key_values: a cache made for this config, e.g. `DynamicCache(config=model.config)`.
            inputs_embeds: see `input_ids`.
            **kwargs: `use_cache` and others, which are handed on to the layers and the attention function.

        Returns:
            the library's output. Its `attentions` have one entry a layer, the weights (B, retained heads, L, tokens so
            far); None where no head attends, and everywhere under attention functions that give no weights.

        Raises:
            ValueError: packed sequences, or a mask of another form, which the mixers cannot honour; a mask that takes a
                cached token back; or a cache that was not made for this config, or for so many rows.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        if any(self.config.recurrent_heads):
            if inputs_embeds is None:
                input_ids, inputs_embeds = None, self.embed_tokens(input_ids)
            rows, length = inputs_embeds.shape[:2]
            past_key_values = self._open_cache(past_key_values, rows, kwargs.get("use_cache"))
            places: Any
            if isinstance(attention_mask, Mapping) and PLACES in attention_mask:  # generate() has made the masks
                mask, places = attention_mask["linear_attention"], attention_mask[PLACES]
            else:
                given: tuple[Any, int, Any] = attention_mask, length, past_key_values
                mask, places = recurrent_mask(*given), real_places(*given, inputs_embeds.device)
            _refuse_packing(mask, places, position_ids, kwargs)
            kwargs["recurrent_mask"] = mask
            record_mask(mask, length, past_key_values)
            if position_ids is None:
                position_ids = None if attention_mask is None else places
            elif MIXERS[self.config.mixer].reads_keys:  # attention depends on distances alone, some mixers do not
                kinds = [kind for kind in self.config.layer_types if kind in REPLACED_KINDS]  # they rotate alike
                kind = {"layer_type": kinds[0]} if self.config.ropes else {}
                kwargs["mixer_positions"] = self.rotary_emb(inputs_embeds, places, **kind)
            if self.by_kind:
                if not isinstance(attention_mask, Mapping):
                    attention_mask = masks_by_kind(
                        self.config,
                        inputs_embeds,
                        attention_mask=attention_mask,
                        past_key_values=past_key_values,
                        position_ids=position_ids,
                    )
                replaced = dict.fromkeys(REPLACED_KINDS, attention_mask["full_attention"])
                attention_mask = {**attention_mask, **replaced}
        if isinstance(attention_mask, Mapping) and not self.by_kind:
            attention_mask = attention_mask["full_attention"]
        return_dict = kwargs.pop("return_dict", self.config.return_dict)
        outputs = super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            return_dict=True,
            **kwargs,
        )
        if outputs.attentions is not None:  # the library leaves out layers in which nothing attends
            attentions = iter(outputs.attentions)
            silent = [len(heads) == self.config.num_attention_heads for heads in self.config.recurrent_heads]
            outputs["attentions"] = tuple(None if nothing else next(attentions, None) for nothing in silent)
        return outputs.to_tuple() if return_dict is False else outputs


class RecurFormerForCausalLMMixin(PaddingAfterEnd, RecurFormerPreTrainedMixin):
    """The language model; `base_class` is the stock class that it is converted from."""

    model_class: type[PreTrainedModel]
    base_class: type[PreTrainedModel]
    create_masks_for_generate = staticmethod(masks_for_generation)

    def __init__(self, config: PreTrainedConfig):
        PreTrainedModel.__init__(self, config)  # the stock __init__ would build the whole attention a second time
        self.model = self.model_class(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()


def define(family: Family, config: type[PreTrainedConfig]) -> type[Any]:
    """Return the RecurFormer language model over a family's stock classes; it and its model are registered."""
    base_model, base_lm = (getattr(transformers, name) for name in (family.model, family.language_model))
    records = dict(base_model._can_record_outputs)
    records["attentions"] = [records["attentions"], RecurFormerAttention]
    module = {"__module__": __name__, "config_class": config}
    by_kind = MIXED_LAYERS in config.__dataclass_fields__
    model = type(
        f"RecurFormer{family.model}",
        (RecurFormerModelMixin, base_model),
        {**module, "by_kind": by_kind, "_can_record_outputs": records},
    )
    language_model = type(
        f"RecurFormer{family.language_model}",
        (RecurFormerForCausalLMMixin, base_lm),
        {**module, "model_class": model, "base_class": base_lm},
    )
    AutoModel.register(config, model, exist_ok=True)
    AutoModelForCausalLM.register(config, language_model, exist_ok=True)
    return language_model


BACKBONES = {name: define(family, CONFIGS[name]) for name, family in FAMILIES.items()}
"""Language-model classes by the model type of the backbone that they are converted from."""
for _language_model in BACKBONES.values():  # each is found here by its own name too
    globals().update({cls.__name__: cls for cls in (_language_model.model_class, _language_model)})

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """The model classes."""
