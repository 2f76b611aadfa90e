# SPDX-License-Identifier: Apache-2.0
"""The nodes of a rank: its calls, each inside the call that made it.

The place of a call is that of its forward record in ``construct.json``. Its backward record says
where it is only if there is no other: hooks of modules with in-place layers lose backward calls.
Without ``construct.json`` modules are nested by their paths.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msprobe.collectives.calls import is_communication
from msprobe.dump.call_tree import cut_cycles
from msprobe.dump.record_names import (
    PARAMETER_GRADIENTS,
    RecordKind,
    RecordName,
    forward_name,
    repeated_name,
)
from msprobe.graph.model import ROOT_NAME, Half, HalfKind, Node, NodeFlag, NodeKind
from msprobe.operators.lookup import is_in_place, operator_of

_KERNEL: Final = re.compile(r"-op\d+\Z")
_COLLECTION: Final = "Apis_Between_Modules"
_KINDS: Final = {
    RecordKind.FORWARD: HalfKind.FORWARD,
    RecordKind.BACKWARD: HalfKind.BACKWARD,
    RecordKind.PARAMETERS_GRAD: HalfKind.PARAMETERS_GRAD,
    RecordKind.PARAMETERS_GRAD_REDUCED: HalfKind.PARAMETERS_GRAD,
}
_ORDER_OF_HALVES: Final = tuple(HalfKind)


@dataclass(slots=True)
class _Call:
    """A node in the making."""

    name: RecordName
    parent: str | None = None
    is_placed: bool = False
    micro_step: int | None = None
    halves: list[Half] = field(default_factory=list)
    children: list[_Call] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Calls of a rank, and their places in the model.

    Attributes:
        parents: record name → the record that it ran inside, or None; in call order.
        records: the names of which there are records, in file order.
        parsed: takes a name apart.
        micro_steps: record name → number of its micro step, where that is known.
        framework: as the dump names it.
    """

    parents: Mapping[str, str | None]
    records: Mapping[str, object]
    parsed: Callable[[str], RecordName]
    micro_steps: Mapping[str, int]
    framework: str


def build_nodes(calls: Calls) -> tuple[list[Node], list[str]]:
    """Return the nodes of a rank in preorder, and notes on what is not known of their places."""
    parents = calls.parents
    notes: list[str] = []
    if not parents and len(calls.records):
        parents = _parents_by_path(calls)
        notes.append(_note_on(parents))
    made = _made_calls(calls, parents)
    _place_parameter_gradients(made)
    roots = _nest(made)
    _number_micro_steps(roots)
    return _numbered(roots, is_mindspore=calls.framework == "mindspore"), notes


def _note_on(parents: Mapping[str, str | None]) -> str:
    if any(parent is not None for parent in parents.values()):
        return "the dump does not say which call made which: modules are nested by their paths"
    return "the dump does not say which call made which: the calls are a flat list"


def _parents_by_path(calls: Calls) -> dict[str, str | None]:
    """Return the parents of modules by their paths. Records of modules are in the order of ends."""
    found: dict[str, str | None] = {}
    for direction in (RecordKind.FORWARD, RecordKind.BACKWARD):
        waiting: dict[str, str] = {}  # record → path of its module
        for record in calls.records:
            name = calls.parsed(record)
            if name.kind is not direction:
                continue
            found[record] = None
            if name.class_name is None:
                continue
            start = f"{name.path}." if name.path else ""
            for inner in [each for each, path in waiting.items() if path.startswith(start)]:
                found[inner] = record
                del waiting[inner]
            waiting[record] = name.path
    return _outer_first(found)


def _outer_first(parents: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the same, each call before those inside of it."""
    ordered: dict[str, str | None] = {}
    for record in parents:
        chain = []
        current: str | None = record
        while current is not None and current not in ordered:
            chain.append(current)
            current = parents[current]
        for each in reversed(chain):
            ordered[each] = parents[each]
    return ordered


def _made_calls(known: Calls, parents: Mapping[str, str | None]) -> dict[str, _Call]:
    """Return the calls by the name of their forward record, in the order in which they began."""
    calls: dict[str, _Call] = {}
    records, parsed, micro_steps = known.records, known.parsed, known.micro_steps
    groups = {parent for parent in parents.values() if parent is not None and "." not in parent}
    for order, record in enumerate(_in_order(parents, records)):
        if "." not in record and record not in groups and record not in records:
            continue
        name = parsed(record)
        key = _key_of(name, records, parents)
        call = calls.get(key)
        if call is None:
            call = calls[key] = _Call(parsed(key))
        if record in groups:
            continue
        half = HalfKind.RECOMPUTED if name.recompute else _KINDS.get(name.kind, HalfKind.FORWARD)
        call.halves.append(Half(half, record, order, record in records))
        if record in micro_steps and call.micro_step is None:
            call.micro_step = micro_steps[record]
        if not call.is_placed and record in parents:
            above = parents[record]
            call.parent = None if above is None else _key_of(parsed(above), records, parents)
            call.is_placed = half is HalfKind.FORWARD
    for group in groups & calls.keys():
        calls[group].parent = None
    return calls


def _in_order(parents: Mapping[str, str | None], records: Mapping[str, object]) -> list[str]:
    """Return all names in call order, groups where their first call is."""
    found: dict[str, None] = {}
    for name, parent in parents.items():
        if parent is not None and "." not in parent:
            found.setdefault(parent)
        found.setdefault(name)
    return list(found | dict.fromkeys(records))


def _key_of(
    name: RecordName, records: Mapping[str, object], parents: Mapping[str, str | None]
) -> str:
    """Return the name of the forward record of the call that a record belongs to."""
    first = repeated_name(name)
    if first is not None and (first in records or first in parents):
        return first
    if name.kind is RecordKind.BACKWARD and not name.recompute:
        return forward_name(name) or name.full
    return name.full


def _place_parameter_gradients(calls: dict[str, _Call]) -> None:
    """Move gradients of parameters to the last call of their module.

    Those of a module that was never called, as its parent uses its parameters itself, are put
    inside the innermost module around it that was.
    """
    last: dict[str, _Call] = {}
    by_path: dict[str, str] = {}
    gradients: list[str] = []
    for key, call in calls.items():
        if call.name.kind in PARAMETER_GRADIENTS:
            gradients.append(key)
        elif call.name.is_module:
            last[call.name.base] = call
            by_path[call.name.path] = key
    for key in gradients:
        module = last.get(calls[key].name.base)
        if module is not None:
            module.halves += calls.pop(key).halves
        else:
            calls[key].parent = _innermost(calls[key].name.path, by_path)


def _innermost(path: str, by_path: Mapping[str, str]) -> str | None:
    while path:
        path = path.rpartition(".")[0]
        if path in by_path:
            return by_path[path]
    return None


def _nest(calls: Mapping[str, _Call]) -> list[_Call]:
    """Put each call inside its parent; return those at the top."""
    parents = {key: call.parent for key, call in calls.items()}
    cut_cycles(parents)
    roots: list[_Call] = []
    for key, call in calls.items():
        call.parent = parents[key]
        above = None if call.parent is None else calls.get(call.parent)
        (roots if above is None else above.children).append(call)
    return roots


def _number_micro_steps(roots: Sequence[_Call]) -> None:
    """Number the micro steps: each begins with a forward call of a module after a backward one."""
    number = 0
    backward_from = None
    for root in roots:
        begins = min((half.order for half in root.halves), default=0)
        if root.micro_step is None:
            if root.name.is_module and backward_from is not None and begins > backward_from:
                number += 1
                backward_from = None
            root.micro_step = number
        backward = [half.order for half in root.halves if half.kind is HalfKind.BACKWARD]
        if backward and root.name.is_module:
            backward_from = min(backward) if backward_from is None else backward_from


def _numbered(roots: list[_Call], *, is_mindspore: bool) -> list[Node]:
    """Return the nodes in preorder."""
    nodes = [Node(id=0, parent=-1, kind=NodeKind.ROOT, name=ROOT_NAME, label=ROOT_NAME)]
    waiting: list[tuple[_Call | list[_Call], int, int]] = [
        (part, 0, 0) for part in reversed(_with_collections(roots))
    ]
    collections = 0
    while waiting:
        part, parent, micro_step = waiting.pop()
        if isinstance(part, list):
            node = _collection(len(nodes), parent, collections)
            collections += 1
            inside = part
        else:
            micro_step = micro_step if part.micro_step is None else part.micro_step
            node = _node(part, len(nodes), nodes[parent], is_mindspore=is_mindspore)
            inside = part.children
        node.micro_step = micro_step
        nodes.append(node)
        waiting += [(child, node.id, micro_step) for child in reversed(inside)]
    for node in reversed(nodes[1:]):
        nodes[node.parent].size += node.size
    return nodes


def _with_collections(roots: Sequence[_Call]) -> list[_Call | list[_Call]]:
    """Gather APIs that follow each other at the top, unless there is nothing else."""
    if all(root.name.class_name is None and not root.children for root in roots):
        return list(roots)
    parts: list[_Call | list[_Call]] = []
    run: list[_Call] = []
    for root in [*roots, None]:
        if root is not None and root.name.class_name is None and not root.children:
            run.append(root)
            continue
        if len(run) > 1:
            parts.append(run)
        else:
            parts += run
        run = []
        if root is not None:
            parts.append(root)
    return parts


def _collection(number: int, parent: int, place: int) -> Node:
    name = f"{_COLLECTION}.{place}"
    return Node(id=number, parent=parent, kind=NodeKind.COLLECTION, name=name, label=name)


def _node(call: _Call, number: int, parent: Node, *, is_mindspore: bool) -> Node:
    name = call.name
    halves = sorted(call.halves, key=lambda half: (_ORDER_OF_HALVES.index(half.kind), half.order))
    flags = _flags_of(call, halves)
    if name.is_module:
        kind, label = NodeKind.MODULE, _label(name, parent)
    elif not halves:
        kind, label = NodeKind.GROUP, name.full
    else:
        kind, label = NodeKind.API, name.prefix if _KERNEL.search(name.path) else name.path
        flags |= _flags_of_api(name, is_mindspore=is_mindspore)
    return Node(
        id=number,
        parent=parent.id,
        kind=kind,
        name=name.full,
        label=label,
        class_name=name.class_name or "",
        path=name.path,
        flags=flags,
        halves=halves,
    )


def _label(name: RecordName, parent: Node) -> str:
    """Return the path of a module from that of the module around it."""
    inner = name.path
    if parent.kind is NodeKind.MODULE and inner.startswith(f"{parent.path}."):
        inner = inner[len(parent.path) + 1 :]
    return inner or name.class_name or name.full


def _flags_of(call: _Call, halves: Sequence[Half]) -> NodeFlag:
    kinds = {half.kind for half in halves}
    flags = NodeFlag(0)
    if HalfKind.FORWARD in kinds:
        flags |= NodeFlag.FORWARD
    if HalfKind.BACKWARD in kinds:
        flags |= NodeFlag.BACKWARD
    if HalfKind.RECOMPUTED in kinds:
        flags |= NodeFlag.RECOMPUTED
    if halves and not kinds & {HalfKind.FORWARD, HalfKind.RECOMPUTED}:
        flags |= NodeFlag.UNCALLED
    if is_communication(call.name):
        flags |= NodeFlag.COMMUNICATION
    return flags


def _flags_of_api(name: RecordName, *, is_mindspore: bool) -> NodeFlag:
    operator = operator_of(name.prefix, name.path, is_mindspore=is_mindspore)
    flags = NodeFlag(0)
    if operator.hands_on:
        flags |= NodeFlag.FOLDED
    if is_in_place(name.path):
        flags |= NodeFlag.IN_PLACE
    return flags
