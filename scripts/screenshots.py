# SPDX-License-Identifier: Apache-2.0
"""Make the pictures of the documentation: `make screenshots`, or `screenshots.py FOLDER`.

Trains the model of `examples/` as it is and with a line missing, compares the recordings, and takes
the pages in Chromium.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT: Final = Path(__file__).resolve().parents[1]
SIZE: Final = {"width": 1280, "height": 760}
COLOURS: Final = 128
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")

MONITORED = """
import torch
from torch import nn
from msprobe.pytorch import TrainerMon

torch.manual_seed(0)
blocks = (nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4))
model = nn.Sequential(*blocks)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
monitor = TrainerMon("monitor.json")
monitor.set_monitor(model, optimizer, grad_acc_steps=1)
for step in range(200):
    optimizer.zero_grad()
    rows = torch.randn(16, 32) * (40 if step == 140 else 1)
    (model(rows) - rows.roll(1, 1)).square().mean().backward()
    optimizer.step()
monitor.close()
"""


def main() -> None:
    """Write the pictures into a folder, docs/assets if none is given."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "assets"
    folder.mkdir(parents=True, exist_ok=True)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"needs a browser, one of {', '.join(BROWSERS)}")
    with TemporaryDirectory() as name, sync_playwright() as started:
        pages = make_pages(Path(name))
        opened = started.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for picture, (file, prepare) in PICTURES.items():
            page = opened.new_page(viewport=SIZE, color_scheme="light")
            page.goto(pages[file].as_uri())
            prepare(page)
            path = folder / picture
            page.screenshot(path=path, animations="disabled")
            Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)
        opened.close()


def make_pages(folder: Path) -> dict[str, Path]:
    """Return the pages to take pictures of, written into a folder."""
    train = str(ROOT / "examples" / "char_transformer.py")
    run(folder, train, "--dump", "healthy")
    run(folder, train, "--dump", "ported", "--plant-bug", "silent")
    compare = ("compare", "ported", "healthy", "--step", "0", "-o", "compared", "--html")
    run(folder, "-m", "msprobe", *compare)
    (report,) = (folder / "compared").glob("compare_report_*.html")
    settings = {"output_dir": "runs", "run": "run", "ops": ["norm", "max"], "wg_distribution": True}
    (folder / "monitor.json").write_text(json.dumps(settings))
    (folder / "train.py").write_text(MONITORED)
    run(folder, "train.py")
    run(folder, "-m", "msprobe", "monitor", "view", "runs/run", "-o", "monitor.html")
    return {"report": report, "monitor": folder / "monitor.html"}


def run(folder: Path, *words: str) -> None:
    """Run Python there; its output is shown where it fails."""
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}\n{done.stdout}{done.stderr}")


def as_it_opens(page: Page) -> None:
    """Wait for the page."""
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(1000)


def in_the_graph(page: Page) -> None:
    """Show the culprit in the graph."""
    as_it_opens(page)
    page.click(".headline")
    page.click("#graph-tab")
    page.wait_for_timeout(1500)


PICTURES: Final[dict[str, tuple[str, Callable[[Page], None]]]] = {
    "comparison.png": ("report", as_it_opens),
    "graph.png": ("report", in_the_graph),
    "monitor.png": ("monitor", as_it_opens),
}
"""The page of each picture, and the steps to it."""


if __name__ == "__main__":
    main()
