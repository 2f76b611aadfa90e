# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF001 (Chinese has signs of its own)
"""The page of graphs: the laws of its layout, what it shows, and every gesture, in a browser."""

from __future__ import annotations

import ast
import random
import re
import shutil
from importlib.resources import files
from pathlib import Path

import pytest
from browser_waits import wait_until, wait_until_drawn
from graph_samples import INTRODUCED, Made, compared, transformer, whole

from builders.extent import WHOLE
from msprobe.compare.causes import Cause
from msprobe.compare.matching.call_pairs import read_call_pairs
from msprobe.compare.training.differences import Effect
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.graph.searching import NodeSearch
from msprobe.graph.tables import Table
from msprobe.graph.text_block import TextBlock
from msprobe.replay.runner import Reason
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
@pytest.mark.parametrize("seed", range(2))
def test_boxes_of_a_level_do_not_overlap_and_lie_in_it(laws, direction, seed):
    chance = random.Random(seed)
    levels = [random_level(chance) for _ in range(75 if WHOLE else 20)]
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
  const below = (node, count) => [...Array(count).keys()].map(n => 10 * node + n);
  const children = node => node === 0 ? [1, 2, 3] : below(node, node < 4 ? 4 : node < 100 ? 3 : 0);
  const lines = node => children(node).slice(1)
    .map((_, place) => ({ from: place, to: place + 1, edges: [] }))
    .concat(node ? [{ from: -1, to: 0, edges: [] }, { from: 0, to: -1, edges: [] }] : []);
  const opened = new Set(open);
  const isOpen = node => opened.has(node);
  const size = () => ({ w: 90, h: 30 });
  const nest = new Nest({ children, lines, isOpen, size }, "down");
  const found = {};
  const read = (box, x, y, around) => {
    found[box.node] = { x, y, w: box.w, h: box.h, around };
    box.inside.forEach(each => read(each.box, x + each.x, y + each.y, box.node));
  };
  read(nest.box(0), 0, 0, null);
  return found;
}"""


@pytest.mark.parametrize("seed", range(5))
def test_children_lie_in_their_parents_and_elsewhere_nothing_moves(laws, seed):
    chance = random.Random(seed)
    nodes = [1, 2, 3, *(10 * n + m for n in (1, 2, 3) for m in range(4))]
    opened = [0, *chance.sample(nodes, 6)]
    boxes = laws.evaluate(NEST, opened)
    for box in boxes.values():
        if box["around"] is None:
            continue
        around = boxes[str(box["around"])]
        assert around["x"] <= box["x"]
        assert around["y"] <= box["y"]
        assert box["x"] + box["w"] <= around["x"] + around["w"]
        assert box["y"] + box["h"] <= around["y"] + around["h"]
    more = chance.choice([node for node in nodes if node not in opened and str(node) in boxes])
    after = laws.evaluate(NEST, [*opened, more])
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
        wait_until(page, "document.querySelector('.graph-canvas')?.width > 200")
        settle(page)
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


# Gestures

# Moves the mouse over a pane until its tip begins with a text; returns where.
HOVER = """([text, pane, isAnywhere]) => {
  const canvas = document.querySelectorAll(".graph-canvas")[pane];
  const tip = canvas.parentElement.querySelector(".tip");
  const { left, top, width, height } = canvas.getBoundingClientRect();
  for (let y = top + 6; y < top + height; y += 9) {
    for (let x = left + 10; x < left + width; x += 13) {
      canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: x, clientY: y }));
      const said = tip.hidden ? "" : tip.innerText;
      if (isAnywhere ? said.includes(text) : said.split("\\n")[0] === text) return [x, y, said];
    }
  }
  return null;
}"""


def find(page, text: str, pane: int = 0, *, anywhere: bool = False) -> tuple[float, float, str]:
    """Return where the mouse meets a box or line whose tip has a text, and the tip."""
    found = page.evaluate(HOVER, [text, pane, anywhere])
    assert found, f"{text} is not in sight"
    return tuple(found)


def is_in_sight(page, text: str, pane: int = 0) -> bool:
    return page.evaluate(HOVER, [text, pane, False]) is not None


def settle(page) -> None:
    """Wait until the page has taken an input in, and nothing moves any more."""
    wait_until_drawn(page)


FC1 = "model.layers.3.mlp.fc1"


def test_a_double_click_opens_a_box_in_both_panes_and_it_stays_in_place(show):
    page = show(compared())
    x, y, _ = find(page, FC1)
    assert not is_in_sight(page, "Functional.linear.20", 1)
    page.mouse.dblclick(x, y)
    settle(page)
    again = find(page, FC1)
    assert abs(again[0] - x) <= 40
    assert abs(again[1] - y) <= 14
    assert is_in_sight(page, "Functional.linear.20", 0)
    assert is_in_sight(page, "Functional.linear.20", 1)
    page.wait_for_url("**fold=*")
    page.mouse.dblclick(*again[:2])
    settle(page)
    assert not is_in_sight(page, "Functional.linear.20", 0)


def test_panes_open_apart_if_asked_to(show):
    page = show(compared())
    page.click(".graph-more summary")
    page.click("[data-graph-state=sync]")
    page.click(".graph-more summary")
    settle(page)
    page.mouse.dblclick(*find(page, FC1)[:2])
    settle(page)
    assert is_in_sight(page, "Functional.linear.20", 0)
    assert not is_in_sight(page, "Functional.linear.20", 1)


def test_a_click_selects_and_back_returns(show):
    page = show(compared())
    page.mouse.click(*find(page, FC1)[:2])
    page.wait_for_selector("#detail h2")
    page.wait_for_url("**at=graph*")
    assert page.locator("#detail h2").inner_text().startswith(FC1)
    page.click("#detail button:has-text('partner')")
    page.wait_for_url("**at=graph%2Freference*")
    page.go_back()
    page.wait_for_url("**at=graph%2Ftarget*")
    wait_until(page, "document.querySelector('#detail p.dim').innerText.includes('target')")
    page.keyboard.press("Escape")
    page.wait_for_selector("#findings")


def test_the_wheel_the_mouse_and_keys_move_both_pictures(show):
    page = show(compared())
    x, y, _ = find(page, FC1)
    right = find(page, FC1, 1)
    page.mouse.move(x, y)
    page.mouse.wheel(0, 60)
    settle(page)
    assert find(page, FC1)[1] == pytest.approx(y - 60, abs=14)
    assert find(page, FC1, 1)[1] == pytest.approx(right[1] - 60, abs=14)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 20, y + 10, steps=3)
    page.mouse.move(x + 40, y + 60, steps=3)
    page.mouse.up()
    settle(page)
    assert find(page, FC1)[:2] == pytest.approx((x + 40, y), abs=16)
    before = page.evaluate("document.querySelector('.graph-map').width")
    for key in ("a", "d", "s", "w", "f"):
        page.keyboard.press(key)
    settle(page)
    assert page.evaluate("document.querySelector('.graph-map').width") == before
    assert not is_in_sight(page, "no such box")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    settle(page)


def test_the_menu_of_a_box(show):
    page = show(compared())
    page.mouse.click(*find(page, "model.layers.3.mlp")[:2], button="right")
    assert page.locator(".graph-menu [role=menuitem]").first.inner_text() == "close"
    page.click(".graph-menu >> text=open all in it")
    settle(page)
    assert is_in_sight(page, "Functional.linear.23")
    page.keyboard.press("m")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Escape")
    assert page.locator(".graph-menu").is_hidden()
    page.keyboard.press("m")
    page.click(".graph-menu >> text=go to its partner")
    page.wait_for_url("**at=graph%2Freference*")


def test_depth(show):
    page = show(compared())
    page.locator("#graph-depth").fill("2")
    settle(page)
    page.keyboard.press("f")
    settle(page)
    assert is_in_sight(page, "model.layers.0")
    assert not is_in_sight(page, "model.layers.0.mlp")
    page.wait_for_url("**depth=2*")


def test_only_the_keyboard(show):
    page = show(compared())
    page.focus(".graph-panes")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
        settle(page)
    assert "graph%2Ftarget" in page.url
    assert page.locator("[role=status]").inner_text()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("n")
    settle(page)
    assert page.locator("#detail h2").inner_text().startswith(FC1)


def test_findings_in_turn(show):
    page = show(compared(extra=True))
    names = page.locator("#findings li .mono").all_inner_texts()
    assert names == ["Functional.dropout.2", FC1]
    heads = []
    for key in ("n", "n", "n", "p"):
        page.keyboard.press(key)
        settle(page)
        heads.append(page.locator("#detail h2").inner_text().split()[0])
    assert heads == ["Functional.dropout.2", FC1, "Functional.dropout.2", FC1]


def test_what_only_one_side_has_is_shown_in_the_merged_graph(show):
    page = show(whole(transformer(2), transformer(2, extra=True)), fragment="panes=one&depth=9")
    assert page.locator(".graph-canvas").count() == 1
    page.keyboard.press("f")
    settle(page)
    assert "only in the reference" in find(page, "Functional.dropout.2")[2]


FOUND = {
    "gelu": 6,
    "class:linear": 13,
    "class:linear dir:backward": 13,
    "error>0.3": 1,
    "status:introduced": 1,
    "ref:gelu": 6,
    "norm>1e4": 0,
    "norm<2 kind:module": 33,
    "layers.3 fc1 source:model.py:11": 1,
}


def test_the_language_of_the_search(show):
    page = show(compared())
    for text, count in FOUND.items():
        page.fill("#graph-search", text)
        settle(page)
        found = f"document.querySelector('#graph-found').innerText === '{nodes(count)}'"
        wait_until(page, found)
        assert page.locator("#graph-rows [role=option]").count() == min(count, 21), text


def nodes(count):
    return "1 node" if count == 1 else f"{count} nodes"


QUERIES = [
    *("linear", "LINEAR gelu", "status:error", "status:pass", "status=equal", "status:intro"),
    *(
        "error>0.005",
        "error<=0.01 dir:backward",
        "error>0.1,0.001",
        "error_mean>0.2",
        "severity:6,3",
        "size:1",
    ),
    *("dir:forward class=linear", "class:lin dtype:float", "name:backward", "name:gelu dir:back"),
    *("kind:module,collection", "overflow:high", "overflow>0", "norm:nan", "norm:1.5", "norm>many"),
    *("listed:1 status:introduced,unmatched", "source=model.py:11", "device:cpu", "status:nan"),
]


def test_a_search_finds_the_same_on_the_page_and_on_the_server(show):
    graphs = compared(3, bad=1, extra=True)
    columns = graphs["graphs"][0]["nodes"]
    for node, value in ((5, "NaN"), (7, "Infinity"), (9, None)):
        columns["norm"][node] = columns["error"][node] = value
    columns["error_mean"] = [0.1 * (node % 4) for node in range(len(columns["name"]))]
    columns["flags"][11] |= 256
    columns["overflow"][12] = 3
    texts = TextBlock.of(graphs["texts"])
    search = NodeSearch(Table.of(columns, len(columns["name"]), texts))
    page = show(graphs)
    for text in QUERIES:
        parts = [re.match(r"(\w+)(<=|>=|[:=<>])(.+)", word) for word in text.lower().split()]
        words = [w for w, part in zip(text.split(), parts, strict=True) if part is None]
        asked = [part.groups() for part in parts if part is not None]
        count = len(search.find(" ".join(words), asked))
        page.fill("#graph-search", text)
        settle(page)
        said = page.locator("#graph-found").inner_text()
        assert (text, said) == (text, nodes(count))


def test_search_and_commands_in_one_box(show):
    page = show(compared())
    page.keyboard.press("Control+k")
    page.keyboard.type("fc2 class:linear")
    page.wait_for_selector(".palette-row:has-text('model.layers.5.mlp.fc2')")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    settle(page)
    assert page.locator("#detail h2").inner_text().startswith("model.layers.1.mlp.fc2")
    assert is_in_sight(page, "model.layers.1.mlp.fc2")
    page.keyboard.press("/")
    page.keyboard.type(">gradient")
    page.click(".palette-row:has-text('colour by: gradient norm')")
    page.wait_for_url("**colour=gradient*")


def test_filter_with_a_threshold(show):
    page = show(compared())
    page.click("[data-level=introduced]")
    assert page.locator("#graph-rows [role=option]").all_inner_texts() == [f"◆\nfc1\n{FC1}\n0.35"]
    page.click("[data-level=introduced]")
    page.locator("#graph-limit").fill("-1")
    assert page.locator("#graph-found").inner_text() == "1 node"
    page.locator("#graph-limit").fill("-3")
    count = int(page.locator("#graph-found").inner_text().split()[0])
    assert count == 5 + 6 + 6 + 1 + 1  # calls from fc1 on, and fc1 itself
    page.click("[aria-label='next in the list']")
    page.wait_for_url("**at=graph*limit=-3*")


def test_the_error_may_be_that_of_one_statistic(show):
    graphs = compared()
    nodes = graphs["graphs"][0]["nodes"]
    nodes["error_mean"] = [None] * len(nodes["name"])
    one, other, *_ = (node for node, kind in enumerate(nodes["kind"]) if kind == 2)
    nodes["error_mean"][one], nodes["error_mean"][other] = 0.5, 0.001
    page = show(graphs)
    page.select_option("[aria-label='which error']", "mean")
    page.locator("#graph-limit").fill("-1")
    wait_until(page, "document.querySelector('#graph-found').innerText === '1 node'")
    assert page.locator("#graph-rows .number").first.inner_text() == "0.5"
    page.locator("#graph-limit").fill("-4")
    wait_until(page, "document.querySelector('#graph-found').innerText === '2 nodes'")
    page.select_option("[data-graph-state=colour]", "error")
    page.wait_for_url("**measure=mean*")


def test_the_state_survives_a_reload(show):
    page = show(compared())
    page.mouse.dblclick(*find(page, FC1)[:2])
    page.select_option("[data-graph-state=colour]", "norm")
    page.wait_for_url("**colour=norm*")
    page.reload()
    wait_until(page, "document.querySelector('.graph-canvas')?.width > 300")
    settle(page)
    assert is_in_sight(page, "Functional.linear.20")
    assert page.input_value("[data-graph-state=colour]") == "norm"
    assert page.locator("#detail h2").inner_text().startswith(FC1)


def test_lines_say_what_flows(show):
    page = show(compared())
    said = find(page, "[2, 16] float32", anywhere=True)[2]
    assert "output.0 → " in said
    assert said.startswith(("1 values", "2 values"))


def test_what_reached_a_node_is_lit(show):
    page = show(compared())
    page.keyboard.press("n")
    settle(page)
    dark = page.locator(".graph-canvas").first.screenshot()
    page.keyboard.press("c")
    page.wait_for_url("**cone=graph*")
    settle(page)
    assert page.locator(".graph-canvas").first.screenshot() != dark
    page.keyboard.press("c")
    wait_until(page, "!window.location.hash.includes('cone')")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_way_to_colour(show, theme):
    page = show(compared(), theme=theme)
    seen = set()
    modes = page.locator("[data-graph-state=colour] option")
    for value in modes.evaluate_all("options => options.map(each => each.value)"):
        page.select_option("[data-graph-state=colour]", value)
        settle(page)
        seen.add(page.locator(".graph-legend").inner_text())
    assert len(seen) >= 5


def test_pairs_made_by_hand_are_saved_and_taken_again(show, tmp_path):
    target, reference = transformer(2), transformer(2)
    reference.names["other"] = reference.names.pop("model.layers.1.mlp")
    for name in [
        name
        for name in reference.names
        if name.startswith("model.layers.1.") and name != "model.layers.1.n"
    ]:
        reference.names[f"other.{name}"] = reference.names.pop(name)
    page = show(whole(target, reference), fragment="depth=9")
    page.keyboard.press("f")
    settle(page)
    path = "model.layers.1.mlp"
    page.mouse.click(*find(page, path)[:2], button="right")
    page.click(".graph-menu >> text=match with a node of the other side")
    page.mouse.click(*find(page, path, 1)[:2], button="right")
    page.click(".graph-menu >> text=match with a node of the other side")
    page.wait_for_url("**pairs=*")
    page.click("summary:has-text('match by hand')")
    assert page.locator(".graph-pairs li").count() >= 4  # with what is in them
    with page.expect_download() as saving:
        page.click("text=save pairs")
    saved = tmp_path / "pairs.json"
    saving.value.save_as(saved)
    paired = read_call_pairs(saved).names  # what `--pairs` reads
    assert f"Module.{path}.MLP.forward.0" in paired
    page.click(".graph-pairs li button >> nth=0")
    assert page.locator(".graph-pairs li").count() == 0
    with page.expect_file_chooser() as choosing:
        page.click("text=load pairs")
    choosing.value.set_files(saved)
    page.wait_for_selector(".graph-pairs li")


def test_pictures_are_saved(show, tmp_path):
    page = show(compared())
    page.click(".graph-more summary")
    for text, kind in (("SVG, all", "svg"), ("PNG", "png")):
        with page.expect_download() as saving:
            page.click(f".graph-saving button:has-text('{text}')")
        path = tmp_path / f"picture.{kind}"
        saving.value.save_as(path)
        content = path.read_bytes()
        assert content.startswith(b"<svg" if kind == "svg" else b"\x89PNG")
        if kind == "svg":
            assert b">fc1<" in content
            assert b"script" not in content


def test_a_part_of_the_picture_stays_in_sight_however_far_it_is_moved(show):
    page = show(compared())
    page.mouse.move(700, 600)
    drawn = """[...document.querySelectorAll(".graph-canvas")].every(canvas => {
      const blank = document.createElement("canvas");
      [blank.width, blank.height] = [canvas.width, canvas.height];
      return blank.toDataURL() !== canvas.toDataURL();
    })"""
    for x, y in ((0, 9000), (0, -90000), (9000, 0), (-90000, 0)):
        page.mouse.wheel(x, y)
        wait_until_drawn(page)
        assert page.evaluate(drawn), (x, y)


def test_escape_closes_the_options_and_nothing_else(show):
    page = show(compared())
    selected = page.url
    page.click(".graph-more summary")
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    assert page.get_attribute(".graph-more", "open") is None
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert page.url == selected


def test_chinese(show):
    page = show(compared(), fragment="lang=zh")
    assert "引入" in page.locator(".graph-legend").inner_text()
    page.keyboard.press("?")
    assert "下一处发现" in page.locator("#help").inner_text()
    page.keyboard.press("Escape")
    page.click(".graph-tools >> text=EN")
    wait_until(page, "document.querySelector('.graph-legend')?.innerText.includes('introduced')")


def test_every_word_has_a_translation():
    sources = [*FOLDER.rglob("*.js")]
    said = {text for path in sources for text in re.findall(r'\bsay\("([^"]+)"', path.read_text())}
    known = set(re.findall(r'"([^"]+)": "', (FOLDER / "shared" / "chinese.js").read_text()))
    assert said - known == set()


# What is said of a comparison, but the errors that end it.
SPEAKERS = (
    *("compare/verdicts/*.py", "compare/training/*.py", "compare/ranks.py", "compare/run.py"),
    *("compare/replicas.py", "compare/recorders.py", "compare/noise/floor.py", "compare/sides.py"),
    *("compare/fact_lanes.py", "compare/value_pairs.py", "compare/model.py"),
    "compare/distances.py",
    *("graph/hierarchy.py", "graph/structures.py", "graph/building.py", "graph/page_json.py"),
    *("graph/merg*.py", "graph/sources.py", "graph/vis_graphs.py", "graph/comparing.py"),
    *("report/comparison_answer.py", "report/comparison_page.py"),
    *("report/comparison_facts.py", "monitor/alerts/incidents.py", "checks/judging.py"),
    *("checks/verify_page.py", "monitor/pictures.py"),
)
# Whose errors are shown, too: at the value, or as a note on what was left out.
READERS = (
    *("dump/formats/*.py", "dump/open_file.py", "dump/rank_view.py", "dump/rank_records.py"),
    *("dump/call_tree.py", "dump/reader.py"),
    *("dump/record_index.py", "dump/journal.py", "dump/stored_values.py", "dump/tensor_*.py"),
    *("dump/value_reader.py", "dump/value_types.py", "dump/facts.py", "json_text.py"),
    *("compare/tensors/tensor_*.py", "replay/arguments.py", "report/*_server.py"),
    # What a recording notes beside a value, or of itself.
    *("capture/statistics.py", "dump/lost_tensors.py", "pytorch/values/readable.py"),
    *("pytorch/gradients/gradient_taps.py", "pytorch/distributed/collectives.py"),
    "pytorch/values/device_statistics.py",
)
SILENT = {effect.value for effect in Effect} | {each.words for each in VerdictClass}
SILENT |= {"collective begin", "collective end", "collectives in other threads"}
SILENT |= {" on rank {}", "layers of ranks"}  # a part of a sentence; an axis, said with signs


def spoken(path, *, with_errors=False):
    """The texts of several words in a module, with values in the places of expressions."""
    tree = ast.parse(path.read_text())
    unsaid = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_log = isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger.")
        if (isinstance(node, ast.Raise) and not with_errors) or is_log:
            unsaid.update(ast.walk(node))
        if isinstance(node, ast.JoinedStr):
            unsaid.update(node.values)
    for node in ast.walk(tree):
        if node not in unsaid and isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield "".join(parts)
        elif node not in unsaid and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_all_that_is_said_of_comparisons_is_said_in_chinese(show):
    root = FOLDER.parents[1]
    texts = {text for each in SPEAKERS for path in root.glob(each) for text in spoken(path)}
    files = [path for each in READERS for path in root.glob(each)]
    texts |= {text for path in files for text in spoken(path, with_errors=True)}
    texts |= {cause.words for cause in Cause} | {f"{each.words}: {{}}" for each in VerdictClass}
    texts |= {text for each in Reason for text in (each.value, f"{{}} {each.value}")}
    words = re.compile("[a-z]{2,} [a-z]{2,}|[a-z]{2,} {}|{} [a-z]{2,}")
    said = sorted(text for text in texts - SILENT if words.search(text))
    numbers = iter(range(10**6))
    graphs = whole(transformer(1))
    # Some are parts of others, behind a comma or a semicolon there.
    filled = [
        re.sub("{}", lambda _: f"V{next(numbers)}", re.sub("^[;:,] ", "", text)) for text in said
    ]
    graphs["graphs"][0]["notes"] = filled
    page = show(graphs, fragment="lang=zh")
    shown = page.locator("#detail ul li").all_inner_texts()
    assert len(shown) == len(filled) > 250
    english = re.compile(r"[a-z]{2,} (?!scaler)[a-z]{2,}")
    left = [text for text in shown if english.search(re.sub("msprobe [a-z-]+", "", text))]
    assert not left, "\n".join(left)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "parameters: a.weight differs when step 0 starts by about 0.16 of the norm",
            "模型参数不同：a.weight 在 step 0 开始时有差异，约为范数的 0.16",
        ),
        (
            "argument: input.1 of Tensor.mul.0 (a.py:59), step 0: 2 instead of 1; "
            "the call was given another argument",
            "参数值不同：Tensor.mul.0 (a.py:59)，step 0 的 input.1：2，而非 1；调用的参数值不同",
        ),
        (
            "step 1 against step 2 of the reference: update: SGD updates 2 of 8 parameters (a, b) "
            "in the target by something else than its rule: element 3 of a changes by 1 instead of "
            "2 (step 0)",
            "step 1 对比标杆侧的 step 2：参数更新不同：SGD 在待测侧未按其规则更新 8 个参数中的 "
            "2 个（a, b）：a 的元素 3 变化了 1，而非 2（step 0）",
        ),
        ("a sentence that is {} not known", "a sentence that is {} not known"),
    ],
)
def test_a_sentence_in_the_language_of_the_page(show, text, expected):
    graphs = compared()
    graphs["headline"]["sentence"] = text
    assert show(graphs, fragment="lang=zh").locator("h1 .headline").inner_text() == expected


def test_how_ranks_were_merged_is_said_at_the_value(show):
    graphs = whole(transformer(1))
    note = "partial sums, of which the mean alone is known"
    value = {"slot": "weight", "role": "parameter_grad", "dtype": "float32", "shape": [2, 2]}
    half = {"half": "parameters_grad", "record": "fc1", "values": [{**value, "note": note}]}
    graphs["graphs"][0]["details"] = {"3": {"halves": [half], "stack": []}}
    page = show(graphs, fragment="at=graph/target/3")
    assert page.locator("#detail .graph-values .note").inner_text() == note


def test_to_the_right(show):
    page = show(whole(transformer(2)), fragment="direction=right&depth=2")
    page.keyboard.press("f")
    settle(page)
    first, second = find(page, "model.layers.0"), find(page, "model.layers.1")
    assert second[0] > first[0] + 40
    assert abs(second[1] - first[1]) < 60


def test_rolled_layers(show):
    page = show(whole(transformer(8, rolled=True)))
    page.keyboard.press("f")
    settle(page)
    assert not is_in_sight(page, "model.layers.0")
    page.mouse.dblclick(*find(page, "8 x Block")[:2])
    settle(page)
    page.keyboard.press("f")
    settle(page)
    assert is_in_sight(page, "model.layers.0")
    page.click(".graph-more summary")
    page.click("[data-graph-state=rolled]")
    settle(page)
    assert "rolled=no" in page.url


def test_views_are_folded_and_lines_lead_through_them(show):
    page = show(whole(transformer(1)), fragment="depth=9&rolled=no")
    page.keyboard.press("f")
    settle(page)
    assert not is_in_sight(page, "Functional.view.3")
    assert "view" in find(page, "view output.0 → gelu input.0", anywhere=True)[2]
    page.click(".graph-more summary")
    page.click("[data-graph-state=folded]")
    page.click(".graph-more summary")
    settle(page)
    page.keyboard.press("f")
    settle(page)
    assert is_in_sight(page, "Functional.view.3")


def several() -> dict:
    """Return graphs of two ranks and two steps, of which one differs."""
    graphs = compared(3, bad=1)
    cells, made = [], []
    for step in (0, 1):
        for rank in ("0", "1"):
            base = len(made)
            made += [{**each, "step": step, "rank": rank} for each in graphs["graphs"]]
            severity = INTRODUCED if (step, rank) == (1, "1") else 1
            cell = {**graphs["cells"][0], "step": step, "rank": rank, "severity": severity}
            cells.append({**cell, "target": base, "reference": base + 1})
    where = {"step": 1, "rank": "1"}
    node = graphs["headline"]["node"]
    layers = {"labels": ["layers.0", "layers.1"], "rank": [{**where, "severity": [1, INTRODUCED]}]}
    links = [{"step": 1, "kind": "collective", "members": [["0", node], ["1", node]]}]
    culprits = [{**graphs["culprits"][0], **where}]
    headline = {**graphs["headline"], **where}
    known = {"headline": headline, "culprits": culprits, "layers": layers, "links": links}
    return {**graphs, "cells": cells, "graphs": made, **known}


def test_heat_maps_lead_to_graphs(show):
    page = show(several())
    assert page.input_value("#graph-run") == "1/1"  # where the difference begins
    page.click("#tabs [data-pane=graph_runs]")
    assert page.locator(".severity-introduced").count() == 2
    page.click("[aria-label^='step 0, rank 1']")
    page.wait_for_url("**run=0%2F1*")
    assert page.input_value("#graph-run") == "0/1"
    assert page.is_visible(".graph-panes")
    page.click(".headline")
    page.wait_for_url("**run=1%2F1*")
    page.keyboard.press("m")
    page.click(".graph-menu >> text=go to rank 0")
    page.wait_for_url("**run=1%2F0*")


def test_the_map_moves_the_window(show):
    page = show(compared(12, bad=6), fragment="depth=9&rolled=no")
    assert is_in_sight(page, "model.layers.6.mlp.fc1")
    box = page.locator(".graph-map").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 5)
    page.mouse.down()
    page.mouse.up()
    settle(page)
    assert not is_in_sight(page, "model.layers.6.mlp.fc1")


@pytest.mark.parametrize("width", [1400, 390])
def test_narrow_windows_and_paper(show, width):
    page = show(compared(), width=width, fragment="pane=main")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.emulate_media(media="print")
    page.wait_for_selector(".graph-tools", state="hidden")
    assert page.is_visible(".graph-canvas >> nth=0")
    assert not page.is_visible(".graph-tools")


def test_a_form_writes_the_command_and_runs_nothing(show):
    page = show(compared())
    page.click("summary:has-text('build another graph')")
    page.fill(".graph-build [aria-label=reference]", "it's; rm -rf x")
    page.click(".graph-build label:has-text('overflow')")
    said = page.locator(".graph-build code").inner_text()
    assert said == "msprobe graph runs/new 'it'\\''s; rm -rf x' -oc"


EVIL = "</script><img src=x onerror=alert(1)>\u202e"


def test_names_are_texts_wherever_they_come_from(show):
    made = Made()
    made.add(-1, "all", kind=0)
    made.add(0, EVIL, path=EVIL, source=EVIL, **{"class": EVIL}, overflow=3)
    page = show(whole(made))
    page.keyboard.press("n")
    settle(page)
    assert page.locator("img").count() == 0
    assert "onerror" in page.locator("#detail h2").inner_text()
    page.click(".graph-more summary")
    with page.expect_download() as saving:
        page.click(".graph-saving button:has-text('SVG, all')")
    assert "<img" not in Path(saving.value.path()).read_text()
