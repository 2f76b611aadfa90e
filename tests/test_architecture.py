# SPDX-License-Identifier: Apache-2.0
"""Files and folders that docs/architecture.md names exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "src" / "msprobe"
# A path without blanks that ends in a slash or in the suffix of a source file.
NAMED: Final = re.compile(r"`([\w./-]+(?:/|\.(?:c|h|js|css|md|py|yaml)))`")


def is_named_in_full(name: str) -> bool:
    """Return whether this is a path from the project's or the package's folder."""
    return any((folder / name).exists() for folder in (ROOT, PACKAGE))


def is_ending(name: str) -> bool:
    """Return whether some path in the package ends so."""
    return next(PACKAGE.rglob(name), None) is not None


def test_every_file_named_in_the_architecture_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = set(NAMED.findall(text))
    assert "capture/events.py" in names
    missing = [name for name in names if not is_named_in_full(name) and not is_ending(name)]
    assert sorted(missing) == []
