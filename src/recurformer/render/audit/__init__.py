"""The paper against itself: rules that need no experiment, each with its arithmetic."""

from collections.abc import Mapping

import pandas as pd

from recurformer.render.audit import counted, tables, text
from recurformer.render.audit.finding import Audited

__all__ = ["Audited", "audit"]


def audit(frames: Mapping[str, pd.DataFrame]) -> list[Audited]:
    """Every rule applied everywhere; the two that need counted caches where `frames` has "cache" and "pyramidinfer"."""
    return [
        *(counted.cache_columns(frames["cache"]) if "cache" in frames else []),
        *(counted.pyramidinfer_columns(frames["pyramidinfer"]) if "pyramidinfer" in frames else []),
        *tables.monotone(),
        *tables.recurrent_state(),
        *tables.table2_in_table4(),
        *tables.text_numbers(),
        text.threshold(),
        *tables.overlap(),
        *tables.intervals(),
        text.models_named(),
        text.masked_prediction(),
        text.figure5_samples(),
        text.prefill_symbol(),
    ]
