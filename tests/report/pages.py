"""The recorded ledger of claims, with what no page must stumble over; and what the tests of pages ask of a browser."""

import json
from pathlib import Path

RECORDED = Path(__file__).parents[2] / "recorded/cpu/results/claims.json"
INJECTION = '<script>document.title = "broken"</script> & "quoted" <b>text</b>'
INJECTED = "table3/qwen2-0.5b/original/perplexity"
"""The claim whose texts are markup."""


def ledger() -> dict:
    """The recorded claims, one of them with texts that are markup, another with the files of a large study: docutils
    refuses a line of more than 10,000 characters.
    """
    found = json.loads(RECORDED.read_text("utf-8"))
    claims = {claim["id"]: claim for claim in found["claims"]}
    claims[INJECTED].update(statement=INJECTION, reason=f"a text must stay a text: {INJECTION}")
    many = [f"recorded/cpu/results/mqar/beta-{beta / 200}/length-512.csv" for beta in range(200)]
    next(claim["evidence"] for claim in found["claims"] if claim["evidence"])["files"] = many
    return found


def resize(browser, width):
    """Give the page a width in pixels; a window itself cannot be made as narrow as a telephone."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def overhang(browser):
    """Pixels by which the page is wider than what it is shown in."""
    script = "const page = document.documentElement; return page.scrollWidth - page.clientWidth;"
    return browser.execute_script(script)
