"""The paper against itself: rules that need no experiment, each with its arithmetic."""

import pandas as pd

from recurformer.claims.audit import readings, tables, text
from recurformer.claims.audit.tables import Audited

__all__ = ["Audited", "audit"]


def audit(cache: pd.DataFrame | None = None) -> list[Audited]:
    """Every rule applied everywhere.

    Args:
        cache: counted caches (model, unit, beta, length, ratio); without them the cache columns are not judged.
    """
    return [
        *tables.monotone(),
        *tables.recurrent_state(),
        *(tables.cache_columns(cache) if cache is not None else []),
        *readings.cache_readings(),
        *tables.table2_in_table4(),
        *tables.text_numbers(),
        text.threshold(),
        *tables.overlap(),
        *tables.intervals(),
        text.models_named(),
        text.masked_prediction(),
        text.figure5_samples(),
        text.prefill_symbol(),
        tables.eviction_ratio(),
    ]
