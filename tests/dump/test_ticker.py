# SPDX-License-Identifier: Apache-2.0
"""The thread that flushes journals: it calls while it is on, and it always ends."""

from __future__ import annotations

import threading
import time

from msprobe.dump.background import Ticker


def test_it_calls_while_it_is_on() -> None:
    calls: list[float] = []
    ticker = Ticker(0.005, lambda: calls.append(time.monotonic()), "test-ticker")
    ticker.switch_on()
    deadline = time.monotonic() + 10
    while len(calls) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    ticker.switch_off()
    time.sleep(0.05)
    seen = len(calls)
    assert seen >= 2
    time.sleep(0.05)
    assert len(calls) == seen
    ticker.close()


def test_closing_ends_it_even_while_its_action_switches_it_off() -> None:
    entered, proceed = threading.Event(), threading.Event()

    def action() -> None:
        entered.set()
        proceed.wait(5)
        ticker.switch_off()

    ticker = Ticker(0.001, action, "test-ticker")
    ticker.switch_on()
    assert entered.wait(5)
    closing = threading.Thread(target=ticker.close, daemon=True)
    closing.start()
    time.sleep(0.05)  # close() has said so and waits for the thread, whose action is still running
    proceed.set()
    closing.join(5)
    assert not closing.is_alive()


def test_a_closed_one_does_not_start_again() -> None:
    calls: list[int] = []
    ticker = Ticker(0.001, lambda: calls.append(1), "test-ticker")
    ticker.close()
    ticker.switch_on()
    time.sleep(0.05)
    assert calls == []
