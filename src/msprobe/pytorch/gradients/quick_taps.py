# SPDX-License-Identifier: Apache-2.0
"""Tap the gradients of a call: nearly all in a quick way, the others by `gradient_taps.Tapping`.

The quick ones are calls whose one result is a tensor with few new nodes and nothing handed through;
an API consumes each input once. That costs a third. A module may consume an input several times and
make up to 64 nodes in C, and a call may have several results on one node; here in Python such calls
go the long way, to the same records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.graph import Node

from msprobe.capture.backward import CLOSED, Gradients
from msprobe.capture.session import Session
from msprobe.capture.values import Position
from msprobe.pytorch.gradients.gradient_taps import Tapping
from msprobe.pytorch.gradients.graph_search import CUSTOM_NODE, Hit, find_edges
from msprobe.pytorch.gradients.input_edges import InputEdges, sequence_number
from msprobe.pytorch.gradients.node_taps import (
    NodeTap,
    OutputTap,
    Reached,
    Region,
    Reshaped,
    Turned,
    leave_mark,
    take_gradients,
)
from msprobe.pytorch.gradients.shared_edges import ACCUMULATES, SharedEdges
from msprobe.pytorch.interception.guard import CALL_S, DISPLACED, quietly
from msprobe.pytorch.values.memo import TENSORS
from msprobe.pytorch.values.tensor_search import output_slots

_FEW_NODES: Final = 8  # a linear layer makes four
_NO_OUTPUTS: Final[dict[Any, int]] = {}
# A product sees its factors in other shapes, and its result may be shown in another one.
_TURNED: Final = "TBackward0"
_VIEWS: Final = frozenset({_TURNED, "ViewBackward0"})
_SHOWN: Final = "UnsafeViewBackward0"


def tap_gradients(
    session: Session, shared: SharedEdges, recorder: object, edges: InputEdges, result: Any
) -> None:
    """Attach the taps of a call.

    Args:
        session: receives the gradients.
        recorder: the `CallRecorder` that makes their records where it can; None for none.
        shared: divides gradients among calls.
        edges: the inputs of the call.
        result: its result.
    """
    if type(result) is Tensor:
        if not result.requires_grad:
            return
        try:
            if tap_output(session, recorder, edges, result):
                return
        except RuntimeError:  # of a stale view, to which nothing was done
            pass
    tap_other_gradients(session, shared, edges, result)


def tap_other_gradients(
    session: Session, shared: SharedEdges, edges: InputEdges, result: Any
) -> None:
    """Attach the taps of a call that the quick way does not take, see `tap_gradients`."""
    Tapping(session, shared, edges).attach(output_slots(result))


def _tap_one_output(session: Session, _recorder: object, edges: InputEdges, output: Tensor) -> bool:
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
    reached: dict[Any, tuple[Reached, ...]] = {}
    for one, slot, position, part in _past_views(top, hits, edges):
        reached[one] = (*reached.get(one, ()), (slot, position, 1, part))
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


def _past_views(
    top: Any, hits: list[Hit], edges: InputEdges
) -> Iterator[tuple[Node, int, Position, Reshaped | Turned | None]]:
    """Yield node, slot and position of each input, and how the gradient there becomes the input's.

    The factors of a product may be views of inputs, as in a linear layer. The product's own node
    has the gradients of all of them: one hook instead of one for each. Only inside of one API: a
    module's own view may have a hook that changes its gradient.
    """
    slots: dict[Node, int] | None = None
    for node, slot, positions in hits:
        position = positions[0]
        kind = type(node).__name__
        if edges.is_one_api and node is not top and kind in _VIEWS:
            if slots is None:
                inner = top.next_functions[0][0] if type(top).__name__ == _SHOWN else top
                slots = {edge[0]: index for index, edge in enumerate(inner.next_functions)}
            if node in slots:
                yield inner, slots[node], position, _view_at(position, kind, edges)
                continue
        yield node, slot, position, None


def _view_at(position: Position, kind: str, edges: InputEdges) -> Reshaped | Turned:
    if kind == _TURNED:
        return Turned()
    return Reshaped(next(one.size() for one, place in edges.found if place == position))


def _choose() -> Callable[[Session, object, InputEdges, Tensor], bool]:
    if TENSORS is None:
        return _tap_one_output
    TENSORS.setup_taps(
        ACCUMULATES,
        CALL_S,
        DISPLACED,
        Gradients,
        CUSTOM_NODE,
        partial(Region.of, is_all=True),
        Region.whole,
        Reshaped,
        Turned(),
        take_gradients,
        quietly,
        time.perf_counter,
        torch._C.DisableTorchFunction,
        torch.is_grad_enabled,
        torch._C._set_grad_enabled,
        torch._C._len_torch_dispatch_stack,
        torch._C._are_functorch_transforms_active,
        torch._C._current_graph_task_id,
        sequence_number,
        CLOSED,
    )
    tap: Callable[[Session, object, InputEdges, Tensor], bool] = TENSORS.tap_output
    return tap


tap_output: Final = _choose()
"""Tap the gradients of a call whose one output is a tensor that requires grad.

It returns whether it is done; otherwise nothing is, and `Tapping` must do it. A stale view is a
RuntimeError of torch's; nothing is done then.
"""
