# SPDX-License-Identifier: Apache-2.0
"""Select calls to keep: `list`, `scope`, `black_list` and `data_mode` of the active task.

Pure bookkeeping over record names; the only state is whether execution is inside the scope.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from msprobe.config import DataMode
from msprobe.config.choices import RiskLevel
from msprobe.dump.record_names import RecordKind
from msprobe.operators.operator import Importance

RISKS: Final = {
    Importance.CORE: RiskLevel.CORE,
    Importance.NORMAL: RiskLevel.FOCUS,
    Importance.LOW: RiskLevel.ALL,
}
"""The strictest `risk_level` that keeps an operator, by how much it matters."""


def _ends_in_number(part: str, stem: str) -> bool:
    """Return whether the end of `stem` and a number after it are `part`."""
    head = part.rstrip("0123456789")
    return head != part and stem.endswith(head)


class Scope:
    """The range between two record names, both included, in order of execution."""

    __slots__ = ("_end", "_ending", "_inside", "_start")

    def __init__(self, start: str, end: str) -> None:
        self._start = start
        self._end = end
        self._inside = self._ending = False

    def begin(self, name: str) -> bool:
        """Note that `name` begins; return whether its inputs lie in the range."""
        if name == self._start:
            self._inside = True
        return self._inside

    def is_bound(self, name: str) -> bool:
        """Return whether the range begins or ends with `name`."""
        return name in (self._start, self._end)

    def end(self, name: str) -> bool:
        """Note that `name` ended; return whether its outputs lie in the range."""
        inside = self._inside
        if name == self._end:
            self._inside = False
        return inside

    @property
    def bounds(self) -> tuple[str, str]:
        """The two names."""
        return self._start, self._end

    @property
    def inside(self) -> bool:
        """Whether execution is in the range."""
        return self._inside

    def reset(self) -> None:
        """Leave the range, as the end of a step does."""
        self._inside = self._ending = False

    def covers(self, names: Collection[str]) -> bool:
        """Return whether a kernel lies in the range.

        The range ends with the last kernel inside the second name.

        Args:
            names: that of the kernel, and those of the calls around it.
        """
        if self._start in names:
            self._inside = True
        if self._end in names:
            self._ending = self._inside
        elif self._ending:
            self.reset()
        return self._inside


class Selection:
    """Decides which parts of a call to keep.

    Attributes:
        everything: True when no filter is set, which callers use as a short cut.
        expands_modules: whether `list` keeps everything inside a matching module (mix).
        only_tree: whether modules and APIs only make the tree of calls.
        scope: the range of `scope`, None without; that of kernels is `kernel_scope`.
    """

    __slots__ = (
        "_filters",
        "_refused",
        "data_mode",
        "everything",
        "expands_modules",
        "kernel_scope",
        "only_tree",
        "scope",
    )

    def __init__(
        self,
        *,
        name_filters: Sequence[str] = (),
        scope: tuple[str, str] | None = None,
        black_list: Sequence[str] = (),
        data_mode: DataMode,
        expands_modules: bool = False,
        only_tree: bool = False,
    ) -> None:
        self._filters = tuple(name_filters)
        self._refused = frozenset(black_list)
        self.expands_modules = expands_modules
        self.only_tree = only_tree
        wanted = Scope(*scope) if scope else None
        self.scope: Scope | None = None if only_tree else wanted
        self.kernel_scope: Scope | None = wanted if only_tree else None
        self.data_mode = data_mode
        self.everything = not self._filters and self.scope is None

    def refuses_api(self, api: str, base: str) -> bool:
        """Return whether the black list names this API (``relu`` or ``Functional.relu``)."""
        return api in self._refused or base in self._refused

    def matches(self, name: str) -> bool:
        """Return whether `name` contains an element of `list` (always, when there is none)."""
        return not self._filters or any(part in name for part in self._filters)

    def may_match(self, module: str) -> bool:
        """Return whether `list` can keep a record of this module, whichever number it has."""
        kinds = RecordKind.FORWARD, RecordKind.BACKWARD, RecordKind.PARAMETERS_GRAD
        stems = [f"{module}.{kind}." for kind in kinds]
        return not self._filters or any(
            part in stem or _ends_in_number(part, stem) for part in self._filters for stem in stems
        )

    @property
    def has_filters(self) -> bool:
        """Whether `list` is set."""
        return bool(self._filters)
