"""Reading tidy measurement files: the stem of a file's name is the kind of what it holds."""

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import TypeVar

import pandas as pd

from recurformer.records import runs_behind
from recurformer.render.measurements import read_frame
from recurformer.render.training import with_fall

Rendered = TypeVar("Rendered")


def call_renderer(
    name: str, renderers: Mapping[str, Callable[..., Rendered]], files: Iterable[str | Path], **given: object
) -> Rendered:
    """Call a renderer with the measurements that it takes, and with what else is `given`.

    A parameter with a default is a kind that may be missing.

    Raises:
        ValueError: there is no such renderer, or the files hold other measurements than it takes.
    """
    if name not in renderers:
        raise ValueError(f"there is no {name!r}; there are: {', '.join(renderers)}")
    frames = read_measurements(files)
    parameters = signature(renderers[name]).parameters
    kinds = [kind for kind in parameters if kind not in given]
    needed = {kind for kind in kinds if parameters[kind].default is Parameter.empty}
    if not needed <= set(frames) <= set(kinds):
        raise ValueError(f"{name} is made from files named {', '.join(kinds)}; given: {', '.join(frames)}")
    return renderers[name](**frames, **{key: value for key, value in given.items() if key in parameters})


def read_measurements(files: Iterable[str | Path]) -> dict[str, pd.DataFrame]:
    """One frame for each kind, the rows of all its files one below the other, each with the `run` that wrote it.

    Raises:
        ValueError: a file is unreadable or of an unknown format.
    """
    frames: dict[str, list[pd.DataFrame]] = {}
    for file in map(Path, files):
        run = next(iter(runs_behind([file])), "")
        frames.setdefault(file.stem, []).append(with_fall(read_frame(file), file).assign(run=run))
    return {kind: pd.concat(parts, ignore_index=True) for kind, parts in frames.items()}
