"""A real browser for the pages: headless Chromium, driven through its own driver."""

import shutil

import pytest
from pages import resize
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="session")
def chrome(tmp_path_factory):
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if missing := [name for name, path in programs.items() if path is None]:
        pytest.skip(f"needs {' and '.join(missing)} (Debian: apt-get install chromium chromium-driver)")
    options = ChromeOptions()
    options.binary_location = programs["chromium"]
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options, Service(programs["chromedriver"]))
    driver.implicitly_wait(10)
    yield driver
    driver.quit()


@pytest.fixture
def browser(chrome):
    """The browser, 1,280 pixels wide; a test fails whose pages wrote an error to the console."""
    resize(chrome, 1280)
    chrome.get("about:blank")  # the page of the test before asks its server, which is gone
    chrome.get_log("browser")
    yield chrome
    chrome.switch_to.default_content()
    assert not [entry for entry in chrome.get_log("browser") if entry["level"] == "SEVERE"]
