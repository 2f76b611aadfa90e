# SPDX-License-Identifier: Apache-2.0
"""The calls of a rank of a parallel run, and their names in the whole model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from msprobe.dump.rank_view import RankView
from msprobe.dump.record_names import RecordName
from msprobe.errors import UsageError
from msprobe.graph.hierarchy import Calls, build_nodes
from msprobe.graph.model import HalfKind, Node, NodeKind
from msprobe.operators.lookup import operator_of
from msprobe.operators.operator import Flow

Key = tuple[Hashable, ...]
"""Place of a call in the model, the same on all ranks that make the call; its name is the last."""

_NUMBER: Final = re.compile(r"(?:(?<=\.)|^)(\d+)(?=\.|$)")
_EXPERT: Final = re.compile(r"(?<![^.])((?:local_)?experts)\.(\d+)(?=\.|$)")
_CHUNK: Final = re.compile(r"(\d+)(?:\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankCall:
    """One call of a rank.

    Attributes:
        key: its place in the whole model.
        name: its forward record's name, as the rank has it.
        path: its path in the whole model.
        node: its records.
        rank_view: the dump that these are in.
        micro_step: number of the micro batch.
        is_backward: whether it was made by the backward pass.
    """

    key: Key
    name: RecordName
    path: str
    node: Node
    rank_view: RankView
    micro_step: int
    is_backward: bool

    def records(self) -> Iterator[tuple[HalfKind, int, str]]:
        """Yield kind, number among those of this kind, and name of each record."""
        counts: Counter[HalfKind] = Counter()
        for half in self.node.halves:
            if half.is_recorded:
                yield half.kind, counts[half.kind], half.record
            counts[half.kind] += 1

    def all_names(self) -> list[str]:
        """Return the names of its records, and of those that only its place is known of."""
        return [half.record for half in self.node.halves] or [self.name.full]

    def renamed(self, record: str, number: int | None) -> str:
        """Return the name of one of its records in the whole model.

        Args:
            record: one of `all_names`.
            number: of the call among all of the API; None to keep its own.
        """
        name = self.name
        start = f"{name.prefix}.{name.path}." if name.path else f"{name.prefix}."
        if not name.prefix or not record.startswith(start):
            return record
        end = record[len(start) :]
        if number is not None:
            end = end.replace(str(name.index), str(number), 1)
        return f"{name.prefix}.{self.path}.{end}" if self.path else f"{name.prefix}.{end}"


@dataclass(slots=True, kw_only=True)
class Renaming:
    """Numbers layers and experts on over the pieces of a model.

    Attributes:
        keeps_number: whether modules keep the number of the model among several, then 0.
        ranks_of_experts: number of ranks that share the experts.
    """

    keeps_number: bool
    ranks_of_experts: int
    outside: Counter[Key] = field(default_factory=Counter)
    """Calls outside of all modules in earlier pieces."""
    _layers: Counter[str] = field(default_factory=Counter)

    def path(self, piece: Piece, path: str, expert: int) -> str:
        """Return the path of a module in the whole model."""
        start, inner = piece.split(path)
        if start and self.keeps_number:
            start = "0." if inner else "0"
        elif start:
            start = ""
        if found := _NUMBER.search(inner):
            name = inner[: found.start()]
            number = int(found[1]) + self._offset(piece, name)
            inner = f"{name}{number}{inner[found.end() :]}"
        if self.ranks_of_experts > 1:
            inner = _EXPERT.sub(lambda found: _expert(piece, found, expert), inner)
        return start + inner

    def _offset(self, piece: Piece, name: str) -> int:
        """Return the number of layers in earlier pieces, unless they are numbered on already."""
        before = self._layers[name]
        return 0 if before and piece.layers[name][0] >= before else before

    def count(self, piece: Piece, calls: Sequence[RankCall]) -> None:
        """Take note of the layers and calls of a piece; later pieces begin behind them."""
        self.outside.update(
            call.key[-1:] for call in calls if len(call.key) == 2 and not call.name.is_module
        )
        for name, (_, last) in piece.layers.items():
            self._layers[name] = last + 1 + self._offset(piece, name)


def _expert(piece: Piece, found: re.Match[str], rank: int) -> str:
    return f"{found[1]}.{rank * piece.experts + int(found[2])}"


class Piece:
    """A part of the model on one rank.

    Attributes:
        layers: path up to the number of a layer → the smallest and the largest number.
        experts: number of experts in one list.
    """

    def __init__(self, view: RankView, nodes: Sequence[Node], *, is_numbered: bool) -> None:
        self._view, self._nodes, self._is_numbered = view, nodes, is_numbered
        self.layers: dict[str, tuple[int, int]] = {}
        self.experts = 0
        for node in nodes:
            if node.kind is not NodeKind.MODULE:
                continue
            _, inner = self.split(node.path)
            if found := _NUMBER.search(inner):
                name, number = inner[: found.start()], int(found[1])
                low, high = self.layers.get(name, (number, number))
                self.layers[name] = min(low, number), max(high, number)
            for found in _EXPERT.finditer(inner):
                self.experts = max(self.experts, int(found[2]) + 1)

    @staticmethod
    def is_numbered(view: RankView) -> bool:
        """Return whether modules of a rank begin with the number of a model among several."""
        return _is_numbered(_nodes(view))

    def split(self, path: str) -> tuple[str, str]:
        """Return the number of the model that a path begins with, and the rest."""
        found = _CHUNK.match(path) if self._is_numbered else None
        return (found[0], path[found.end() :]) if found else ("", path)

    def calls(self, renaming: Renaming, *, expert: int = 0) -> list[RankCall]:
        """Return the calls in order, messages between stages left out.

        Args:
            renaming: numbers layers and experts.
            expert: place of the rank among those that share the experts.
        """
        found: list[RankCall] = []
        keys: dict[int, Key] = {0: ()}
        backward: set[int] = set()
        counts = Counter(renaming.outside)
        micro_step = 0
        for node in self._nodes:
            name = self._view.records.parsed(node.name)
            if node.kind is NodeKind.COLLECTION:
                keys[node.id] = keys.get(node.parent, ())
                continue
            if node.parent <= 0 and name.is_module:
                micro_step = name.index or 0
            path = renaming.path(self, name.path, expert) if name.is_module else name.path
            if name.is_module:
                key: Key = (f"{name.prefix}.{path}.{name.class_name}.{name.index}",)
            else:
                base = (*keys.get(node.parent, ()), name.base or name.full)
                key = (*base[:-1], counts[base], base[-1])
                counts[base] += 1
            keys[node.id] = key
            if node.parent in backward or self._is_in_backward(node):
                backward.add(node.id)
            is_sent = name.prefix == "Distributed"
            sent = operator_of(name.prefix, name.path).communication if is_sent else None
            if sent is not None and (sent.flow.is_message or sent.flow is Flow.MESSAGES):
                continue
            found.append(
                RankCall(
                    key=key,
                    name=name,
                    path=path,
                    node=node,
                    rank_view=self._view,
                    micro_step=micro_step,
                    is_backward=node.id in backward,
                )
            )
        return found

    def _is_in_backward(self, node: Node) -> bool:
        """Return whether the backward pass made a call: its place is in a backward record."""
        if not node.halves:
            return False
        above = self._view.parents.get(node.halves[0].record)
        kinds = (HalfKind.FORWARD, HalfKind.RECOMPUTED)
        return node.halves[0].kind in kinds and above is not None and "backward" in above.split(".")


def pieces_of(view: RankView, count: int) -> list[Piece]:
    """Return the parts of the model that a rank has.

    Raises:
        UsageError: it has another number of parts.
    """
    nodes = _nodes(view)
    is_numbered = _is_numbered(nodes)
    if count == 1:
        return [Piece(view, nodes, is_numbered=is_numbered)]
    parts: dict[int, list[Node]] = {}
    current = 0
    for node in nodes:
        if node.parent <= 0 and node.kind is NodeKind.MODULE and is_numbered:
            found = _CHUNK.match(node.path)
            current = int(found[1]) if found else current
        parts.setdefault(current, []).append(node)
    if sorted(parts) != [*range(count)]:
        raise UsageError(
            f"--vpp {count}: {view.directory} holds {len(parts)} piece(s) of the model, "
            "not that many; pieces are modules of a list, as Module.0.…"
        )
    return [Piece(view, parts[number], is_numbered=True) for number in range(count)]


def _nodes(view: RankView) -> list[Node]:
    """Return all nodes but the root."""
    known = Calls(
        parents=view.parents,
        records=view.records,
        parsed=view.records.parsed,
        micro_steps={},
        framework=view.head.framework,
    )
    return build_nodes(known)[0][1:]


def _is_numbered(nodes: Sequence[Node]) -> bool:
    """Return whether the modules at the top are those of a list."""
    top = [node.path for node in nodes if node.parent <= 0 and node.kind is NodeKind.MODULE]
    return bool(top) and all(path.isdigit() for path in top)
