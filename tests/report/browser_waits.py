# SPDX-License-Identifier: Apache-2.0
"""Waits for what a page shows: fixed times are too short on a busy machine, else too long."""

from __future__ import annotations

import time

_LONGEST_S = 30
_FRAMES = """() => new Promise(done => {
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)));
})"""


def wait_until(page, condition: str) -> None:
    """Wait for a condition in JavaScript; the page's own policy forbids playwright's way."""
    deadline = time.monotonic() + _LONGEST_S
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(20)


def wait_until_drawn(page) -> None:
    """Wait until a page has taken an input in: nothing loads or moves, the URL is complete."""
    page.evaluate(_FRAMES)
    wait_until(page, "!document.querySelector('[aria-busy], [data-url-waits]')")
