"""Which operators a call's time goes to, by torch's profiler, and how much of it lies between them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.case import Call
from recurformer.model import native

PARTS = {
    "products": ("aten::mm", "aten::addmm", "aten::bmm", "mkldnn::*", "C++ products", "C++ gated_products"),
    "attention": ("aten::_scaled_dot_product_*", "aten::_flash_attention_*", "C++ window_step"),
    "blocks": ("C++ block_step", "C++ *scan*", "C++ convolution*", "C++ retain_step"),
    "operators": ("*",),
}
"""Columns, and patterns of the names that count there: the first that matches. "operators" are all
others, our kernels for norms and for the beginning of windows too.
"""


@contextmanager
def _named_kernels() -> Iterator[None]:
    """Inside, the profiler sees our C++ kernels, which are no operators of torch's."""
    call = native.call

    def named(function: str, *arguments: Any) -> int:
        with record_function(f"C++ {function}"):
            return call(function, *arguments)

    native.call = named
    try:
        yield
    finally:
        native.call = call


def parts(call: Call) -> dict[str, float]:
    """Run a call once more; returns the fraction of its time in each of `PARTS`, and "between" them.

    The profiler itself takes time between operators, so a loop of small ones is shown worse than it is.
    """
    call.before()
    with _named_kernels(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        began = time.perf_counter()
        call.run()
        seconds = time.perf_counter() - began
    call.after()
    found = dict.fromkeys(PARTS, 0.0)
    for event in profiler.key_averages():
        part = next(name for name, patterns in PARTS.items() if any(fnmatchcase(event.key, one) for one in patterns))
        found[part] += event.self_cpu_time_total / 1e6 / seconds
    return found | {"between": 1 - sum(found.values())}
