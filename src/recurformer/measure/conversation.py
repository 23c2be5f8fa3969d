"""How a model goes on from what it has read: a conversation in one cache, and requests that begin alike.

A recurrent state cannot give a token back. So a cache that others may need is copied, and the copy goes on.
"""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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


def special_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of tokens that are no text. Chat templates end a message with one."""
    added = tokenizer.added_tokens_decoder.items()  # type: ignore[attr-defined]
    return [token for token, kind in added if kind.special]


def _shared(a: Tensor, b: Tensor) -> int:
    """Count the first ids that two rows (any,) have in common."""
    length = min(len(a), len(b))
    different = (a[:length] != b[:length]).nonzero()
    return int(different[0]) if len(different) else length


@dataclass(frozen=True)
class State:
    """What a model has read.

    Attributes:
        ids: the tokens, (any,), on the processor.
        cache: after them; nobody writes to it.
        bytes: of the memory that it keeps.
    """

    ids: Tensor
    cache: Cache
    bytes: int


class KeptStates:
    """Writes on after token ids, and reads only those that no kept state has read.

    A state is kept after every answer. Another is kept after `LONG` tokens or more of a prompt, where a long message
    ends, where the prompt ceases to be one that was asked before, and before its last token. The longest state whose
    ids begin a prompt is copied and goes on. Those that were used least recently make room for new ones.

    Args:
        model: a causal language model in evaluation mode.
        most_bytes: of all kept states together. At 0 nothing is kept, and a prompt is read at once.
        ends: ids of the tokens that end a message, such as `special_ids`.
    """

    def __init__(self, model: PreTrainedModel, most_bytes: int, ends: Iterable[int] = ()) -> None:
        self.model, self.most_bytes, self.ends = model, most_bytes, torch.tensor(list(ends), dtype=torch.long)
        self.states: list[State] = []  # the one used last is the last

    @torch.no_grad()
    def write(self, ids: Tensor, config: GenerationConfig, **settings: Any) -> Tensor:
        """Return ids and what the model writes after them, (1, L + written).

        Args:
            ids: of the prompt, (1, L).
            config: as of `continued`.
            settings: likewise.
        """
        row = ids[0].cpu()
        shared = [_shared(state.ids, row[:-1]) for state in self.states]  # without logits, the last is always read
        read, cache = 0, cast(Cache, DynamicCache(config=self.model.config))
        whole = [state for state, length in zip(self.states, shared, strict=True) if length == len(state.ids)]
        if whole:
            known = max(whole, key=lambda state: len(state.ids))
            self.states.sort(key=lambda state: state is known)  # stable: only this one moves, to the end
            read, cache = len(known.ids), copy.deepcopy(known.cache)
        for stop in self._stops(row, read, max(shared, default=0)) if self.most_bytes else ():
            self.model(ids[:, read:stop], past_key_values=cache, use_cache=True, logits_to_keep=1)
            self._keep(row[:stop], cache, is_needed=True)
            read = stop
        written = continued(self.model, ids, cache, config, **settings)
        self._keep(written[0, : cache.get_seq_length()].cpu(), cache)  # the last token was written, but not read
        return written

    def _stops(self, row: Tensor, read: int, shared: int) -> Iterator[int]:
        """The numbers of a prompt's tokens after which a state is to be kept, ascending.

        Args:
            row: the prompt, (L,).
            read: its tokens before which nothing is to be read.
            shared: its first tokens that an earlier prompt has too.
        """
        ends = [0, *(torch.isin(row[:-1], self.ends).nonzero()[:, 0] + 1).tolist()]
        messages = [end for start, end in pairwise(ends) if end - start >= LONG]
        for stop in sorted({*messages, shared, len(row) - 1}):
            if stop - read >= LONG:
                yield stop
                read = stop

    def _keep(self, ids: Tensor, cache: Cache, is_needed: bool = False) -> None:
        """Keep a state, a copy of it if the caller goes on, unless it alone is too large."""
        storages = [tensor.untyped_storage() for _, _, tensor in cache_tensors(cache)]  # larger than some tensors in it
        size = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
        if size > self.most_bytes:
            return
        self.states = [state for state in self.states if not torch.equal(state.ids, ids)]
        while sum(state.bytes for state in self.states) + size > self.most_bytes:
            self.states.pop(0)
        self.states.append(State(ids.clone(), copy.deepcopy(cache) if is_needed else cache, size))
