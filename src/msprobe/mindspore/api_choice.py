# SPDX-License-Identifier: Apache-2.0
"""Which calls of APIs ``black_list`` and ``risk_level`` leave out, by the names of records."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

from mindspore.ops import Primitive

from mindspore import ops
from msprobe.capture.selection import RISKS
from msprobe.config import RiskLevel
from msprobe.mindspore.api_table import DISTRIBUTED, PREFIXES, owner_of
from msprobe.operators.lookup import operator_of

logger = logging.getLogger(__name__)

PRIMITIVE: Final = "Primitive"


class ApiChoice:
    """Says which calls are left out; each name is looked at once."""

    def __init__(
        self,
        risk: RiskLevel,
        refuses: Callable[[str, str], bool],
        skipped: Callable[[str], None],
    ) -> None:
        """Create it.

        Args:
            risk: APIs beyond this level are left out.
            refuses: whether the black list has an API's short or full name.
            skipped: is told why a call is left out, where its record would be missed.
        """
        self._risk = risk
        self._refuses = refuses
        self._skipped = skipped
        self._known: dict[str, str | None] = {}

    def leaves_out(self, name: str) -> bool:
        """Return whether calls of this name (without its number) are left out."""
        known = self._known.get(name, "")
        if known == "":
            known = self._known[name] = self._reason(name)
        if known is None:
            return False
        self._skipped(known)
        return True

    def _reason(self, name: str) -> str | None:
        if any(self._refuses(one, one) for one in _ways_to_name(name)):
            return "black_list"
        kept = list(RiskLevel)
        if kept.index(risk_of(name)) > kept.index(self._risk):
            return f"risk_level {self._risk}"
        return None


def _ways_to_name(name: str) -> Iterable[str]:
    """Return the names that a black list may use for an API.

    Any one part of a primitive's name (``Primitive.bias_add.BiasAdd``) will do, and any two.
    """
    prefix, _, rest = name.partition(".")
    if prefix != PRIMITIVE:
        return (name, name.rpartition(".")[2])
    parts = rest.split(".")
    return (name, rest, *parts, *(f"{PRIMITIVE}.{part}" for part in parts))


@cache
def risk_of(name: str) -> RiskLevel:
    """Return the strictest level that keeps an API; other libraries' APIs are always kept."""
    prefix, _, api = name.partition(".")
    if prefix in DISTRIBUTED or prefix not in (*PREFIXES, PRIMITIVE):
        return RiskLevel.CORE
    return RISKS[operator_of(prefix, api, is_mindspore=True).importance]


def warn_of_unknown_names(black_list: Sequence[str], held: Iterable[tuple[str, str]]) -> None:
    """Warn of names in a black list that match no API.

    Args:
        black_list: the names.
        held: attributes and names of the primitives that the user's cells hold.
    """
    apis = {prefix: _routines(prefix) for prefix in PREFIXES}
    primitives = {one for both in held for one in both} | _public_primitives()
    known = {f"{prefix}.{name}" for prefix, names in apis.items() for name in names}
    known |= {name for names in apis.values() for name in names}
    known |= primitives | {f"{PRIMITIVE}.{name}" for name in primitives}
    for entry in black_list:
        prefix, _, rest = entry.rpartition(".")
        if entry in known or (prefix and prefix.partition(".")[0] not in (*PREFIXES, PRIMITIVE)):
            continue  # a prefix of the user's own, or an attribute and its class
        if prefix.startswith(f"{PRIMITIVE}.") and rest in primitives:
            continue
        close = get_close_matches(entry, sorted(known), n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        logger.warning("black_list: no API or primitive is called %r%s", entry, hint)


def _routines(prefix: str) -> set[str]:
    owner: Any = owner_of(prefix)
    if owner is None:
        return set()
    return {name for name in dir(owner) if inspect.isroutine(inspect.getattr_static(owner, name))}


def _public_primitives() -> set[str]:
    return {
        name
        for home in (ops, ops.operations, ops.auto_generate)
        for name, kind in inspect.getmembers_static(home, inspect.isclass)
        if issubclass(kind, Primitive)
    }
