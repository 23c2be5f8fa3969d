"""The types of command-line arguments. A run record lists the files that `InputPath` and `OutputPath` name."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import Any, Never, TypeVar

from pydantic import TypeAdapter, ValidationError

from recurformer.study.block import Beta, Budget, Count, Rate, Seed, reason_of


class InputPath(str):
    """A file or folder that a stage reads."""


class OutputPath(str):
    """A file or folder that a stage writes."""


class OutputFolder(OutputPath):
    """A folder that a stage writes; it replaces none but an earlier result."""


P = TypeVar("P", InputPath, OutputPath)


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


COUNT, SEED, BETA, BUDGET, RATE = map(_number, (Count, Seed, Beta, Budget, Rate))
"""The types of flags with numbers."""


def paths_of(args: Namespace, kind: type[P]) -> list[P]:
    """All arguments of one kind, in the order of their flags."""
    values = [item for value in vars(args).values() for item in (value if isinstance(value, list) else [value])]
    return [value for value in values if isinstance(value, kind)]
