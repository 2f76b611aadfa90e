# SPDX-License-Identifier: Apache-2.0
"""Measure the page of graphs in headless Chromium: first picture, opening a box, moving, searching.

    python benchmarks/graph_page.py [graphs.json …]

Without files: two transformers of 140 layers beside each other (1,546 nodes a side), a module with
1,000 children, and a graph of 1,000,000 nodes behind the local server. `graphs.json` is what
``msprobe graph … --export json`` writes. Times in ms, medians of several rounds.
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

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "report"))

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


# From a key to the first frame with another picture in the middle of the pane.
OPENED: Final = """async key => {
  const canvas = document.querySelector(".graph-canvas"), pen = canvas.getContext("2d");
  const form = () => {
    const { data } = pen.getImageData(canvas.width / 2 - 60, 0, 120, canvas.height);
    return data.reduce((sum, value, at) => (sum * 31 + value * at) % 1000003, 7);
  };
  const before = form(), begin = performance.now();
  const target = document.querySelector(".graph-panes");
  target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  while (form() === before) {
    if (performance.now() - begin > 20000) throw new Error("nothing was opened");
    await new Promise(requestAnimationFrame);
  }
  await new Promise(resolve => setTimeout(resolve));
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
    def once() -> float:
        page = opened(browser, f"{page_url}#at=graph/target/1&fold=1")
        page.wait_for_timeout(300)
        time = page.evaluate(OPENED, "Enter")
        page.context.close()
        return time

    report("open a box of 1,000 children", median(once), "at most 80 ms")


class Million:
    """A graph of 1,000,000 nodes: 100 stages of 100 blocks of 99 calls, each level a chain."""

    stages, blocks, calls = 100, 100, 98

    def __init__(self) -> None:
        self.block = self.calls + 1
        self.stage = self.blocks * self.block + 1
        self.count = self.stages * self.stage + 1
        self.names = [f"functional.op{call % 7}" for call in range(self.calls)]

    def place(self, node: int) -> tuple[int, int]:
        """Return the parent of a node and its size."""
        if node == 0:
            return -1, self.count
        stage, inside = divmod(node - 1, self.stage)
        if inside == 0:
            return 0, self.stage
        block, call = divmod(inside - 1, self.block)
        above = 1 + stage * self.stage
        if call == 0:
            return above, self.block
        return above + 1 + block * self.block, 1

    def rows(self, ids: list[int]) -> dict[str, list[Any]]:
        places = [self.place(node) for node in ids]
        labels = [
            f"stage{node}"
            if size == self.stage
            else f"block{node}"
            if size > 1
            else f"op{node % 7}"
            for node, (_, size) in zip(ids, places, strict=True)
        ]
        return {
            "parent": [parent for parent, _ in places],
            "size": [size for _, size in places],
            "kind": [1 if size > 1 else 2 for _, size in places],
            "label": labels,
            "name": labels,
            "order": ids,
            "norm": [1.0],
        }

    def overview(self) -> dict[str, Any]:
        head = {"side": "target", "step": 0, "rank": "0", "count": self.count, "notes": []}
        cell = {"step": 0, "rank": "0", "overflow": 0, "target": 0, "reference": None}
        nothing = {"culprits": [], "links": [], "layers": None, "headline": None, "texts": []}
        named = {"title": "a million", "target": "million", "reference": None, "mode": ""}
        return {
            **nothing,
            **named,
            "cells": [cell],
            "graphs": [{**head, "root": self.rows([0])}],
        }

    def comparison(self) -> None:
        return None

    def children(self, graph: int, node: int) -> dict[str, Any]:
        _, size = self.place(node)
        step = {self.count: self.stage, self.stage: self.block, self.block: 1}[size]
        ids = [*range(node + 1, node + size, step)]
        edges = {"from": ids[:-1], "to": ids[1:], "lca": [node], "how": [0], "confidence": [1.0]}
        slots = {"from_slot": ["output.0"], "to_slot": ["input.0"], "shape": ["[2]"]}
        known = {**edges, **slots, "dtype": ["float32"], "gradient": [0]}
        return {"ids": ids, "nodes": self.rows(ids), "edges": known, "rolls": []}

    def path_to(self, graph: int, node: int) -> list[int]:
        above = []
        while (node := self.place(node)[0]) >= 0:
            above.append(node)
        return above[::-1]

    def detail(self, graph: int, node: int) -> dict[str, Any]:
        return {"halves": [], "stack": []}

    def find(self, graph: int, text: str, conditions: list, limit: int) -> dict[str, Any]:
        wanted = [node for node in range(1, self.count) if node % 7 == 3]
        return {"ids": wanted[:limit], "total": len(wanted)}

    def upstream(self, graph: int, node: int, limit: int) -> list[int]:
        return []


def million(browser: Any) -> None:
    from msprobe.report.graph_server import GraphServer

    server = GraphServer(Million)
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
    given = parser.parse_args().graphs
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
        sources = {f"{file}": json.loads(file.read_text()) for file in given}
        sources = sources or {"two transformers": compared(140, bad=70)}
        for name, graphs in sources.items():
            page = write_graph_page(Path(folder) / "page.html", graphs)
            nodes = ", ".join(str(each["count"]) for each in graphs["graphs"])
            print(f"{name}: {nodes} nodes, {page.stat().st_size / 1e6:.2f} MB")
            both_sides(browser, page.as_uri())
        thousand_children(
            browser, write_graph_page(Path(folder) / "flat.html", whole(flat)).as_uri()
        )
        million(browser)
        browser.close()


if __name__ == "__main__":
    main()
