# SPDX-License-Identifier: Apache-2.0
"""Graphs of real models, as they are drawn, held against pictures that were looked at one by one.

The graphs in `golden/graphs` were recorded by `graph_zoo.py`. Beside each are the places of its
boxes and words, and a small grey picture, in which fonts of another machine make no difference;
`pytest --overwrite` makes both anew.
"""

from __future__ import annotations

import gzip
import io
import json
import re
from pathlib import Path

import pytest
from browser_waits import wait_until, wait_until_drawn

from msprobe.report.graph_page import write_graph_page

Image = pytest.importorskip("PIL.Image")
ImageFilter = pytest.importorskip("PIL.ImageFilter")
np = pytest.importorskip("numpy")
pytestmark = pytest.mark.slow

GRAPHS = Path(__file__).with_name("golden") / "graphs"
SIZE = (360, 250)
# Of all ink. Fainter letters make up to 0.18, and everything six points further left 0.22 to 0.62.
MOST_INK = 0.22
BOX = re.compile(r'<rect x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)" rx="\S+" fill="none"')
WORDS = re.compile(r'<text x="(\S+)" y="(\S+)"[^>]*>([^<]*)<')


def picture(page) -> Image.Image:
    """Return what the first pane shows, small and grey."""
    shot = page.locator(".graph-canvas").first.screenshot()
    return Image.open(io.BytesIO(shot)).convert("L").resize(SIZE, Image.Resampling.BOX)


def ink(image: Image.Image) -> np.ndarray:
    return 255.0 - np.asarray(image.convert("L").filter(ImageFilter.BoxBlur(2)))


def places(page) -> str:
    """Return boxes and words with their places, one a line."""
    page.click(".graph-more summary")
    with page.expect_download() as saving:
        page.click(".graph-saving button:has-text('SVG, all')")
    svg = Path(saving.value.path()).read_text()
    found = [[*map(float, each)] for each in BOX.findall(svg)]
    lines = [" ".join(f"{number:.0f}" for number in each) for each in found]
    lines += [f"{float(x):.0f} {float(y):.0f} {text}" for x, y, text in WORDS.findall(svg)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", sorted(path.name[:-8] for path in GRAPHS.glob("*.json.gz")))
def test_a_real_graph_looks_as_it_did(name, open_file, tmp_path, golden, pytestconfig):
    graphs = json.loads(gzip.decompress((GRAPHS / f"{name}.json.gz").read_bytes()))
    path = write_graph_page(tmp_path / "graph.html", graphs)
    page = open_file(path, fragment="map=no&panes=one")
    wait_until(page, "document.querySelector('.graph-canvas')?.width > 200")
    wait_until_drawn(page)
    page.keyboard.press("f")
    wait_until_drawn(page)

    found, kept = picture(page), GRAPHS / f"{name}.png"

    if pytestconfig.getoption("--overwrite"):
        found.quantize(16).save(kept, optimize=True)
    wanted = ink(Image.open(kept))
    assert np.abs(ink(found) - wanted).sum() < MOST_INK * wanted.sum()
    golden(f"graphs/{name}.txt", places(page))
