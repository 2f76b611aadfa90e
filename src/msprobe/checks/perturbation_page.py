# SPDX-License-Identifier: Apache-2.0
"""`write_perturbation_page`: the ranked calls of a perturbed run as a page.

Its reader is ``page/views/perturbation_calls.js``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msprobe.json_text import strict
from msprobe.report.page_file import write_page

MOST_SHOWN: Final = 5_000
"""Calls on a page, those that matter most; all are in ``free_benchmark.json``."""
_VIEWS: Final = ("perturbation_head", "perturbation_calls")


def write_perturbation_page(
    path: Path, content: Mapping[str, Any], sentence: str, left_out: Sequence[str], measure: str
) -> Path:
    """Write the page; return the file.

    Args:
        path: the file; it appears when it is complete.
        content: of ``free_benchmark.json``.
        sentence: the answer, in words.
        left_out: lines about calls that were not perturbed.
        measure: title of the column of amplifications.

    Raises:
        ReportWriteError: the file cannot be written.
    """
    calls = content["calls"]
    notes = list(left_out)
    if len(calls) > MOST_SHOWN:
        notes.append(f"{MOST_SHOWN} of {len(calls)} calls; free_benchmark.json has all")
    found = content["findings"]
    perturbation = {
        "sentence": sentence,
        "worst": next((severity for severity, count in found.items() if count), ""),
        "left_out": notes,
        "measure": measure,
        "calls": [
            {key: strict(value) for key, value in each.items()} for each in calls[:MOST_SHOWN]
        ],
    }
    title = f"msprobe free_benchmark: {content['mode']}, {content['stage']}"
    return write_page(path, title=title, sections={"perturbation": perturbation}, views=_VIEWS)
