"""The progress line of long stages."""

import sys
import time
from collections.abc import Callable

PROGRESS_SECONDS = 10.0


def progress(what: str) -> Callable[[int, int], None]:
    """A callback (done, all) that says on standard error how far it is, at most every ten seconds."""
    started = last = time.perf_counter()

    def show(done: int, total: int) -> None:
        nonlocal last
        now = time.perf_counter()
        if now - last >= PROGRESS_SECONDS:
            last = now
            left = (now - started) / done * (total - done)
            print(f"{what} {done}/{total}, {left:.0f} s left", file=sys.stderr, flush=True)

    return show
