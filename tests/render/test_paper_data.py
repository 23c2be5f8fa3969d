import subprocess
import sys

import pytest

from recurformer import paper
from recurformer.paper import table1, table2, table3, table4, table5


def test_every_printed_entry_is_there():
    by_table = paper.cells_frame(paper.cells()).groupby("table").size().to_dict()
    assert by_table == {1: 8, 2: 28, 3: 6, 4: 72, 5: 36}


def test_places_are_unique_and_digits_are_kept():
    cells = paper.cells()
    assert len({(cell.table, cell.row, cell.column) for cell in cells}) == len(cells)
    llama = {cell.printed for cell in cells if cell.table == 4 and cell.model == "llama2-7b"}
    assert {"1.0000", "0.0040", "91,800"} <= llama


@pytest.mark.parametrize(
    ("frame", "where", "value"),
    [
        (table2.methods, {"model": "llama2-7b", "method": "PyramidInfer", "quantity": "h_gq"}, 0.462),
        (table2.methods, {"model": "qwen2-7b", "method": "RecurFormer", "quantity": "l_m"}, 132_000),
        (table3.perplexities, {"model": "qwen2-0.5b", "method": "RecurFormer"}, 14.202),
        (table4.shares, {"model": "qwen2-7b", "beta": 0.75, "quantity": "cs_10k"}, 0.5930),
        (table4.shares, {"model": "qwen2-0.5b", "beta": 0.9, "quantity": "l_m"}, 142_048),
    ],
)
def test_values_stand_where_the_paper_printed_them(frame, where, value):
    rows = frame()
    for column, wanted in where.items():
        rows = rows[rows[column] == wanted]
    assert rows["value"].tolist() == [value]


def test_table2_repeats_table4_where_they_overlap():
    both = table2.methods().merge(table4.shares(), on=["model", "beta", "quantity"], suffixes=("_2", "_4"))
    assert len(both) == 24
    assert (both["printed_2"] == both["printed_4"]).all()


def test_contributions_pair_the_mean_with_its_interval():
    rows = table5.contributions().set_index(["model", "norm", "tokens"])
    assert rows.loc[("qwen2-7b", "l2", "first")].tolist() == [0.0120, -0.0713, 0.0947]
    assert ((rows["low"] < rows["mean"]) & (rows["mean"] < rows["high"])).all()


def test_growth_has_no_number_but_an_exponent():
    rows = table1.growth()
    assert rows["exponent"].tolist() == [2, 1, 1, 0, 1, 1, 0, 0]
    assert all(cell.value != cell.value for cell in table1.CELLS)


@pytest.mark.parametrize(("printed", "decimals"), [("0.0040", 4), ("91,800", 0), ("14.202", 3)])
def test_decimals_as_printed(printed, decimals):
    cell = next(cell for cell in paper.cells() if cell.printed == printed)
    assert cell.decimals == decimals


def test_neither_paper_nor_render_imports_torch():
    code = (
        "import sys, recurformer.paper, recurformer.render.tables, recurformer.render.figures, "
        "recurformer.render.compare\nsys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
