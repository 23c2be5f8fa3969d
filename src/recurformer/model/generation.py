"""Rows of a batch that end before the others: generate() fills them up with padding, which must enter no state.

The library marks those tokens as real. That is harmless where only attention looks back, for a later mask hides them.
"""

from functools import wraps
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, StoppingCriteriaList


class EndedRows(StoppingCriteriaList):
    """The stopping criteria of one call of generate(), which remember the rows (B,) that have ended."""

    rows: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        """Return the rows that end now; see the library's class."""
        ended = super().__call__(input_ids, scores, **kwargs)
        self.rows = ended if self.rows is None else self.rows | ended
        return ended

    @property
    def pads(self) -> bool:
        """Whether generate() writes padding after a row's end: it does where a token ends rows."""
        return any(hasattr(criterion, "eos_token_id") for criterion in self)


class PaddingAfterEnd:
    """The part of a language model that masks padding after the end of a row while it generates."""

    def _sample(
        self,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ):
        ended = EndedRows(stopping_criteria)
        if ended.pads and len(input_ids) > 1:
            kwargs["ended_rows"] = ended
            if kwargs.get("attention_mask") is None:  # generate() drops a mask without padding
                length = getattr(generation_config, "_mask_length", input_ids.shape[1])
                kwargs["attention_mask"] = input_ids.new_ones(len(input_ids), length)
        return super()._sample(input_ids, logits_processor, ended, generation_config, **kwargs)  # type: ignore[misc]

    @wraps(GenerationMixin.prepare_inputs_for_generation)  # generate() asks for the names of its arguments
    def prepare_inputs_for_generation(self, *args: Any, ended_rows: EndedRows | None = None, **kwargs: Any):
        """Prepare the arguments of one forward pass; see the library's method."""
        return super().prepare_inputs_for_generation(*args, **kwargs)  # type: ignore[misc]

    def _update_model_kwargs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        following = super()._update_model_kwargs_for_generation(*args, **kwargs)  # type: ignore[misc]
        ended, mask = following.get("ended_rows"), following.get("attention_mask")
        if ended is not None and ended.rows is not None and mask is not None:
            mask[:, -1].masked_fill_(ended.rows.to(mask.device), 0)  # of the token that is about to be chosen
        return following
