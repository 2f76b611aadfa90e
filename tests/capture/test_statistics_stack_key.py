# SPDX-License-Identifier: Apache-2.0
"""Keys of call stacks: equal exactly when every frame stands at the same instruction."""

from __future__ import annotations

import sys
import threading

import pytest

from msprobe.capture.stacks import python_stack_key
from msprobe.capture.statistics import native_module

native = native_module()
KINDS = [pytest.param(python_stack_key, id="python")]
if native is not None:
    KINDS.append(pytest.param(native.stack_key, id="native"))


@pytest.fixture(params=KINDS)
def stack_key(request):
    return request.param


def test_the_same_place_in_a_loop_has_one_key(stack_key):
    around = sys._getframe().f_back
    keys = {stack_key(around) for _ in range(50)}
    assert len(keys) == 1
    assert 0 < keys.pop() < 2**64


def test_two_calls_on_one_line_have_different_keys(stack_key):
    keys = [stack_key(sys._getframe()), stack_key(sys._getframe())]
    assert keys[0] != keys[1]


def test_the_caller_is_part_of_the_key_unless_only_it_is_left(stack_key):
    def inner(outwards):
        frame = sys._getframe()
        for _ in range(outwards):
            frame = frame.f_back
        return stack_key(frame)

    full = [inner(0), inner(0)]
    assert full[0] != full[1]
    # Without `inner` itself the position inside this function still differs ...
    assert len({inner(1), inner(1)}) == 2
    # ... and without this function as well, nothing does.
    assert len({inner(2), inner(2)}) == 1


def test_recursion_depth_shows(stack_key):
    def descend(depth):
        return stack_key(sys._getframe()) if depth == 0 else descend(depth - 1)

    assert len({descend(depth) for depth in range(30)}) == 30


def test_each_thread_sees_its_own_stack(stack_key):
    keys = []
    threads = [
        threading.Thread(target=lambda: keys.append(stack_key(sys._getframe()))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
        thread.join()
    assert len(set(keys)) == 1
    assert stack_key(sys._getframe()) != keys[0]
