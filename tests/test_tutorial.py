# SPDX-License-Identifier: Apache-2.0
"""The tutorial notebook runs from its first cell to its last and finds the planted fault.

Four steps of its training are recorded instead of twenty.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "tutorial.ipynb"


@pytest.mark.slow
def test_the_notebook_finds_the_planted_fault(tmp_path, monkeypatch):
    import nbformat

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (training,) = [cell for cell in notebook.cells if "range(20)" in cell.source]
    training.source = training.source.replace("range(20)", "range(4)")
    settings = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources=settings
    ).execute()
    printed = [
        output["text"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output["output_type"] == "stream"
    ]
    assert "Tensor.var" in printed[-1]
