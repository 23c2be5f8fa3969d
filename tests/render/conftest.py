"""The synthetic measurements and their figures, drawn once."""

import inspect

import pandas as pd
import pytest
from frames import all_frames
from matplotlib.figure import Figure

from recurformer.render.figures import FIGURES


@pytest.fixture(scope="session")
def measurements() -> dict[str, pd.DataFrame]:
    return all_frames()


@pytest.fixture(scope="session")
def figures(measurements) -> dict[str, Figure]:
    return {
        name: figure(**{kind: measurements[kind] for kind in inspect.signature(figure).parameters})
        for name, figure in FIGURES.items()
    }
