# SPDX-License-Identifier: Apache-2.0
"""A layer mapping that leads to the pairs of modules that were found without one."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from msprobe.compare.matching.layer_mapping import TOP_LAYER
from msprobe.compare.model import OperationPair
from msprobe.dump.record_names import parse_record_name

_PLAIN: Final = re.compile(r"[A-Za-z_][\w.]*")


def proposed_layers(pairs: Iterable[OperationPair]) -> str:
    """Return a file for ``--layer-mapping``; empty where no module has another name.

    Each line says how many modules it is taken from, and how certain their pairs are. Where modules
    of one class do not agree on the name of a child, most of them decide.

    Args:
        pairs: of a comparison.
    """
    others: dict[str, tuple[str, float]] = {}
    classes = {"": TOP_LAYER}
    for pair in pairs:
        target, reference = (
            parse_record_name(name or "") for name in (pair.target, pair.reference)
        )
        if target.is_module and reference.is_module and target.path not in others:
            others[target.path] = reference.path, pair.confidence
            classes.setdefault(target.path, target.class_name or "")
    found: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    certain: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for path, (other, confidence) in others.items():
        around = _around(path, others)
        child, renamed = _below(path, around), _below(other, others.get(around, ("", 1.0))[0])
        if path and child is not None and renamed is not None:
            child, renamed = _without_numbers(child, renamed)
            found[classes[around], child][renamed] += 1
            certain[classes[around], child, renamed] += confidence
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for (layer, child), names in found.items():
        name, count = names.most_common(1)[0]
        if name != child:
            share = certain[layer, child, name] / names.total()
            lines[layer].append(
                f"  {_quoted(child)}: {_quoted(name)}  # of {count}, confidence {share:.2g}"
            )
    return "".join("\n".join((f"{_quoted(layer)}:", *of, "")) for layer, of in lines.items())


def _around(path: str, known: Mapping[str, object]) -> str:
    """Return the innermost known module around another one."""
    while path:
        path = path.rpartition(".")[0]
        if path in known:
            break
    return path


def _below(path: str, around: str) -> str | None:
    """Return the path from a module around another one; None where it is not around it."""
    if not around:
        return path
    return path[len(around) + 1 :] if path.startswith(f"{around}.") else None


def _without_numbers(child: str, other: str) -> tuple[str, str]:
    """Return two names without the place in a list in which both end."""
    head, _, number = child.rpartition(".")
    same, _, place = other.rpartition(".")
    return (
        (head, same) if head and same and number.isdigit() and number == place else (child, other)
    )


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else json.dumps(name)
