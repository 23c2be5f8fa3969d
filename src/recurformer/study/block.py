"""What every block of a study's settings is made of."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Index = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0)]


class Block(BaseModel):
    """A group of settings: immutable, and a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def inner_blocks(annotation: Any) -> Iterator[type[Block]]:
    """The blocks in the type of a key: itself, or those of a mapping or of what may be left out."""
    for found in (annotation, *get_args(annotation)):
        if isinstance(found, type) and issubclass(found, Block):
            yield found


def unknown_key(block: type[Block], place: Sequence[str | int]) -> str:
    """What to say of a key at `place` that a block does not know: the key that was meant, or all there are."""
    *parents, key = place
    for part in parents:
        field = block.model_fields.get(str(part))  # none where `part` is a name in a mapping
        block = next(inner_blocks(field.annotation), block) if field else block
    meant = get_close_matches(str(key), block.model_fields, n=1)
    return "unknown key; " + (
        f"did you mean {meant[0]!r}?" if meant else f"choose one of {', '.join(block.model_fields)}"
    )
