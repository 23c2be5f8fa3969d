"""YAML files, without what YAML does in silence: the last of two keys wins, and `010` is 8."""

from pathlib import Path
from re import fullmatch
from typing import Any

import yaml

_PLAIN = {
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[^_:]*",
    "bool": r"(?i:true|false)",
    "timestamp": r"(?!)",
}
"""Type -> the words that YAML and a reader take for the same: no octal numbers, times of day, `on` or dates."""


class _Refused(yaml.MarkedYAMLError):
    """What is YAML, but would surprise."""


class _Loader(yaml.SafeLoader):
    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        kind, word = node.tag.rpartition(":")[2], node.value
        if node.style is None and kind in _PLAIN and not fullmatch(_PLAIN[kind], word):
            meaning = "a date" if kind == "timestamp" else str(yaml.safe_load(word)).lower()
            said = f'YAML reads {word} as {meaning}; if it is a text, write "{word}"'
            raise _Refused(problem=said, problem_mark=node.start_mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line, name = key.start_mark.line + 1, (key.tag, key.value)
                if name in lines:
                    said = f"the key {key.value!r} stands twice, first in line {lines[name]}; write it once"
                    raise _Refused(problem=said, problem_mark=key.start_mark)
                lines[name] = line
        return node


def read_yaml(path: str | Path) -> Any:
    """What a YAML file says.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no text in UTF-8, or as of `parse_yaml`.
    """
    try:
        text = Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text in UTF-8 ({error.reason} at byte {error.start})") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Any:
    """What a YAML or JSON text says; `source` is its name in errors.

    Raises:
        ValueError: it is not YAML; a key stands twice; a word without quotes means something else than it seems to. In
            one line, with the number of the line.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{source}, line {mark.line + 1}" if mark else source
        if isinstance(error, _Refused):
            raise ValueError(f"{place}: {error.problem}") from None
        raise ValueError(f"{place}: not YAML ({str(error).splitlines()[0]})") from None
