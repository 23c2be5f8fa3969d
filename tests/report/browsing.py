"""What the tests of pages ask of a browser."""


def resize(browser, width):
    """Give the page a width in pixels; a window itself cannot be made as narrow as a telephone."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def overhang(browser):
    """Pixels by which the page is wider than what it is shown in."""
    script = "const page = document.documentElement; return page.scrollWidth - page.clientWidth;"
    return browser.execute_script(script)
