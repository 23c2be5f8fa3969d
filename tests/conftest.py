"""What every test has."""

import gc


def pytest_collection_finish():
    """The library collects garbage before each training, which is half of the time of a short one where all that was
    imported is looked through.
    """
    gc.freeze()
