"""The command: measure topics, print their ratios beside the goals, keep them as CSV and figures; or check a run."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmarks import baseline
from benchmarks.case import Options
from benchmarks.figures import figures
from benchmarks.goals import Judged, judge, with_goals
from benchmarks.measure import COLUMNS, measure
from benchmarks.models import DEFAULT_BACKBONE, SMOLLM2, SMOLLM2_PROFILE
from benchmarks.report import summary, table
from benchmarks.topics import TOPICS
from recurformer.files import atomic_path
from recurformer.gpus import own_gpus
from recurformer.records import read_record, run_record
from recurformer.render.style import save_figure

ROUNDS, QUICK_ROUNDS = 15, 3
MEASUREMENTS, RECORD = "bench.csv", "bench.run.json"


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("topics", nargs="*", help=f"of {', '.join(TOPICS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="the smallest size of each topic, three rounds")
    parser.add_argument("--threads", type=int, nargs="+", default=[torch.get_num_threads()], help="default: torch's")
    parser.add_argument("--device", choices=DEFAULT_BACKBONE, default="cpu", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, help=f"how often each candidate is timed (default: {ROUNDS})")
    parser.add_argument("--seconds", type=float, default=20, help="of rounds for a case, at least three rounds (20)")
    parser.add_argument("--backbone", help="a checkpoint, or a published shape for random weights (default: SmolLM2)")
    parser.add_argument("--profile", help="the backbone's head profile; without one heads are chosen at random")
    parser.add_argument("--results", default="results/bench", help="folder of the measurements (%(default)s)")
    parser.add_argument("--figures", default="figures", help="folder of the figures (%(default)s)")
    parser.add_argument("--baseline", default="benchmarks/baseline.csv", help="the committed ratios (%(default)s)")
    parser.add_argument("--check", action="store_true", help="measure nothing: compare the last run with the baseline")
    parser.add_argument("--write-baseline", action="store_true", help="measure nothing: make the last run the baseline")
    return parser


def _options(args: Namespace, threads: int) -> Options:
    backbone = args.backbone or DEFAULT_BACKBONE[args.device]
    own = SMOLLM2_PROFILE if backbone == SMOLLM2 and Path(SMOLLM2_PROFILE).exists() else None
    return Options(args.device, threads, args.quick, backbone, args.profile or own)


def _check_usable(args: Namespace) -> None:
    for topic in args.topics:
        if topic not in TOPICS:
            raise ValueError(f"there is no topic {topic!r}; there are: {', '.join(TOPICS)}")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here")


def _rows(topic: str, options: Options, rounds: int, seconds: float) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for case in TOPICS[topic](options):
        print(f"{topic}: {case.name}, threads: {options.threads}", file=sys.stderr, flush=True)
        rows += measure(topic, case, options, rounds, seconds)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _measure(args: Namespace) -> list[tuple[pd.DataFrame, list[Judged]]]:
    """Measure topic by topic; each table is printed as soon as it is there."""
    rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    found = []
    for threads, topic in product(args.threads, args.topics or TOPICS):
        torch.set_num_threads(threads)
        options = _options(args, threads)
        rows = _rows(topic, options, rounds, args.seconds)
        said = judge(rows, topic, options)
        found.append((with_goals(rows, said), said))
        if len(rows):
            print(table(found[-1][0]), flush=True)
    return found


def _run(args: Namespace, argv: Sequence[str]) -> None:
    """Measure and write what was measured."""
    _check_usable(args)
    results, options = Path(args.results), _options(args, args.threads[0])
    inputs = [path for path in (options.backbone, options.profile) if path and Path(path).exists()]
    record, settings = results / RECORD, {key: value for key, value in vars(args).items() if value is not None}
    output = str(results / MEASUREMENTS)
    with run_record(
        record, "benchmarks", argv, settings, inputs=inputs, outputs=[output], program="python -m benchmarks"
    ):
        measured = _measure(args)
        rows = pd.concat([frame for frame, _ in measured], ignore_index=True)
        if rows.empty:
            raise ValueError(f"{', '.join(args.topics)}: nothing that can be measured on {args.device}")
        with atomic_path(output) as scratch:
            rows.to_csv(scratch, index=False)
    for name, figure in figures(rows):
        for suffix in ("svg", "png"):
            with atomic_path(Path(args.figures) / f"{name}.{suffix}") as scratch:
                save_figure(figure, scratch, [read_record(record)["run"]])
    print(summary([found for _, judged in measured for found in judged]))


def _last_run(args: Namespace) -> pd.DataFrame:
    measurements = Path(args.results) / MEASUREMENTS
    if not measurements.exists():
        raise ValueError(f"{measurements} is not there: run the benchmarks first")
    return pd.read_csv(measurements)


def _check(args: Namespace) -> int:
    """Compare the last run with the baseline; 1 when something got worse."""
    worse = baseline.regressions(args.baseline, _last_run(args))
    print("\n".join(worse) if worse else "no ratio got worse")
    return 1 if worse else 0


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 done, 1 refused (one line on standard error) or a regression (one line each), 2 wrong usage."""
    argv = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args(argv)
    try:
        if args.write_baseline:
            baseline.write(args.baseline, _last_run(args))
        elif args.check:
            return _check(args)
        else:
            with own_gpus(int(args.device == "cuda")):
                _run(args, argv)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
