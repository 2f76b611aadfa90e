# SPDX-License-Identifier: Apache-2.0
"""Measure how fast Chromium opens HTML reports and answers in them; several are opened in turn.

    python benchmarks/page_opening.py report.html [other.html …]

`shown` is the time until the list and the overview are painted, in ms; `search` and `open` are the
times from an input to the finished layout.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROUNDS: Final = 15
WATCH: Final = """(() => {
  const done = () => { window.shown = performance.now(); };
  const look = () => {
    const isShown = document.querySelector(".row") && document.querySelector("#detail h3");
    requestAnimationFrame(isShown ? () => setTimeout(done) : look);
  };
  look();
})()"""
TRY: Final = """() => {
  const timed = (act) => {
    const begin = performance.now();
    act();
    document.body.getBoundingClientRect();
    return performance.now() - begin;
  };
  const box = document.getElementById("search");
  return {
    shown: window.shown,
    search: timed(() => { box.value = "attention"; box.dispatchEvent(new Event("input")); }),
    open: timed(() => document.querySelector(".row")?.click()),
    heap_mb: performance.memory.usedJSHeapSize / 1e6,
  };
}"""


def measure(browser: Any, page: Path) -> Mapping[str, float]:
    context = browser.new_context(viewport={"width": 1400, "height": 900}, offline=True)
    tab = context.new_page()
    tab.add_init_script(WATCH)
    tab.goto(page.resolve().as_uri())
    tab.wait_for_selector(".row")
    tab.wait_for_timeout(250)
    found = tab.evaluate(TRY)
    context.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="+", type=Path, help="pages of comparisons")
    pages = parser.parse_args().pages
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        rounds = [[measure(browser, page) for page in pages] for _ in range(ROUNDS + 1)]
        browser.close()
    for place, page in enumerate(pages):
        print(f"{page}  {page.stat().st_size / 1e6:.2f} MB")
        for name in rounds[0][place]:
            times = [each[place][name] for each in rounds[1:]]  # the first one warms up
            print(f"  {name:8} {statistics.median(times):7.1f}   fastest {min(times):.1f}")


if __name__ == "__main__":
    main()
