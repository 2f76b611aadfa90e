# SPDX-License-Identifier: Apache-2.0
"""Measure the page of graphs in headless Chromium: first picture, opening a box, moving, searching.

    python benchmarks/graph_page.py [graphs.json …]

Without files: two transformers of 140 layers beside each other (1,546 nodes a side), a module with
1,000 children, and a graph of 1,000,000 nodes behind the local server. `graphs.json` is what
``msprobe graph … --export json`` writes. Times in ms, medians of several rounds; in brackets the
time that the page's thread had the processor, which other work on the machine does not change.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "report"), str(Path(__file__).parent)]

ROUNDS: Final = 7
SIZE: Final = {"width": 1500, "height": 950}
WATCH: Final = """(() => {
  const look = () => {
    const canvas = document.querySelector(".graph-canvas");
    if (!canvas || canvas.width < 301) { requestAnimationFrame(look); return; }
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    if (!data.some(value => value)) { requestAnimationFrame(look); return; }
    window.shown = performance.now();
  };
  look();
})()"""
# From an input to the frame that shows its result.
TIMED: Final = """async act => {
  const frame = () => new Promise(requestAnimationFrame);
  await frame();
  const begin = performance.now();
  new Function(act)();
  await frame();
  await new Promise(resolve => setTimeout(resolve));
  return performance.now() - begin;
}"""
# Frames while the mouse drags the picture about, and while it is zoomed.
FRAMES: Final = """async zoom => {
  const canvas = document.querySelector(".graph-canvas");
  const begin = performance.now();
  let frames = 0;
  while (performance.now() - begin < 1000) {
    const way = frames % 40 < 20 ? 1 : -1;
    const wheel = { deltaY: 24 * way, ctrlKey: zoom, cancelable: true };
    canvas.dispatchEvent(new WheelEvent("wheel", wheel));
    await new Promise(requestAnimationFrame);
    frames += 1;
  }
  return frames / (performance.now() - begin) * 1000;
}"""


# From a key to the first frame with another picture in the middle of the pane, of which few pixels
# are looked at: the page is to be measured.
OPENED: Final = """async key => {
  const canvas = document.querySelector(".graph-canvas"), pen = canvas.getContext("2d");
  const form = () => {
    const { data } = pen.getImageData(canvas.width / 2 - 4, 0, 8, canvas.height);
    return new Uint32Array(data.buffer).join();
  };
  const before = form(), begin = performance.now();
  const target = document.querySelector(".graph-panes");
  target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  while (form() === before) {
    if (performance.now() - begin > 20000) throw new Error("nothing was opened");
    await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)));
  }
  return performance.now() - begin;
}"""


def opened(browser: Any, url: str) -> Any:
    context = browser.new_context(viewport=SIZE, bypass_csp=True)
    page = context.new_page()
    page.add_init_script(WATCH)
    page.goto(url)
    while not page.evaluate("window.shown"):
        page.wait_for_timeout(20)
    return page


def thread_ms(page: Any) -> Callable[[], float]:
    """Return a function that returns how long the page's thread has had the processor since."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def now() -> float:
        found = session.send("Performance.getMetrics")["metrics"]
        return next(1000 * each["value"] for each in found if each["name"] == "TaskDuration")

    begin = now()
    return lambda: now() - begin


def median(measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(ROUNDS))


def shown(browser: Any, url: str) -> float:
    page = opened(browser, url)
    time = page.evaluate("window.shown")
    page.context.close()
    return time


def report(name: str, value: float, wanted: str) -> None:
    print(f"  {name:44} {value:8.1f}   {wanted}")


def both_sides(browser: Any, page_url: str) -> None:
    report("first picture", median(partial(shown, browser, page_url)), "at most 1000 ms")
    page = opened(browser, f"{page_url}#depth=9&rolled=no")
    page.wait_for_timeout(500)
    report("frames a second, scrolling, all open", page.evaluate(FRAMES, False), "at least 40")
    report("frames a second, zooming, all open", page.evaluate(FRAMES, True), "at least 40")
    page.keyboard.press("f")
    page.wait_for_timeout(300)
    report("frames a second, zooming, all in sight", page.evaluate(FRAMES, True), "at least 40")
    search = (
        'const box = document.getElementById("graph-search"); '
        'box.value = "%s"; box.dispatchEvent(new Event("input"))'
    )
    times = [page.evaluate(TIMED, search % text) for text in ("fc1", "norm>1", "class:linear", "b")]
    report("search", statistics.median(times), "at most 300 ms")
    page.context.close()


def thousand_children(browser: Any, page_url: str) -> None:
    own: list[float] = []

    def once() -> float:
        page = opened(browser, f"{page_url}#at=graph/target/1&fold=1")
        page.wait_for_timeout(300)
        busy = thread_ms(page)
        time = page.evaluate(OPENED, "Enter")
        own.append(busy())
        page.context.close()
        return time

    report("open a box of 1,000 children", median(once), "at most 80 ms")
    print(f"  {'':44} [{statistics.median(own):6.1f}]")


def million(browser: Any, path: Path) -> None:
    from graph_million import Million

    from msprobe.graph.stored import open_pieces
    from msprobe.graph.vis_writer import write_vis_db
    from msprobe.report.graph_server import GraphServer

    if not path.exists():
        write_vis_db(path, Million().graphs())
    server = GraphServer(lambda: open_pieces(path))
    threading.Thread(target=server.run, daemon=True).start()
    report(
        "1,000,000 nodes: first picture",
        median(partial(shown, browser, server.url)),
        "at most 2000 ms",
    )

    def expand() -> float:
        page = opened(browser, server.url)
        page.focus(".graph-panes")
        page.keyboard.press("ArrowDown")
        page.wait_for_timeout(400)
        time = page.evaluate(OPENED, "Enter")
        page.context.close()
        return time

    report("1,000,000 nodes: open a box", median(expand), "at most 150 ms")
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "graphs", nargs="*", type=Path, help="files of `msprobe graph --export json`"
    )
    parser.add_argument("--million", type=Path, help="file of benchmarks/graph_million.py")
    given = parser.parse_args()
    from graph_samples import Made, compared, whole
    from playwright.sync_api import sync_playwright

    from msprobe.report.graph_page import write_graph_page

    flat = Made()
    flat.add(-1, "all", kind=0, flags=0)
    box = flat.add(0, "many", kind=1, path="many", overflow=2, flags=0)
    calls = [flat.add(box, f"call{number}", name=f"call{number}") for number in range(1000)]
    for start, end in pairwise(calls):
        flat.flow(start, end)
    for start in range(0, 990, 9):
        flat.flow(calls[start], calls[start + 7])

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        sources = {f"{file}": json.loads(file.read_text()) for file in given.graphs}
        sources = sources or {"two transformers": compared(140, bad=70)}
        for name, graphs in sources.items():
            page = write_graph_page(Path(folder) / "page.html", graphs)
            nodes = ", ".join(str(each["count"]) for each in graphs["graphs"])
            print(f"{name}: {nodes} nodes, {page.stat().st_size / 1e6:.2f} MB")
            both_sides(browser, page.as_uri())
        thousand_children(
            browser, write_graph_page(Path(folder) / "flat.html", whole(flat)).as_uri()
        )
        million(browser, given.million or Path(folder) / "million.vis.db")
        browser.close()


if __name__ == "__main__":
    main()
