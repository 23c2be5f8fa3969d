"""A name, a title or a value that is markup stays a text in every page, table and figure."""

import re
from pathlib import Path

import pandas as pd
import pytest

from recurformer.claims.evidence import THIS_STUDY, evidence_of
from recurformer.claims.ledger import make_ledger
from recurformer.render.figures import FIGURES
from recurformer.render.page import claims_markdown, claims_page
from recurformer.render.style import save_figure
from recurformer.render.table import Table

REPORT = Path(__file__).parents[2] / "workflow/report"
IMAGE = "<img src=x onerror=alert(1)>"


def table():
    lines = [{IMAGE: IMAGE, (IMAGE, "value"): "1"}]
    hostile = Table("table3", IMAGE, pd.DataFrame({"article": [IMAGE]}), lines, (IMAGE,))
    return hostile.measured_by(IMAGE, IMAGE, [IMAGE])


@pytest.mark.parametrize("suffix", [".html", ".md"])
def test_in_a_table(suffix, tmp_path):
    table().write(tmp_path / f"table{suffix}")
    text = (tmp_path / f"table{suffix}").read_text()
    assert text.count("&lt;img") >= 5
    assert "<img" not in re.sub("<!--.*?-->", "", text, flags=re.DOTALL)


def hostile_ledger():
    """The ledger of a study without measurements, with markup in the place of every text that is not looked up."""
    entries = make_ledger(IMAGE, [evidence_of(THIS_STUDY, {})]).to_dict()
    for claim in entries["claims"]:
        claim.update(dict.fromkeys(("statement", "paper", "ours", "reason", "test", "tolerance", "kind"), IMAGE))
    for entry in entries["audit"]:
        entry.update(rule=IMAGE, arithmetic=[IMAGE])
    return entries


def test_in_the_claims():
    entries = hostile_ledger()
    for page in (claims_page(entries), claims_markdown(entries)):
        assert page.count("&lt;img") > len(entries["claims"])
        assert "<img" not in page


def test_in_a_figure(measurements, tmp_path):
    save_figure(
        FIGURES["figure6"](measurements["profile"].query("sample == 0").assign(model=IMAGE)), tmp_path / "figure6.svg"
    )
    text = (tmp_path / "figure6.svg").read_text()
    assert "&lt;img" in text
    assert "<img" not in text


def test_in_the_captions_of_the_report():
    """Captions are the package's own, and a page is shown within a frame of its own, as a text."""
    for template in REPORT.glob("*.rst"):
        shown = set(re.findall(r"\{\{(.*?)\}\}", template.read_text()))
        known = {
            " snakemake.params.caption ",
            ' file.path.read_text("utf-8") | trim | e | indent(3) ',
            ' snakemake.config["study"] ',
        }
        assert shown <= known, template
