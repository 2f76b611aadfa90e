# SPDX-License-Identifier: Apache-2.0
"""Effects of API calls on memory: keeps the memo and the list of undefined memory up to date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from msprobe.capture.values import Found
from msprobe.pytorch.apis.api_rules import ApiEntry, WriteEffect
from msprobe.pytorch.values.adapter import TorchAdapter
from msprobe.pytorch.values.tensor_search import output_slots, tensors_in
from msprobe.pytorch.values.unread import Arguments, UnreadTensors


class MemoryEffects:
    """Keeps the memo of values correct while calls read, write, make and hide them."""

    __slots__ = ("_adapter", "_memo", "_undefined", "_unread")

    def __init__(self, adapter: TorchAdapter) -> None:
        """Create it for the memo and the undefined memory of an adapter."""
        self._adapter = adapter
        self._memo = adapter.memo
        self._undefined = adapter.undefined.storages
        self._unread = UnreadTensors(adapter)

    # -- how a call is described ---------------------------------------------------------------

    def may_leave_unread(self, entry: ApiEntry | None, kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call may get arguments that are not to be read."""
        if entry is None:
            return False
        may_be_unread = entry.in_place or self._undefined
        return bool(may_be_unread or (kwargs and not entry.outs.isdisjoint(kwargs)))

    def shown_arguments(
        self, entry: ApiEntry, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Arguments:
        """Return the arguments of a call as they are to be described."""
        if not self.may_leave_unread(entry, kwargs):
            return args, kwargs
        return self._unread.in_arguments(entry, args, kwargs)

    def shown_result(
        self, entry: ApiEntry, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> Any:
        """Return the result of a call as it is to be described."""
        return self._unread.in_result(entry, args, kwargs, result) if self._undefined else result

    def forget(self) -> None:
        """Forget every value: calls that were not seen may have written anywhere."""
        self._adapter.forget_values()

    # -- effects of a call ---------------------------------------------------------------------

    def note_received(self, found: Found) -> None:
        """Note the tensors that a call received."""
        if self._memo.active:
            self._memo.all_came_in(found)

    @property
    def has_undefined(self) -> bool:
        """Whether there is memory with undefined content."""
        return bool(self._undefined)

    def note_writes(
        self, entry: ApiEntry, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """Note the tensors that a call has written."""
        if self._undefined or entry.allocates:
            self._unread.note_writes(entry, args, kwargs, result)
        if not self._memo.active:
            return
        if entry.bans:
            self.ban(args, kwargs)
        elif entry.writes is WriteEffect.UNVERSIONED:
            self.distrust(args, kwargs)
        elif entry.writes is WriteEffect.VERSIONED and args and isinstance(args[0], Tensor):
            self._memo.wrote(args[0])
        if "out" in kwargs:
            self.distrust((kwargs["out"],), {})

    def note_result(self, entry: ApiEntry, result: Any) -> None:
        """Note the tensors that a recorded call has made."""
        memo = self._memo
        if not memo.active:
            return
        if type(result) is Tensor and not entry.bans:
            memo.born(result)
        elif entry.bans:
            self.ban((result,), {})
        else:
            for output in output_slots(result):
                if type(output) is Tensor:
                    memo.born(output)

    def distrust(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note that unobserved code may have written to these."""
        if self._memo.active:
            for tensor, _ in _tensors(args, kwargs):
                self._memo.wrote(tensor)

    def ban(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note that these may from now on change unseen."""
        for tensor, _ in _tensors(args, kwargs):
            self._adapter.distrust(tensor)


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Found:
    found: Found = []
    tensors_in(args, kwargs, found)
    return found
