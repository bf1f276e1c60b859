"""A real browser for tests: headless Chromium driven by Selenium, one process for each use."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--window-size=1400,1000",
)
_TRIES = 3


def _program(*names: str) -> str:
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        raise RuntimeError(f"this test needs one of {', '.join(names)} on the PATH")
    return found


def _start(profile: str) -> webdriver.Chrome:
    options = Options()
    options.binary_location = _program("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(_program("chromedriver")))
    driver.set_page_load_timeout(60)
    driver.set_script_timeout(60)
    return driver


@contextmanager
def open_browser() -> Iterator[webdriver.Chrome]:
    """A fresh Chromium with a profile of its own; starting it is tried three times, because it can fail under load."""
    profiles: list[str] = []
    driver: webdriver.Chrome | None = None
    try:
        for left in reversed(range(_TRIES)):
            profiles.append(tempfile.mkdtemp(prefix="hybridmem-chromium-"))
            try:
                driver = _start(profiles[-1])
                break
            except WebDriverException:
                if not left:
                    raise
        assert driver is not None
        yield driver
    finally:
        if driver is not None:
            with suppress(WebDriverException):
                driver.quit()
        for profile in profiles:
            shutil.rmtree(profile, ignore_errors=True)


def show(driver: webdriver.Chrome, html: str, folder: str | Path) -> list[str]:
    """Load a page from a file, as a user would, and return the messages of the browser console."""
    path = Path(folder) / "page.html"
    path.write_text(html, encoding="utf-8")
    driver.get(path.as_uri())
    return [entry["message"] for entry in driver.get_log("browser")]  # type: ignore[no-untyped-call]
