# SPDX-License-Identifier: Apache-2.0
"""The page of graphs: the laws of its layout, what it shows, and every gesture, in a browser."""

from __future__ import annotations

import random
import shutil
import time
from importlib.resources import files
from pathlib import Path

import pytest
from graph_samples import INTRODUCED, Made, compared, transformer, whole

from msprobe.report.graph_page import write_graph_page
from msprobe.report.page_file import write_page

FOLDER = Path(str(files("msprobe.report"))) / "page"
# A view that gives a test the layout, and nothing else.
LAWS = """
import { layLevel } from "../graph/layout.js";
import { Nest } from "../graph/nest.js";

export const view = {
  name: "laws", title: "Laws", place: "main", needs: [], uses: [],
  start() { Object.assign(window, { layLevel, Nest }); },
  render() {},
};
"""


def wait_until(page, condition: str) -> None:
    """Wait for a condition in JavaScript; the page's own policy forbids playwright's way."""
    deadline = time.monotonic() + 20
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(20)


# The laws of the layout


@pytest.fixture
def laws(open_file, tmp_path):
    """Return a page with the functions of the layout."""
    folder = tmp_path / "page"
    shutil.copytree(FOLDER, folder)
    (folder / "views" / "laws.js").write_text(LAWS)
    path = tmp_path / "laws.html"
    write_page(path, title="Laws", sections={}, views=("laws",), folder=folder)
    return open_file(path)


def random_level(chance: random.Random) -> tuple[list[dict], list[list[int]]]:
    """Return boxes of any sizes, and links of any kind: chains, skips, fans, backwards, doubled."""
    count = chance.choice([1, 2, 3, 5, 9, 20, 40, 90])
    sizes = [
        {"w": chance.choice([2, 60, 90, 240, 700]), "h": chance.choice([2, 26, 42, 400])}
        for _ in range(count)
    ]
    links: list[list[int]] = []
    if chance.random() < 0.7:
        links += [[box, box + 1] for box in range(count - 1)]
    for _ in range(chance.choice([0, 0, count // 4, count, 3 * count])):
        links.append([chance.randrange(count), chance.randrange(count)])
    if chance.random() < 0.3:
        links += [[0, box] for box in range(1, count)]
    return sizes, links


def apart(one: tuple, other: tuple) -> bool:
    (x, y, w, h), (left, top, wide, high) = one, other
    grain = 0.02
    return (
        x + w <= left + grain
        or left + wide <= x + grain
        or y + h <= top + grain
        or top + high <= y + grain
    )


@pytest.mark.parametrize("direction", ["down", "right"])
@pytest.mark.parametrize("seed", range(6))
def test_boxes_of_a_level_do_not_overlap_and_lie_in_it(laws, direction, seed):
    chance = random.Random(seed)
    levels = [random_level(chance) for _ in range(25)]
    laid = laws.evaluate(
        "([levels, way]) => levels.map(([sizes, links]) => layLevel(sizes, links, way))",
        [levels, direction],
    )
    for (sizes, links), level in zip(levels, laid, strict=True):
        boxes = [
            (place["x"], place["y"], size["w"], size["h"])
            for place, size in zip(level["places"], sizes, strict=True)
        ]
        for number, box in enumerate(boxes):
            assert all(apart(box, other) for other in boxes[number + 1 :]), (sizes, links)
            x, y, w, h = box
            assert x >= -0.02 <= y
            assert x + w <= level["w"] + 0.02
            assert y + h <= level["h"] + 0.02
        assert len(level["routes"]) == len(links)
        for (start, end), route in zip(links, level["routes"], strict=True):
            assert start == end or (
                touches(boxes[start], route[0]),
                touches(boxes[end], route[-1]),
            ) == (True, True)


def touches(box: tuple, point: dict) -> bool:
    x, y, w, h = box
    return x - 1 <= point["x"] <= x + w + 1 and y - 1 <= point["y"] <= y + h + 1


def test_a_layout_is_the_same_every_time(laws):
    levels = [random_level(random.Random(seed)) for seed in range(12)]
    lay = "levels => JSON.stringify(levels.map(([sizes, links]) => layLevel(sizes, links)))"
    first = laws.evaluate(lay, levels)
    laws.reload()
    assert laws.evaluate(lay, levels[::-1]) != first
    assert laws.evaluate(lay, levels) == first


# A tree of 3 x 4 x 3 boxes, of which some are open; `boxes` returns all of them by their numbers.
NEST = """(open) => {
  const children = node => node === 0 ? [1, 2, 3] : node < 4 ? [0, 1, 2, 3].map(n => 10 * node + n)
    : node < 100 ? [0, 1, 2].map(n => 10 * node + n) : [];
  const lines = node => children(node).slice(1).map((_, place) => ({ from: place, to: place + 1, edges: [] }))
    .concat(node ? [{ from: -1, to: 0, edges: [] }, { from: 0, to: -1, edges: [] }] : []);
  const opened = new Set(open);
  const nest = new Nest({ children, lines, isOpen: node => opened.has(node), size: () => ({ w: 90, h: 30 }) }, "down");
  const found = {};
  const read = (box, x, y, around) => {
    found[box.node] = { x, y, w: box.w, h: box.h, around };
    box.inside.forEach(each => read(each.box, x + each.x, y + each.y, box.node));
  };
  read(nest.box(0), 0, 0, null);
  const before = JSON.stringify(nest.box(0));
  return { found, before };
}"""


@pytest.mark.parametrize("seed", range(5))
def test_children_lie_in_their_parents_and_elsewhere_nothing_moves(laws, seed):
    chance = random.Random(seed)
    nodes = [1, 2, 3, *(10 * n + m for n in (1, 2, 3) for m in range(4))]
    opened = [0, *chance.sample(nodes, 6)]
    boxes = laws.evaluate(NEST, opened)["found"]
    for box in boxes.values():
        if box["around"] is None:
            continue
        around = boxes[str(box["around"])]
        assert around["x"] <= box["x"]
        assert around["y"] <= box["y"]
        assert box["x"] + box["w"] <= around["x"] + around["w"]
        assert box["y"] + box["h"] <= around["y"] + around["h"]
    more = chance.choice([node for node in nodes if node not in opened and str(node) in boxes])
    after = laws.evaluate(NEST, [*opened, more])["found"]
    for name, box in boxes.items():
        inside = box["around"]
        if inside is None or str(more).startswith(str(inside)) or inside == 0:
            continue  # around what was opened
        holder, new_holder = boxes[str(inside)], after[str(inside)]
        now = after[name]
        assert (box["w"], box["h"]) == (now["w"], now["h"])
        assert box["x"] - holder["x"] == pytest.approx(now["x"] - new_holder["x"], abs=0.01)
        assert box["y"] - holder["y"] == pytest.approx(now["y"] - new_holder["y"], abs=0.01)
    order = ["1", "2", "3"]
    assert sorted(order, key=lambda name: after[name]["y"]) == order


# The page


@pytest.fixture
def show(open_file, tmp_path):
    """Return a function that writes a page of graphs, opens it and waits until it is drawn."""

    def opened(graphs: dict, **more):
        path = write_graph_page(tmp_path / "graph.html", graphs)
        page = open_file(path, **more)
        wait_until(page, "document.querySelector('.graph-canvas')?.width > 300")
        page.wait_for_timeout(250)
        return page

    opened.said = open_file.said
    return opened


def pixels(page, pane: int = 0) -> int:
    """Return how many points of a pane have a strong colour, such as orange."""
    return page.evaluate(
        """pane => {
      const canvas = document.querySelectorAll(".graph-canvas")[pane];
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let count = 0;
      for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3] > 200 && data[at] - data[at + 2] > 100) count += 1;
      }
      return count;
    }""",
        pane,
    )


def test_the_page_opens_at_the_culprit(show):
    page = show(compared())
    assert (
        page.locator("h1")
        .inner_text()
        .endswith("layers.3.mlp.fc1 forward; parameter weight differs")
    )
    assert pixels(page) > 100  # the culprit is in sight, and orange
    assert pixels(page, 1) > 100 or page.locator(".graph-canvas").count() == 2
    assert "model.layers.3.mlp.fc1" in page.locator("#findings").inner_text()
    page.click(".headline")
    assert page.locator("#detail h2").inner_text().startswith("model.layers.3.mlp.fc1")
    text = page.locator("#detail").inner_text()
    assert "parameters.weight" in text
    assert "0.38" in text
    assert "the parameter itself differs" in text


def test_without_a_reference_there_is_one_pane_and_nothing_of_a_comparison(show):
    page = show(whole(transformer(3)))
    assert page.locator(".graph-canvas").count() == 1
    assert page.locator("[data-graph-state=panes]").count() == 0
    assert page.locator("h1 .badge").count() == 0
    assert "match by hand" not in page.locator("#graph_list").inner_text()
