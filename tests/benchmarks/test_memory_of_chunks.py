"""What a prefill in chunks takes beyond its cache: resident memory, as the benchmark measures it."""

from pathlib import Path

import pandas as pd
import pytest

from benchmarks import chunked_prefill
from benchmarks.memory import CLEAR_REFS
from recurformer.measure.longest import PREFILLS
from recurformer.records import read_record

COMMITTED = Path(chunked_prefill.__file__).with_suffix(".csv")


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return pd.read_csv(COMMITTED)


def test_the_committed_run_is_whole_and_of_a_clean_tree(rows):
    record = read_record(COMMITTED.with_suffix(".run.json"))
    assert record["outputs"] == [COMMITTED.name] and not record["git"]["dirty"]
    found = rows.groupby(["protocol", "beta"]).tokens.apply(tuple).to_dict()
    assert set(found) == {(protocol, beta) for protocol in PREFILLS for beta in chunked_prefill.BETAS}
    assert set(found.values()) == {chunked_prefill.LENGTHS}


def test_beyond_the_cache_it_takes_as_much_at_every_length(rows):
    for (protocol, beta), found in rows.groupby(["protocol", "beta"]):
        growth = found.beyond_bytes.max() / found.beyond_bytes.min()
        assert growth > 10 if protocol == "one_shot" else growth < 1.1, (protocol, beta)


@pytest.mark.slow
@pytest.mark.skipif(not CLEAR_REFS.exists(), reason="needs Linux, which tells a process's peak")
@pytest.mark.parametrize("beta", chunked_prefill.BETAS)
def test_so_it_is_here(beta):
    beyond = [chunked_prefill.measure("chunked", beta, tokens)["beyond_bytes"] for tokens in (2048, 16384)]
    assert max(beyond) < 1.1 * min(beyond)
