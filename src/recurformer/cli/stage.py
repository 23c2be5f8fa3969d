"""A stage of the `recurformer` command: a function with a declaration, from which everything else follows.

    @stage(
        "quality on some task",
        *(checkpoint(), NAME),
        rows="one row a sample",
        metrics=[Metric("quality", "correct", over="queries")],
        device="computes",
    )
    def some_task(args: Namespace, settings: SomeTask, mamba: Mamba) -> "pd.DataFrame":
        '''Quality on some task (Table 6).'''

declares `recurformer some-task`: its line in the command's help, its arguments, of which `rows` is the file that the
frame it returns is written to, the final metrics that it prints and keeps in its run record, and its use of a device.
Parameters that are blocks of settings come from `--settings`, a mapping in YAML or JSON: keys of `settings` itself, and
a mapping for each other block, as in `--settings '{samples: 8, mamba: {d_state: 16}}'`. A stage with a block
`distributed` can run in several processes together. Modules of stages import nothing heavy at their top: `recurformer
--help` reads them all.
"""

import math
import sys
import time
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import cleandoc, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Never, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from recurformer.files import atomic_path, parse_yaml
from recurformer.records import number_text
from recurformer.study import Block
from recurformer.study.block import NUMBER, Beta, Count, Index, Rate, Seed, reason_of

if TYPE_CHECKING:
    import pandas as pd


SUITE = "pip install '.[suite]'"
"""What brings the packages that only some stages need, in a copy of the repository: no index has this package."""


class InputPath(str):
    """A file or folder that a stage reads; its run record lists it."""


class OutputPath(str):
    """A file or folder that a stage writes; its run record lists it."""


class OutputFolder(OutputPath):
    """A folder that a stage writes; it replaces none but an earlier result."""


class OneLineParser(ArgumentParser):
    """A parser that refuses in one line: the usage of a stage fills a screen."""

    def print_help(self, file: Any = None) -> None:
        """Print the help; an output that cannot be written is an error, which argparse would hide."""
        print(self.format_help(), end="", file=file)

    def error(self, message: str) -> Never:
        """Leave with exit code 2."""
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help lists all flags\n")


def _number(kind: Any) -> Callable[[str], Any]:
    """The `type` of a flag that takes the values of a key of this type."""
    adapter = TypeAdapter(kind)

    def read(text: str) -> Any:
        try:
            return adapter.validate_python(text)
        except ValidationError as error:
            raise ArgumentTypeError(f"{text}: {reason_of(error.errors()[0])}") from None

    return read


Budget = Annotated[float, Field(gt=0, lt=1), NUMBER]
COUNT, INDEX, SEED, BETA, BUDGET, RATE = map(_number, (Count, Index, Seed, Beta, Budget, Rate))
"""The types of flags with numbers."""


def paths_of(args: Namespace, kind: type[str]) -> list[str]:
    """All arguments of one kind, in the order of their flags."""
    values = [item for value in vars(args).values() for item in (value if isinstance(value, list) else [value])]
    return [value for value in values if isinstance(value, kind)]


Argument = Callable[[ArgumentParser], object]
"""Adds one argument to the parser of a stage."""
Device = Literal["computes", "spares"]
"""`computes`: has a GPU for itself where there are any; `spares`: makes, changes or counts models without computing and
leaves GPUs to others."""
F = TypeVar("F", bound=Callable[..., Any])


class Several(Action):
    """Values of an option that may be given several times: all count, in the place of the default."""

    def __call__(self, parser: ArgumentParser, args: Namespace, values: Any, option_string: str | None = None) -> None:
        """Add the values to those that were given before."""
        held = getattr(args, self.dest)
        setattr(args, self.dest, [*([] if held is self.default else held), *values])


def argument(*names: str, **options: Any) -> Argument:
    """One argument, as `ArgumentParser.add_argument` takes it; an option with several values is `Several`."""
    if names[0].startswith("-") and options.get("nargs") in {"+", "*"}:
        options = {"action": Several} | options
    return lambda parser: parser.add_argument(*names, **options)


def checkpoint(text: str = "folder of the model") -> Argument:
    """The folder of the model, the first argument."""
    return argument("checkpoint", type=InputPath, help=text)


def seed(text: str) -> Argument:
    """A seed; the text names its use."""
    return argument("--seed", type=SEED, default=0, help=f"seed of {text}")


ARTICLES = argument("--articles", type=InputPath, required=True, help="Parquet file of articles")
NAME = argument("--name", required=True, help="name of the backbone in the measurements")
MEASURED_BETA = argument("--beta", type=BETA, required=True, help="fraction of heads replaced, for the measurements")
DTYPE = argument(
    "--dtype", choices=["float32", "bfloat16"], default="auto", help="type of the weights (default: as saved)"
)


WRITERS: dict[str, Callable[["pd.DataFrame", Path], None]] = {
    ".csv": lambda frame, path: frame.to_csv(path, index=False),
    ".parquet": lambda frame, path: frame.to_parquet(path, index=False),
}
"""Suffix of a file of rows -> how it is written."""


def _rows_file(text: str) -> OutputPath:
    if Path(text).suffix not in WRITERS:
        raise ArgumentTypeError(f"{text}: rows are written as {' or '.join(WRITERS)}; end the name so")
    return OutputPath(text)


def rows_argument(text: str) -> Argument:
    """The file of a stage's frame; `text` describes a row."""
    return argument("rows", type=_rows_file, help=f"CSV or Parquet file to write: {text}")


def write_rows(frame: "pd.DataFrame", target: str) -> None:
    """The file appears whole or not at all."""
    with atomic_path(target) as path:
        WRITERS[path.suffix](frame, path)


@dataclass(frozen=True)
class Metric:
    """One number of a frame that a run's record keeps, or one for each value of some of its columns.

    `Metric("h_gq", "correct", over="hops", by=["variant"])` makes of a frame {"h_gq/near": 0.98, "h_gq/far": 0.95}.

    Args:
        name: of the metric; the values of the columns `by` are appended, separated by slashes.
        column: its mean is the metric.
        over: the sum of this column divides the sum of `column` instead.
        by: columns with whose values the metric is named.
        of: applied to the quotient or the mean.
    """

    name: str
    column: str
    over: str = ""
    by: Sequence[str] = ()
    of: Callable[[float], float] = float

    def values(self, frame: "pd.DataFrame") -> Iterator[tuple[str, float]]:
        """The metrics of a frame, in the order of its rows."""
        groups = frame.groupby(list(self.by), dropna=False, sort=False) if self.by else [((), frame)]
        for key, rows in groups:
            count = rows[self.over].sum() if self.over else rows[self.column].count()
            if count:
                yield "/".join((self.name, *map(str, key))), self.of(float(rows[self.column].sum() / count))


def metrics_of(metrics: Iterable[Metric], frame: "pd.DataFrame") -> dict[str, float]:
    """All metrics of a frame; those that are no finite numbers are left out."""
    found = (entry for metric in metrics for entry in metric.values(frame))
    return {name: value for name, value in found if math.isfinite(value)}


def perplexity_of(nats: float) -> float:
    """The perplexity of a mean negative log-likelihood in nats; infinite where it has no number."""
    return math.exp(nats) if nats < 700 else math.inf


Settings = dict[str, Block]
"""The blocks of settings that a stage is given, by the parameters of its function."""
OWN = "settings"
"""The block whose keys stand in `--settings` themselves."""


def flat(settings: Settings) -> dict[str, Any]:
    """Settings as a run record keeps them: one level, with the names of inner blocks before their keys."""
    values = {name: block.model_dump(mode="json") for name, block in settings.items()}
    return _flat(values.pop(OWN, {}) | values)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        inner = isinstance(value, dict)
        found |= _flat(value, f"{prefix}{name}_") if inner else {f"{prefix}{name}": value}
    return found


@dataclass(frozen=True)
class Stage:
    """One stage of the command; see `stage`."""

    name: str
    text: str
    function: Callable[..., Any]
    arguments: tuple[Argument, ...]
    rows: str
    metrics: Sequence[Metric]
    device: Device | None

    @property
    def place(self) -> str:
        """The place where its code begins, for `recurformer.digest`."""
        return f"{self.function.__module__}:{self.function.__name__}"

    @cached_property
    def blocks(self) -> dict[str, type[Block]]:
        """The blocks of settings that its function takes, by parameter."""
        kinds = {name: parameter.annotation for name, parameter in signature(self.function).parameters.items()}
        return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Block)}

    def settings(self, text: str | None) -> Settings:
        """The blocks of its function, from `--settings`.

        Raises:
            ValueError: in one line, the key, its value and the right values.
        """
        values, blocks = parse_yaml(text or "{}", "--settings"), self.blocks
        if not isinstance(values, dict):
            raise ValueError(f"--settings {text}: give a mapping in YAML or JSON, such as {{samples: 8}}")
        inner = {name: values.pop(name, {}) for name in blocks if name != OWN}
        if values and OWN not in blocks:
            raise ValueError(f"--settings {next(iter(values))}: unknown key; choose one of {', '.join(blocks)}")
        given = inner | ({OWN: values} if OWN in blocks else {})
        settings = {}
        for name, kind in blocks.items():
            try:
                settings[name] = kind.read(given[name], "" if name == OWN else name)
            except ValueError as error:
                raise ValueError(f"--settings {error}") from None
        return settings

    def parser(self) -> ArgumentParser:
        """All of its arguments."""
        text = cleandoc(self.function.__doc__ or "")
        parser = OneLineParser(prog=f"recurformer {self.name}", description=text)
        for add in self.arguments:
            add(parser)
        if self.rows:
            rows_argument(self.rows)(parser)
        if blocks := self.blocks:
            named = ", ".join(f"{name} ({kind.__name__})" for name, kind in blocks.items())
            parser.add_argument("--settings", help=f"YAML or JSON of {named}: the keys that config/README.md describes")
        parser.add_argument("--record", help="write a run record (JSON) to this file")
        parser.add_argument("--threads", type=COUNT, help="processor threads to use (default: torch's choice)")
        parser.set_defaults(stage=self.name)
        return parser

    @cached_property
    def arguments_by_name(self) -> dict[str, Action]:
        """Its arguments, by the names that they have in `args`, in their order. Made once: a workflow asks for each of
        its jobs.
        """
        return {action.dest: action for action in self.parser()._actions if action.dest != "help"}

    def command(self, values: Mapping[str, Any]) -> list[str]:
        """The words of its command line that give some arguments these values: positional ones first, no words for a
        value that is None or an empty list.

        Raises:
            ValueError: it has no such argument.
        """
        arguments = self.arguments_by_name
        if unknown := sorted(values.keys() - arguments):
            raise ValueError(f"recurformer {self.name} has no argument {unknown[0]}")
        words, flags = ["recurformer", self.name], list[str]()
        for name, action in arguments.items():
            value = values.get(name)
            items = [str(item) for item in (value if isinstance(value, list) else [value]) if item is not None]
            if items and action.option_strings:
                flags += [action.option_strings[0], *items]
            else:
                words += items
        return words + flags

    def run(self, args: Namespace, settings: Settings) -> dict[str, float]:
        """Call the function, write its frame; the final metrics of the run."""
        result = self.function(args, **settings)
        if self.rows:
            write_rows(result, args.rows)
        metrics = metrics_of(self.metrics, result) if self.metrics else result if isinstance(result, dict) else {}
        for name, value in metrics.items():
            print(f"{name}: {number_text(value)}")
        return metrics


STAGES: dict[str, Stage] = {}
"""Name -> stage, in the order of the declarations."""


def stage(
    text: str,
    *arguments: Argument,
    rows: str = "",
    metrics: Sequence[Metric] = (),
    device: Device | None = None,
) -> Callable[[F], F]:
    """Declare a function as a stage of the command.

    Args:
        text: its line in the command's help; its own begins with the docstring of the function.
        arguments: those that are no keys of a settings block, positional ones before the rows'.
        rows: what a row of the frame that the function returns is; without it, the function writes by itself.
        metrics: the final metrics of the frame that the function returns; without any, a dict that it returns.
        device: its use of one; None: no torch at all, or the function sees to it.
    """

    def declare(function: F) -> F:
        command = function.__name__.replace("_", "-")
        STAGES[command] = Stage(command, text, function, arguments, rows, metrics, device)
        return function

    return declare


PROGRESS_SECONDS = 10.0


def progress(unit: str) -> Callable[[int, int], None]:
    """A callback (done, all) that shows the progress on standard error, at most every ten seconds. It serves several
    series, one after the other.
    """
    started = shown = called = time.perf_counter()
    before = 0

    def show(done: int, total: int) -> None:
        nonlocal started, shown, called, before
        if done <= before:  # the first of the next series began when the last one ended
            started = called
        called, before = time.perf_counter(), done
        if called - shown >= PROGRESS_SECONDS:
            shown = called
            seconds_left = (called - started) / done * (total - done)
            print(f"{unit} {done}/{total}, {seconds_left:.0f} s left", file=sys.stderr, flush=True)

    return show
