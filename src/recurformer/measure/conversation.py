"""How a model goes on from what it has read: a conversation in one cache, and requests that begin alike.

A recurrent state cannot give a token back. So a cache that others may need is copied, and the copy goes on.
"""

import copy
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from recurformer.measure.cache import cache_tensors

ONE_STREAM = {"use_cache": True, "num_beams": 1, "num_return_sequences": 1, "return_dict_in_generate": False}
"""Settings of a checkpoint that cannot be otherwise here: there is one sequence, in a cache of its own."""
LONG = 128
"""Tokens that are worth a state of their own; fewer are read again."""


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
        longest = getattr(self.model.config, "max_position_embeddings", None)
        if longest and tokens + self.tokens > longest:
            raise ValueError(
                f"the conversation has {tokens} tokens; with {self.tokens} of an answer it is longer than the"
                f" {longest} that the model can read: shorten the message, /reset the conversation, or lower --tokens"
            )


def special_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of tokens that are no text. Chat templates end a message with one."""
    added = tokenizer.added_tokens_decoder.items()  # type: ignore[attr-defined]
    return [token for token, kind in added if kind.special]


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Count the first ids that two rows have in common."""
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class KeptStates:
    """Stands for a model: writes on after token ids, and reads only those that no kept state has read.

    A state is kept after every answer. Another is kept after `LONG` tokens or more of a prompt, where a long message
    ends, where the prompt ceases to be one that was asked before, and before its last token. The longest state whose
    ids begin a prompt is copied and goes on. Those that were used least recently make room for new ones.

    Args:
        model: a causal language model in evaluation mode.
        most_bytes: of all kept states together. At 0 nothing is kept, and a prompt is read at once.
        ends: ids of the tokens that end a message, such as `special_ids`.

    Attributes:
        states: ids -> the cache after them, to which nobody writes, and the bytes that it keeps alive. The one used
            last is the last.
    """

    def __init__(self, model: PreTrainedModel, most_bytes: int, ends: Iterable[int] = ()) -> None:
        self.model, self.most_bytes, self.ends = model, most_bytes, frozenset(ends)
        self.states: dict[tuple[int, ...], tuple[Cache, int]] = {}
        self.device, self.config = model.device, model.config
        self.generation_config: Any = copy.deepcopy(model.generation_config)
        if not self.generation_config.do_sample:
            self.generation_config.temperature = None  # so that one that is not None was asked for

    def fit(self, ids: Tensor, config: GenerationConfig) -> None:
        """Let the answer to a prompt (1, L) end where the model can read no more.

        Raises:
            ValueError: there is no room for an answer.
        """
        longest = getattr(self.config, "max_position_embeddings", None) or sys.maxsize
        tokens = ids.shape[1]
        if tokens >= longest:
            raise ValueError(f"the prompt has {tokens} tokens; with an answer it must fit into the model's {longest}")
        config.max_new_tokens = min(config.max_new_tokens or longest, longest - tokens)

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        generation_config: GenerationConfig,
        attention_mask: Tensor | None = None,
        on_known: Callable[[int], None] = lambda tokens: None,
        **more: Any,
    ) -> Tensor:
        """Return ids and what the model writes after them, (1, L + written).

        Args:
            input_ids: of the prompt, (1, L).
            generation_config: how to choose tokens, and how many. If it names a temperature above 0, tokens are drawn.
            attention_mask: of a prompt without padding.
            on_known: called with the number of the prompt's tokens that a kept state has read.
            more: other arguments of the model's `generate()`.

        Raises:
            ValueError: see `fit`.
        """
        self.fit(input_ids, generation_config)
        if generation_config.temperature:
            generation_config.do_sample = True
        row, cache = tuple(input_ids[0].tolist()), cast(Cache, DynamicCache(config=self.config))
        shared = {ids: _shared(ids, row[:-1]) for ids in self.states}  # the last is read for its logits
        known = max((ids for ids, length in shared.items() if length == len(ids)), key=len, default=())
        if known:
            self.states[known] = self.states.pop(known)
            cache = copy.deepcopy(self.states[known][0])
        on_known(len(known))
        ends = [0, *(place for place, token in enumerate(row[:-1], 1) if token in self.ends)]
        stops = {end for start, end in pairwise(ends) if end - start >= LONG}
        read = len(known)
        for stop in sorted({*stops, max(shared.values(), default=0), len(row) - 1}) if self.most_bytes else ():
            if stop - read >= LONG:
                self.model(input_ids[:, read:stop], past_key_values=cache, use_cache=True, logits_to_keep=1)
                self._keep(row[:stop], cache, is_needed=True)
                read = stop
        written = continued(self.model, input_ids, cache, generation_config, **more)
        self._keep(tuple(written[0, : cache.get_seq_length()].tolist()), cache)  # the last token was not read
        return written

    def _keep(self, ids: tuple[int, ...], cache: Cache, is_needed: bool = False) -> None:
        """Keep a state, a copy of it if the caller goes on, unless it alone is too large."""
        storages = [tensor.untyped_storage() for _, _, tensor in cache_tensors(cache)]  # larger than some tensors in it
        size = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
        if size > self.most_bytes:
            return
        self.states.pop(ids, None)
        while sum(size for _, size in self.states.values()) + size > self.most_bytes:
            del self.states[next(iter(self.states))]
        self.states[ids] = (copy.deepcopy(cache) if is_needed else cache, size)
