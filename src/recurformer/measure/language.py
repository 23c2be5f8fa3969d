"""Perplexity of a causal language model: on whole articles, and of the text after a long prompt, from its cache; and
what it writes itself after such a prompt.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, pairwise

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from recurformer.data.datasets import pad_batch, samples_per_batch
from recurformer.data.windows import text_prefix
from recurformer.measure.cache import held_bytes, held_ratio
from recurformer.measure.generate import NewCache, generate_greedily

LOGITS = 2**29  # numbers that exist at once: 2 GB in float32


def perplexity_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    articles: pd.DataFrame,
    *,
    tokens: int,
    windows: int | None = None,
    bos: bool | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Negative log-likelihood of each article, counted token by token.

    Each article is cut into disjoint windows, and a token is predicted, exactly once, from the tokens before it in its
    window. Without a beginning-of-sequence token that leaves out the first token of each window; with one, it stands
    before each window, is never predicted itself, and every token of the article is.

    Args:
        model: a causal language model, in evaluation mode.
        tokenizer: its tokenizer.
        articles: columns title, text and, if rows of several splits are there, split.
        tokens: longest window that the model reads, in tokens, its beginning-of-sequence token included; at least 2.
        windows: windows of each article, from its beginning; None: all, the last one as short as it is.
        bos: whether a beginning-of-sequence token stands before each window; None: as the tokenizer itself begins a
            text.
        batch_size: windows in one forward pass; changes speed and memory, not the result. None: see
            `samples_per_batch` and `LOGITS`.
        progress: called with (windows done, windows).

    Returns:
        One row an article, in their order: split (if given), article, tokens (those predicted) and their
        negative_log_likelihood in nats.

    Raises:
        ValueError: a window too short, an article without a token to predict, a tokenizer that has no bos.
    """
    if tokens < 2:
        raise ValueError(f"tokens: a window of {tokens} has nothing to predict; give at least 2")
    prefix = _prefix(tokenizer, bos)
    pieces: list[tuple[int, torch.Tensor]] = []
    for number, text in enumerate(articles.text):
        text_windows = list(_windows(tokenizer, text, prefix, tokens))[:windows]
        if not text_windows:
            raise ValueError(f"article {articles.title.iloc[number]!r}: too short, no token of it can be predicted")
        pieces += [(number, window) for window in text_windows]

    if batch_size is None:
        logits = tokens * model.config.vocab_size
        batch_size = max(min(samples_per_batch(model.device.type, tokens), LOGITS // logits), 1)
    counts = [0] * len(articles)
    sums = [0.0] * len(articles)
    for start in range(0, len(pieces), batch_size):
        batch = pieces[start : start + batch_size]
        for (number, window), nll in zip(batch, _batch_nll(model, [window for _, window in batch]), strict=True):
            counts[number] += len(window) - 1
            sums[number] += nll
        if progress is not None:
            progress(start + len(batch), len(pieces))
    rows = pd.DataFrame({"article": articles.title.to_numpy(), "tokens": counts, "negative_log_likelihood": sums})
    if "split" in articles:
        rows.insert(0, "split", articles.split.to_numpy())
    return rows


def perplexity(rows: pd.DataFrame) -> float:
    """Perplexity over all tokens of `rows`: exp(sum of negative log-likelihoods / predicted tokens)."""
    return math.exp(rows.negative_log_likelihood.sum() / rows.tokens.sum())


def _prefix(tokenizer: PreTrainedTokenizerBase, bos: bool | None) -> list[int]:
    if bos is None:
        return text_prefix(tokenizer)
    if bos and tokenizer.bos_token_id is None:
        raise ValueError("bos: the tokenizer has no beginning-of-sequence token; set bos to false")
    return [tokenizer.bos_token_id] if bos else []


def _windows(tokenizer: PreTrainedTokenizerBase, text: str, prefix: list[int], tokens: int) -> Iterator[torch.Tensor]:
    """Windows of one article, (at most `tokens`,), each with at least one token to predict."""
    ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    fresh = tokens - len(prefix)
    for start in range(0, len(ids), fresh):
        window = prefix + ids[start : start + fresh]
        if len(window) > 1:
            yield torch.tensor(window)


@torch.no_grad()
def _batch_nll(model: PreTrainedModel, windows: list[torch.Tensor]) -> list[float]:
    """Sum of the negative log-likelihoods of all tokens but the first of each window; the sum in float64."""
    batch = pad_batch([{"input_ids": window} for window in windows], pad_token_id=0, side="right")
    # without the mask, which would rule out the fastest kernels: no token sees the padding after it
    logits = model(input_ids=batch["input_ids"].to(model.device), use_cache=False).logits  # (B, L, V)
    sums = []
    for row, window in zip(logits, windows, strict=True):
        targets = window[1:].to(row.device)
        losses = F.cross_entropy(row[: len(targets)].float(), targets, reduction="none")  # (L - 1,)
        sums.append(losses.double().sum().item())
    return sums


def divergence(ours: Tensor, original: Tensor) -> Tensor:
    """KL(original || ours) of logits (..., V), in nats, (...), computed in float32 at least."""
    wide = torch.promote_types(ours.dtype, torch.float32)
    p, q = (F.log_softmax(logits.to(wide), dim=-1) for logits in (original, ours))
    return F.kl_div(q, p, reduction="none", log_target=True).sum(-1)


FAR = 64
"""A pair of tokens that stood before counts as recalled when its last place is at least so many tokens back: no
convolution, and no small window, reaches there."""
RARE = 4
"""The most places of a recalled pair in the training text. A frequent one is known without the window."""


def recalled(input_ids: Tensor, training_texts: Iterable[Sequence[int]]) -> Tensor:
    """Tokens that only the text far before them tells: names, and parts of names, that come again.

    A token is one if the token before it was followed by the same token before, `FAR` or more tokens back and not
    since, and the pair is `RARE` in the training texts. So Zoology (arXiv 2312.04927, section 3) finds associative
    recall in text.

    Args:
        input_ids: (windows, L).
        training_texts: token ids of each.

    Returns:
        Truth values (windows, L).
    """
    counts = Counter(chain.from_iterable(map(pairwise, training_texts)))
    marks = torch.zeros(input_ids.shape, dtype=torch.bool)
    for window, ids in enumerate(input_ids.tolist()):
        last: dict[tuple[int, int], int] = {}
        for place, pair in enumerate(pairwise(ids), start=1):
            marks[window, place] = pair in last and place - last[pair] >= FAR and counts[pair] <= RARE
            last[pair] = place
    return marks


BIN = 32
COLUMNS = ["window", "position", "tokens", "negative_log_likelihood", "divergence", "recalled", "recalled_likelihood"]


def continuation_rows(
    model: PreTrainedModel,
    original: PreTrainedConfig,
    input_ids: Tensor,
    expected: Callable[[int, int], Tensor],
    *,
    prompt: int,
    recalled: Tensor | None = None,
    batch_size: int = 8,
    new_cache: NewCache | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Likelihood of the text after each prompt and divergence from the original, in bins of 32 positions.

    Perplexity on whole windows does not show the loss by a smaller cache: no eviction happens before the window ends.
    Here the prompt is read first, then the text after it is scored, token by token where the cache may shrink on the
    way, at once where it cannot.

    Args:
        model: a causal language model, in evaluation mode.
        original: of the model before anything was changed.
        input_ids: (windows, prompt and text), with the tokens that begin a text, if any.
        expected: of `expected_by`, for the same windows.
        prompt: tokens of a window that are read; all others are predicted once.
        recalled: (windows, prompt and text), truth values: tokens that count besides by themselves; None: none.
        batch_size: windows read together; changes speed and memory, not the result.
        new_cache: makes the cache of each batch; None: the model's own cache.
        progress: called with (windows done, windows).

    Returns:
        One row a bin: window, position (of its first token after the prompt, from 0), tokens,
        negative_log_likelihood (their sum, nats), divergence (sum of KL(original || model), nats), recalled (tokens
        that are) and recalled_likelihood (their negative log-likelihood, nats), ratio (see `held_ratio`; after the
        prompt).

    Raises:
        ValueError: no prompt, or no text after it.
    """
    windows, length = input_ids.shape
    if not 1 <= prompt < length:
        raise ValueError(f"prompt: {prompt} of {length} tokens; at least one must be read and one predicted")
    marks = torch.zeros(input_ids.shape, dtype=torch.bool) if recalled is None else recalled
    rows: list[tuple[int, int, int, float, float, int, float]] = []
    bytes_per_token: list[float] = []
    for start in range(0, windows, batch_size):
        batch = slice(start, start + batch_size)
        logits, batch_bytes = text_logits(model, input_ids[batch], prompt, new_cache)
        bytes_per_token.append(batch_bytes)
        targets = input_ids[batch, prompt:].to(logits.device)
        losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").double()
        distances = divergence(logits, expected(batch.start, batch.stop)).double()  # (B, text)
        of_windows = zip(losses.cpu(), distances.cpu(), marks[batch, prompt:], strict=True)
        for window, of_tokens in enumerate(of_windows, start=start):
            bins = zip(*(values.split(BIN) for values in of_tokens), strict=True)
            rows += [
                (
                    window, BIN * number, len(loss), loss.sum().item(), distance.sum().item(),
                    int(marked.sum()), loss[marked].sum().item(),
                )
                for number, (loss, distance, marked) in enumerate(bins)
            ]  # fmt: skip
        if progress is not None:
            progress(start + len(losses), windows)
    return pd.DataFrame(rows, columns=COLUMNS).assign(ratio=held_ratio(bytes_per_token, original, model.dtype))


@torch.no_grad()
def text_logits(
    model: PreTrainedModel, input_ids: Tensor, prompt: int, new_cache: NewCache | None = None
) -> tuple[Tensor, float]:
    """Read prompts, then the text after them; the arguments are those of `continuation_rows`, of one batch.

    Returns:
        Logits that predict each token of the text, (B, text, V) float32, and the bytes held after the prompt
        for each of its tokens.
    """
    input_ids = input_ids.to(model.device)
    cache = DynamicCache(config=model.config) if new_cache is None else new_cache()
    output = model(input_ids=input_ids[:, :prompt], past_key_values=cache, use_cache=True, logits_to_keep=1)
    bytes_per_token = held_bytes(cache, input_ids[:, :prompt].numel(), model.dtype)
    text, parts = input_ids[:, prompt:-1], [output.logits]
    at_once = new_cache is None or getattr(cache, "reads_at_once", False)
    for shown in text.split(max(text.shape[1], 1) if at_once else 1, 1):
        if shown.numel():
            parts.append(model(input_ids=shown, past_key_values=cache, use_cache=True).logits)
    return torch.cat(parts, 1).float(), bytes_per_token


def expected_by(model: PreTrainedModel, input_ids: Tensor, prompt: int) -> Callable[[int, int], Tensor]:
    """Return f(start, stop of some windows) -> logits (B, text, V): what the model, in evaluation mode, predicts before
    anything is changed. They are computed once where those of all windows fit into memory. For the arguments see
    `continuation_rows`.
    """

    def expected(start: int, stop: int) -> Tensor:
        return text_logits(model, input_ids[start:stop], prompt)[0]

    numbers = input_ids[:, prompt:].numel() * model.config.vocab_size
    return cache(expected) if numbers <= LOGITS else expected


def write_on(
    model: PreTrainedModel, prompts: Tensor, tokens: int, new_cache: NewCache | None = None
) -> tuple[Tensor, float]:
    """Greedy continuations of prompts (B, L), beyond the end of a text too: (B, tokens), and the bytes held after the
    prompts for each of their tokens.
    """
    written, held = generate_greedily(model, [*prompts], [tokens] * len(prompts), 0, new_cache, ends=False)
    return torch.tensor(written), held


def written_rows(
    model: PreTrainedModel,
    original: PreTrainedConfig,
    prompts: Tensor,
    judge: PreTrainedModel,
    expected: Tensor,
    *,
    batch_size: int = 8,
    new_cache: NewCache | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """What a model writes after each prompt: how far it agrees with the original's, how likely the original finds it.

    Args:
        model: a causal language model, in evaluation mode.
        original: of the model before anything was changed.
        prompts: (windows, L).
        judge: the model before anything was changed.
        expected: what that one writes after the same prompts, (windows, tokens); see `write_on`.
        batch_size: windows read together; changes speed and memory, not the result.
        new_cache: makes the cache of each batch; None: the model's own cache.
        progress: called with (windows done, windows).

    Returns:
        One row a window: window, agreed (tokens before the first that differs), tokens (all that were written),
        negative_log_likelihood (theirs by the judge, their sum, nats), ratio (see `held_ratio`; after the prompt).
    """
    agreed: list[int] = []
    nats: list[float] = []
    bytes_per_token: list[float] = []
    for batch, theirs in zip(prompts.split(batch_size), expected.split(batch_size), strict=True):
        text, held = write_on(model, batch, expected.shape[1], new_cache)
        logits, _ = text_logits(judge, torch.cat([batch, text], 1), prompts.shape[1])
        losses = F.cross_entropy(logits.transpose(1, 2), text.to(logits.device), reduction="none")  # (B, tokens)
        nats += losses.double().sum(1).tolist()
        agreed += (text == theirs).int().cumprod(1).sum(1).tolist()
        bytes_per_token.append(held)
        if progress is not None:
            progress(len(nats), len(prompts))
    columns = {"agreed": agreed, "tokens": expected.shape[1], "negative_log_likelihood": nats}
    rows = pd.DataFrame({"window": range(len(prompts)), **columns})
    return rows.assign(ratio=held_ratio(bytes_per_token, original, model.dtype))
