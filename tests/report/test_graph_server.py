# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF001 (Chinese has signs of its own)
"""The local server of graphs: what it refuses, and the page that fetches from it."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from browser_waits import wait_until, wait_until_drawn
from graph_samples import compared, served, transformer, whole

from msprobe.graph.source import PieceSource
from msprobe.report.graph_server import GraphServer


class Files:
    """Graphs that can be replaced while they are served."""

    def __init__(self) -> None:
        self.now, self.graphs = 0, compared(6, rolled=True)
        self.is_broken = False

    def open(self) -> PieceSource:
        if self.is_broken:
            raise OSError("half written")
        return served(self.graphs)

    def stamp(self) -> int:
        return self.now


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def server(files: Files) -> Iterator[GraphServer]:
    made = GraphServer(files.open, stamp=files.stamp, check_every_s=0)
    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    made.close()
    thread.join()


def get(server: GraphServer, path: str, *, host: str | None = None, method: str = "GET"):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


def below(server: GraphServer, what: str) -> str:
    return urlsplit(server.url).path + what


def test_answers(server):
    answer, body = get(server, below(server, "children?graph=0&node=1&version=0"))
    assert (answer.status, answer.headers["Cache-Control"]) == (200, "no-store")
    assert json.loads(body)["nodes"]["label"][:2] == ["embed", "layers.0"]
    assert server.url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/children?graph=0&node=1&version=0",
        "/wrong/children?graph=0&node=1&version=0",
        "/../../etc/passwd",
        "//etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "*",
        "//[",
    ],
)
def test_without_the_token_there_is_nothing(server, path):
    assert get(server, path)[0].status in (400, 404)


@pytest.mark.parametrize(
    ("what", "status"),
    [
        ("../../../etc/passwd", 404),
        ("children", 400),
        ("children?graph=9&node=1&version=0", 400),
        ("children?graph=0&node=99999999&version=0", 400),
        ("children?graph=x&node=1&version=0", 400),
        ("children?graph=0&node=-3&version=0", 400),
        ("path?graph=0&node=-3&version=0", 400),
        ("etc?version=0", 400),
        ("find?graph=0&text=&conditions=%7B&limit=3&version=0", 400),
        ("find?graph=0&text=&conditions=%5B1%5D&limit=3&version=0", 400),
        ("children?graph=0&node=1&version=7", 409),
    ],
)
def test_refused(server, what, status):
    answer, body = get(server, below(server, what))
    assert answer.status == status
    assert "Traceback" not in body


def test_names_that_others_point_here_are_refused(server):
    path = below(server, "")
    assert get(server, path, host="evil.example:80")[0].status == 421
    assert get(server, path, host=f"localhost:{server.port}")[0].status == 200
    assert get(server, path, method="POST")[0].status == 501


def test_a_browser_that_goes_away_is_no_error(server, capfd):
    with socket.create_connection(("127.0.0.1", server.port)) as asking:
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        asking.sendall(
            f"GET {below(server, '')} HTTP/1.1\r\nHost: localhost:{server.port}\r\n\r\n".encode()
        )
    assert get(server, below(server, ""))[0].status == 200
    assert capfd.readouterr().err == ""


def test_files_that_change_are_read_again(server, files):
    ask = below(server, "children?graph=0&node=0&version=")
    files.now, files.is_broken = 1, True
    assert get(server, f"{ask}0")[0].status == 200  # half written: the old ones
    files.graphs, files.is_broken = whole(transformer(2)), False
    assert get(server, f"{ask}0")[0].status == 409
    assert get(server, f"{ask}1")[0].status == 200


# In a browser


def test_the_page_fetches_what_is_opened(browser, server):
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(server.url)
    wait_until(page, "document.querySelectorAll('.graph-canvas').length === 2")
    wait_until_drawn(page)
    assert len([url for url in asked if "/children?" in url]) < 12  # the path to the culprit only
    page.click(".headline")
    wait_until(page, "document.querySelector('#detail').innerText.includes('parameters.weight')")
    page.fill("#graph-search", "gelu")
    wait_until(page, "document.querySelector('#graph-found').innerText.startsWith('6 ')")
    page.keyboard.press("Enter")
    wait_until(
        page, "document.querySelector('#detail h2')?.innerText.startsWith('Functional.gelu')"
    )
    page.fill("#graph-search", "")
    page.click("[data-level=introduced]")
    wait_until(page, "document.querySelector('#graph-found').innerText === '1 node'")
    assert "model.layers.3.mlp.fc1" in page.locator("#graph-rows").inner_text()
    page.keyboard.press("n")
    wait_until(
        page, "document.querySelector('#detail h2')?.innerText.startsWith('model.layers.3.mlp.fc1')"
    )
    assert all(url.startswith((server.url, "data:")) for url in asked)
    assert said == []
    context.close()


@pytest.mark.parametrize(
    ("language", "changed", "gone"),
    [
        ("en", "the files have changed: reload the page", "the server does not answer"),
        ("zh", "文件已改变：请重新加载页面", "服务器没有响应"),
    ],
)
def test_the_page_tells_of_a_server_that_does_not_answer(
    browser, server, files, language, changed, gone
):
    page = browser.new_page()
    page.goto(f"{server.url}#lang={language}")
    wait_until_drawn(page)
    notice = page.get_by_role("alert")
    files.now = 1
    page.fill("#graph-search", "gelu")
    wait_until(page, "document.querySelector('#notice').innerText")
    assert changed in notice.inner_text()
    notice.get_by_role("button").last.click()
    assert notice.inner_text() == ""
    page.route("**/find?*", lambda route: route.abort())
    page.fill("#graph-search", "norm")
    wait_until(page, "document.querySelector('#notice').innerText")
    assert gone in notice.inner_text()
    page.unroute("**/find?*")
    notice.get_by_role("button").first.click()  # reload
    wait_until_drawn(page)
    assert page.locator("#notice").inner_text() == ""
    page.close()
