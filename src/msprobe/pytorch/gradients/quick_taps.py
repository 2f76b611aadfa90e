# SPDX-License-Identifier: Apache-2.0
"""Tap the gradients of a call: nearly all in a quick way, the others by `gradient_taps.Tapping`.

The quick ones are APIs and small modules whose one result is a tensor of one new node or a few,
each input consumed once and nothing handed through. That costs a third.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from torch import Tensor
from torch.autograd.function import BackwardCFunction

from msprobe.capture.backward import Gradients
from msprobe.capture.call import Call
from msprobe.capture.session import Session
from msprobe.capture.values import Found, Position
from msprobe.pytorch.gradients.gradient_taps import InputEdges, Tapping
from msprobe.pytorch.gradients.node_taps import NodeTap, OutputTap, Region, leave_mark
from msprobe.pytorch.gradients.shared_edges import ACCUMULATES, SharedEdges
from msprobe.pytorch.values.tensor_search import output_slots

_FEW_NODES: Final = 8  # a linear layer makes four
_CUSTOM_NODE: Final[Any] = BackwardCFunction
# An input slot of a node, the position of the input that it reaches, see `NodeTap.inputs`.
_Reached = tuple[int, Position, int, None]


def tap_gradients(
    session: Session,
    shared: SharedEdges,
    call: Call,
    edges: InputEdges,
    found: Found,
    arguments: int,
    result: Any,
    *,
    is_one_api: bool,
) -> None:
    """Attach the taps of a call.

    Args:
        session: receives the gradients.
        shared: divides gradients among calls.
        call: the call.
        edges: of its inputs.
        found: its inputs.
        arguments: how many positional ones it has.
        result: its result.
        is_one_api: whether no code of the user's runs inside.
    """
    if type(result) is Tensor:
        if not result.requires_grad:
            return
        with suppress(RuntimeError):  # of a stale view
            if _tap_one_output(session, call, edges, found, arguments, result, is_one_api):
                return
    tapping = Tapping(session, shared, call, edges, found, arguments, is_one_api=is_one_api)
    tapping.attach(output_slots(result))


def _tap_one_output(
    session: Session,
    call: Call,
    edges: InputEdges,
    found: Found,
    arguments: int,
    output: Tensor,
    is_one_api: bool,
) -> bool:
    """Tap a call whose one result is a tensor that requires grad.

    Returns: whether it is done; otherwise nothing is, and `Tapping` must do it.

    Raises:
        RuntimeError: from torch, for a stale view; nothing is done then.
    """
    node: Any = output.grad_fn
    if node is None or edges.stale or (node, output.output_nr) in edges.inner:
        return False
    top, number, region = node, output.output_nr, None
    if output._is_view():
        base: Any = output._base
        behind = base.grad_fn
        if behind is not None and behind._sequence_nr() >= edges.born:
            region = Region.of(base, output, is_all=True) if is_one_api else None
            if region is None or any(one is output for one, _ in found):
                return False
            top, number = behind, base.output_nr
    reached = _walk(top, edges)
    if reached is None:
        return False
    gradients = Gradients.expect(call, arguments, [position for _, position in found])
    gradients.outputs = 1
    hits = sum(map(len, reached.values()))
    gradients.expected = 1 + hits
    gradients.has_input_edges = hits > 0
    tap = NodeTap(session, gradients, ((0, number, region),), reached.pop(top, ()))
    if tap.inputs:
        top.register_hook(tap)
    else:
        top.register_prehook(OutputTap(tap))
    for one, slots in reached.items():
        one.register_hook(NodeTap(session, gradients, (), slots))
    if region is None:
        leave_mark(top, tap)
    else:
        leave_mark(node, NodeTap(session, gradients, ((0, output.output_nr, region),)))
    return True


def _walk(top: Any, edges: InputEdges) -> dict[Any, tuple[_Reached, ...]] | None:
    """Return the nodes of the call that reach each input; None for a call of another kind."""
    inner, leaves, born = edges.inner, edges.leaves, edges.born
    reached: dict[Any, tuple[_Reached, ...]] = {}
    taken: list[Any] = []
    nodes = [top]
    for node in nodes:  # which grow
        if isinstance(node, _CUSTOM_NODE):
            return None
        for slot, edge in enumerate(node.next_functions):
            parent: Any = edge[0]
            if parent is None:
                continue
            positions = inner.get(edge)
            if positions is None:
                sequence_number = parent._sequence_nr()
                if sequence_number < born:
                    continue
                if sequence_number < ACCUMULATES:
                    if parent in nodes or len(nodes) == _FEW_NODES:
                        return None
                    nodes.append(parent)
                    continue
                positions = leaves.get(id(parent.variable))
                if positions is None:
                    continue
            if len(positions) > 1 or positions in taken:
                return None
            taken.append(positions)
            reached[node] = (*reached.get(node, ()), (slot, positions[0], 1, None))
    return reached
