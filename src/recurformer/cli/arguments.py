"""A settings block as command-line flags, in both directions. Flags are strings; the block gives them their types.

`InputPath` and `OutputPath` are the types of the arguments that name files; a run record lists these files.
"""

import typing
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Never

from pydantic import TypeAdapter, ValidationError

from recurformer.study import Block
from recurformer.study.block import Beta, Budget, Count, Rate, Seed, reason_of

B = typing.TypeVar("B", bound=Block)


class InputPath(str):
    """A file or folder that a stage reads."""


class OutputPath(str):
    """A file or folder that a stage writes."""


class OutputFolder(OutputPath):
    """A folder that a stage writes; it replaces none but an earlier result."""


P = typing.TypeVar("P", InputPath, OutputPath)


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
"""The types of flags that are no part of a block."""


def paths_of(args: Namespace, kind: type[P]) -> list[P]:
    """All arguments of one kind, in the order of their flags."""
    values = [item for value in vars(args).values() for item in (value if isinstance(value, list) else [value])]
    return [value for value in values if isinstance(value, kind)]


def _nested(annotation: Any) -> type[Block] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, Block) else None


def _is_list(annotation: Any) -> bool:
    options = typing.get_args(annotation) if typing.get_origin(annotation) is not list else ()
    return typing.get_origin(annotation) is list or any(typing.get_origin(option) is list for option in options)


def _fields(block: type[Block], prefix: str) -> Iterator[tuple[str, Any, str]]:
    """Each key as (flag name without dashes, its field, its name)."""
    for name, field in block.model_fields.items():
        yield f"{prefix}{name}".replace("_", "-"), field, name


def add_block(parser: ArgumentParser, block: type[Block], prefix: str = "") -> None:
    """One flag for each key of `block`, keys of nested blocks behind the name of the block."""
    for flag, field, _ in _fields(block, prefix):
        if nested := _nested(field.annotation):
            add_block(parser, nested, f"{flag}-")
            continue
        help_text = (field.description or "").replace("%", "%%")
        if not field.is_required():
            help_text += f" (default: {field.default})"
        parser.add_argument(f"--{flag}", nargs="*" if _is_list(field.annotation) else None, help=help_text)


def _values(args: Namespace, block: type[Block], prefix: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for flag, field, name in _fields(block, prefix):
        if nested := _nested(field.annotation):
            if inner := _values(args, nested, f"{flag}-"):
                values[name] = inner
        elif (value := getattr(args, flag.replace("-", "_"))) is not None:
            if isinstance(value, list):
                value = [item.split(":") if ":" in item else item for item in value]
            values[name] = value
    return values


def read_block(args: Namespace, block: type[B], prefix: str = "") -> B:
    """The settings of a block, from its flags.

    Raises:
        ValueError: in one line, the flag, its value and the right values.
    """
    try:
        return block.model_validate(_values(args, block, prefix))
    except ValidationError as error:
        first = error.errors()[0]
        flag = prefix + "-".join(str(part).replace("_", "-") for part in first["loc"] if isinstance(part, str))
        if isinstance(first["input"], Mapping) and first["type"] == "value_error":  # of several flags together
            flag = f"{flag}…"
        value = "" if isinstance(first["input"], Mapping) else f" {first['input']}"
        raise ValueError(f"--{flag}{value}: {reason_of(first)}") from None


def flags(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """`settings` as the words of a command line that `read_block` turns back into them."""
    words: list[str] = []
    for name, value in settings.items():
        flag = f"{prefix}{name}".replace("_", "-")
        if isinstance(value, Mapping):
            words += flags(value, f"{flag}-")
        elif isinstance(value, list | tuple):
            items = (":".join(map(str, item)) if isinstance(item, list | tuple) else str(item) for item in value)
            words += [f"--{flag}", *items]
        elif value is not None:
            words += [f"--{flag}", str(value)]
    return words
