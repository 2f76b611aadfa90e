# SPDX-License-Identifier: Apache-2.0
"""Frames of call stacks: taken apart, and told by whose code they are."""

from __future__ import annotations

import pytest

from msprobe.dump.stack_frames import Frame, parse_frame, user_frames

OWN = "File /home/me/train.py, line 12, in step, \n loss = model(x)"
TORCH = "File /env/site-packages/torch/nn/modules/module.py, line 1, in _call_impl, \n f()"


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        (OWN, Frame("/home/me/train.py", 12, "step", "loss = model(x)")),
        ("File a.py, line 3, in <module>", Frame("a.py", 3, "<module>", "")),
        ("File C:\\a, b\\c.py, line 3, in f, \n", Frame("C:\\a, b\\c.py", 3, "f", "")),
        (
            "File a.py, line 3, in f, \n first(\n second)",
            Frame("a.py", 3, "f", "first(\n second)"),
        ),
        ("somewhere else", None),
        ("", None),
    ],
)
def test_a_frame_is_taken_apart(text, frame):
    assert parse_frame(text) == frame


@pytest.mark.parametrize(
    ("file", "is_of_framework", "is_installed"),
    [
        ("/home/me/train.py", False, False),
        ("/home/me/torch/train.py", False, False),  # a folder that is only called so
        ("/home/me/mindspore/net.py", False, False),
        ("/env/lib/python3.11/site-packages/megatron/core.py", False, True),
        ("/env/lib/python3.11/site-packages/torch/nn/functional.py", True, True),
        ("/src/pytorch/torch/nn/functional.py", True, True),
        ("/usr/lib/python3.11/contextlib.py", True, True),
        ("<frozen importlib._bootstrap>", True, True),
    ],
)
def test_whose_code_it_is(file, is_of_framework, is_installed):
    frame = Frame(file, 1, "f", "")
    assert frame.is_of_framework is is_of_framework
    assert frame.is_installed is is_installed


def test_frames_of_the_user():
    assert user_frames([TORCH, OWN, TORCH]) == [OWN]
    assert user_frames([TORCH]) == [TORCH]
    assert user_frames([]) == []


@pytest.mark.parametrize("file", ["/home/me/train.py", "C:\\me\\train.py", "train.py"])
def test_a_place_is_short(file):
    assert Frame(file, 12, "f", "").place == "train.py:12"
