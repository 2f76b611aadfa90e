# SPDX-License-Identifier: Apache-2.0
"""Find the source line that called a kernel, by the kernel's full name in a graph."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from msprobe.dump.kernel_ir import IrGraph, IrOperator, IrValue, SourceLine

_UNSAFE: Final = re.compile(r"[/\\. ]")
_NUMBER: Final = re.compile(r"-op\d+\Z")

# Prefixes that optimizers give to the names of a parameter's states.
_STATES: Final = (
    "accum_",
    "stat_",
    "moments_",
    "moment_",
    "moment1_",
    "moment2_",
    "adam_m_",
    "adam_v_",
    "vhat_",
    "mean_grad_",
    "mean_square_",
)


class CodePlace(NamedTuple):
    """Source location of a kernel.

    Attributes:
        scope: its full name, or that of the cell that defines a parameter.
        frames: the calls that led there, innermost first.
    """

    scope: str
    frames: tuple[SourceLine, ...]


def flat_name(name: str) -> str:
    """Return a full name as file names have it."""
    return _UNSAFE.sub("_", name)


def kernel_kind(name: str) -> str | None:
    """Return a full name, as file names have it, without its number; None if it has no number."""
    flat = flat_name(name)
    found = _NUMBER.search(flat)
    return flat[: found.start()] if found else None


class CodeMap:
    """The kernels and parameters of graphs, found by exact name."""

    def __init__(self, graphs: Iterable[IrGraph]) -> None:
        """Index the operators and parameters of the graphs.

        Args:
            graphs: of one program; where two name the same operator, the first with a stack counts.
        """
        graphs = list(graphs)
        self._all = [operator for graph in graphs for operator in graph.operators]
        self._operators: dict[str, IrOperator] = {}
        self._by_identity: dict[str, IrOperator] = {}
        self._parameters = {flat_name(name): name for graph in graphs for name in graph.parameters}
        for operator in self._all:
            known = self._operators.get(flat_name(operator.scope))
            if known is None or (operator.frames and not known.frames):
                self._operators[flat_name(operator.scope)] = operator
            if operator.identity:
                self._by_identity.setdefault(operator.identity, operator)

    def kernel(self, name: str) -> CodePlace | None:
        """Return the source location of a kernel; None if no graph names it.

        Args:
            name: full name, also as file names have it; older files have its last part alone,
                which is found where only one kernel ends in it.
        """
        operator = self._operators.get(flat_name(name))
        if operator is None:
            operator = self._by_last_part.get(name)
        return None if operator is None else self._place(operator)

    def full_name(self, name: str) -> str:
        """Return the full name of a kernel with its slashes; the name itself if no graph has it."""
        operator = self._operators.get(flat_name(name))
        return name if operator is None else operator.scope

    def inputs(self, name: str) -> Sequence[IrValue | None]:
        """Return the values that a kernel is given, by place; none if no graph names it."""
        operator = self._operators.get(flat_name(name))
        return () if operator is None else operator.inputs

    def only_kernel_like(self, name: str) -> CodePlace | None:
        """Return the location of the only kernel of the same scope and type; None if not unique.

        MindSpore numbers kernels anew behind the last graph that it writes, so that a kernel may
        run under another number than its graph says.

        Args:
            name: full name, also as file names have it; its number does not count.
        """
        kind = kernel_kind(name)
        alike = [] if kind is None else self._by_kind.get(kind, [])
        # The same operator may be in several graphs, and in some of them without its calls.
        places = {self._place(operator) for operator in alike if self._frames(operator)}
        places = places or {self._place(operator) for operator in alike}
        is_one = len(places) == 1 and len({operator.scope for operator in alike}) == 1
        return places.pop() if is_one else None

    def parameter(self, name: str) -> CodePlace | None:
        """Return the cell that defines a parameter; None if no graph has such a cell.

        States of an optimizer (``accum.net.fc.weight``) belong to the cell of their parameter.

        Args:
            name: the parameter's name, also as file names have it.
        """
        flat = flat_name(name)
        for own in (flat, self._without_state(flat)):
            known = self._parameters.get(own)
            parts = known.split(".") if known else own.split("_")
            # In a flat name no cell can be told from a half of its name: the longest that fits
            # counts. The parameter's own name takes one part at least.
            for last in range(len(parts) - 1, 0, -1):
                scope = self._cells.get(flat_name(".".join(parts[:last])))
                if scope is not None:
                    return CodePlace(scope, self._common_frames.get(scope, ()))
        return None

    def _without_state(self, flat: str) -> str:
        """Return the parameter that a state of an optimizer belongs to; "" if it is none."""
        rest = flat.partition("_")[2]
        if rest in self._parameters:
            return rest
        state = next((state for state in _STATES if flat.startswith(state)), flat)
        return flat.removeprefix(state)

    def _place(self, operator: IrOperator) -> CodePlace:
        return CodePlace(operator.scope, tuple(reversed(self._frames(operator))))

    def _frames(self, operator: IrOperator) -> list[SourceLine]:
        forward = self._by_identity.get(operator.forward)
        return forward.frames if forward is not None and forward.frames else operator.frames

    @cached_property
    def _by_last_part(self) -> Mapping[str, IrOperator]:
        found: dict[str, IrOperator] = {}
        repeated = set()
        for operator in self._operators.values():
            last = operator.scope.rpartition("/")[2]
            if last in found:
                repeated.add(last)
            found[last] = operator
        return {last: operator for last, operator in found.items() if last not in repeated}

    @cached_property
    def _by_kind(self) -> Mapping[str, list[IrOperator]]:
        found: dict[str, list[IrOperator]] = {}
        for operator in self._all:
            kind = kernel_kind(operator.scope)
            if kind is not None:
                found.setdefault(kind, []).append(operator)
        return found

    @cached_property
    def _cells(self) -> Mapping[str, str]:
        """Scope of each cell by every ending of its path: ``net_fc1`` and ``fc1``.

        An ending that two cells share means the one nearest to the top.
        """
        found: dict[str, str] = {}
        for scope in sorted(self._cell_scopes(), key=lambda scope: (scope.count("/"), scope)):
            names = [part.rpartition("-")[0] for part in scope.split("/")[1:]]
            for first in range(len(names)):
                found.setdefault(flat_name(".".join(names[first:])), scope)
        return found

    def _cell_scopes(self) -> set[str]:
        scopes = set()
        for operator in self._operators.values():
            parts = operator.scope.split("/")
            for end in range(2, len(parts)):
                if parts[0] == "Default" and all("-" in part for part in parts[1:end]):
                    scopes.add("/".join(parts[:end]))
        return scopes

    @cached_property
    def _common_frames(self) -> Mapping[str, tuple[SourceLine, ...]]:
        """Calls that all operators of a cell share, innermost first, by the cell's scope."""
        found: dict[str, list[SourceLine]] = {}
        for operator in self._operators.values():
            parts = operator.scope.split("/")
            for end in range(1, len(parts) if operator.frames else 0):
                scope = "/".join(parts[:end])
                found[scope] = _common_start(found.get(scope, operator.frames), operator.frames)
        return {scope: tuple(reversed(frames)) for scope, frames in found.items()}


def _common_start(one: list[SourceLine], other: list[SourceLine]) -> list[SourceLine]:
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return one[:same]
