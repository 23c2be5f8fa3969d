"""`make dashboard` on the studies that were run in this folder, in a real browser."""

import os
import re
import signal
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from socket import create_connection, socket

import pytest
from selenium.webdriver.common.by import By

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture
def dashboard(tmp_path):
    """Its address; it runs in a process group of its own, which ends with the test."""
    if find_spec("trackio") is None or not list((ROOT / "results").rglob("*run.json")):
        pytest.skip("needs trackio and a study that was run: make .venv/.tracking smoke")
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {**os.environ, "TRACKIO_DIR": str(tmp_path), "GRADIO_SERVER_PORT": str(port), "BROWSER": "true"}
    process = subprocess.Popen(["make", "dashboard"], cwd=ROOT, env=settings, start_new_session=True)
    try:
        while True:
            assert process.poll() is None, "make dashboard ended"
            try:
                create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/?project=recurformer"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def test_every_run_of_a_study_is_on_the_page(dashboard, browser):
    """Curves of trainings and final metrics of the other stages, with no error in the browser's console."""
    records = sum(len(list((ROOT / folder).rglob("*run.json"))) for folder in ("results", "figures"))
    browser.get(dashboard)
    wanted = {f"Runs ({records})", "train", "h_gq", "cs", "accuracy", "perplexity", "lm_eval", "kl"}
    for _ in range(60):
        lines = browser.find_element(By.TAG_NAME, "body").text.splitlines()
        shown = {*lines, *(re.sub(r" \(\d+\)$", "", line) for line in lines)}
        if wanted <= shown:
            break
        time.sleep(1)
    assert wanted <= shown
