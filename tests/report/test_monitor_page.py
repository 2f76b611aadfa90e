# SPDX-License-Identifier: Apache-2.0
"""The page of the monitor: exported as one file, and asked from its own server only."""

from __future__ import annotations

import base64
import json
import math
import threading
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urljoin

import numpy as np
import pytest
from browser_waits import wait_until
from page_texts import english_of

from builders.monitor_runs import LAYERS, Step, run_of, write
from msprobe import GradComparator
from msprobe.cli import main
from msprobe.config import GradProbeSection
from msprobe.errors import UsageError
from msprobe.monitor.gradients.probe import Gradient, ProbeWriter
from msprobe.monitor.pictures import COLUMNS, POINTS, Pictures
from msprobe.monitor.reader import open_monitor
from msprobe.monitor.rows import MISSING, Layout, Rows
from msprobe.monitor.serving import PageServer
from msprobe.monitor.store import RunWriter

BAD = 60


def spoil(values: Step, step: int, rank: int) -> None:
    if step >= BAD:
        values["param_origin"]["norm"][LAYERS[2]] *= 50
    if step >= BAD + 2:
        values["grad_reduced"]["norm"][LAYERS[1]] = math.nan


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return write(folder / "a", spoil, ranks=2), write(folder / "b", ranks=2)


@pytest.fixture
def server(runs):
    with open_monitor(runs[0]) as target, open_monitor(runs[1]) as reference:
        started = PageServer([target, reference])
        thread = threading.Thread(target=started.run, daemon=True)
        thread.start()
        yield started
        started.close()
        thread.join()


def test_exported_page_shows_incidents_heat_map_and_series(runs, tmp_path, open_file, capsys):
    file = tmp_path / "page.html"
    assert main(["monitor", "view", *map(str, runs), "--export", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    page = open_file(file)
    wait_until(page, "document.querySelector('#heat-map').getAttribute('aria-label') !== null")
    label = page.get_attribute("#heat-map", "aria-label")
    assert label == "Heat map of grad_reduced norm: 8 rows, 80 columns."
    detail = page.inner_text("#detail")
    assert "2 incidents" in detail or "1 incident" in detail
    assert f"apart from step {BAD}:" in detail
    assert page.locator(".scalar canvas").count() == 2
    page.click(".incident .link >> nth=0")
    wait_until(page, "document.querySelector('.series canvas') !== null")
    assert "layers.2.weight" in page.inner_text("#detail h2")
    wait_until(page, f"location.hash.includes('step={BAD}')")
    url = page.url
    page.click("#theme-button")
    page.keyboard.press("Escape")
    wait_until(page, "document.querySelector('.incident') !== null")
    page.goto("about:blank")
    page.goto(url)  # the link carries the whole state
    wait_until(page, "document.querySelector('.series canvas') !== null")
    assert page.input_value("#heat-stream") == "param_origin"


def test_the_page_in_chinese_has_no_english_text(runs, tmp_path, open_file):
    file = tmp_path / "page.html"
    assert main(["monitor", "view", *map(str, runs), "--export", str(file)]) == 0
    page = open_file(file, fragment="lang=zh")
    wait_until(page, "document.querySelector('#heat-map').getAttribute('aria-label') !== null")
    left = english_of(page)
    page.select_option("#heat-run", "ratio")
    left |= english_of(page)
    page.click(".incident .link >> nth=0")
    wait_until(page, "document.querySelector('.series canvas') !== null")
    page.keyboard.press("?")
    left |= english_of(page)
    incident = "param_origin layers.2.weight norm"
    assert {text for text in left if incident not in text} == set()


def test_heat_map_by_keyboard(runs, tmp_path, open_file):
    file = tmp_path / "page.html"
    main(["monitor", "view", str(runs[0]), "--export", str(file)])
    page = open_file(file)
    wait_until(page, "document.querySelector('#heat-map').getAttribute('aria-label') !== null")
    page.focus("#heat-map")
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".heat-tip").startswith("layers.2.weight · step 1 · ")
    page.keyboard.press("Enter")
    wait_until(page, "document.querySelector('.series canvas') !== null")
    assert "at=layers.2.weight" in page.url or page.inner_text("#detail h2").startswith("layers.2")


def test_live_page_asks_its_server_and_follows_growth(runs, browser, tmp_path):
    folder = write(tmp_path / "run", steps=20)
    with open_monitor(folder) as run:
        server = PageServer([run])
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        context = browser.new_context(viewport={"width": 1400, "height": 900})
        page = context.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(server.url)
        wait_until(page, "document.querySelector('#heat-map').getAttribute('aria-label') !== null")
        page.select_option("#heat-axis", "rank")
        said = "document.querySelector('#heat-map').getAttribute('aria-label')"
        wait_until(page, f"{said}.includes('1 rows, 20 columns')")
        page.select_option("#heat-axis", "layer")
        with RunWriter(folder, rank=0, head={}) as writer:
            for rows in run_of(steps=25):
                if rows.step >= 20:
                    writer.append(rows)
            writer.flush()
        wait_until(page, f"{said}.includes('25 columns')")
        context.close()
        server.close()
        thread.join()
    assert errors == []


def ask(url: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    request = urllib.request.Request(urljoin(url, path), headers=headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


def test_page_of_compared_gradients(tmp_path, open_file):
    for run, sign in (("a", -1), ("b", 1)):
        writer = ProbeWriter(tmp_path / run / "rank0", GradProbeSection())
        for step in range(3):
            values = np.linspace(-1, 2, 30, dtype=np.float32)
            gradients = [Gradient("fc.weight", values), Gradient("fc.bias", values[:5].copy())]
            if step == 2:
                gradients[0] = Gradient("fc.weight", sign * values)
            writer.write(step, gradients)
    folders = (tmp_path / run / "rank0" for run in "ab")
    GradComparator.compare(*folders, tmp_path / "out")
    page = open_file(tmp_path / "out" / "similarities.html")
    wait_until(page, "document.querySelector('#heat-map').getAttribute('aria-label') !== null")
    label = page.get_attribute("#heat-map", "aria-label")
    assert label == "Heat map of signs similarity: 2 rows, 3 columns."
    page.click(".incident .link >> nth=0")
    wait_until(page, "document.querySelector('.series canvas') !== null")
    assert "fc.weight" in page.inner_text("#detail h2")
    page.select_option("#heat-op", "cosine")
    wait_until(page, "document.querySelector('#heat-map').ariaLabel.includes('signs cosine')")


def test_server_answers_its_own_page_only(server):
    assert server.url.startswith("http://127.0.0.1:")
    assert ask(server.url, "", {})[0] == 200
    assert ask(server.url, "/", {})[0] == 404
    assert ask(server.url, "/wrong/overview", {})[0] == 404
    assert ask(server.url, "overview", {"Host": "evil.example"})[0] == 421
    assert ask(server.url, "overview", {})[0] == 200
    assert ask(server.url, "../../etc/passwd", {})[0] == 404
    status, text = ask(server.url, "heat?stream=actv&op=nothing", {})
    assert (status, "heat" in text or "nothing" in text) in {(200, True), (400, True)}
    assert ask(server.url, "shell?x=1", {}) == (400, "no question shell")
    status, text = ask(server.url, "heat?stream=actv&op=norm&axis=layer", {})
    assert (status, len(json.loads(text)["rows"])) == (200, 8)


def test_pictures_keep_nan_and_stay_small(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    names = tuple(f"w{number}" for number in range(500))
    zeros = (0,) * 500
    layout = Layout("grad_reduced", ("norm",), names, zeros, zeros, ("[]",) * 500, ("x",) * 500)
    with RunWriter(folder, rank=0, head={}) as writer:
        for step in range(3000):
            values = np.full((1, 500), 1.0 + step)
            values[0, 7] = math.nan if step == 1234 else 1.0
            writer.append(Rows(layout, 0, step, 0, 0.0, values))
        writer.flush()
    with open_monitor(folder) as run:
        pictures = Pictures([run])
        heat = pictures.answer("heat", {"stream": "grad_reduced", "op": "norm"})
        assert (len(heat["columns"]), heat["of_columns"]) == (COLUMNS, 3000)
        assert heat["of_rows"] == 500
        assert heat["bytes_each"] == 4
        cells = np.frombuffer(base64.b64decode(heat["values"]), "<f4").reshape(400, COLUMNS)
        assert np.isnan(cells[7]).sum() == np.isnan(cells).sum() == 1
        assert cells[0, 0] == 5.0  # the largest of steps 0 to 4
        series = pictures.answer("series", {"stream": "grad_reduced", "name": "w7", "op": "norm"})
        (line,) = series["lines"]
        assert len(line["steps"]) <= POINTS
        assert line["values"].count("NaN") == 1
        with pytest.raises(UsageError, match="no axis"):
            pictures.answer("heat", {"stream": "grad_reduced", "op": "norm", "axis": "up"})


def test_cells_are_as_exact_as_they_need_to_be_and_tell_absent_from_nan(tmp_path, open_file):
    folder = tmp_path / "run"
    folder.mkdir()
    layout = Layout("actv", ("norm",), ("a", "b"), (0, 0), (0, 0), ("[]",) * 2, ("x",) * 2)
    shown = {"a": ("-0.125", "5e-60", "0"), "b": ("absent", "NaN", "∞")}
    rows = [[-0.125, MISSING], [5e-60, math.nan], [0.0, math.inf]]
    with RunWriter(folder, rank=0, head={}) as writer:
        for step, values in enumerate(rows):
            writer.append(Rows(layout, 0, step, 0, 0.0, np.array([values])))
        writer.flush()
    file = tmp_path / "page.html"
    assert main(["monitor", "view", str(folder), "--export", str(file)]) == 0
    page = open_file(file)
    wait_until(page, "document.querySelector('#heat-map').getAttribute('aria-label') !== null")
    page.focus("#heat-map")
    found: dict[str, list[str]] = {"a": [], "b": []}
    for row, key in (("a", "ArrowRight"), ("b", "ArrowLeft")):
        for _ in range(3):
            page.keyboard.press(key)
            found[row].append(page.inner_text(".heat-tip"))
        page.keyboard.press("ArrowDown")
    assert found == {
        "a": [f"a · step {step} · {shown['a'][step]}" for step in (1, 2, 2)],
        "b": [f"b · step {step} · {shown['b'][step]}" for step in (1, 0, 0)],
    }


def test_view_refuses_a_folder_without_a_run(tmp_path, capsys):
    assert main(["monitor", "view", str(tmp_path), "--export", str(Path("x.html"))]) == 2
    assert "holds no run of the monitor" in capsys.readouterr().err
