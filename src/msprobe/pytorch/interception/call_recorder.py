# SPDX-License-Identifier: Apache-2.0
"""The quick way of calls with plain arguments: their forward records are made in C.

`CallRecorder.begin` numbers a call, describes its inputs and notes where they hang in the graph;
`end` describes the result, taps the gradients and writes the record. So do the taps when the
gradients arrive. They are the same records that `Calls` and `Recording` make of any other call.
Whatever is out of the ordinary goes that way. For a `WatchRecording` the values are looked at and
nothing is described; a call in which something is found goes on in Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from msprobe.capture.call import Call
from msprobe.capture.recording import Recording
from msprobe.capture.session import Session
from msprobe.capture.stacks import Stack
from msprobe.capture.values import Found
from msprobe.capture.watch_recording import WatchRecording, writes_arguments
from msprobe.config import NanCheckSection
from msprobe.dump.journal import BUFFER_BYTES
from msprobe.dump.records import JsonTree
from msprobe.pytorch.gradients.input_edges import InputEdges
from msprobe.pytorch.gradients.quick_taps import tap_other_gradients
from msprobe.pytorch.gradients.shared_edges import SharedEdges
from msprobe.pytorch.values.adapter import TorchAdapter
from msprobe.pytorch.values.memo import TENSORS
from msprobe.pytorch.values.random_state import RandomWatch
from msprobe.pytorch.values.value_watch import TorchValueWatch


class QuickCall(Protocol):
    """A call that `CallRecorder.begin` began.

    Attributes:
        call: the call.
        found: its tensors.
        edges: where its inputs hang in the graph; None when no gradients are taken.
        is_described: whether its inputs are; otherwise one of them is not plain.
        random: compares the random state, for calls that draw numbers.
    """

    call: Call
    found: Found
    edges: InputEdges | None
    is_described: bool
    random: RandomWatch | None


class CallRecorder(Protocol):
    """Begins and ends calls."""

    def begin(
        self,
        base: str,
        stack: Stack,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        parameters: Mapping[str, Any] | None,
        with_grad: bool,
        is_one_api: bool,
    ) -> QuickCall | None:
        """Begin a call; None, and nothing is done, where it is not plain.

        Args:
            base: its name without its number.
            stack: where it was called.
            args: its arguments.
            kwargs: its keyword arguments.
            parameters: a module's own; None for an API.
            with_grad: whether the program records gradients.
            is_one_api: whether no code of the user's runs inside.

        Returns:
            The call. One that is not described has begun, and has to be unfolded.
        """

    def end(
        self,
        opened: QuickCall,
        result: Any,
        is_new: bool,
        drawn: JsonTree,
    ) -> bool:
        """End a call; return whether that was possible, otherwise nothing is done.

        Args:
            opened: the call.
            result: its result.
            is_new: whether the call has made it.
            drawn: see `RandomWatch.drawn`.
        """

    def unfold(self, opened: QuickCall) -> None:
        """Give the call a draft that holds what is known of its inputs, to go on without C."""


def new_call_recorder(
    session: Session, adapter: TorchAdapter, shared: SharedEdges
) -> CallRecorder | None:
    """Return the recorder of a session; None where every call has to be looked at in Python.

    That is so without the C extension, where tensors are saved, and where calls are selected.
    """
    calls, recording = session.calls, session.recording
    if TENSORS is None or not calls.keeps_all:
        return None
    watch = _watch_of(session)
    if watch is None and (type(recording) is not Recording or not adapter.describes_whole):
        return None
    recorder: CallRecorder = TENSORS.CallRecorder(
        session,
        calls,
        recording,
        calls.step,
        Call,
        partial(tap_other_gradients, session, shared),
        adapter.memo,
        calls.counters.next,
        calls.modules,
        recording.written_stacks,
        recording.open_passes,
        session.backward.reached,
        recording.stacks if isinstance(recording, WatchRecording) else None,
        writes_arguments,
        BUFFER_BYTES,
        calls.selection.data_mode.backward,
        recording.keeps_construct,
        watch is not None and watch.reads_parameters,
    )
    return recorder


def _watch_of(session: Session) -> TorchValueWatch | None:
    """Return the watch of a session that records only calls in which it finds something."""
    recording, section = session.recording, session.config.section
    if not isinstance(recording, WatchRecording):
        return None
    if isinstance(section, NanCheckSection) and (section.tensor_list or section.underflow):
        return None
    watch = recording.watch
    return watch if isinstance(watch, TorchValueWatch) else None
