import subprocess
import sys
from collections import Counter

import pytest

from recurformer.paper import table1, table2, table3, table4, table5

CELLS = table1.CELLS + table2.CELLS + table3.CELLS + table4.CELLS


def test_every_printed_entry_is_there():
    assert Counter(cell.table for cell in CELLS) == {1: 8, 2: 28, 3: 6, 4: 72}
    assert sum(map(len, table5.PRINTED.values())) == 36


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
        "import sys, recurformer.paper, recurformer.render.tables, recurformer.render.figures, "
        "recurformer.render.compare\nsys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
