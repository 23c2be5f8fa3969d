"""How a model goes on from what it has read: a conversation in one cache."""

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

ONE_STREAM = {"use_cache": True, "num_beams": 1, "num_return_sequences": 1, "return_dict_in_generate": False}
"""Settings of a checkpoint that cannot be otherwise here: there is one sequence, in a cache of its own."""


def longest_text(model: PreTrainedModel) -> int | None:
    """Return the most tokens that a model can read; None: its configuration does not say."""
    return getattr(model.config, "max_position_embeddings", None)


def continued(model: PreTrainedModel, ids: Tensor, cache: Cache, config: GenerationConfig, **settings: Any) -> Tensor:
    """Let a model write on.

    Args:
        model: a causal language model in evaluation mode.
        ids: all tokens so far, (1, L).
        cache: has read fewer than L of them, from the first on; it reads the others and what is written.
        config: how to choose tokens, and how many; it stays as it is.
        settings: arguments of `generate()`, such as the streamer.

    Returns:
        ids and the written tokens, (1, L + written).
    """
    end = model.generation_config.eos_token_id  # type: ignore[union-attr]
    config = copy.deepcopy(config)
    config.update(**ONE_STREAM, pad_token_id=end[0] if isinstance(end, list) else end)
    for each in (config, model.generation_config):  # the model's fills what is None
        each.cache_implementation = None  # type: ignore[union-attr]  # the cache is handed in
    return model.generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), past_key_values=cache, generation_config=config, **settings
    )


class Conversation:
    """Turns of a user and a model, with one cache for all of them.

    A tokenizer with a chat template renders the turns. Without one, the model continues the text of all turns. If a
    template changes earlier turns, the conversation is read again from its beginning.

    Args:
        model: a causal language model in evaluation mode; its generation configuration holds.
        tokenizer: the model's.
        tokens: the most tokens of an answer.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tokens: int = 512) -> None:
        self.model, self.tokenizer, self.tokens = model, tokenizer, tokens
        self.reset()

    def reset(self) -> None:
        """Forget all turns."""
        self.turns: list[dict[str, str]] = []
        self.ids = torch.empty(1, 0, dtype=torch.long, device=self.model.device)  # of all turns
        self.cache = DynamicCache(config=self.model.config)

    def answer(self, turn: str, streamer: Any = None) -> str:
        """Return the model's answer to the user's next turn.

        Args:
            turn: of the user.
            streamer: gets the answer's tokens as they come, as in `generate()`.

        Raises:
            ValueError: the conversation with another answer is longer than the model can read.
        """
        self.turns.append({"role": "user", "content": turn})
        try:
            ids = self._ids()
            self._refuse_long(ids.shape[1])
        except ValueError:
            self.turns.pop()
            raise
        config = copy.deepcopy(self.model.generation_config)
        config.max_new_tokens = self.tokens  # type: ignore[union-attr]
        try:
            written = continued(self.model, ids, self.cache, config, streamer=streamer)
        except BaseException:  # stopped by the user, for instance: the cache holds an unknown part of the answer
            self.turns.pop()
            self.cache = DynamicCache(config=self.model.config)  # reads all earlier turns again
            raise
        self.ids = written
        text = self._text(written[0, ids.shape[1] :], skip_special_tokens=True)
        self.turns.append({"role": "assistant", "content": text})
        return text

    def _text(self, ids: Tensor, skip_special_tokens: bool = False) -> str:
        return str(
            self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
        )

    def _ids(self) -> Tensor:
        """The conversation up to the coming answer, (1, L): the ids of all earlier turns, and the new turn's."""
        if not self.tokenizer.chat_template:
            return self._extended(self.turns[-1]["content"], add_special_tokens=not self.ids.numel())
        rendered = str(self.tokenizer.apply_chat_template(self.turns, tokenize=False, add_generation_prompt=True))
        if not rendered.startswith(self._text(self.ids[0])):
            self.ids, self.cache = self.ids[:, :0], DynamicCache(config=self.model.config)
        return self._extended(rendered[len(self._text(self.ids[0])) :], add_special_tokens=False)

    def _extended(self, text: str, add_special_tokens: bool) -> Tensor:
        new = self.tokenizer(text, add_special_tokens=add_special_tokens, return_tensors="pt").input_ids
        return torch.cat([self.ids, new.to(self.ids)], 1)

    def _refuse_long(self, tokens: int) -> None:
        longest = longest_text(self.model)
        if longest and tokens + self.tokens > longest:
            raise ValueError(
                f"the conversation has {tokens} tokens; with {self.tokens} of an answer it is longer than the"
                f" {longest} that the model can read: /reset it, or lower --tokens"
            )
