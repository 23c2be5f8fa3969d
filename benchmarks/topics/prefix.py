"""Time to the first token of an answer to one of several questions about one document, by `recurformer serve`.

With kept states, the first question reads the document and the others their own tokens alone. The document is a message
of its own.
"""

from collections.abc import Iterator
from functools import cache, partial

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from benchmarks.case import Call, Candidate, Case, Options
from benchmarks.models import SEED, backbone, facts, inference, prompt, replaced_heads
from recurformer.measure.conversation import KeptStates
from recurformer.model.convert import convert

QUESTIONS, QUESTION_TOKENS = 10, 16
TOKENS, QUICK_TOKENS = 4096, 512
"""Of the document."""
BETA, WINDOW = 0.5, 256
ROOM = 2 * 10**9
END = 0
"""The id that ends the document."""
ONE_TOKEN = GenerationConfig(max_new_tokens=1, do_sample=False)


@cache
def _with_windows(options: Options) -> PreTrainedModel:
    return convert(backbone(options), replaced_heads(options, BETA), "window", window_tokens=WINDOW)


def _model(options: Options, kind: str) -> PreTrainedModel:
    if kind == "window":
        return _with_windows(options).to(options.device)  # type: ignore[arg-type]  # the library wraps .to
    return inference(options, 0.0 if kind == "backbone" else BETA)


def _questions(options: Options, tokens: int) -> list[Tensor]:
    """Prompts (1, tokens + QUESTION_TOKENS), which differ in their questions alone."""
    document = prompt(options, tokens).clamp(min=END + 1)
    document[:, -1] = END
    generator = torch.Generator().manual_seed(SEED)
    size = (QUESTIONS, 1, QUESTION_TOKENS)
    questions = torch.randint(END + 1, backbone(options).config.vocab_size, size, generator=generator)
    return [torch.cat([document, question.to(document)], 1) for question in questions]


class Asking:
    """Questions about a document, of which nothing has been read before.

    Args:
        model: in evaluation mode.
        prompts: the document with each question, (1, L).
        room: for kept states, in bytes.
    """

    def __init__(self, model: PreTrainedModel, prompts: list[Tensor], room: int) -> None:
        self.model, self.prompts, self.room = model, prompts, room
        self.renew()

    def renew(self) -> None:
        """Forget what was read."""
        self.kept = KeptStates(self.model, self.room, [END])

    def run(self) -> None:
        """Answer all questions with one token."""
        for ids in self.prompts:
            self.kept.generate(ids, ONE_TOKEN)


def _ask(options: Options, kind: str, tokens: int, room: int) -> Call:
    prompts = _questions(options, tokens)
    asked = prompts if room else prompts[:1]  # without states, each question takes as long as any other
    asking = Asking(_model(options, kind), asked, room)
    return Call(asking.run, before=asking.renew, units=len(asked))


def cases(options: Options) -> Iterator[Case]:
    """One case for each kind of model: its states differ in size, and so does the time to copy them."""
    tokens = QUICK_TOKENS if options.quick else TOKENS
    for kind, beta in (("backbone", 0.0), ("window", BETA), ("mamba", BETA)):
        candidates = tuple(
            Candidate(name, partial(_ask, options, kind, tokens, room), facts(options, beta))
            for name, room in (("read again", 0), ("kept", ROOM))
        )
        yield Case(f"{tokens} tokens, {kind}", "read again", candidates, {"tokens": tokens}, memory=False)
