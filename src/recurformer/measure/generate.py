"""Greedy writing with a model's own cache, for every evaluation whose answers are written, and conversations."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from recurformer.data.datasets import pad_batch
from recurformer.measure.cache import held_bytes

NewCache = Callable[[], Cache]
MORE_TOKENS = 2
"""Tokens that an answer in words may have beyond those of the right answer. A model may divide the same text
differently. Only the next token shows whether a number or hash has ended."""


@torch.no_grad()
def generate_greedily(
    model: PreTrainedModel,
    prompts: Sequence[Tensor],
    limits: Sequence[int],
    pad_token_id: int,
    new_cache: NewCache | None = None,
) -> tuple[list[list[int]], float]:
    """The model's greedy answer to each prompt.

    The prompts are read once, with the logits of their last tokens only, and all answers grow together in one cache
    until the last of them has ended.

    Args:
        model: a causal language model, in evaluation mode.
        prompts: token ids (L,) each, preferably of like lengths.
        limits: the most tokens of each answer.
        pad_token_id: padding before shorter prompts and after answers that ended early.
        new_cache: makes the cache; None: the model makes its own.

    Returns:
        Token ids of each answer, and the bytes that the cache held after the prompts for each token of theirs, padding
        included.
    """
    batch = pad_batch([{"input_ids": prompt} for prompt in prompts], pad_token_id, side="left")
    batch = {key: value.to(model.device) for key, value in batch.items()}
    batch.setdefault("attention_mask", torch.ones_like(batch["input_ids"]))
    # nothing of the model's own configuration but its end: no sampling, no repetition penalty
    greedy = GenerationConfig(
        do_sample=False,
        max_new_tokens=max(limits),
        pad_token_id=pad_token_id,
        eos_token_id=model.generation_config.eos_token_id,
    )
    bytes_per_token: list[float] = []

    def measure(module: Any, arguments: Any, output: Any) -> None:
        if not bytes_per_token:  # the first forward pass reads the prompts
            bytes_per_token.append(held_bytes(output.past_key_values, batch["input_ids"].numel(), module.dtype))

    cache_argument = {} if new_cache is None else {"past_key_values": new_cache()}
    own, model.generation_config = model.generation_config, greedy
    hook = model.register_forward_hook(measure)
    try:
        written: Tensor = model.generate(**batch, **cache_argument)  # type: ignore[operator]
    finally:
        hook.remove()
        model.generation_config = own
    answers = written[:, batch["input_ids"].shape[1] :].tolist()
    return [answer[:limit] for answer, limit in zip(answers, limits, strict=True)], bytes_per_token[0]


def write_answers(
    model: PreTrainedModel,
    prompts: Sequence[Tensor],
    limits: Sequence[int],
    pad_token_id: int,
    batch_size: int,
    new_cache: NewCache | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[list[list[int]], list[float]]:
    """The model's greedy answers to many prompts. Prompts of similar length share a batch, to save padding.

    Returns:
        As of `generate_greedily`: token ids of each answer, and the bytes held, one value a batch.
    """
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    answers: list[list[int]] = [[] for _ in order]
    bytes_per_token: list[float] = []
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        batch, batch_limits = [prompts[index] for index in indices], [limits[index] for index in indices]
        written, batch_bytes = generate_greedily(model, batch, batch_limits, pad_token_id, new_cache)
        bytes_per_token.append(batch_bytes)
        for index, answer in zip(indices, written, strict=True):
            answers[index] = answer
        progress(start + len(indices))
    return answers, bytes_per_token


ONE_STREAM = {"use_cache": True, "num_beams": 1, "num_return_sequences": 1, "return_dict_in_generate": False}
"""Settings of a checkpoint that a conversation cannot have otherwise: it is one sequence in a cache of its own."""


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
        model.generation_config.cache_implementation = None  # type: ignore[union-attr]  # the cache is handed in
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
        end = self.model.generation_config.eos_token_id
        try:
            written: Tensor = self.model.generate(  # type: ignore[operator]
                ids,
                attention_mask=torch.ones_like(ids),
                past_key_values=self.cache,
                max_new_tokens=self.tokens,
                pad_token_id=end[0] if isinstance(end, list) else end,
                streamer=streamer,
                **ONE_STREAM,
            )
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
                f" {longest} that the model can read: /reset it, or lower --tokens"
            )
