"""Opening articles for the stages, and cutting them into windows, with errors that name the file."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recurformer.cli.checkpoints import open_config, open_tokenizer

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor


def open_texts(articles: str | Path, split: str | None = None, columns: Sequence[str] = ("text",)) -> "pd.DataFrame":
    """Articles of one split, or of both, with at least these columns.

    Raises:
        ValueError: the file is unreadable, lacks a column, or the split has no article.
    """
    import pandas as pd

    try:
        frame = pd.read_parquet(articles)
    except (OSError, ValueError) as error:
        raise ValueError(f"{articles}: not a readable Parquet file ({str(error).splitlines()[0]})") from None
    for column in (*columns, "split"):
        if column not in frame:
            raise ValueError(f"{articles}: column {column!r} is missing; write it by `recurformer corpus`")
        if not pd.api.types.is_string_dtype(frame[column]):
            raise ValueError(f"{articles}: column {column!r} holds {frame[column].dtype}, not texts")
    chosen = frame if split is None else frame[frame.split == split]
    if chosen.empty:
        raise ValueError(
            f"{articles}: no article in split {split!r}; lower corpus.minimum_characters or change the split"
        )
    return chosen.reset_index(drop=True)


def check_length(checkpoint: Path, tokens: int) -> None:
    """Refuse windows that are longer than the model of `checkpoint` reads.

    Raises:
        ValueError: it reads fewer tokens.
    """
    longest = getattr(open_config(checkpoint), "max_position_embeddings", None) or tokens
    if tokens > longest:
        raise ValueError(f"{checkpoint}: windows of {tokens} tokens: the model reads at most {longest}")


def text_windows(
    args: Namespace, tokens: int, count: int | None = None, split: str = "train", seed: int = 0
) -> "Tensor":
    """Windows of `args.articles` by the tokenizer of `args.checkpoint`, (count, tokens); see `data.windows`.

    Raises:
        ValueError: too few articles, or the model reads no window so long.
    """
    from recurformer.data.windows import windows

    check_length(args.checkpoint, tokens)
    texts = open_texts(args.articles, split).text.tolist()
    return windows(texts, open_tokenizer(args.checkpoint), tokens, count, seed)
