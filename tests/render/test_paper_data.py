import subprocess
import sys
from collections import Counter

import pytest

from recurformer.claims.claim import STATEMENTS
from recurformer.paper import CELLS, NUMBERS, table1, table2, table3, table4, table5
from recurformer.paper.cells import KINDS


def test_every_printed_entry_is_there():
    assert Counter(cell.table for cell in CELLS) == {1: 8, 2: 28, 3: 6, 4: 72, 5: 24}


def test_every_entry_and_statement_has_a_name_of_its_own_and_a_kind():
    printed = [*(entry.id for entry in (*CELLS, *NUMBERS)), *STATEMENTS]
    assert len(set(printed)) == len(printed)
    assert {entry.kind for entry in (*CELLS, *STATEMENTS.values())} | {"reviewer"} == set(KINDS)
    for statement in STATEMENTS.values():
        assert statement.place.startswith(("Section", "Figure", "Abstract", "Appendix"))
        assert len(statement.quote.split()) > 2


@pytest.mark.parametrize(
    ("name", "printed", "place"),
    [
        ("table4/llama2-7b/0.90/cs_10k", "0.1030", "Table 4, cs_10k, Llama2-7B, 0.90"),
        ("table2/llama2-7b/pyramidinfer/h_gq", "0.462", "Table 2, Llama2-7B, PyramidInfer, h_gq"),
        (
            "table5/qwen2-7b/first/l2_interval",
            "[-0.0713, 0.0947]",
            "Table 5, Qwen2-7B, first token, L2 Contribution, 95% CI",
        ),
        ("table1/generation/mamba/cache_size", "O(d)", "Table 1, Generation, Mamba, Cache Size"),
    ],
)
def test_a_cell_is_known_by_a_name_that_says_where_it_stands(name, printed, place):
    (cell,) = [cell for cell in CELLS if cell.id == name]
    assert (cell.printed, cell.place) == (printed, place)


@pytest.mark.parametrize(("printed", "half"), [("89.7", 0.05), ("89.46", 0.005), ("0.839", 0.0005), ("71,680", 0.5)])
def test_rounding_explains_half_of_the_last_printed_digit(printed, half):
    (number,) = {number.half_digit for number in NUMBERS if number.printed == printed}
    assert number == pytest.approx(half)


def test_places_are_unique_and_digits_are_kept():
    assert len({(cell.table, cell.row, cell.column) for cell in CELLS}) == len(CELLS)
    llama = {cell.printed for cell in table4.CELLS if cell.model == "llama2-7b"}
    assert {"1.0000", "0.0040", "91,800"} <= llama


@pytest.mark.parametrize(
    ("table", "where", "value"),
    [
        (table2, {"model": "llama2-7b", "method": "PyramidInfer", "quantity": "h_gq"}, 0.462),
        (table2, {"model": "qwen2-7b", "method": "RecurFormer", "quantity": "l_m"}, 132_000),
        (table3, {"model": "qwen2-0.5b", "method": "RecurFormer"}, 14.202),
        (table4, {"model": "qwen2-7b", "beta": 0.75, "quantity": "cs_10k"}, 0.5930),
        (table4, {"model": "qwen2-0.5b", "beta": 0.9, "quantity": "l_m"}, 142_048),
    ],
)
def test_values_stand_where_the_paper_printed_them(table, where, value):
    found = [cell for cell in table.CELLS if all(getattr(cell, name) == wanted for name, wanted in where.items())]
    assert [cell.value for cell in found] == [value]


def test_table2_repeats_table4_where_they_overlap():
    printed = {(cell.model, cell.beta, cell.quantity): cell.printed for cell in table4.CELLS}
    both = [
        (cell.printed, printed[cell.model, cell.beta, cell.quantity]) for cell in table2.CELLS if cell.beta is not None
    ]
    assert len(both) == 24
    assert all(in_table2 == in_table4 for in_table2, in_table4 in both)


def test_contributions_pair_the_mean_with_its_interval():
    rows = table5.contributions().set_index(["model", "norm", "tokens"])
    assert rows.loc[("qwen2-7b", "l2", "first")].tolist() == [0.0120, -0.0713, 0.0947]
    assert ((rows["low"] < rows["mean"]) & (rows["mean"] < rows["high"])).all()


def test_growth_has_no_number_but_an_exponent():
    rows = table1.growth()
    assert rows["exponent"].tolist() == [2, 1, 1, 0, 1, 1, 0, 0]
    assert all(cell.value != cell.value for cell in table1.CELLS)


def test_neither_paper_nor_render_imports_torch():
    code = (
        "import sys, recurformer.paper, recurformer.claims.questions, recurformer.render.tables, "
        "recurformer.render.figures, recurformer.render.compare, recurformer.render.adaptation\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
