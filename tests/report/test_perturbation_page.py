# SPDX-License-Identifier: Apache-2.0
"""The page of `free_benchmark`: the answer, the ranked calls, the search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.dumps import DumpBuilder, value
from msprobe.cli import main

torch = pytest.importorskip("torch")

EVIL = "</script><script>window.broken=1</script>"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a logarithm near 1, a harmless call, and one that nothing can run."""
    folder = tmp_path_factory.mktemp("perturbed")
    dump = DumpBuilder(folder / "dump", "tensor")
    near = np.linspace(1.0 + 1e-6, 1.0 + 2e-6, 32, dtype=np.float32)
    dump.call("Torch.tanh.0.forward", [value(near, 1)], [value(np.tanh(near), 2)], line=3)
    dump.call("Torch.log.0.forward", [value(near, 1)], [value(np.log(near), 3)], line=4)
    dump.call(f"Functional.{EVIL}.0.forward", [value(near, 1)], [value(near, 4)], line=5)
    path = dump.write()
    assert main(["perturb", str(path), "-o", str(folder / "out"), "-n", "0"]) == 0
    (page,) = (folder / "out").glob("*/free_benchmark.html")
    return page


def test_the_call_that_loses_most_digits_comes_first(file: Path, open_file: Any) -> None:
    page = open_file(file)
    page.wait_for_selector("#calls table tr:nth-child(2)")
    assert "2 calls perturbed" in page.inner_text("h1")
    assert "warning" in page.inner_text("h1")
    text = page.inner_text("#calls table")
    assert text.index("Torch.log.0.forward") < text.index("Torch.tanh.0.forward")
    assert "left out: 1" in page.inner_text("header, #verdict")
    assert page.evaluate("window.broken") is None


def test_a_search_leaves_the_calls_that_fit(file: Path, open_file: Any) -> None:
    page = open_file(file, fragment="q=tanh")
    page.wait_for_selector("#calls table td")
    assert "Torch.log" not in page.inner_text("#calls table")
