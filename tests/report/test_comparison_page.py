# SPDX-License-Identifier: Apache-2.0
"""The page of a comparison: what it holds, and how it behaves in a browser without a network."""

from __future__ import annotations

import json
import math
import re
import shutil
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from browser_waits import wait_until
from comparison_samples import (
    DIFFERENT,
    Sample,
    equal_run,
    joined,
    summary_of,
    tensor,
    transformer,
    unread_run,
)
from page_texts import english_of

import msprobe
from msprobe.report.comparison_answer import TIMES
from msprobe.report.comparison_page import DEFAULT_LIMIT, page_data, write_comparison_page

EVIL = (
    "</script><script>window.broken=1</script><img src=x onerror=window.broken=2>{{data}}\u2028'\""
)


def data_of(page: Path) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    return json.loads(found[1])


def write(folder: Path, frame: pl.DataFrame, **more) -> Path:
    path = folder / "report.html"
    limit = more.pop("limit", DEFAULT_LIMIT)
    summary = more.pop("summary", None) or summary_of(frame, **more)
    write_comparison_page(path, page_data(summary, frame, limit=limit))
    return path


# What the page holds


def test_data(golden):
    frame = transformer(3).frame
    data = page_data(summary_of(frame), frame, limit=50)
    lines = [f"{json.dumps(name)}: {json.dumps(part)}" for name, part in data.items()]
    columns = [
        f"{name}.{column}: {json.dumps(values)}"
        for name in ("operations", "values")
        for column, values in data[name].items()
    ]
    rest = [line for line in lines if not line.startswith(('"operations"', '"values"'))]
    golden("comparison_page_data.txt", "\n".join([*rest, *columns, ""]))


def test_the_page_says_how_much_it_holds(tmp_path):
    frame = transformer(12).frame
    page = write(tmp_path, frame, limit=60)
    assert list(tmp_path.iterdir()) == [page]
    shown = data_of(page)["shown"]
    assert (shown["rows"] <= 60, shown["of_rows"]) == (True, len(frame))


@pytest.mark.parametrize("limit", [1, 10, 60, 10_000])
def test_whole_operations_the_most_telling_first(limit):
    frame = transformer(12).frame
    data = page_data(summary_of(frame), frame, limit=limit)
    orders = data["operations"]["order"]
    rows = frame.filter(pl.col("order").is_in(orders))
    assert data["shown"]["rows"] == rows.height
    assert len(data["values"]["slot"]) == rows.height
    introduced = set(frame.filter(pl.col("origin") == "introduced")["order"])
    assert set(orders) <= introduced or introduced <= set(orders)
    assert orders == sorted(orders)


def test_what_has_no_consequence_does_not_come_first():
    sample = Sample()
    for number in range(40):
        sample.call(f"Tensor.add.{number}.forward", "", [tensor("output.0", 0.01)])
    sample.call("Tensor.mul.0.forward", "", [tensor("output.0", 0.5, origin=None)])
    data = page_data(summary_of(sample.frame), sample.frame, limit=100)

    assert data["operations"]["interest"][-1] == 40


def test_counts_and_plots_are_of_all_rows():
    frame = transformer(30).frame
    small, whole = (page_data(summary_of(frame), frame, limit=limit) for limit in (20, 10_000))
    assert small["histogram"] == whole["histogram"]
    assert small["modules"] == whole["modules"]
    errors = frame.filter(pl.col("error") > 0)["error"]
    counted = small["histogram"]["counts"].values()
    assert sum(sum(counts) for counts in counted) == len(errors)
    assert small["profile"][-1][:3] == [0, "0", frame["order"].max()]
    assert max(error for *_, error in small["profile"]) == errors.max()
    assert small["spans"] == [[0, "0", frame["order"].max()]]
    assert whole["profile"] == []


def test_numbers_that_json_does_not_know(tmp_path):
    values = [tensor("output.0", math.inf, target_max=math.nan, target_min=-math.inf)]
    sample = Sample()
    sample.call("Tensor.div.0.forward", "", values)
    data = data_of(write(tmp_path, sample.frame))
    assert data["values"]["error"] == ["Infinity"]
    assert data["values"]["target_max"] == ["NaN"]
    assert data["values"]["target_min"] == ["-Infinity"]


def test_numbers_keep_what_tells_float32_apart(tmp_path):
    sample = Sample()
    close = [1.0000001192092896, 1.0]  # neighbours in float32
    sample.call("Tensor.a.0.forward", "", [tensor("output.0", target_max=v) for v in close])
    assert data_of(write(tmp_path, sample.frame))["values"]["target_max"] == [1.00000012, 1.0]


class Scripts(HTMLParser):
    """Counts what a reader of HTML takes for scripts and images."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.found.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]


def test_no_name_becomes_markup_and_nothing_is_fetched(tmp_path):
    sample = Sample()
    values = [tensor("output.0", 0.5, origin="introduced", reason=EVIL, source=EVIL)]
    sample.call(f"Module.{EVIL}.Evil.forward.0", EVIL, values)
    path = write(tmp_path, sample.frame, target=EVIL, notes=[EVIL], next_steps=[EVIL])
    parser = Scripts()
    parser.feed(path.read_text())
    assert parser.found.count("script") == 2
    assert "img" not in parser.found
    assert parser.links == ["data:,"]
    assert data_of(path)["summary"]["target"] == EVIL.replace("\u2028", "\ufffd")


def luminance(colour: str) -> float:
    """Return the relative luminance of ``#rrggbb`` (WCAG 2.1)."""
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1])
def test_colours_can_be_read(tmp_path, theme):
    text = write(tmp_path, equal_run().frame).read_text()
    block = re.findall(r":root[^{]*\{(.*?)\}", text, re.DOTALL)[theme]
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", block))
    names = "text dim link orange amber blue grey green violet pink steel"
    for name in names.split():
        for ground in ("panel", "raised"):
            bright, dark = sorted((luminance(colours[name]), luminance(colours[ground])))[::-1]
            assert (bright + 0.05) / (dark + 0.05) >= 4.5, (name, ground)


# Full lack of one kind of cones, on linear RGB (Machado, Oliveira, Fernandes 2009, severity 1.0).
VISIONS = {
    "usual": np.eye(3),
    "protan": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "deutan": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "tritan": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}
XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


def seen(colour: str, vision: str) -> np.ndarray:
    """Return ``#rrggbb`` as CIE L*a*b* (D65), as a reader of that vision sees it."""
    parts = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    light = XYZ @ np.clip(VISIONS[vision] @ linear, 0, 1) / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(light > 0.008856, np.cbrt(light), 7.787 * light + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", [0, 1])
def test_statuses_are_told_apart_by_readers_of_any_colour_vision(tmp_path, theme, vision):
    text = write(tmp_path, equal_run().frame).read_text()
    block = re.findall(r":root[^{]*\{(.*?)\}", text, re.DOTALL)[theme]
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", block))
    # introduced, amplified, inherited, agrees, unmatched
    shown = [seen(colours[name], vision) for name in ("orange", "amber", "grey", "green", "steel")]
    assert min(np.linalg.norm(one - other) for one, other in combinations(shown, 2)) > 15


VERDICT = {
    "class": "optimizer_setting",
    "sentence": "optimizer setting: AdamW beta2 is 0.99 in the target, 0.999 in the reference",
    "confidence": "proved",
    "evidence": ["the forward pass and all gradients agree", "the update is that of beta2 0.99"],
    "where": {"step": 0, "rank": 0, "record": None, "module": None, "source": "train.py:41"},
    "next": ["set beta2 in train.py:41", "msprobe show runs/new --step 0"],
}

# In a browser


@pytest.fixture
def open_page(open_file, tmp_path):
    """Return a function that writes the page of a comparison and opens it."""

    def show(
        frame: pl.DataFrame, *, width: int = 1400, theme: str = "light", fragment: str = "", **more
    ):
        path = write(tmp_path, frame, **more)
        return open_file(path, width=width, theme=theme, fragment=fragment)

    show.said = open_file.said
    return show


def titles(page) -> list[str]:
    parts = "row => [...row.children].map(part => part.textContent)"
    rows = page.locator(".row .title").evaluate_all(f"rows => rows.map({parts})")
    return [f"{''.join(row[:3])} {row[3]}".strip() for row in rows]


def test_the_answer_stands_on_top(open_page):
    frame = transformer(6).frame
    page = open_page(frame)
    differ = frame["status"].is_in(DIFFERENT).sum()
    counted = f"different{differ} of {len(frame)} values differ"
    assert page.locator("h1").inner_text().startswith(f"{counted}; introduced by Module.layers.5")
    detail = page.locator("#detail").inner_text()
    assert "First difference in the order of execution" in detail
    assert "Functional.scaled_dot_product_attention.1" in detail
    assert "without scale=0.125" in detail
    assert "Tensor.clone.0.forward" in detail
    assert titles(page)[:2] == ["fc2 Linear", "Functional.scaled_dot_product_attention.1"]


@pytest.mark.parametrize("width", [1280, 390])
def test_verdict_and_next_steps_are_above_the_fold(open_page, width):
    frame = transformer(6).frame
    page = open_page(frame, width=width, verdict=VERDICT)
    assert page.locator("h1").inner_text() == f"different{VERDICT['sentence']}"
    assert "values differ" in page.locator("#sides").inner_text()
    for text in ("set beta2 in train.py:41", "msprobe show runs/new --step 0"):
        box = page.locator(f"#next li:has-text('{text}')").bounding_box()
        assert box["y"] + box["height"] < 300
    detail = page.locator("#detail").inner_text()
    assert detail.startswith("Evidence · proved\nthe forward pass and all gradients agree")
    assert page.locator("#next .copy").count() == 1
    # Three steps whose texts take several lines are not cut.
    long = [f"{n}: look at the code between loss.backward() and optimizer.step()" for n in range(3)]
    page = open_page(frame, width=width, verdict={**VERDICT, "next": long})
    ends = [page.locator(each).bounding_box() for each in ("#next", "#next li >> nth=2")]
    assert ends[1]["y"] + ends[1]["height"] <= ends[0]["y"] + ends[0]["height"] + 1


@pytest.mark.parametrize("confidence", ["proved", "likely"])
def test_only_rounding_that_is_proved_has_no_alarming_badge(open_page, confidence):
    rounding = {**VERDICT, "class": "rounding", "confidence": confidence, "where": None}
    page = open_page(transformer(3).frame, verdict=rounding)
    assert page.locator(".badge.harmless").count() == (confidence == "proved")
    assert page.locator("h1").inner_text().startswith("different")


def test_the_badge_is_in_the_line_of_a_long_sentence_that_leads_to_its_call(open_page):
    page = open_page(transformer(6).frame, verdict={**VERDICT, "sentence": "a word or two " * 20})
    assert (
        page.locator(".headline").bounding_box()["y"] <= page.locator(".badge").bounding_box()["y"]
    )


def test_the_words_of_differences_without_an_origin_are_explained(open_page):
    page = open_page(transformer(3).frame)
    page.click("summary:has-text('what the words mean')")
    said = page.locator("#detail").inner_text()
    assert "without consequence\ndiffers on the way to results that agree" in said


def test_culprits_of_one_cause_are_one_card(open_page):
    frame = transformer(6).frame
    summary = summary_of(frame, verdict=VERDICT)
    first = summary["introduced"][1]
    group = {"count": 22, "kind": "forward", "reason": "0.9998, reference 0.9999", "first": first}
    page = open_page(frame, summary={**summary, "culprit_groups": [group]})
    card = page.locator(".culprits li")
    assert card.count() == 1
    text = card.inner_text()
    assert text.startswith(f"◆\n22 {TIMES} scaled_dot_product_attention\n0.0421")
    assert "0.9998, reference 0.9999" in text
    card.locator("button").click()
    assert "scaled_dot_product_attention.1" in page.locator("#detail h2").inner_text()


def test_the_module_comes_before_the_source(open_page):
    page = open_page(transformer(6).frame)
    assert "layers.5.mlp.fc2 · model.py:47" in page.locator(".row .where").first.inner_text()


def test_the_readers_own_frames_stand_out(open_page):
    sample = Sample()
    values = [tensor("output.0", 0.5, origin="introduced")]
    sample.call("Functional.linear.0.forward", "q", values, source="modeling.py:236")
    summary = summary_of(sample.frame)
    library = "File /env/site-packages/transformers/modeling.py, line 236, in forward, \n self.q(x)"
    own = "File /home/me/train.py, line 41, in <module>, \n loss = model(x)"
    summary["introduced"][0]["stack"] = [library, own]
    page = open_page(sample.frame, summary=summary)
    assert "train.py:41 via modeling.py:236" in page.locator(".row .where").inner_text()
    page.click(".row")
    page.click("text=call stack, 2 frames")
    frames = page.locator("#detail ol li")
    assert [frame.get_attribute("class") for frame in frames.all()] == ["dim", "own"]


def test_search_and_filters(open_page):
    page = open_page(transformer(6).frame)
    page.keyboard.press("/")
    page.keyboard.type("ATTENTION.1 backward")
    assert titles(page) == ["Functional.scaled_dot_product_attention.1 backward"]
    page.fill("#search", "layers.2 model.py:49")
    assert titles(page) == ["Tensor.clone.0"]
    page.fill("#search", "no such thing")
    assert "Nothing fits" in page.locator("#rows").inner_text()
    page.fill("#search", "")
    page.click("[data-filter=origin][data-word=introduced]")
    assert len(titles(page)) == 3
    page.click("[data-filter=kind][data-word=backward]")
    assert titles(page) == ["Functional.scaled_dot_product_attention.0 backward"]
    page.click("[data-filter=origin][data-word=introduced]")
    page.click("[data-filter=status][data-word=nonfinite]")
    assert titles(page) == ["Functional.scaled_dot_product_attention.0 backward"]
    page.click("#clear")
    assert page.locator("#found").inner_text() == "all 47 operations"
    page.click("[data-filter=status][data-word=missing]")
    assert titles(page) == ["Functional.dropout.2"]


def test_equal_values_are_shown_to_who_asks_for_them(open_page):
    page = open_page(transformer(3).frame)
    assert "Functional.embedding.0" not in titles(page)
    page.click("[data-filter=status][data-word=close]")
    assert "Functional.embedding.0" in titles(page)


def test_what_has_no_number_says_why(open_page):
    sample = Sample()
    nan = {"status": "nonfinite", "origin": "inherited"}
    sample.call("Torch.split.0.forward", "", [tensor("output.0"), tensor("output.1", None, **nan)])
    page = open_page(sample.frame)
    assert page.locator(".row .out").inner_text().strip() == "nonfinite"
    assert page.locator(".row .in").inner_text() == "\u2013"


def test_unread_values_do_not_agree(open_page):
    page = open_page(unread_run().frame)
    assert page.locator("h1").inner_text() == (
        "unread1 of 26 values could not be read, the others agree"
    )
    row = page.locator(".row:has-text('gelu')")
    assert row.locator(".out").inner_text().strip() == "unread"
    assert row.locator(".where").inner_text().startswith("unread")
    assert row.locator(".mark.unread").count() == 1
    assert "could not be read" in page.locator(".legend").inner_text()
    assert page.get_attribute(".node[title^='layers:']", "title").endswith("worst: unread")
    assert "target: b.pt is missing" in page.locator("#detail").inner_text()
    page.click("#detail button:has-text('show all of them')")
    assert titles(page) == ["Functional.gelu.0"]


def test_unread_values_beside_differences(open_page):
    page = open_page(joined(transformer(3), unread_run(step=1)))
    assert "values differ, 1 could not be read" in page.locator("h1").inner_text()
    page.click("#detail button:has-text('show all of them')")
    assert titles(page) == ["Functional.gelu.0"]


def test_orders(open_page):
    page = open_page(transformer(3).frame)
    page.select_option("#sort", "order")
    assert titles(page)[0] == "1 Block"
    page.select_option("#sort", "error")
    assert titles(page)[0] == "Functional.scaled_dot_product_attention.0 backward"  # NaN
    page.evaluate("document.getElementById('rows').scrollTop = 1e9")
    page.wait_for_selector(".row:has-text('Tensor.clone.0')")  # no number at all


def test_the_tree_filters_and_folds(open_page):
    page = open_page(transformer(6).frame)
    names = page.locator(".node .name").all_inner_texts()
    assert names[:4] == ["all modules", "embed", "layers", "0"]
    assert "attn" in names  # where a difference begins, the tree is open
    page.click(".node[title^='layers.3:'] .name")
    assert "in layers.3" in page.locator("#found").inner_text()
    assert titles(page)
    assert all("layers.3" in text for text in page.locator(".row .where").all_inner_texts())
    page.click(".node[title^='layers:'] .twist")
    assert page.locator(".node .name").all_inner_texts() == ["all modules", "embed", "layers"]
    page.focus("#tree")
    for key in ("End", "ArrowRight", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    assert "in layers.0" in page.locator("#found").inner_text()


def test_detail(open_page):
    page = open_page(transformer(3).frame)
    page.click(".row:has-text('fc2 Linear')")
    detail = page.locator("#detail")
    text = detail.inner_text()
    assert "Module.layers.2.mlp.fc2.Linear.forward.0" in text
    assert "the weight itself differs" in text
    assert "model.py:47" in text
    table = detail.locator("table.values tbody tr")
    assert [row.split("\t")[0] for row in table.all_inner_texts()] == [
        "input.0",
        "parameters.weight",
        "output.0",
    ]
    assert "217,579 of 262,144 (83 %)" in text
    assert "[1, 17, 203]" in text
    table.nth(0).click()
    assert "How input.0 differs" in detail.inner_text()
    page.click("text=call stack, 3 frames")
    assert "train.py:90 in <module>" in detail.inner_text()
    page.keyboard.press("Escape")
    assert "First difference in the order of execution" in detail.inner_text()


PICTURE = {
    "slot": "parameters.weight",
    "histogram": {"low": -1.0, "high": 3.0, "target": [1, 9, 4, 0], "reference": [0, 10, 4, 1]},
    "map": {
        "rows": 6,
        "columns": 4,
        "down": [0, 2, 4],
        "right": [0, 2],
        "largest": 0.5,
        "shades": [".n", "!b", ".."],
    },
}


@pytest.mark.parametrize("width", [1280, 390])
def test_pictures_of_a_tensor(open_file, tmp_path, width):
    frame = transformer(3).frame
    weight = frame.filter(pl.col("slot") == "parameters.weight", pl.col("origin") == "introduced")
    picture = {**PICTURE, "id": f"0/0/{weight['order'][0]}"}
    path = tmp_path / "report.html"
    write_comparison_page(
        path, page_data(summary_of(frame), frame, limit=DEFAULT_LIMIT) | {"pictures": [picture]}
    )
    page = open_file(path, width=width, fragment=f"at={picture['id']}")
    detail = page.locator("#detail")
    assert page.locator(".values-plot rect").count() == 4
    bar = page.locator(".values-plot rect >> nth=1").locator("title")
    assert bar.text_content() == "0 to 1: 9, reference 10"
    cells = page.locator(".error-map i")
    said = [cell.get_attribute("title") for cell in cells.all()]
    assert said[0] == "rows 0 to 1, columns 0 to 1: equal"
    assert said[1] == "rows 0 to 1, columns 2 to 3: error up to 0.5"
    assert said[2] == "rows 2 to 3, columns 0 to 1: NaN or Inf on one side"
    assert "NaN or Inf apart" in detail.inner_text()
    assert cells.first.bounding_box()["width"] > 50
    page.locator("table.values tbody tr").nth(0).click()  # another value, of which there is none
    assert page.locator(".error-map").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def lane(step: int, name: str, *, same: bool = False) -> dict:
    facts = [["betas", "(0.9, 0.99)", "(0.9, 0.999)"], ["lr", "0.1", "0.1"], ["eps", EVIL, None]]
    event = {"name": name, "same": same, "facts": facts}
    batch = {"name": "micro batch 0", "same": True, "facts": [["input.0", "int64[4]", "int64[4]"]]}
    return {"step": step, "rank": "0", "data": [batch], "events": [event, event]}


@pytest.mark.parametrize(("phase", "blamed"), [("optimizer", 2), ("forward", 0)])
def test_only_the_step_that_the_verdict_names_is_blamed_in_a_lane(
    open_file, tmp_path, phase, blamed
):
    frame = joined(transformer(3), transformer(3, step=1))
    place = {"step": 0, "rank": "0", "record": None, "phase": phase}
    summary = summary_of(frame, verdict={**VERDICT, "where": place})
    parts = {"lanes": [lane(0, "AdamW step"), lane(1, "AdamW step")]}
    path = tmp_path / "report.html"
    write_comparison_page(path, page_data(summary, frame, limit=DEFAULT_LIMIT) | parts)
    page = open_file(path)
    assert page.locator(".lane-mark.apart").count() == 4
    assert page.locator(".lane-mark.blamed").count() == blamed


@pytest.mark.parametrize("width", [1280, 390])
def test_data_and_optimizer_are_lanes_of_the_timeline(open_file, tmp_path, width):
    frame = joined(transformer(3), transformer(3, step=1))
    path = tmp_path / "report.html"
    parts = {"lanes": [lane(0, "AdamW step", same=True), lane(1, EVIL)]}
    write_comparison_page(path, page_data(summary_of(frame), frame, limit=DEFAULT_LIMIT) | parts)
    page = open_file(path, width=width)
    names = page.locator(".lane-name").all_inner_texts()
    assert names == ["data", "optimizer"]
    assert page.locator(".lane-mark").count() == 6
    boxes = [mark.bounding_box() for mark in page.locator(".lane-mark").all()]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
    page.locator(".lane-mark.apart").first.click()
    detail = page.locator("#detail").inner_text()
    assert "betas\t(0.9, 0.99)\t(0.9, 0.999)" in detail
    assert "<img src=x onerror=window.broken=2>" in detail
    page.wait_for_url("**#at=events*")
    page.reload()
    assert page.locator("#detail").inner_text() == detail
    assert page.locator(".lane-mark.picked").count() == 1
    page.click("#detail button:has-text('micro batch 0')")
    assert "the same" in page.locator(".lane-mark.picked").get_attribute("title")
    page.wait_for_url("**#at=data*")
    page.go_back()
    page.wait_for_selector("#detail td:has-text('betas')")
    assert page.evaluate("window.broken") is None


def test_keyboard(open_page):
    page = open_page(transformer(6).frame)
    heading = page.locator("#detail h2")
    page.keyboard.press("n")
    assert heading.inner_text().startswith("Module.layers.5.mlp.fc2.Linear.forward.0")
    page.keyboard.press("n")
    second = heading.inner_text()
    page.keyboard.press("p")
    assert heading.inner_text() != second
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    selected = page.locator(".row[aria-selected=true]")
    assert selected.count() == 1
    assert page.locator("#rows").get_attribute("aria-activedescendant") == "row-1"
    page.focus("#rows")
    page.keyboard.press("End")
    last = page.locator("#rows").get_attribute("aria-activedescendant")
    assert page.locator(f"#{last}").is_visible()
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()


def test_the_plot_answers_the_pointer(open_page):
    page = open_page(transformer(6).frame)
    box = page.locator("#timeline").bounding_box()
    place = page.evaluate(
        """() => { const c = document.getElementById("timeline"), pen = c.getContext("2d");
        const all = pen.getImageData(0, 0, c.width, c.height).data, want = [206, 42, 4];
        for (let i = 0; i < all.length; i += 4)
          if (want.every((v, n) => v === all[i + n])) return [i / 4 % c.width, i / 4 / c.width | 0];
        return null; }"""
    )
    assert place, "no introduced difference in the plot"
    x, y = box["x"] + place[0], box["y"] + place[1] + 4
    page.mouse.move(x, y)
    assert "introduced" in page.locator("#tip").inner_text()
    page.mouse.click(x, y)
    assert "introduced" in page.locator("#detail").inner_text()


def test_several_steps_and_ranks(open_page):
    runs = [transformer(3, step=step, rank=rank) for step in (0, 1) for rank in ("0", "1")]
    page = open_page(joined(*runs, equal_run(step=2)))
    assert "in 4 of 5 steps and ranks" in page.locator(".culprits li").first.inner_text()
    page.select_option("#comparison", "1/0")
    assert all("step 1, rank 0" in text for text in page.locator(".row .where").all_inner_texts())
    page.click("#detail button:has-text('step 2, rank 0')")
    assert "Nothing fits" in page.locator("#rows").inner_text()


def test_hostile_names_are_only_text(open_page):
    sample = Sample()
    values = [tensor("output.0", 0.5, origin="introduced", reason=EVIL, source=EVIL)]
    sample.call(f"Module.{EVIL}.Evil.forward.0", EVIL, values, api=EVIL)
    more = {"target": EVIL, "notes": [EVIL], "next_steps": [EVIL, f"msprobe show {EVIL}"]}
    page = open_page(sample.frame, **more, replicas=[{"name": EVIL, "reason": EVIL}])
    page.click(".row")
    page.keyboard.press("Escape")
    assert page.evaluate("window.broken") is None
    assert page.locator("img").count() == 0
    assert page.locator("#detail").inner_text().count("<script>window.broken=1</script>") >= 6
    assert "{{data}}" in page.locator("#sides").inner_text()


def test_a_real_comparison(open_page, sample, tmp_path):
    target = tmp_path / "target"
    shutil.copytree(sample, target)
    path = target / "step0" / "rank1" / "dump.json"
    tree = json.loads(path.read_text())
    tree["data"]["Functional.embedding.0.forward"]["output"][0]["Max"] = 3.5
    path.write_text(json.dumps(tree))
    result = msprobe.compare_dumps(target, sample)
    page = open_page(result.frame, summary=result.summary)
    # Nothing made of it differs, so no call is blamed, and it is not said to be equal either.
    assert page.locator("h1").inner_text().startswith("different")
    assert result.summary["verdict"]["class"] == "unexplained"
    assert titles(page) == ["Functional.embedding.0"]
    detail = page.locator("#detail").inner_text()
    assert "step 0, rank 1" in detail
    page.click(".row")
    row = page.locator("#detail tr:has(td:text-is('max'))").inner_text()
    assert row.split("\t") == ["max", "3.5", "2", "1.5"]
    assert "train.py:41" in page.locator("#detail").inner_text()


def test_a_script_from_elsewhere_does_not_run(open_page):
    page = open_page(transformer(2).frame)
    refused = page.evaluate(
        """() => new Promise(done => {
        document.addEventListener("securitypolicyviolation", e => done(e.effectiveDirective));
        const script = document.createElement("script");
        script.textContent = "window.broken = 3";
        document.body.append(script); })"""
    )
    assert refused == "script-src-elem"
    assert page.evaluate("window.broken") is None
    assert "Content Security Policy" in open_page.said.pop()


def test_many_rows(open_page):
    frame = transformer(1200).frame
    page = open_page(frame, limit=20_000)
    assert page.locator("#limit").is_visible()
    assert f"of {len(frame):,} values" in page.locator("#limit").inner_text()
    assert page.locator(".row").count() < 60
    page.evaluate("document.getElementById('rows').scrollTop = 1e9")
    last_row = "[...document.querySelectorAll('.row')].at(-1)"
    wait_until(page, f"{last_row} && {last_row}.ariaPosInSet === {last_row}.ariaSetSize")
    page.fill("#search", "attention.1170")
    wait_until(page, "document.querySelectorAll('.row').length <= 2")
    assert titles(page)


DRAWN = """() => { const drawn = [], write = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
      const width = this.measureText(text).width, left = this.textAlign === "right" ? x - width : x;
      drawn.push([text, left, left + width, y]); write.call(this, text, x, y); };
    document.getElementById("theme-button").click(); return drawn; }"""


@pytest.mark.parametrize("width", [390, 700, 1280])
@pytest.mark.parametrize("steps", [1, 6])
def test_no_label_of_the_plot_covers_another_one(open_page, width, steps):
    page = open_page(joined(*(transformer(9, step=step) for step in range(steps))), width=width)
    drawn = page.evaluate(DRAWN)
    assert {text for text, *_ in drawn} >= {"no number", "equal"}
    for place, (text, left, right, y) in enumerate(drawn):
        assert right <= width, text
        for other, begin, end, height in drawn[:place]:
            apart = right <= begin or end <= left or abs(y - height) >= 11
            assert apart, (text, other)


def test_the_bands_of_the_plot_are_explained(open_page):
    many = open_page(joined(transformer(40), transformer(40, step=1)), limit=60)
    legend = many.locator(".legend").inner_text()
    for text in ("backward pass", "step or rank", "largest error"):
        assert text in legend
    few = open_page(equal_run().frame).locator(".legend").inner_text()
    assert "backward" not in few
    assert "step" not in few


def test_panes_can_be_resized_and_the_url_keeps_it(open_page):
    page = open_page(transformer(6).frame, width=1280)
    tree = page.locator("#modules")
    usual = tree.bounding_box()["width"]
    border = page.locator(".splitter").first
    box = border.bounding_box()
    page.mouse.move(box["x"] + 4, 400)
    page.mouse.down()
    page.mouse.move(box["x"] + 104, 400)  # in one step: the URL is written when none follows
    page.mouse.up()
    wide = tree.bounding_box()["width"]
    assert 90 < wide - usual < 115
    page.wait_for_url("**#split=*")
    page.reload()
    assert abs(tree.bounding_box()["width"] - wide) < 4
    page.go_back()
    wait_until(page, f"document.getElementById('modules').clientWidth < {usual + 4}")
    border.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert tree.bounding_box()["width"] > usual + 60
    border.dblclick()
    assert abs(tree.bounding_box()["width"] - usual) < 4


def test_folded_modules_are_part_of_the_url(open_page):
    page = open_page(transformer(6).frame)
    names = page.locator(".node .name")
    before = names.all_inner_texts()
    page.click(".node[title^='layers:'] .twist")
    page.wait_for_url("**#tree=*")
    folded = names.all_inner_texts()
    assert len(folded) < len(before)
    page.reload()
    assert names.all_inner_texts() == folded
    page.go_back()
    page.wait_for_selector(".node[title^='layers.0:']")
    assert names.all_inner_texts() == before


@pytest.mark.parametrize("width", [1280, 390])
def test_print_has_all_sections(open_page, width):
    page = open_page(transformer(30).frame, width=width, theme="dark", verdict=VERDICT)
    ground = "getComputedStyle(document.documentElement).getPropertyValue('--panel')"
    assert page.evaluate(ground) != "#ffffff"
    page.emulate_media(media="print")
    page.wait_for_selector(".row >> nth=120")
    assert page.evaluate(ground) == "#ffffff"
    for part in ("h1", "#next", "#timeline", "#detail", "#rows", "#tree"):
        assert page.locator(part).is_visible(), part
    assert not page.locator("#search").is_visible()
    assert not page.locator("#tabs").is_visible()
    boxes = [page.locator(part).bounding_box() for part in ("#detail", "#list", "#modules")]
    ends = [box["y"] + box["height"] for box in boxes]
    assert [box["y"] for box in boxes[1:]] >= ends[:2]
    height = page.evaluate("document.documentElement.scrollHeight")
    assert height >= ends[-1] > 3000
    assert page.locator("details:not([open])").count() == 0
    page.emulate_media(media="screen")
    wait_until(page, "document.querySelectorAll('.row').length < 60")
    assert page.evaluate(ground) != "#ffffff"


def test_a_print_is_not_cut_after_the_sheets_that_the_screen_would_fill(open_page):
    page = open_page(transformer(30).frame, verdict=VERDICT)
    printed = page.pdf(format="A4")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= 6
    wait_until(page, "document.querySelectorAll('.row').length < 60")


@pytest.mark.parametrize("width", [390, 900])
def test_narrow_windows(open_page, width):
    word = "module.model.layers.1.input_layernorm.variance_epsilon.and.so.on.and.on"
    long = {"next": [f"msprobe show {word}/rank {word}"], "evidence": [f"also differs: {word}"]}
    page = open_page(transformer(6).frame, width=width, verdict={**VERDICT, **long})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if width < 720:
        page.click(".tabs [data-pane=list]")
    detail = "document.querySelector('#detail')"
    assert page.evaluate(f"{detail}.scrollWidth - {detail}.clientWidth") <= 0
    page.click(".row")
    assert page.locator("#detail h2").is_visible()
    page.click(".tabs [data-pane=modules]")
    assert page.locator("#tree").is_visible()
    page.click(".node[title^='layers:'] .name")
    assert page.locator("#rows").is_visible()


def test_light_and_dark(open_page):
    page = open_page(equal_run().frame, theme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.keyboard.press("t")
    assert page.evaluate(background) != dark
    assert page.locator("h1").inner_text().endswith("all 24 values agree")


def test_a_reload_keeps_what_is_shown_and_back_leads_back(open_page):
    page = open_page(transformer(6).frame)
    page.click("[data-filter=kind][data-word=backward]")
    page.wait_for_url("**#kind=backward")
    page.click(".row:has-text('scaled_dot_product_attention.0')")
    page.wait_for_url("**&at=*")
    page.locator("table.values tbody tr").nth(0).click()
    page.wait_for_url("**&part=input.0")
    found, heading = page.locator("#found"), page.locator("#detail h2")
    before = found.inner_text(), heading.inner_text(), page.locator("h3").all_inner_texts()
    page.reload()
    assert (found.inner_text(), heading.inner_text()) == before[:2]
    assert page.locator("h3").all_inner_texts() == before[2]
    assert page.locator("[data-word=backward]").get_attribute("aria-pressed") == "true"
    page.go_back()
    page.wait_for_url(re.compile(r"at=[^&]*$"))
    page.go_back()
    page.wait_for_selector("#detail .culprits")
    page.go_back()
    page.wait_for_selector("#found:has-text('of')")
    assert page.locator("[data-word=backward]").get_attribute("aria-pressed") == "false"
    page.go_forward()
    page.wait_for_selector("[data-word=backward][aria-pressed=true]")


def test_what_changes_while_the_url_is_being_written_is_written_too(open_page):
    page = open_page(transformer(2).frame)
    page.click("[data-filter=kind][data-word=backward]")
    page.wait_for_url("**#kind=backward")
    # The browser tells of the new URL later: here after a further change.
    page.evaluate("""() => {
        document.querySelector("#list .row").click();
        window.dispatchEvent(new HashChangeEvent("hashchange"));
    }""")
    page.wait_for_url("**&at=*")


def test_opened_parts_are_in_the_url_and_closed_by_back(open_page):
    page = open_page(transformer(2).frame)
    words = page.locator("details[data-fold=words]")
    assert words.get_attribute("open") is None
    page.click("details[data-fold=words] > summary")
    page.wait_for_url("**open=words")
    assert words.get_attribute("open") is not None
    page.reload()
    assert words.get_attribute("open") is not None
    page.go_back()
    page.wait_for_selector("details[data-fold=words]:not([open])")


def test_a_link_may_name_what_the_page_does_not_hold(open_page):
    page = open_page(transformer(2).frame, fragment="at=9/9/9&sort=constructor&nonsense=1&q=clone")
    assert "First difference" in page.locator("#detail").inner_text()
    assert page.input_value("#search") == "clone"


def test_nothing_to_compare(open_page):
    page = open_page(Sample().frame)
    assert "nothing to compare" in page.locator("h1").inner_text()


def test_every_label_is_in_the_readers_language(open_file, tmp_path):
    """What is left in English are names of the data, and short terms of the field."""
    frame = transformer(6).frame
    weight = frame.filter(pl.col("slot") == "parameters.weight", pl.col("origin") == "introduced")
    picture = {**PICTURE, "id": f"0/0/{weight['order'][0]}"}
    path = tmp_path / "report.html"
    more = {"pictures": [picture], "lanes": [lane(0, "AdamW step")]}
    write_comparison_page(path, page_data(summary_of(frame), frame, limit=DEFAULT_LIMIT) | more)
    page = open_file(path, fragment="lang=zh")
    page.wait_for_selector("#detail h3")
    left = english_of(page)
    page.evaluate("at => { location.hash += `&at=${at}`; }", picture["id"])
    page.wait_for_selector("#detail .error-map")
    left |= english_of(page)
    page.locator(".lane-mark.apart").first.click()
    page.wait_for_selector("#detail td:has-text('betas')")
    left |= english_of(page)
    made_up = re.compile("onerror|its result does not|softmax is|the weight itself|^3 NaN where")
    assert {text for text in left if not made_up.search(text)} == set()
