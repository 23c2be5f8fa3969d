"""The windows of a user's own texts on which `adapt` trains and measures."""

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from recurformer.corpora.documents import Documents
from recurformer.corpora.windows import encode_text, windows
from recurformer.recover.recipe import MINIMUM_WINDOWS, Recipe


def text_windows(
    documents: Documents, tokenizer: PreTrainedTokenizerBase, recipe: Recipe, seed: int
) -> tuple[Tensor, Tensor]:
    """Windows (windows, recipe.tokens) for training and, at most `recipe.held_out_windows`, for measuring.

    Raises:
        ValueError: there are fewer than `MINIMUM_WINDOWS`; says how many tokens there are.
    """
    found = []
    for (name, least), texts in zip(MINIMUM_WINDOWS.items(), documents, strict=True):
        try:
            found.append(windows(texts, tokenizer, recipe.tokens, seed=seed))
        except ValueError:
            found.append(torch.empty(0, recipe.tokens, dtype=torch.long))
        if len(found[-1]) < least:
            there = sum(len(encode_text(tokenizer, text)) for text in texts)
            raise ValueError(
                f"the texts are too short: the {len(texts)} {name} documents have {there:,} tokens, which give "
                f"{len(found[-1])} windows of {recipe.tokens}; {least} are needed, so {least * recipe.tokens:,} tokens "
                f"in documents of {recipe.tokens} or more"
            )
    return found[0], found[1][: recipe.held_out_windows]
