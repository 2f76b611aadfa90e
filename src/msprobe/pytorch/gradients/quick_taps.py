# SPDX-License-Identifier: Apache-2.0
"""Tap the gradients of a call: nearly all in a quick way, the others by `gradient_taps.Tapping`.

The quick ones are APIs and small modules whose one result is a tensor of one new node or a few,
each input consumed once and nothing handed through. That costs a third.
"""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor

from msprobe.capture.session import Session
from msprobe.capture.values import Position
from msprobe.pytorch.gradients.gradient_taps import InputEdges, Tapping
from msprobe.pytorch.gradients.graph_search import Hit, find_edges
from msprobe.pytorch.gradients.node_taps import NodeTap, OutputTap, Region, leave_mark
from msprobe.pytorch.gradients.shared_edges import SharedEdges
from msprobe.pytorch.values.tensor_search import output_slots

_FEW_NODES: Final = 8  # a linear layer makes four
_NO_OUTPUTS: Final[dict[Any, int]] = {}
# An input slot of a node, the position of the input that it reaches, see `NodeTap.inputs`.
_Reached = tuple[int, Position, int, None]


def tap_gradients(session: Session, shared: SharedEdges, edges: InputEdges, result: Any) -> None:
    """Attach the taps of a call.

    Args:
        session: receives the gradients.
        shared: divides gradients among calls.
        edges: the inputs of the call.
        result: its result.
    """
    if type(result) is Tensor:
        if not result.requires_grad:
            return
        try:
            if _tap_one_output(session, edges, result):
                return
        except RuntimeError:  # of a stale view, to which nothing was done
            pass
    Tapping(session, shared, edges).attach(output_slots(result))


def _tap_one_output(session: Session, edges: InputEdges, output: Tensor) -> bool:
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
            region = Region.of(base, output, is_all=True) if edges.is_one_api else None
            if region is None or any(one is output for one, _ in edges.found):
                return False
            top, number = behind, base.output_nr
    found = find_edges([top], edges.inner, edges.leaves, _NO_OUTPUTS, edges.born, _FEW_NODES)
    if found is None:
        return False
    hits: list[Hit] = found[0]
    reached: dict[Any, tuple[_Reached, ...]] = {}
    for one, slot, positions in hits:
        reached[one] = (*reached.get(one, ()), (slot, positions[0], 1, None))
    gradients = edges.expected_gradients()
    gradients.outputs = 1
    gradients.expected = 1 + len(hits)
    gradients.has_input_edges = bool(hits)
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
