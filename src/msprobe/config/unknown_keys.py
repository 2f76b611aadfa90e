# SPDX-License-Identifier: Apache-2.0
"""Warnings about keys and tasks that other generations of `config.json` have."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from msprobe.config.choices import Task

# Tasks that are not captures. Their sections may stay in the file and are never read.
OTHER_TASKS: Final[dict[str, str]] = {
    "run_ut": "it checks the APIs of a finished dump; capture with statistics or tensor first",
    "acc_check": "it checks the APIs of a finished dump; capture with statistics or tensor first",
    "exception_dump": "use overflow_check, which records the calls that show a NaN or an infinity; "
    "it is for MindSpore at level L2",
}

_IGNORED_TOP: Final = frozenset({"$schema", *OTHER_TASKS, *Task})

# Keys of mindstudio-probe 26.2.0 that msprobe knows and does not offer.
UNSUPPORTED_TOP: Final[dict[str, str]] = {
    "load": "inputs of modules are never overwritten from a dump",
}
UNSUPPORTED_IN_SECTION: Final[dict[str, str]] = {
    "request_id": "calls cannot be selected by request",
    "bench_path": "a capture is compared with another one afterwards",
    "diff_nums": "a capture is compared with another one afterwards",
}


def warn_unknown(
    found: Iterable[str],
    known: Iterable[str],
    *,
    section: str,
    elsewhere: Mapping[str, str],
) -> list[str]:
    """Return a warning for each key that has no effect in its place.

    Args:
        found: keys of the object.
        known: keys that have an effect there.
        section: name of the section, empty for the top of the file.
        elsewhere: keys that have an effect in another place, with the place in words.
    """
    known = list(known)
    unsupported = {**UNSUPPORTED_IN_SECTION, **({} if section else UNSUPPORTED_TOP)}
    warnings = []
    for key in found:
        if key in known or (not section and key in _IGNORED_TOP):
            continue
        path = _shown(f"{section}.{key}".strip("."))
        if key in unsupported:
            warnings.append(f"{path} is not supported and ignored: {unsupported[key]}")
        elif key in elsewhere:
            warnings.append(f"{path} has no effect here; it belongs {elsewhere[key]}")
        else:
            warnings.append(f"{path} is not a known key and ignored{_suggest(key, known)}")
    return warnings


def _shown(text: str) -> str:
    # As JSON, so that a key with line breaks cannot pass for further lines of the log.
    return json.dumps(text if len(text) <= 100 else text[:100] + "…", ensure_ascii=False)


def _suggest(key: str, known: list[str]) -> str:
    import difflib  # costs 2 ms, and only a faulty file needs it

    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower()[:100], list(by_lower), n=1)
    return f'; did you mean "{by_lower[near[0]]}"?' if near else ""
