# SPDX-License-Identifier: Apache-2.0
"""Pictures of graphs of real models, held against pictures that were looked at one by one.

The graphs in `golden/graphs` were recorded by `graph_zoo.py`; `pytest --overwrite` takes the
pictures anew. They are small and grey, so that fonts and a pixel here or there make no difference.
"""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest
from browser_waits import wait_until, wait_until_drawn

from msprobe.report.graph_page import write_graph_page

Image = pytest.importorskip("PIL.Image")
np = pytest.importorskip("numpy")
pytestmark = pytest.mark.slow

GRAPHS = Path(__file__).with_name("golden") / "graphs"
SIZE = (360, 250)
# Of 255 levels of grey: fonts of another machine make about 1; a box elsewhere makes 3 and more.
MOST_ON_AVERAGE = 2.0


def picture(page) -> np.ndarray:
    """Return what the first pane shows, small and grey."""
    shot = page.locator(".graph-canvas").first.screenshot()
    image = Image.open(io.BytesIO(shot)).convert("L").resize(SIZE, Image.Resampling.BOX)
    return np.asarray(image)


@pytest.mark.parametrize("name", sorted(path.name[:-8] for path in GRAPHS.glob("*.json.gz")))
def test_a_real_graph_looks_as_it_did(name, open_file, tmp_path, pytestconfig):
    graphs = json.loads(gzip.decompress((GRAPHS / f"{name}.json.gz").read_bytes()))
    path = write_graph_page(tmp_path / "graph.html", graphs)
    page = open_file(path, fragment="map=no&depth=2&panes=one")
    wait_until(page, "document.querySelector('.graph-canvas')?.width > 200")
    wait_until_drawn(page)
    page.keyboard.press("f")
    wait_until_drawn(page)

    found, golden = picture(page), GRAPHS / f"{name}.png"

    if pytestconfig.getoption("--overwrite"):
        levels = Image.fromarray(found).quantize(16)
        levels.save(golden, optimize=True)
    kept = np.asarray(Image.open(golden).convert("L"))
    assert np.abs(found.astype(int) - kept).mean() < MOST_ON_AVERAGE
