"""What every table and figure keeps to: a new entry of `TABLES` or `FIGURES` is tested here without further ado."""

import re
from io import StringIO

import pandas as pd
import pytest
from layout import assert_labels_apart, assert_nothing_cut_off
from rendering import ALL_TABLES, VERDICTS, kinds_of, render

from recurformer.cli.main import main
from recurformer.paper import CELLS
from recurformer.render.figures import FIGURES
from recurformer.render.registry import REGISTRY
from recurformer.render.table import Table
from recurformer.render.tables import TABLES
from recurformer.results.frames import COLUMNS
from recurformer.results.words import MARKS, number


@pytest.mark.parametrize("renderer", [*ALL_TABLES.values(), *FIGURES.values()], ids=[*ALL_TABLES, *FIGURES])
def test_its_parameters_are_kinds_and_bad_ones_are_refused_in_one_line(measurements, renderer):
    assert set(kinds_of(renderer)) <= set(COLUMNS)
    for kind in kinds_of(renderer):
        frames = {needed: measurements[needed] for needed in kinds_of(renderer, needed=True)}
        with pytest.raises(ValueError, match=f"^{kind} measurements have no rows.*$"):
            render(renderer, frames | {kind: measurements[kind].head(0)})
        column = COLUMNS[kind][-1]
        with pytest.raises(ValueError, match=rf"^{kind} measurements lack the column\(s\) {column}.*$"):
            render(renderer, frames | {kind: measurements[kind].drop(columns=column)})


@pytest.mark.parametrize(("group", "renderers"), [("tables", ALL_TABLES), ("figures", FIGURES)])
def test_the_registry_names_each_with_the_kinds_that_it_takes(group, renderers):
    assert set(REGISTRY[group]) == set(renderers)
    for name, entry in REGISTRY[group].items():
        kinds = {re.sub("^(recovered|papers|compared)_(?!hashhop)", "", kind) for kind in entry.kinds}
        assert set(kinds_of(renderers[name], needed=True)) <= kinds <= set(kinds_of(renderers[name])), name
        assert entry.label and entry.caption.endswith(".")


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_in_a_figure_is_cut_off_or_overlaps(figures, name):
    assert_nothing_cut_off(figures[name])
    assert_labels_apart(figures[name])


@pytest.mark.parametrize("name", ALL_TABLES)
def test_a_table_is_written_whole(tables, name, tmp_path):
    table = tables[name]
    assert table.name == name
    for suffix in (".csv", ".md", ".tex", ".html"):
        table.write(tmp_path / f"{name}{suffix}")
    read = pd.read_csv(tmp_path / f"{name}.csv")
    assert list(read.columns) == list(table.frame.columns)
    assert len(set(read.columns)) == len(read.columns)
    assert len(read) == len(table.frame)
    markdown = (tmp_path / f"{name}.md").read_text()
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(lines) == len(table.lines) + 2
    assert len({line.replace(r"\|", "").count("|") for line in lines}) == 1
    html = (tmp_path / f"{name}.html").read_text()
    (shown,) = pd.read_html(StringIO(html), converters=dict.fromkeys(range(len(table.columns)), str), thousands=None)
    assert shown.to_numpy().tolist() == table.rows
    assert list(shown.columns.get_level_values(-1)) == [heading for _, heading in table.columns]
    assert html.count("<li>") == len(table.notes)
    for note in table.notes:
        assert f"- {note}" in markdown


@pytest.mark.parametrize("name", ALL_TABLES)
def test_latex_is_well_formed(tables, name):
    source = tables[name].to_latex()
    assert source.count("{") - source.count(r"\{") == source.count("}") - source.count(r"\}")
    assert source.count(r"\(") == source.count(r"\)")
    begun, ended = re.findall(r"\\begin\{(\w+)\}", source), re.findall(r"\\end\{(\w+)\}", source)
    assert begun == ended[::-1]
    outside_math = re.sub(r"\\\(.*?\\\)|\\label\{.*?\}", "", source)
    assert not re.search(r"(?<!\\)[_#$^%]", outside_math)
    body = source.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {len(tables[name].columns) - 1}


@pytest.mark.parametrize("name", ALL_TABLES)
def test_every_measured_value_names_its_runs_and_every_printed_cell_its_verdict(tables, name):
    table = tables[name]
    columns = [column for column in table.frame if column.endswith("runs")]
    runs = {run for column in columns for cell in table.frame[column].dropna() for run in str(cell).split()}
    assert runs
    assert runs <= {f"run-of-{kind}" for kind in kinds_of(ALL_TABLES[name])}
    cells = [cell for row in table.rows for cell in row]
    judged = [re.search(rf"\)((?: [{''.join(MARKS.values())}])+)$", cell) for cell in cells]
    marks = [mark for found in judged if found for mark in found[1].split()]
    assert sorted(marks) == sorted(VERDICTS[cell.id].mark for cell in CELLS if cell.id.startswith(f"{name}/"))
    assert not marks or any(note.startswith("Verdicts: ") for note in table.notes)


def test_a_new_table_needs_a_registry_line_only(measurements, tmp_path, monkeypatch):
    """As a new figure does: tests/test_extending.py."""

    def toy(cache: pd.DataFrame) -> Table:
        lines = [{"Model": row.model, "ratio": number(row.ratio, 2)} for row in cache.itertuples()]
        return Table("toy", "A toy", cache, lines, ())

    monkeypatch.setitem(TABLES, "toy", toy)
    measurements["cache"].to_csv(tmp_path / "cache.csv", index=False)
    assert main(["table", "toy", str(tmp_path / "cache.csv"), "--out", str(tmp_path / "toy.md")]) == 0
    assert "A toy" in (tmp_path / "toy.md").read_text()
