"""What each kind of measurement holds, how its files are read, and the checks that all readers make."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from recurformer.paper import BACKBONE_LABELS
from recurformer.records import PACK, runs_behind

SUBJECT = "model family method setting# by trained? seed#"
IDENTITY = f"{SUBJECT} ratio#"
"""What a row says about the measured subject. family: "original", "eviction", "mixer" (heads replaced),
"layers" (whole layers replaced) or "pooled" (fewer KV heads); method: within the family; setting: the fraction that was
asked for (of the cache kept, of heads or layers replaced, of KV heads kept); by: the selector, if any; trained: after
the change; ratio: held bytes over those of the original's full cache."""

KINDS = {
    "cache": "model unit beta# length# ratio#",
    "cache_peak": "model unit beta# length# ratio# peak_bytes#",
    "pyramidinfer": "model length# ratio#",
    "memory": "model beta# protocol l_m# memory_bytes# source",
    "hashhop": f"{IDENTITY} variant sample# correct# hops#",
    "compared_hashhop": f"{IDENTITY} variant sample# correct# hops#",
    "pyramidinfer_hashhop": f"{IDENTITY} variant sample# correct# hops#",
    "baseline": "model seed# variant sample# correct# hops#",
    "perplexity": "model beta# seed# stage split tokens# negative_log_likelihood#",
    "contribution": "model norm tokens interval mean# low# high# samples# p_value#",
    "complexity": "mixer phase quantity length# bytes# operations# width#",
    "sink": "model layer# head# quantity query# key# value# samples#",
    "metrics": "model arm beta# seed# step# loss#",
    "mqar": "beta# learning_rate# seed# split length# pairs# trained_length? correct# queries#",
    "attention_map": "model level layer# head# ra_i# query# key# weight# samples#",
    "profile": "model sample# layer# head# rr# threshold#",
    "influence": "model mixer layer# head# query# key# weight# norm#",
    "hashhop_sizes": f"{IDENTITY} variant sample# correct# hops# size# form as_trained?",
    "needle": f"{IDENTITY} task length# depth# sample# correct# queries#",
    "turns": f"{IDENTITY} length# document# depth# known? correct# queries#",
    "continuation": f"{IDENTITY} window# position# tokens# negative_log_likelihood#",
    "long_continuation": f"{IDENTITY} window# position# tokens# negative_log_likelihood# divergence#",
    "written": f"{IDENTITY} window# agreed# tokens# negative_log_likelihood#",
    "positions": f"{IDENTITY} window# position# tokens# negative_log_likelihood# divergence# "
    "recalled# recalled_likelihood#",
    "recovery": "model arm mixer beta# seed# tokens# seconds# "
    "window# negative_log_likelihood# divergence# bytes_10240# bytes_61440#",
    "layer_errors": "model arm mixer beta# seed# layer# after#",
    "ablation_lm_eval": f"{SUBJECT} task metric value# stderr# samples#",
    "head_scores": "model by seed# layer# head# score#",
    "prices": "model seed# layer# group# window# bits# tokens# cost#",
    "mixer_prices": "model seed# layer# group# mixer bytes# tokens# cost# error# window# bits# tokens_cost#",
    "bench": "topic model device beta# batch# tokens# rounds# ratio# ratio_low# ratio_high# median_seconds#",
    "ra_i_settings": "model window# threshold# beta# unit selected# shared# rank_correlation# default?",
}
"""Kind of measurement -> the columns that tables, figures and claims read: numbers with a "#", truth values with a "?",
all others texts.

length, l_m, window of a setting: tokens; bytes, peak_bytes, memory_bytes: bytes; ratio: over the original's full cache;
negative_log_likelihood: nats, summed over the tokens (in `recovery` nats per token, as divergence and loss are);
correct: right ones of the hops or queries; depth: fraction of the text before a needle; rr: recency ratio, whose
threshold is α; agreed: tokens before the first that differs from the original's; ra_i: samples above it; score: the
highest is replaced first; weight: sums to 1 over the keys; size: chains or characters, by the task's form. stage:
"before", "converted" or "trained"; interval: of the "mean", or the "spread". Newer rows of `recovery` have text_tokens
too: the length of the text that is learnt.
"""
COLUMNS = {kind: tuple(columns.replace("#", "").replace("?", "").split()) for kind, columns in KINDS.items()}
NUMBERS = {kind: [name[:-1] for name in columns.split() if name.endswith("#")] for kind, columns in KINDS.items()}
TRUTHS = {name[:-1] for columns in KINDS.values() for name in columns.split() if name.endswith("?")}
LANGUAGE_ONLY = frozenset({"metrics", "profile"})
"""Kinds of files that other parts of a study have too, of which the claims speak about the language runs only."""
PACKED = "measurements"
"""Folder of a recording with one Parquet file a kind."""
TEXTS = sorted({name for columns in COLUMNS.values() for name in columns} - {*chain(*NUMBERS.values()), *TRUTHS})
"""Columns of texts, also where one looks like something else: `NA`, `007` or, as RULER's metrics, `512`."""


READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": lambda path: pd.read_csv(path, dtype=dict.fromkeys(TEXTS, str), keep_default_na=False, na_values=[""]),
    ".jsonl": lambda path: pd.DataFrame(map(json.loads, path.read_text("utf-8").splitlines())),
    ".parquet": pd.read_parquet,
}
"""Suffix of a measurement file -> what reads it. JSON keeps the types as they are written: pandas' own reader guesses
others."""


def read_frame(path: Path) -> pd.DataFrame:
    """The rows of a measurement file. Those of a recording have the `file` that they lay in, and its `run`.

    Raises:
        ValueError: the file is unreadable or of an unknown format, or a column of numbers has a word.
    """
    if path.suffix not in READERS:
        raise ValueError(f"{path}: a measurement file ends in {', '.join(READERS)}")
    try:
        frame = READERS[path.suffix](path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: unreadable ({str(error).splitlines()[0]})") from None
    for column in frame.columns.intersection(NUMBERS.get(path.stem, [])):
        wrong = frame.loc[frame[column].notna() & pd.to_numeric(frame[column], errors="coerce").isna(), column]
        if len(wrong):
            raise ValueError(f"{path}: column {column} must hold numbers, not {wrong.iloc[0]!r}")
    return frame.assign(file=f"{path.parents[1]}/" + frame["file"]) if path.parent.name == PACKED else frame


MAY_BE_EMPTY = {"layer_errors"}
"""Kinds of which a run may have no row: a recipe without a closed form has no errors of its layers."""


def read_frames(files: Iterable[str | Path]) -> dict[str, pd.DataFrame]:
    """One frame for each kind, the stem of a file's name: the rows of all its files one below the other, each with its
    `file` and with the `run` that wrote it. A file that is named twice is read once: it is no second sample.

    Raises:
        ValueError: a file is unreadable, empty or lacks columns.
    """
    frames: dict[str, list[pd.DataFrame]] = {}
    for file in dict.fromkeys(map(Path, files)):
        frame = read_frame(file)
        if frame.empty and file.stem in MAY_BE_EMPTY:
            continue
        if file.stem in COLUMNS:
            require(frame, file.stem)
        known = frame if "run" in frame else frame.assign(file=str(file), run=next(iter(runs_behind([file])), ""))
        frames.setdefault(file.stem, []).append(known)
    return {kind: pd.concat(parts, ignore_index=True) for kind, parts in frames.items()}


COMPARED = {"compared_hashhop": "hashhop"}
"""Kind that is shown by itself -> the kind of its files: HashHop by all subjects that the ablations compare."""


def packed_kind(place: Path) -> str:
    """The kind of a measurement file in a recording, whose place begins with `results`: its stem, and before it the
    part of the study where the claims speak about language alone.
    """
    part = place.parts[1]
    return f"{part}_{place.stem}" if place.stem in LANGUAGE_ONLY and part != "language" else place.stem


def pack(files: Mapping[Path, Path], runs: Callable[[Path], list[str]]) -> dict[str, pd.DataFrame]:
    """The rows of many measurement files (place in the recording -> file), one frame a kind, each row with the `file`
    and the `run` that it is from; `runs` gives the ids of the runs that wrote a file.
    """
    frames: dict[str, list[pd.DataFrame]] = {}
    for place, file in files.items():
        frame = read_frame(file).assign(file=str(place), run=next(iter(runs(file)), ""))
        if len(frame):
            frames.setdefault(packed_kind(place), []).append(frame)
    return {kind: pd.concat(parts, ignore_index=True) for kind, parts in sorted(frames.items())}


def recordings(folder: str | Path | None) -> list[Path]:
    """The recordings in a folder; without a folder none."""
    return sorted(pack.parent for pack in Path(folder).glob(f"*/{PACK}")) if folder else []


def packed_frames(folder: Path, kinds: Collection[str] = COLUMNS) -> dict[str, pd.DataFrame]:
    """The measurements of a recording by kind; each row with its `file`, as if it still lay there, and its `run`."""
    return {file.stem: read_frame(file) for file in sorted((folder / PACKED).glob("*.parquet")) if file.stem in kinds}


@lru_cache(maxsize=4)
def _packed(file: Path, modified: int) -> dict[str, pd.DataFrame]:
    return {str(name): rows for name, rows in read_frame(file).groupby("file")}


def packed_rows(file: Path) -> pd.DataFrame:
    """The rows that a recording keeps of one measurement file; none where it keeps no such file."""
    for folder in file.parents:
        if (folder / PACK).is_file():
            kept = folder / PACKED / f"{packed_kind(file.relative_to(folder))}.parquet"
            if kept.is_file():
                return _packed(kept, kept.stat().st_mtime_ns).get(str(file), pd.DataFrame())
    return pd.DataFrame()


def require(frame: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Return `frame` when it has rows and the columns of `kind`.

    Raises:
        ValueError: it is empty or lacks columns; the message names them.
    """
    missing = [column for column in COLUMNS[kind] if column not in frame.columns]
    if missing:
        raise ValueError(
            f"{kind} measurements lack the column(s) {', '.join(missing)}; needed: {', '.join(COLUMNS[kind])}"
        )
    if frame.empty:
        raise ValueError(f"{kind} measurements have no rows: nothing to render")
    return frame


def require_values(frame: pd.DataFrame, kind: str, column: str, needed: Iterable[str]) -> None:
    """Check that every needed value occurs in `column`.

    Raises:
        ValueError: naming the values that do not.
    """
    missing = sorted(set(needed) - set(frame[column]))
    if missing:
        found = ", ".join(sorted(map(str, frame[column].unique())))
        raise ValueError(f"{kind} measurements have no row with {column} = {', '.join(missing)} (there are: {found})")


def runs_of(rows: pd.DataFrame) -> str:
    """Ids of the runs that measured these rows, separated by spaces; nothing where they are not known."""
    return " ".join(sorted(set(rows["run"].dropna()) - {""})) if "run" in rows else ""


def ratio_of_sums(rows: pd.DataFrame, keys: Any, part: str, whole: str) -> pd.Series:
    """The sum of a column over the sum of another one, of the rows that share a key."""
    sums = rows.groupby(keys)[[part, whole]].sum()
    return sums[part] / sums[whole]


def in_order(found: Iterable[Any], known: Iterable[Any]) -> list[Any]:
    """What was found, each once: the known ones first and in their order, the others as they come."""
    present = dict.fromkeys(found)
    return [one for one in dict.fromkeys([*known, *present]) if one in present]


def models_shown(frame: pd.DataFrame) -> list[str]:
    """The models of a table of the paper's: its backbones, measured or not, and then the others."""
    return list(dict.fromkeys([*BACKBONE_LABELS, *frame["model"]]))


def by_model(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The rows of each model: the paper's backbones first and in its order, the others as they come."""
    models = in_order(frame["model"].unique(), BACKBONE_LABELS)
    return [(model, frame[frame["model"] == model]) for model in models]


def records(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows, columns as attributes."""
    return frame.itertuples(index=False)


def groups(frame: pd.DataFrame, keys: str | list[str], sort: bool = False) -> list[tuple[Any, pd.DataFrame]]:
    """The rows that share a key, key by key; in order of appearance unless `sort` is set. A missing key is a key."""
    return list(frame.groupby(keys, sort=sort, dropna=False))
