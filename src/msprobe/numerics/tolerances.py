# SPDX-License-Identifier: Apache-2.0
"""Tolerances: by element type, by the tensor's own size, and by the user's rules.

The numbers are in ``tolerances.yaml`` beside this module; a file of the user's has the same form
and is laid over it.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msprobe.numerics.number_types import FLOAT_TYPES, Kind, coarser, kind_of
from msprobe.yaml_nodes import Node, parse_yaml, read_yaml

if TYPE_CHECKING:
    from msprobe.numerics.elementwise import Tolerance

_BUILT_IN: Final = "tolerances.yaml"
_FIELDS: Final = ("rtol", "rms_tol", "absolute")
# The name of `rms_tol` in earlier versions; everywhere else it is an absolute tolerance.
_OLD_RMS_TOL: Final = "atol"
_PARTS: Final = ("dtypes", "rows")
# For tensors whose statistics are unknown, so that their size is: torch.testing's own floor.
_FLOOR_WITHOUT_SIZE: Final = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTolerance:
    """Allowed difference: ``rtol * |reference| + rms_tol * rms + absolute``.

    Attributes:
        rtol: relative to each element of the reference.
        rms_tol: relative to the root mean square of the reference.
        absolute: in the units of the values.
    """

    rtol: float
    rms_tol: float = 0.0
    absolute: float = 0.0

    @property
    def relative(self) -> float:
        """Tolerance of a statistic of the whole tensor, relative to its size."""
        return self.rtol + self.rms_tol


EXACT: Final = RowTolerance(rtol=0.0)


@dataclass(frozen=True, slots=True)
class _Rule:
    glob: str
    pattern: re.Pattern[str]
    fields: Mapping[str, float]


class Tolerances:
    """Tolerances of types, and rules that change them for some rows.

    Make it with `load`.
    """

    def __init__(self, dtypes: Mapping[str, RowTolerance], rules: tuple[_Rule, ...] = ()) -> None:
        self._dtypes = dtypes
        self._rules = rules
        self._by_pair: dict[tuple[str, str], RowTolerance] = {}

    @classmethod
    def load(cls, path: Path | None = None) -> Tolerances:
        """Return the built-in tolerances, with a user's YAML file laid over them.

        Raises:
            ConfigFileError: the file cannot be read or is not YAML.
            ConfigError: an unknown key or type, or a value that is no number >= 0; with its line.
        """
        text = resources.files(__package__).joinpath(_BUILT_IN).read_text("utf-8")
        dtypes, _ = _parse(parse_yaml(text, Path(_BUILT_IN)), {})
        if path is None:
            return cls(dtypes)
        own, rules = _parse(read_yaml(path, may_be_empty=True), dtypes)
        return cls({**dtypes, **own}, rules)

    @property
    def has_rules(self) -> bool:
        """Whether a user's rule depends on the names of rows."""
        return bool(self._rules)

    def for_row(self, name: str, target_dtype: str, reference_dtype: str) -> RowTolerance:
        """Return the tolerance of one row; zero for integers and truth values.

        Args:
            name: the row's name, which globs are matched with.
            target_dtype: normal name of the type, such as ``float32``.
            reference_dtype: the reference's type; the coarser of the two decides.
        """
        pair = (target_dtype, reference_dtype)
        found = self._by_pair.get(pair)
        if found is None:
            found = self._by_pair[pair] = self._for_types(*pair)
        for rule in self._rules:
            if rule.pattern.match(name):
                found = replace(found, **rule.fields)
        return found

    def unused_globs(self, names: Iterable[str]) -> list[str]:
        """Return the globs of the user's rules that match none of these rows."""
        left = list(self._rules)
        for name in names if left else ():
            left = [rule for rule in left if not rule.pattern.match(name)]
            if not left:
                break
        return [rule.glob for rule in left]

    def for_elements(
        self, name: str, target_dtype: str, reference_dtype: str, size: float | None
    ) -> Tolerance:
        """Return the tolerance of single elements, as the element metrics take it.

        Args:
            name: the row's name, which globs are matched with.
            target_dtype: normal name of the type.
            reference_dtype: the reference's type.
            size: root mean square of the reference; None where unknown: the absolute floor is then
                that of torch.testing.
        """
        from msprobe.numerics.elementwise import Tolerance

        allowed = self.for_row(name, target_dtype, reference_dtype)
        if not allowed.rms_tol:
            return Tolerance(rtol=allowed.rtol, atol=allowed.absolute)
        floor = _FLOOR_WITHOUT_SIZE if size is None else allowed.rms_tol * size
        return Tolerance(rtol=allowed.rtol, atol=floor + allowed.absolute)

    def _for_types(self, target: str, reference: str) -> RowTolerance:
        floats = [
            dtype for dtype in (target, reference) if kind_of(dtype) in (Kind.FLOAT, Kind.COMPLEX)
        ]
        if not floats:
            return EXACT
        dtype = coarser(floats[0], floats[-1])
        return self._dtypes.get(dtype, self._dtypes["float32"])


def _parse(
    top: Node, known: Mapping[str, RowTolerance]
) -> tuple[dict[str, RowTolerance], tuple[_Rule, ...]]:
    """Return types and rules of a file; `known` are the types that it is laid over."""
    dtypes: dict[str, RowTolerance] = {}
    rules: list[_Rule] = []
    for part, place, entries in _items(top):
        if part not in _PARTS:
            place.refuse(part, _PARTS)
        for name, _, numbers in _items(entries):
            fields = dict(_number(field, value) for field, _, value in _items(numbers))
            if part == "dtypes":
                _check_type(name, numbers)
                dtypes[name] = replace(known.get(name, RowTolerance(rtol=0.0)), **fields)
            else:
                rules.append(_Rule(name, re.compile(fnmatch.translate(name)), fields))
    return dtypes, tuple(rules)


def _check_type(name: str, numbers: Node) -> None:
    if name not in FLOAT_TYPES:
        is_exact = kind_of(name) in (Kind.INTEGER, Kind.BOOL)
        hint = "integers and truth values are compared exactly; rows may say otherwise"
        numbers.refuse(name, sorted(FLOAT_TYPES), hint=hint if is_exact else "")


def _items(node: Node) -> Iterable[tuple[str, Node, Node]]:
    return () if node.kind == "null" else node.items("a mapping")


def _number(field: str, value: Node) -> tuple[str, float]:
    if field == _OLD_RMS_TOL:
        field = "rms_tol"
    if field not in _FIELDS:
        value.refuse(field, _FIELDS)
    rule = "a number >= 0"
    text = value.text(rule)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        value.refuse(text, rule)
    return field, number
