# SPDX-License-Identifier: Apache-2.0
"""Pages of any report: what is written, and what every page can do in a browser."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from msprobe.errors import ReportWriteError
from msprobe.report.page_file import write_page

FOLDER = Path(str(files("msprobe.report"))) / "page"
NOTES = """
import { head, open } from "../shared/detail.js";
import { element, items, link, replace } from "../shared/dom.js";
import { matcher, searchBox } from "../shared/search.js";
import { sections } from "../shared/sections.js";
import { change, state } from "../shared/store.js";

const list = element("div");
let box;

function draw() {
  const matches = matcher("wanted");
  const shown = sections.notes.filter((note) => matches(() => note.toLowerCase()));
  replace(list, items(shown.map((note) => link(note, () => open(note)))));
}

export const view = {
  name: "NAME", title: "Notes", place: "main", needs: ["notes"],
  state: { wanted: "" }, uses: ["wanted"],
  start(pane) {
    const keys = { enter: draw, escape: draw };
    box = searchBox({ id: "NAME-search", name: "wanted", placeholder: "", ...keys });
    replace(pane, element("h2", {}, "Notes"), box, list);
  },
  render: draw,
  keys: { x: ["search for x", () => change({ wanted: "x" })] },
};
"""
NOTE = """
import { head } from "../shared/detail.js";
import { replace } from "../shared/dom.js";
import { state } from "../shared/store.js";

let pane;

export const view = {
  name: "note", title: "Overview", place: "detail", needs: ["notes"], uses: [],
  start(made) { pane = made; },
  render() { replace(pane, ...(state.at ? head(state.at) : ["nothing is selected"])); },
};
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of pages with two further views of one section."""
    made = tmp_path / "page"
    shutil.copytree(FOLDER, made)
    (made / "views" / "notes.js").write_text(NOTES.replace("NAME", "notes"))
    (made / "views" / "note.js").write_text(NOTE)
    return made


def data_of(page: Path) -> dict:
    text = page.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.found.append(tag)


HOSTILE = [
    ("</script><script>alert(1)</script><!--", "</script><script>alert(1)</script><!--"),
    ("a & b < c > d \" ' \\ \\u202e {{style}}", "a & b < c > d \" ' \\ \\u202e {{style}}"),
    (
        "line\u2028para\u2029left\u202eright\x00\x1b[31m",
        "line\ufffdpara\ufffdleft\ufffdright\ufffd\ufffd[31m",
    ),
    ("half \ud800 half \udfff", "half ? half ?"),
    ("Größe 张量 😀", "Größe 张量 😀"),
]


@pytest.mark.parametrize(("text", "shown"), HOSTILE)
def test_texts_are_data_wherever_they_come_from(tmp_path, text, shown):
    path = tmp_path / "a.html"
    write_page(path, title=text, sections={"notes": [text, {text: 1}]}, views=())
    parser = Tags()
    parser.feed(path.read_text(encoding="utf-8"))
    assert parser.found.count("script") == 2
    assert data_of(path) == {"notes": [shown, {shown: 1}]}


def test_a_page_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.html"
    write_page(path, title="first", sections={}, views=())
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        write_page(path, title="second", sections={"notes": [float("nan")]}, views=())
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (before, [path])
    with pytest.raises(ReportWriteError, match="cannot be written"):
        write_page(path / "b.html", title="", sections={}, views=())


def test_shared_parts_know_no_views_and_views_no_other_views():
    may_import = {
        "vendor": set(),
        "shared": {"shared"},
        "data": {"shared", "data", "vendor"},
        "graph": {"shared", "data", "graph", "vendor"},
        "views": {"shared", "data", "graph"},
    }
    for path in FOLDER.rglob("*.js"):
        for target in re.findall(r'^import \{[^}]*\} from "([^"]+)";', path.read_text(), re.M):
            imported = (path.parent / target).resolve()
            assert imported.is_file(), (path, target)
            assert imported.parent.name in may_import[path.parent.name], (path, target)


# In a browser


def test_a_view_is_a_file_and_a_section(open_file, folder, tmp_path):
    path = tmp_path / "notes.html"
    sections = {"notes": ["six", "seven"]}
    write_page(path, title="Of <notes>", sections=sections, views=("notes", "note"), folder=folder)
    page = open_file(path)
    assert (page.title(), page.locator("h1").inner_text()) == ("Of <notes>", "Of <notes>")
    assert page.input_value("#notes-search") == ""
    page.keyboard.press("?")
    assert "search for x" in page.locator("#help").inner_text()
    page.keyboard.press("Escape")
    page.keyboard.press("x")
    assert page.locator("#notes li").all_inner_texts() == ["six"]
    assert page.input_value("#notes-search") == "x"
    page.wait_for_url("**#wanted=x")
    page.click("#notes li button")
    assert page.locator("#detail h2").inner_text().startswith("six")
    page.wait_for_url("**&at=six")
    page.reload()
    assert page.locator("#detail h2").inner_text().startswith("six")
    page.keyboard.press("Escape")
    assert page.locator("#detail").inner_text() == "nothing is selected"
    page.wait_for_url("**#wanted=x")
    page.go_back()
    page.wait_for_selector("#detail h2")


def test_views_without_their_data_are_left_out(open_file, folder, tmp_path):
    views = ("verdict", "timeline", "modules", "list", "operation", "answer", "notes", "note")
    path = tmp_path / "notes.html"
    write_page(path, title="Notes", sections={"notes": ["six"]}, views=views, folder=folder)
    page = open_file(path)
    assert page.locator("#tabs button").all_text_contents() == ["Overview", "Notes"]
    assert page.locator(".pane").evaluate_all("panes => panes.map(pane => pane.id)") == [
        "notes",
        "detail",
    ]
    assert page.locator(".strip").count() == 0


def test_main_views_take_turns(open_file, folder, tmp_path):
    (folder / "views" / "more.js").write_text(NOTES.replace("NAME", "more").replace("x:", "y:"))
    path = tmp_path / "notes.html"
    views = ("notes", "more", "note")
    write_page(path, title="Notes", sections={"notes": ["six"]}, views=views, folder=folder)
    page = open_file(path)
    assert (page.is_visible("#notes"), page.is_visible("#more")) == (True, False)
    page.click("#tabs [data-pane=more]")
    assert (page.is_visible("#notes"), page.is_visible("#more")) == (False, True)
    page.wait_for_url("**#view=more*")
    page.keyboard.press("?")
    assert page.locator("#help dt").first.inner_text() == "y"
    page.reload()
    assert page.is_visible("#more")


def test_the_theme_follows_the_system_until_one_is_chosen(open_file, tmp_path):
    path = tmp_path / "empty.html"
    write_page(path, title="Empty", sections={}, views=())
    page = open_file(path, theme="light")
    page.wait_for_selector("[data-theme=light]")
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector("[data-theme=dark]")
    page.click("#theme-button")
    page.wait_for_selector("[data-theme=light]")
    page.reload()
    page.wait_for_selector("[data-theme=light]")
    page.keyboard.press("t")  # what the system has: the page follows it again
    page.wait_for_selector("[data-theme=dark]")
    page.emulate_media(color_scheme="light")
    page.wait_for_selector("[data-theme=light]")
