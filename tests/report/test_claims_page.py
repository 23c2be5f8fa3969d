from collections import Counter

import pytest
from pages import INJECTED, INJECTION, ledger, overhang, resize
from selenium.webdriver.common.by import By

from recurformer.claims.ledger import environment
from recurformer.render.page import claims_page, difference

LEDGER = ledger()
COUNTS = Counter(claim["verdict"] for claim in LEDGER["claims"])


def record(run: str, minutes: float, accelerator: str | None = None, dirty: bool = False) -> dict:
    """What `recurformer.records` writes, as far as a ledger needs it."""
    return {
        "run": run, "stage": "hashhop", "git": {"commit": "8633e02f" if dirty else "0d6b7ee4", "dirty": dirty},
        "lock": 64 * "b", "versions": {"torch": "2.13.0+cu130" if accelerator else "2.13.0"},
        "host": {"system": "Linux-6.1-x86_64", "processor": "Intel(R) Xeon(R)", "cores": 2},
        "accelerator": {"name": accelerator} if accelerator else None,
        "argv": ["recurformer", "hashhop", "--threads", "2"], "seconds": 60 * minutes,
    }  # fmt: skip


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "claims.html"
    path.write_text(claims_page(LEDGER), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(browser, address):
    browser.get("about:blank")  # an address that differs by its anchor alone would not be loaded again
    browser.get(address)
    return browser


def shown(page):
    """The ids of the claims that can be seen."""
    script = "return [...document.querySelectorAll('.claim')].filter(row => row.offsetHeight).map(row => row.id);"
    return page.execute_script(script)


def test_every_claim_and_check_is_there(page):
    assert sorted(shown(page)) == sorted(entry["id"] for entry in LEDGER["claims"])
    assert len(page.find_elements(By.CSS_SELECTOR, "#audit tbody tr")) == len(LEDGER["audit"])
    for verdict, count in COUNTS.items():
        assert f"{verdict}\n{LEDGER['counts'][verdict]}: " in page.find_element(By.CLASS_NAME, "meanings").text
        assert len(page.find_elements(By.CSS_SELECTOR, f".claim[data-verdict={verdict}]")) == count


def test_a_verdict_is_said_in_words_and_by_a_symbol(page):
    badges = page.find_elements(By.CSS_SELECTOR, ".claim .badge")
    said = {badge.get_attribute("data-mark"): badge.text.split() for badge in badges}
    assert {verdict: words[-1] for verdict, words in said.items()} == {verdict: verdict for verdict in COUNTS}
    assert len({words[0] for words in said.values()}) == len(COUNTS)


def test_a_link_finds_its_claim(page, address):
    page.get(f"{address}#table4/llama2-7b/0.90/cs_10k")
    top = page.execute_script("return document.querySelector(':target').getBoundingClientRect().top")
    assert 0 <= top < 300


def test_a_text_of_a_claim_is_never_read_as_markup(page):
    row = page.find_element(By.ID, INJECTED)
    assert row.text.count(INJECTION) == 2
    assert page.title == "RecurFormer: claims and verdicts"
    assert len(page.find_elements(By.TAG_NAME, "script")) == 1


def test_the_page_fits_a_telephone_with_everything_open(page):
    resize(page, 400)
    assert overhang(page) == 0
    page.execute_script("document.querySelectorAll('details').forEach(details => { details.open = true; });")
    assert overhang(page) == 0
    assert len(shown(page)) == len(LEDGER["claims"])


def test_the_page_stands_alone(page):
    assert not page.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name);")
    assert "http" not in claims_page(LEDGER)


def test_a_run_costs_once_in_each_line(page):
    lines = {
        cells[0]: cells[1:]
        for row in page.find_elements(By.CSS_SELECTOR, "#costs tr")
        if (cells := [cell.text for cell in row.find_elements(By.CSS_SELECTOR, "th, td")])
    }
    claims = [claim for claim in LEDGER["claims"] if claim["place"].startswith("Table 4")]
    behind = {run for claim in claims if claim["evidence"] for run in claim["evidence"]["rests_on"]}
    assert lines["Table 4"][::2][:2] == [str(len(claims)), str(len(behind))] and len(claims) > 70
    cost = LEDGER["cost"]
    shown = [float(number.replace(",", "")) for number in lines["All claims"][2:]]
    expected = [len(LEDGER["environment"]["runs"]), cost["core_minutes"], cost["gpu_minutes"]]
    assert shown == pytest.approx(expected, rel=0.01)


def test_environment_counts_runs():
    runs = {str(place): record(str(place), minutes=3) for place in range(5)}
    found = environment(runs | {"a": record("a", minutes=12, accelerator="NVIDIA H200", dirty=True)})
    assert [host["runs"] for host in found["hosts"]] == [5, 1]
    assert found["hosts"][1]["accelerator"] == "NVIDIA H200"
    assert found["versions"]["torch"] == {"2.13.0": 5, "2.13.0+cu130": 1}
    assert sorted(found["commits"].values()) == [1, 5]
    assert found["dirty"] == 1
    assert found["runs"]["a"] == {"stage": "hashhop", "core_minutes": 24, "gpu_minutes": 12}
    outside = record("b", minutes=3) | {"git": {"commit": None, "dirty": None}, "lock": None}
    found = environment({"b": outside})
    assert found["commits"] == found["locks"] == {"unknown": 1}


@pytest.mark.parametrize(
    ("ours", "paper", "shown"),
    [
        ("0.1028", "0.103", "−0.0002"),
        ("116,130", "71,680", "+44,450"),
        ("0.1054", "0.1054", "0.0000"),
        (None, "0.839", ""),
        ("0.994 [0.989, 0.999]", "0.839", ""),
    ],
)
def test_difference_of_plain_numbers(ours, paper, shown):
    assert difference({"ours": ours, "paper": paper}) == shown
