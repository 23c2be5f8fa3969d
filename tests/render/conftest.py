"""The synthetic measurements, drawn once."""

import pandas as pd
import pytest
from frames import all_frames


@pytest.fixture(scope="session")
def measurements() -> dict[str, pd.DataFrame]:
    return all_frames()
