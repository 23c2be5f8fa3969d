from collections import Counter

import pytest

from recurformer.claims.claim import STATEMENTS
from recurformer.paper import CELLS, NUMBERS
from recurformer.render.tables import printed_contributions


def test_every_printed_entry_is_there_with_a_name_and_a_place_of_its_own_and_a_kind():
    assert Counter(cell.table for cell in CELLS) == {1: 8, 2: 28, 3: 6, 4: 72, 5: 24}
    printed = [*(entry.id for entry in (*CELLS, *NUMBERS)), *STATEMENTS]
    assert len(set(printed)) == len(printed)
    assert len({cell.place for cell in CELLS}) == len(CELLS)
    assert {entry.kind for entry in (*CELLS, *STATEMENTS.values())} == {"analytic", "measured", "trained", "trend"}
    for statement in STATEMENTS.values():
        assert statement.place.startswith(("Section", "Table", "Figure", "Abstract", "Appendix"))
        assert len(statement.quote.split()) > 2


@pytest.mark.parametrize(
    ("name", "printed", "place"),
    [
        ("table1/generation/mamba/cache_size", "O(d)", "Table 1, Generation, Mamba, Cache Size"),
        ("table3/qwen2-0.5b/recurformer/perplexity", "14.202", "Table 3, PPL, Qwen2-0.5B, RecurFormer"),
        ("table4/qwen2-0.5b/0.90/l_m", "142,048", "Table 4, l_max, Qwen2-0.5B, 0.90"),
        (
            "table5/qwen2-7b/first/l2_interval",
            "[-0.0713, 0.0947]",
            "Table 5, Qwen2-7B, first token, L2 Contribution, 95% CI",
        ),
    ],
)
def test_a_cell_is_known_by_a_name_that_says_where_it_stands(name, printed, place):
    (cell,) = [cell for cell in CELLS if cell.id == name]
    assert (cell.printed, cell.place) == (printed, place)


def test_rounding_explains_half_of_the_last_printed_digit():
    halves = {number.printed: number.half_digit for number in NUMBERS}
    shown = {printed: halves[printed] for printed in ("89.7", "89.46", "0.839", "71,680")}
    assert shown == pytest.approx({"89.7": 0.05, "89.46": 0.005, "0.839": 0.0005, "71,680": 0.5})


def test_contributions_pair_the_mean_with_its_interval():
    rows = printed_contributions().set_index(["model", "norm", "tokens"])
    assert len(rows) == 12
    assert rows.loc[("qwen2-7b", "l2", "first")].tolist() == [0.0120, -0.0713, 0.0947]
    assert ((rows["paper_low"] < rows["paper"]) & (rows["paper"] < rows["paper_high"])).all()
