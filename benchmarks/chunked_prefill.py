"""The command that measures what a prefill needs beyond its cache, by length, in one pass and in chunks, on the CPU.

Real memory: the high-water mark of the resident size, each time in a process of its own. The model is small, so that
32,768 tokens take seconds; its activations are large enough to stand out from what a process needs anyway.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pandas as pd
import torch
from transformers import PreTrainedModel

from benchmarks.case import Call
from benchmarks.memory import in_own_process, peak_of_process
from recurformer.backbones import make_random
from recurformer.files import atomic_path
from recurformer.measure.cache import count_cache
from recurformer.measure.longest import PREFILLS
from recurformer.model.convert import convert
from recurformer.records import run_record

LENGTHS = (2048, 4096, 8192, 16384, 32768)
BETAS = (0.0, 0.5)
LAYERS, HEADS = 2, 4
CHUNK = 1024
COLUMNS = ("protocol", "beta", "tokens", "cache_bytes", "peak_bytes", "beyond_bytes")


def _model(beta: float) -> PreTrainedModel:
    base = make_random(hidden_size=256, layers=LAYERS, heads=HEADS, kv_heads=2, head_dim=64, intermediate_size=2048)
    torch.manual_seed(0)
    return convert(base, [list(range(round(beta * HEADS)))] * LAYERS).requires_grad_(False)


def _measure(protocol: str, beta: float, tokens: int) -> dict[str, object]:
    torch.set_num_threads(1)
    model = _model(beta)

    @torch.no_grad()
    def run(length: int = tokens) -> None:
        PREFILLS[protocol](model, torch.zeros(1, length, dtype=torch.long), CHUNK)

    run(2 * CHUNK)  # loads kernels, whose memory is not the prefill's
    peak, cache = peak_of_process(Call(run)), int(count_cache(model, tokens).bytes.sum())
    return dict(zip(COLUMNS, (protocol, beta, tokens, cache, peak, peak - cache), strict=True))


def measure(protocol: str, beta: float, tokens: int) -> dict[str, object]:
    """One row with the columns `COLUMNS`, from a process of its own; beyond_bytes is the peak without the cache."""
    return in_own_process(_measure, protocol, beta, tokens)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure all lengths; write the rows, and the record of the run beside them."""
    parser = ArgumentParser(prog="python -m benchmarks.chunked_prefill", description=__doc__)
    parser.add_argument("--results", default="benchmarks/chunked_prefill.csv", help="CSV file (%(default)s)")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens (%(default)s)")
    argv = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(argv)
    results = Path(args.results)
    record, settings = str(results.with_suffix(".run.json")), {"lengths": args.lengths, "chunk": CHUNK}
    with run_record(record, "chunked_prefill", argv, settings, outputs=[args.results], program=parser.prog):
        rows = []
        for case in product(PREFILLS, BETAS, args.lengths):
            rows.append(measure(*case))
            print(rows[-1], file=sys.stderr, flush=True)
        with atomic_path(results) as path:
            pd.DataFrame(rows).to_csv(path, index=False)


if __name__ == "__main__":
    main()
