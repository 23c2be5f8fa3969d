"""The common parts of all blocks of settings."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from re import fullmatch
from typing import Annotated, Any, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails


def _no_truth(value: Any) -> Any:
    """Otherwise `yes` would be 1."""
    if isinstance(value, bool):
        raise ValueError("this is true or false; give a number")
    return value


def _name(value: str) -> str:
    """A name becomes a part of paths, of command lines and of pages."""
    if not fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        raise ValueError(
            "a name is made of letters, digits, '.', '_' and '-', and begins with a letter or a digit; choose another"
        )
    return value


def _written_plainly(value: float) -> float:
    """A fraction of heads is a part of paths, where Python would write a smaller one with an exponent."""
    if 0 < value < 1e-4:
        raise ValueError("a fraction of heads is 0, or 0.0001 and more")
    return value


NUMBER = BeforeValidator(_no_truth)
WHOLE = BeforeValidator(lambda value: int(value) if isinstance(value, str) and value.isdecimal() else value)
"""A number of a list of numbers, which `--config` hands on as a word."""
Share = Annotated[float, Field(ge=0, le=1), NUMBER]
Budget = Annotated[float, Field(gt=0, le=1), NUMBER]
Beta = Annotated[Share, AfterValidator(_written_plainly)]
Count = Annotated[int, Field(ge=1, lt=2**31), NUMBER]
Index = Annotated[int, Field(ge=0, lt=2**31), NUMBER]
Several = Annotated[int, Field(ge=2, lt=2**31), NUMBER]
Seed = Annotated[int, Field(ge=0, lt=2**32), NUMBER]
"""The range that every generator takes, NumPy's too."""
Rate = Annotated[float, Field(gt=0), NUMBER]
Name = Annotated[str, AfterValidator(_name)]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
"""Of a hub repository. A branch would let the files change under a recorded result."""


class Block(BaseModel):
    """A group of settings: immutable, and a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def none_is_none(cls, value: Any) -> Any:
        """Within a nested value of `--config`, Snakemake hands on every scalar as its word."""
        return None if value == "null" else value

    @field_validator("*")
    @classmethod
    def each_once(cls, value: Any) -> Any:
        """An item that is listed twice would run and count twice."""
        if isinstance(value, list):
            for item in value:
                if value.count(item) > 1:
                    raise ValueError(f"{item!r} is in the list more than once; name it once")
        return value

    @classmethod
    def read(cls, values: Any, place: str = "") -> Self:
        """The block with these values; `place` is its own key among others.

        Raises:
            ValueError: in one line, a key that is unknown, missing or out of its range, its value and the right ones.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ValueError(_refusal(cls, error, place)) from None


def reason_of(error: ErrorDetails) -> str:
    """Why a value is refused, in words."""
    if error["type"] == "string_type" and isinstance(error["input"], int | float):
        kind = "true or false" if isinstance(error["input"], bool) else "a number"
        return f"this is {kind}; write a text in quotes"
    return error["msg"].removeprefix("Value error, ")


def inner_blocks(annotation: Any) -> Iterator[type[Block]]:
    """The blocks in the type of a key: itself, or those of a mapping or of an optional key."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, Block):
            yield kind


def unknown_key(block: type[Block], place: Sequence[str | int]) -> str:
    """The message about a key at `place` that a block does not know: the nearest key, or all keys."""
    *parents, key = place
    for part in parents:
        field = block.model_fields.get(str(part))  # none where `part` is a name in a mapping
        block = next(inner_blocks(field.annotation), block) if field else block
    nearest = get_close_matches(str(key), block.model_fields, n=1)
    return "unknown key; " + (
        f"did you mean {nearest[0]!r}?" if nearest else f"choose one of {', '.join(block.model_fields)}"
    )


def _refusal(block: type[Block], error: ValidationError, place: str) -> str:
    """What pydantic refuses in the settings of a block, in one line."""
    # an unknown key is often the misspelt name of a missing one, so it comes first
    first = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in (place, *first["loc"]) if part not in {"", "[key]"})
    key = key if key.isprintable() else repr(key)
    silent = first["type"] in {"missing", "extra_forbidden"} or not key or isinstance(first["input"], Mapping)
    value = "" if silent else f" = {first['input']!r}"
    message = reason_of(first)
    if first["type"] == "extra_forbidden":
        message = unknown_key(block, first["loc"])
    elif first["type"] == "missing":
        message = "this key is missing"
    return f"{key}{value}: {message}" if key else message
