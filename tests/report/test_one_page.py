# SPDX-License-Identifier: Apache-2.0
"""Graphs and comparison are views of one page: what is selected in one is selected in the other."""

from __future__ import annotations

import json

import pytest
from browser_waits import wait_until_drawn
from page_texts import english_of

from builders.dumps import write_rank
from builders.records import backward, forward, tensor
from msprobe.cli import main

CALLS = ("norm", "up", "down")


def record(path, *, block="block", kind="Block", wrong=None, ranks=1):
    """Write three layers of three modules; in the second one a call may have another result."""
    for rank in range(ranks):
        records, parents, value = {}, {}, 0
        for layer in range(3):
            outer = f"Module.layers.{layer}.{block}.{kind}.forward.0"
            parents[outer] = None
            first = value
            for call in CALLS:
                module = f"Module.layers.{layer}.{block}.{call}.Linear.forward.0"
                api = f"Functional.linear.{value}.forward"
                number = 4.0 if (layer, call) == (1, wrong) else 3.0
                made = [tensor(number=number, value_id=100 * rank + value + 1)]
                for name in (api, module):
                    records[name] = forward([tensor(value_id=100 * rank + value)], made)
                parents |= {module: outer, api: module}
                records[f"Functional.linear.{value}.backward"] = backward([tensor()], [tensor()])
                value += 1
            records[outer] = forward([tensor(value_id=first)], made)
        write_rank(path / "step0" / f"rank{rank}", records, parents=parents)
    return str(path)


def page_of(open_file, command, target, reference, folder, **more):
    """Write the page with a command, open it, and wait until the graph is drawn."""
    options = ["-o", str(folder / "graph.html")] if command == "graph" else ["--html", "-q"]
    options += [] if command == "graph" else ["-o", str(folder)]
    assert main([command, target, reference, *options]) == 0
    page = open_file(next(folder.glob("*.html")), **more)
    page.wait_for_selector(".graph-canvas", state="attached")
    wait_until_drawn(page)
    return page


def picked(page) -> str:
    return page.locator("#list .row[aria-selected=true]").get_attribute("title")


@pytest.fixture
def sides(tmp_path):
    return record(tmp_path / "new", wrong="up"), record(tmp_path / "old")


@pytest.mark.parametrize("command", ["graph", "compare"])
def test_what_is_selected_is_so_in_graph_list_and_timeline(open_file, sides, tmp_path, command):
    (tmp_path / "out").mkdir()
    page = page_of(open_file, command, *sides, tmp_path / "out")
    opened, other = ("graph", "list") if command == "graph" else ("list", "graph")
    assert page.locator(f"#{opened}").is_visible()
    assert page.locator(f"#{other}").is_hidden()
    page.click(".headline")  # the culprit
    page.click("#list-tab")
    assert page.locator("#modules").is_visible()
    assert page.locator("#graph_list").is_hidden()
    assert picked(page) == "Functional.linear.4.forward"
    page.click("#detail >> text=in the graph")
    assert page.locator("#graph").is_visible()
    assert page.locator("#modules").is_hidden()
    assert page.locator("#detail h2").inner_text().startswith("Functional.linear.4")
    page.keyboard.press("ArrowLeft")
    page.click("#detail >> text=up")  # the module around it, by its number in the graph
    page.click("#detail >> text=in the list")
    assert picked(page) == "Module.layers.1.block.up.Linear.forward.0"
    page.wait_for_url("**at=graph*")
    page.keyboard.press("j")
    page.wait_for_url("**at=0%2F0%2F*")


def test_a_page_of_several_ranks_shows_the_rank_of_what_is_selected(open_file, tmp_path):
    sides = record(tmp_path / "new", ranks=2, wrong="up"), record(tmp_path / "old", ranks=2)
    (tmp_path / "out").mkdir()
    page = page_of(
        open_file, "graph", *sides, tmp_path / "out", fragment="view=list&differences=all"
    )
    page.fill("#search", "linear.8.forward")
    rows = page.locator("#list .row")
    rows.nth(1).click()
    place = page.locator("#list .row[aria-selected=true]").inner_text()
    page.click("#graph-tab")
    assert page.locator("#detail h2").inner_text().startswith("Functional.linear.8")
    page.click("#detail >> text=down")
    page.wait_for_url("**run=*")
    rank = page.evaluate("new URLSearchParams(location.hash.slice(1)).get('run')")
    assert f"rank {rank[-1]}" in place


def test_pairs_chosen_in_the_page_are_taken_by_the_next_comparison(open_file, tmp_path, capsys):
    target = record(tmp_path / "new", block="renamed", kind="Stack", wrong="up")
    reference = record(tmp_path / "old")
    (tmp_path / "out").mkdir()
    page = page_of(
        open_file,
        "graph",
        target,
        reference,
        tmp_path / "out",
        fragment="view=list&differences=all",
    )
    names = {"target": "layers.1.renamed", "reference": "layers.1.block"}
    page.click("#graph-tab")
    page.click("summary:has-text('match by hand')")
    for side, name in names.items():
        page.fill("#graph-search", f"{'ref:' if side == 'reference' else ''}{name} kind:module")
        wait_until_drawn(page)
        page.locator("#graph_list .row").first.click()
        wait_until_drawn(page)
        text = "match the selected node" if side == "target" else "match both"
        page.click(f".graph-pairs >> text={text}")
    page.wait_for_url("**pairs=*")
    count = page.locator(".graph-pairs li").count()
    assert count == 1  # what is in it has partners
    wait_until_drawn(page)
    page.reload()
    page.wait_for_selector(".graph-pairs li", state="attached")
    assert page.locator(".graph-pairs li").count() == count
    if not page.locator(".graph-pairs >> text=save pairs").is_visible():
        page.click("summary:has-text('match by hand')")
    with page.expect_download() as saving:
        page.click(".graph-pairs >> text=save pairs")
    pairs = tmp_path / "pairs.json"
    saving.value.save_as(pairs)
    capsys.readouterr()
    assert (
        main(
            [
                "compare",
                target,
                reference,
                "--pairs",
                str(pairs),
                "--json",
                "-o",
                str(tmp_path / "again"),
            ]
        )
        == 0
    )
    summary = json.loads(capsys.readouterr().out.partition("\n}")[0] + "}")
    assert main(["compare", target, reference, "--json", "-o", str(tmp_path / "without")]) == 0
    without = json.loads(capsys.readouterr().out.partition("\n}")[0] + "}")
    assert without["unmatched"]["target"] - summary["unmatched"]["target"] == 1


def test_a_page_in_chinese_has_no_english_text_in_any_view(open_file, tmp_path):
    """Texts of damaged files are among them: one rank's tree and another one's facts are cut."""
    sides = record(tmp_path / "new", ranks=2, wrong="up"), record(tmp_path / "old", ranks=2)
    (tmp_path / "new/step0/rank0/construct.json").write_text('{"a": "b')
    (tmp_path / "old/step0/rank1/facts.json").write_text('{"version": 1')
    (tmp_path / "out").mkdir()
    page = page_of(open_file, "graph", *sides, tmp_path / "out", fragment="lang=zh")
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    left, shown = set(), ""
    for tab in page.locator("#tabs button:visible").all():
        tab.click()
        for key in ("Escape", "n", "n", "?"):
            page.keyboard.press(key)
            wait_until_drawn(page)
            left |= english_of(page)
            shown += page.locator("#detail").inner_text()
        page.keyboard.press("Escape")
    assert left == set()
    assert "JSON 被截断" in shown
