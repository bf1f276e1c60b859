"""A real browser for tests: headless Chromium driven by Selenium, one process for each use."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
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
    """A Chromium with a new profile; the start is tried three times, because it can fail under load."""
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


def resize(driver: webdriver.Chrome, width: int, height: int) -> None:
    """Set the size of the page in CSS pixels; a window of a desktop cannot be as narrow as a phone."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    still = [{"name": "prefers-reduced-motion", "value": "reduce"}]  # boxes are measured where they stay
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": still})


LAYOUT = """
const rows = [];
const over = [...document.querySelectorAll("[data-overlay]")]
  .filter(one => ["fixed", "sticky"].includes(getComputedStyle(one).position) && one.getClientRects().length);
const hidden = (owner, box) => over.some(one => {
  const top = one.getBoundingClientRect();
  return !one.contains(owner) && box.top < top.bottom && top.top < box.bottom && box.left < top.right
    && top.left < box.right;
});
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  if (!node.data.trim()) continue;
  const owner = node.parentElement;
  if (!owner.checkVisibility({visibilityProperty: true}) || owner.closest("style, script, option, title")) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  const lines = new Set();
  for (const box of range.getClientRects()) {
    const line = `${box.left} ${box.top}`;  // a line that is cut by an ellipsis is reported twice
    if (lines.has(line) || hidden(owner, box)) continue;
    lines.add(line);
    let [left, top, right, bottom] = [box.left, box.top, box.right, box.bottom];
    for (let one = owner; one && one !== document.body; one = one.parentElement) {
      const how = getComputedStyle(one);
      if (how.overflow === "visible" || how.display === "inline") continue;
      const clip = one.getBoundingClientRect();
      left = Math.max(left, clip.left); top = Math.max(top, clip.top);
      right = Math.min(right, clip.right); bottom = Math.min(bottom, clip.bottom);
    }
    if (right - left > 1 && bottom - top > 1) rows.push([node.data.trim(), left, top, right, bottom]);
  }
}
return rows;
"""
"""A script that gives each line of visible text with its box, cut to what its scrolling containers show.

Text below an element that is marked `data-overlay` and fixed or sticky is hidden.
"""


CONTRAST = """
const parse = text => { const n = text.match(/[\\d.]+/g).map(Number); return [n[0], n[1], n[2], n[3] ?? 1]; };
const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
const light = colour => colour.slice(0, 3).map(x => x / 255)
  .map(x => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4)
  .reduce((sum, x, i) => sum + x * [.2126, .7152, .0722][i], 0);
const rows = [];
const judge = (owner, colour, text) => {
  const layers = [];
  for (let one = owner; one; one = one.parentElement) layers.push(parse(getComputedStyle(one).backgroundColor));
  const back = layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
  const pair = [light(over(parse(colour), back)), light(back)];
  rows.push([text.trim(), (Math.max(...pair) + .05) / (Math.min(...pair) + .05)]);
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const owner = node.parentElement;
  if (!node.data.trim() || !owner.checkVisibility({visibilityProperty: true})) continue;
  if (owner.closest("script, style, option, svg")) continue;
  judge(owner, getComputedStyle(owner).color, node.data);
}
for (const field of document.querySelectorAll("input[placeholder]"))
  if (field.checkVisibility()) judge(field, getComputedStyle(field, "::placeholder").color, field.placeholder);
return rows;
"""
"""A script that gives each visible text with the contrast of its colour to the one behind it (WCAG 2; AA is 4.5)."""


def overlapping(texts: Sequence[tuple[str, float, float, float, float]], slack: float = 3.0) -> list[tuple[str, str]]:
    """Pairs of lines whose boxes overlap by more than `slack` pixels in both directions."""
    rows = sorted(texts, key=lambda row: row[2])
    pairs = []
    for n, (text, left, top, right, bottom) in enumerate(rows):
        for other, a, b, c, d in rows[n + 1 :]:
            if b >= bottom - slack:
                break
            if min(right, c) - max(left, a) > slack and min(bottom, d) - max(top, b) > slack:
                pairs.append((text, other))
    return pairs
