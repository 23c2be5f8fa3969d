"""Tokens per second at the largest batch that fits onto the card, after a long context; on CUDA only.

Each candidate has the whole card to itself: the other's weights wait in the processor's memory, outside the clock. All
sequences of a batch have the same context, which says nothing to the clock.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.case import Call, Candidate, Case, Options
from benchmarks.models import Change, facts, inference, prompt, variants
from benchmarks.topics.decode import STEPS, Decoder, fill
from recurformer.measure.device import is_out_of_memory
from recurformer.measure.memory import longest_length

TOKENS = 32768
LARGEST = 1024


class _Batch:
    """A model that moves onto the card with a batch of contexts, and off again."""

    def __init__(self, options: Options, change: Change, tokens: int):
        self.options, self.tokens = options, tokens
        self.model: Any = inference(options, change)
        self.decoder: Decoder | None = None

    def load(self, batch: int) -> None:
        """Fill a cache for `batch` sequences. It is decoded in place: that the context grows by a few tokens with
        every load does not matter, that it is held twice would.
        """
        self.model.to(self.options.device)
        cache: Any = fill(self.model, prompt(self.options, self.tokens))
        cache.reorder_cache(torch.zeros(batch, dtype=torch.long, device=self.options.device))  # states too
        self.decoder = Decoder(self.model, cache, batch)

    def unload(self) -> None:
        """Free the card."""
        self.decoder = None
        self.model.to("cpu")
        torch.cuda.empty_cache()

    def run(self) -> None:
        """Decode a few tokens of every sequence."""
        assert self.decoder is not None
        self.decoder.run()

    def fits(self, batch: int) -> bool:
        """Whether a batch can be decoded."""
        try:
            self.load(batch)
            self.run()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return False
        finally:
            self.unload()
        return True


def largest_batch(fits: Callable[[int], bool]) -> int:
    """The largest batch that fits.

    Raises:
        ValueError: not even one sequence does.
    """
    batch = longest_length(fits, LARGEST)
    if not batch:
        raise ValueError(f"throughput: not even one sequence of {TOKENS} tokens fits onto this card")
    return batch


def _throughput(options: Options, change: Change, tokens: int) -> Call:
    held = _Batch(options, change, tokens)
    held.unload()
    batch = largest_batch(held.fits)
    print(f"{change}: the largest batch is {batch}")
    return Call(held.run, before=lambda: held.load(batch), after=held.unload, units=batch * STEPS)


def cases(options: Options) -> Iterator[Case]:
    """One case on CUDA, none elsewhere."""
    if options.device == "cuda":
        candidates = tuple(
            Candidate(name, partial(_throughput, options, change, TOKENS), facts(options, change))
            for name, change in variants(options).items()
        )
        yield Case(f"{TOKENS} tokens", "backbone", candidates, {"tokens": TOKENS})
