"""Snakemake's report, opened in a browser: of a one-rule workflow, and of the smoke study where it was run."""

import json

import pytest
from pages import ledger, overhang, resize
from selenium.webdriver.common.by import By

from recurformer.render.page import claims_page
from tests.workflow.dry_runs import ROOT, snakemake

LEDGER = ledger()
ONE_RULE = f"""
config["study"] = "one-rule"
report: "{ROOT}/workflow/report/workflow.rst"
rule claims:
    output: report("claims.html", category="Claims")
    shell: "cp page {{output}}"
"""


def make_report(folder, path, *words):
    """The report of a finished run, as `make report` makes it."""
    stylesheet = ROOT / "workflow/report/report.css"
    answer = snakemake(folder, "--report", str(path), "--report-stylesheet", str(stylesheet), *words)
    assert answer.returncode == 0, answer.stderr
    assert "(ERROR/" not in answer.stderr, "docutils could not read a description"
    assert "(WARNING/" not in answer.stderr
    return path.as_uri()


@pytest.fixture(scope="module")
def one_rule_report(chrome, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one-rule")
    (folder / "Snakefile").write_text(ONE_RULE)
    (folder / "page").write_text(claims_page(LEDGER), encoding="utf-8")
    assert snakemake(folder, "--cores", "1").returncode == 0
    return make_report(folder, folder / "report.html")


@pytest.fixture(scope="module")
def smoke_report(chrome, tmp_path_factory):
    last = [ROOT / "results/smoke/tables/table5.html", ROOT / "figures/smoke/figure6.svg"]
    if not all(path.is_file() for path in last):
        pytest.skip("needs the finished smoke study: make smoke")
    path = tmp_path_factory.mktemp("smoke") / "report.html"
    return make_report(ROOT, path, "all", "--configfile", "config/smoke.yaml")


def choose(browser, text, element="span"):
    browser.find_element(By.XPATH, f"//nav//{element}[normalize-space()='{text}']").click()


def view(browser, number):
    """Press the eye beside a table or figure."""
    browser.find_element(By.XPATH, f"//nav//td[normalize-space()='{number}']/..//a").click()


def test_the_landing_page_shows_the_claims(browser, one_rule_report):
    browser.get(one_rule_report)
    browser.switch_to.frame(browser.find_element(By.CSS_SELECTOR, "iframe.claims"))
    assert len(browser.find_elements(By.CLASS_NAME, "claim")) == len(LEDGER["claims"])


def test_links_within_the_claims_stay_in_their_frame(browser, one_rule_report):
    browser.get(one_rule_report)
    browser.switch_to.frame(browser.find_element(By.CSS_SELECTOR, "iframe.claims"))
    browser.find_element(By.LINK_TEXT, "Costs").click()
    assert browser.execute_script("return document.querySelector(':target').id") == "costs"
    assert browser.execute_script("return document.querySelector(':target').getBoundingClientRect().top") < 300


@pytest.mark.parametrize("width", [1280, 400])
def test_the_claims_fit_their_frame(browser, one_rule_report, width):
    resize(browser, width)
    browser.get(one_rule_report)
    frame = browser.find_element(By.CSS_SELECTOR, "iframe.claims")
    assert frame.size["width"] > 0.75 * width
    assert overhang(browser) == 0
    browser.switch_to.frame(frame)
    assert overhang(browser) == 0


def test_the_smoke_study_lands_on_its_own_claims(browser, smoke_report):
    counted = json.loads((ROOT / "results/smoke/claims.json").read_text())
    counts, others = counted["counts"], counted["reviewers"]
    browser.get(smoke_report)
    browser.switch_to.frame(browser.find_element(By.CSS_SELECTOR, "iframe.claims"))
    assert len(browser.find_elements(By.CLASS_NAME, "claim")) == sum(counts.values()) + sum(others.values())


def test_every_table_of_the_smoke_study_opens(browser, smoke_report):
    browser.get(smoke_report)
    choose(browser, "Tables")
    for number in range(1, 6):
        view(browser, f"Table {number}")
        heading = f"Table {number}. "
        browser.switch_to.frame(browser.find_element(By.XPATH, "//iframe"))
        assert browser.find_element(By.TAG_NAME, "h1").text.startswith(heading)
        assert browser.find_elements(By.CSS_SELECTOR, "tbody td")
        browser.switch_to.default_content()


def test_every_figure_of_the_smoke_study_is_drawn(browser, smoke_report):
    browser.get(smoke_report)
    choose(browser, "Figures")
    addresses = set()
    for number in range(1, 7):
        view(browser, f"Figure {number}")
        image = browser.find_element(By.CSS_SELECTOR, "img[src^='data:image/svg']:not(nav img)")
        size = browser.execute_async_script(
            "const [image, done] = arguments; image.decode().then(() => done(image.naturalWidth));", image
        )
        assert size > 100
        addresses.add(image.get_attribute("src"))
    assert len(addresses) == 6


def test_every_caption_is_plain_text_of_its_own(browser, smoke_report):
    browser.get(smoke_report)
    found = browser.execute_script("return Object.entries(results).map(([path, {caption}]) => [path, caption]);")
    captions = {path: caption for path, caption in found if "claims" not in path}
    assert len(set(captions.values())) == len(captions) == 18
    for caption in captions.values():
        text = caption.strip().removeprefix("<p>").removesuffix("</p>")
        assert text.endswith(".")
        assert not set("<{") & set(text)


@pytest.mark.parametrize("category", ["Tables", "Figures"])
def test_the_smoke_report_fits_a_telephone(browser, smoke_report, category):
    resize(browser, 400)
    browser.get(smoke_report)
    assert overhang(browser) == 0
    choose(browser, category)
    view(browser, f"{category[:-1]} 4")
    browser.find_element(By.CSS_SELECTOR, "iframe, img:not(nav img)")
    assert overhang(browser) == 0
