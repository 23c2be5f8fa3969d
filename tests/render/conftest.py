"""The synthetic measurements, their tables and figures, made once."""

import pandas as pd
import pytest
from matplotlib.figure import Figure
from rendering import ALL_TABLES, render

from recurformer.render.figures import FIGURES
from recurformer.render.table import Table
from tests.worlds import shown


@pytest.fixture(scope="session")
def measurements() -> dict[str, pd.DataFrame]:
    return shown()


@pytest.fixture(scope="session")
def figures(measurements) -> dict[str, Figure]:
    return {name: render(figure, measurements) for name, figure in FIGURES.items()}


@pytest.fixture(scope="session")
def tables(measurements) -> dict[str, Table]:
    """Of measurements that name their runs."""
    named = {kind: frame.assign(run=f"run-of-{kind}") for kind, frame in measurements.items()}
    return {name: render(table, named) for name, table in ALL_TABLES.items()}
