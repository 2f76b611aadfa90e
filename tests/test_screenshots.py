# SPDX-License-Identifier: Apache-2.0
"""The pictures of the documentation are those that scripts/screenshots.py makes, and are shown."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "screenshots.py"


def test_each_picture_is_made_by_the_script_and_shown_on_a_page() -> None:
    pytest.importorskip("playwright")
    spec = importlib.util.spec_from_file_location("screenshots", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    made = set(script.PICTURES)
    assert {path.name for path in (ROOT / "docs" / "assets").glob("*.png")} == made
    pages = "\n".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    assert set(re.findall(r"!\[[^\]]+\]\([./]*assets/([^)]+)\)", pages)) == made
