# SPDX-License-Identifier: Apache-2.0
"""`Adapter`: the interface between the capture core and a framework.

An adapter translates: it recognises tensors, summarises them on their device and copies
them. It holds no policy: this room decides which values are kept, their names and their
files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Raw

from msprobe.capture.stacks import Traits
from msprobe.dump.records import TensorRecord

if TYPE_CHECKING:
    from msprobe.capture.call import Draft
    from msprobe.capture.value_states import ValueWatch
    from msprobe.capture.values import Found, Position

# A tensor of whatever framework; only the adapter looks inside.
Tensor = Any


class Adapter(Protocol):
    """The seam between the neutral core and one framework."""

    @property
    def framework(self) -> str:
        """Return the name written into dumps: ``pytorch`` or ``mindspore``."""

    @property
    def tensor_suffix(self) -> str:
        """Return the extension of its tensor files: ``.pt`` or ``.npy``."""

    def is_tensor(self, value: object) -> bool:
        """Return whether `value` is a tensor (subclasses included)."""

    def record_tensor(
        self, tensor: Tensor, draft: Draft, path: str, *, is_gradient: bool = False
    ) -> TensorRecord | Raw:
        """Return the record of `tensor`, saving its value when the draft asks for tensors.

        One to which nothing will be added may be encoded already.

        Args:
            tensor: any tensor, of any layout, device or subclass; it is only read.
            draft: the record that it becomes part of.
            path: the part's path in file names, such as ``input.0``.
            is_gradient: gradients are recorded with ``requires_grad`` false.
        """

    def record_plain(
        self, args: Sequence[Any], kwargs: Mapping[str, Any] | None, draft: Draft, found: Found
    ) -> tuple[Raw, Raw] | None:
        """Return the encoded list and object of arguments that are all plain, at once.

        Args:
            args: positional arguments.
            kwargs: keyword arguments.
            draft: the record that they become part of.
            found: gets each tensor with its position.

        Returns: None, with nothing found, where they must be described one by one.
        """

    @property
    def describes_whole(self) -> bool:
        """Whether the texts of `record_gradients` are whole records."""

    def record_gradients(
        self, arrived: Sequence[tuple[Tensor, str, Position]], outputs: int, arguments: int
    ) -> Raw | None:
        """Return the encoded parts of the backward record of a call, at once.

        Args:
            arrived: all its gradients, each with its side and the index of its output or input.
            outputs: how many outputs the call has.
            arguments: how many positional arguments.

        Returns: None where they must be described one by one.
        """

    def value_watch(self, *, share: float, parameters: bool) -> ValueWatch | None:
        """Return what asks whether values are finite without describing them; None: it cannot.

        Args:
            share: of the largest number of a type, from which a value is near it; 0 for none.
            parameters: whether parameters among the arguments are read.
        """

    def take_bad_values(self) -> int:
        """Return how many values with a NaN or +Inf were described since the last call.

        Those of drafts, which know it themselves (`Draft.is_bad`), need not be counted.
        """

    def private_copy(self, tensor: Tensor) -> Tensor:
        """Return a copy of a gradient that the user's program cannot reach."""

    def add(self, total: Tensor, share: Tensor) -> Tensor:
        """Return the sum of a private copy and a further share; may reuse the former."""

    def prepare(self) -> None:
        """Prepare for the recording of calls; every `start` calls this."""

    def wait_for_graphs(self) -> None:
        """Return when compiled graphs that the program has launched have handed over their values.

        `stop` comes here before it does anything else, and without the session's lock: a graph
        hands values over in a thread of its own, which takes the lock. An error in a graph may be
        raised; the program meets it again at the graph's result.
        """

    def take_batch(self) -> Callable[[], None] | None:
        """Return a function that waits for the summaries unfinished so far, and finishes them.

        Called on the training thread, where it may only start a copy; the function runs on the
        writer's thread. None when nothing is unfinished.
        """

    def fill(self, draft: Draft) -> None:
        """Write the now finished summaries of `draft.waiting` into their records.

        A summary that never got finished leaves a note in its record.
        """

    def guard(self) -> AbstractContextManager[object]:
        """Return a context in which our computations have no effect on the user's program.

        Events come in such a context already; `stop` and `step` do not.
        """

    def describe(self, value: object, key: str) -> Any:
        """Return the JSON form of a framework value that is not a tensor, or `NotImplemented`.

        Args:
            value: a dtype, device, process group …
            key: the keyword or position under which it was passed.
        """

    def classify_stack(self, codes: Sequence[CodeType]) -> Traits:
        """Return the traits of a call that follow from its frames (innermost first)."""

    def is_machinery(self, code: CodeType) -> bool:
        """Return whether call stacks leave out frames of this code of the framework's."""

    def current_rank(self) -> int | None:
        """Return the rank of this process in the process group, None when there is no group."""
