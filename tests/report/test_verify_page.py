# SPDX-License-Identifier: Apache-2.0
"""The page of `msprobe verify`: its list, its picture, one result in full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser_waits import wait_until
from page_texts import english_of

from builders.dumps import DumpBuilder, value
from msprobe.cli import main

torch = pytest.importorskip("torch")

EVIL = "</script><script>window.broken=1</script>"
_X = np.random.default_rng(3).normal(size=(4, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of three calls: one right, one wrong, one unknown."""
    folder = tmp_path_factory.mktemp("verified")
    dump = DumpBuilder(folder / "dump", "tensor")
    tanh, wrong = np.tanh(_X), np.maximum(_X, 0) * np.float32(1.5)
    dump.call("Torch.tanh.0.forward", [value(_X, 1)], [value(tanh, 2)], line=3)
    dump.call("Functional.relu.0.forward", [value(_X, 1)], [value(wrong, 3)], line=4)
    dump.call(f"Functional.{EVIL}.0.forward", [value(_X, 1)], [value(_X, 4)], line=5)
    path = dump.write()
    assert main(["verify", str(path), "-o", str(folder / "out"), "--html", "-n", "0"]) == 0
    return folder / "out" / "verify.html"


def test_the_wrong_result_comes_first_and_opens_in_full(file: Path, open_file: Any) -> None:
    page = open_file(file)
    wait_until(page, "document.querySelectorAll('.row').length === 3")

    assert "1 of 2 calls is wrong" in page.inner_text("h1")
    assert "Functional.relu.0.forward" in page.inner_text("#row-0")
    page.click("#row-0")
    detail = page.inner_text("#detail")
    assert "off by the factor 1.5" in detail
    assert "Elements by error in ulp" in detail
    assert "msprobe op-script" in detail
    assert page.evaluate("window.broken") is None


def test_filters_operators_and_the_picture(file: Path, open_file: Any) -> None:
    page = open_file(file, fragment="verdict=exact,rounding")
    wait_until(page, "document.querySelectorAll('.row').length === 1")
    assert "Torch.tanh" in page.inner_text("#row-0")

    page.click("#clear")
    page.click("#operators-tab")
    lines = page.inner_text("#operators table")
    assert lines.index("Functional.relu") < lines.index("Torch.tanh")
    page.click("#operators button:has-text('Torch.tanh')")
    wait_until(page, "document.querySelectorAll('.row').length === 1")
    label = page.get_attribute("#errors-plot", "aria-label")
    assert label.startswith("Own error over allowed error of 3 results")


def test_a_page_needs_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path), "--html"]) == 2
    assert "-o DIR" in capsys.readouterr().err


def test_the_page_in_chinese_has_no_english_text(file: Path, open_file: Any) -> None:
    page = open_file(file, fragment="lang=zh")
    wait_until(page, "document.querySelectorAll('.row').length === 3")
    left = english_of(page)
    for row in ("#row-0", "#row-1", "#row-2", "#operators-tab"):
        page.click(row)
        left |= english_of(page)
    page.keyboard.press("?")
    left |= english_of(page)
    assert "所有元素均差 1.5 倍" in page.inner_text("h1")
    assert {text for text in left if "broken" not in text} == set()
