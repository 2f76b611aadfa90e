# SPDX-License-Identifier: Apache-2.0
"""Reads tables that msprobe wrote as csv."""

from __future__ import annotations

import csv
from pathlib import Path


def csv_rows(path: Path, encoding: str = "utf-8") -> list[dict[str, str]]:
    """Return the rows of a file, by the titles of the columns."""
    with path.open(newline="", encoding=encoding) as file:
        return list(csv.DictReader(file))
