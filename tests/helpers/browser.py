"""A headless Chromium for tests, and axe-core's accessibility checks in it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from tests.helpers.run_profile import skip_outside_ci

AXE_VERSION = "4.14.1"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dispatch-tests" / f"axe-core-{AXE_VERSION}"
CHECK = """
const done = arguments[arguments.length - 1];
axe.run().then(found => done(found.violations.map(
  each => each.id + ": " + each.nodes.map(node => node.html.slice(0, 200) + " " + node.failureSummary).join("; "))));
"""


def read_axe() -> str:
    """Return the script of axe-core, which npm installs into a cache once."""
    file = CACHE / "node_modules" / "axe-core" / "axe.min.js"
    if not file.exists():
        if shutil.which("npm") is None:
            skip_outside_ci("npm is missing: see docs/contributing.md")
        command = ["npm", "install", "--silent", "--no-audit", "--prefix", str(CACHE), f"axe-core@{AXE_VERSION}"]
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run(command, check=True, timeout=120, capture_output=True)
    return file.read_text(encoding="utf-8")


@contextlib.contextmanager
def browser() -> Iterator[Chrome]:
    """A browser, which ends with the context."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        skip_outside_ci("chromium is missing: see docs/contributing.md")
    options = ChromeOptions()
    options.binary_location = str(chromium)
    for each in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "hide-scrollbars"):
        options.add_argument(f"--{each}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = Chrome(options=options, service=Service(str(driver)))
    try:
        chrome.set_script_timeout(60)
        emulate(chrome)
        yield chrome
    finally:
        chrome.quit()


def emulate(chrome: Chrome, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
    """Give the browser a screen and a colour scheme."""
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def find_violations(chrome: Chrome) -> list[Any]:
    """Return what axe-core finds in the page, and the errors of its scripts."""
    chrome.execute_script(read_axe())
    found: list[Any] = chrome.execute_async_script(CHECK)
    return [*found, *(each["message"] for each in chrome.get_log("browser") if each["level"] != "DEBUG")]
