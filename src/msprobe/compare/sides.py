# SPDX-License-Identifier: Apache-2.0
"""One rank's dump of one step, as comparisons see it: names, values, modules, source lines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from msprobe.compare.model import Mode
from msprobe.dump.rank_records import ParsedNames
from msprobe.dump.rank_view import RankView
from msprobe.dump.record_names import RecordKind, RecordName, backward_name, forward_name
from msprobe.dump.stack_frames import (
    innermost_user_frame,
    parse_frame,
    user_frames,
    user_line,
)
from msprobe.dump.values import Role, Value
from msprobe.errors import UnsupportedError
from msprobe.operators.lookup import operator_named, operator_of
from msprobe.operators.mindspore_layers import DEFERRING
from msprobe.operators.operator import Operator

MINDSPORE: Final = "mindspore"

NOISE_FLOOR: Final = "noise_floor"
"""The task whose recordings measure noise, and are not compared as ordinary ones."""
REFERENCE: Final = "reference"
NOISE: Final = "noise"
"""The source of a side that measures noise."""
_VALUE_TASKS: Final = ("statistics", "tensor", "overflow_check", "diff_check", NOISE_FLOOR, "")
# A statistics dump with checksums has one at nearly every tensor.
_TENSORS_TO_LOOK_AT: Final = 64


class SlotOf(NamedTuple):
    """A value of a record, and its slot in the operation that the record is a part of."""

    record: str
    slot: str
    whole: str


@dataclass(frozen=True, slots=True)
class JoinedRecord:
    """Several records that are compared as one.

    Attributes:
        operator: the operator that they compute together.
        slots: the values that make it up, in order.
    """

    operator: Operator
    slots: Sequence[SlotOf]


class Side:
    """One rank's dump of one step.

    Attributes:
        view: the dump.
        source: ``target``, ``reference`` or ``noise``, for messages.
        framework: ``pytorch``, ``mindspore`` …
        level: ``L0``, ``L1``, ``mix`` …; empty where an old dump does not say.
        names: names of the records in order of execution; of records that are compared as one,
            the name of the main one.
        joined: records by the name of the main one.
        damages: notes on damaged files that are not essential.
        mapped_modules: path of each module → the path that both sides share by a mapping file;
            empty without one.
        renamed_modules: of the target, modules and parameters → their other names in the reference.
        parsed: takes a record's name apart, in one step of C: it is asked two million times in a
            comparison of 300,000 rows.
    """

    parsed: Callable[[str], RecordName]

    def __init__(self, view: RankView, *, source: str) -> None:
        self.view = view
        self.source = source
        self.framework: str = view.head.framework
        self.level: str = view.head.level
        self.names: Sequence[str] = list(view.records)
        self.damages = [
            f"the {source} is compared without {problem}" for problem in view.ignore_damaged()
        ]
        self.joined: Mapping[str, JoinedRecord] = {}
        self.mapped_modules: Mapping[str, str] = {}
        self.renamed_modules: Mapping[str, str] = {}
        self._mode: Mode | None = None
        self.share_names(None)

    def __repr__(self) -> str:
        """Return side and dump, for debugging."""
        return f"Side({self.source}, {str(self.view.directory)!r})"

    @property
    def mode(self) -> Mode:
        """The mode in which values of this dump can be judged.

        Raises:
            UnsupportedError: the dump holds no values.
            DumpFormatError: a record is damaged.
        """
        if self._mode is None:
            self._mode = self._find_mode()
        return self._mode

    def unload(self) -> None:
        """Forget the names and everything else that was read."""
        self.names = ()
        self.parsed = ParsedNames(self.level).__getitem__
        self.view.unload()

    @property
    def tensor_directory(self) -> Path:
        """The folder of the tensor files, whether or not there is one."""
        return self.view.tensor_directory

    def tensor_path(self, data_name: str) -> Path:
        """Return the file of a tensor's values.

        Raises:
            RecordNotFoundError: the file is gone.
            DumpFormatError: the name points outside the folder.
        """
        return self.view.tensor_path(data_name)

    def join(self, joined: Mapping[str, JoinedRecord], absorbed: Collection[str]) -> None:
        """Compare several records as one.

        Args:
            joined: the records by the name of the main one.
            absorbed: names of the others.
        """
        self.joined = joined
        self.names = [name for name in self.names if name not in absorbed]

    def operator(self, name: str) -> Operator:
        """Return the operator of a record's API, or of its module's class."""
        if name in self.joined:
            return self.joined[name].operator
        parsed = self.parsed(name)
        if parsed.class_name is not None:
            return operator_named(parsed.class_name)
        is_mindspore = self.framework == MINDSPORE
        return operator_of(parsed.prefix, parsed.path, is_mindspore=is_mindspore)

    def share_names(self, names: ParsedNames | None) -> ParsedNames:
        """Take names apart once for several dumps, which mostly hold the same; return the names."""
        found = self.view.records.share_names(names)
        self.parsed = found.__getitem__
        return found

    def parent(self, name: str) -> str | None:
        """Return the record that encloses another one, None at the top or if unknown.

        A group of calls, as those of an optimizer or of its closure, is no record.
        """
        parent = self.view.parents.get(name)
        return parent if parent is not None and "." in parent else None

    def around(self, name: str) -> Iterator[str]:
        """Yield the records that enclose another one, from the innermost."""
        parent = self.parent(name)
        while parent is not None:
            yield parent
            parent = self.parent(parent)

    def is_model_call(self, name: str) -> bool:
        """Return whether a record is of a call of a model: of a module with no other around it."""
        parsed = self.parsed(name)
        is_call = parsed.is_module and parsed.kind is RecordKind.FORWARD
        return is_call and self._module_around(name) is None

    def module(self, name: str) -> str:
        """Return the dotted path of the innermost module around a record.

        A module's own records answer with its own path; "" is the model itself, or unknown.
        """
        parsed = self.parsed(name)
        if parsed.is_module:
            return parsed.path
        found = self._module_around(name)
        forward = forward_name(parsed)
        if found is None and forward is not None:
            found = self._module_around(forward)
        return found or ""

    def frames(self, name: str) -> list[str]:
        """Return the frames of the user's code that led to a record, innermost first.

        Backward records answer with the frames of their forward call. If no frame is the user's,
        all are returned.

        Raises:
            DumpFormatError: ``stack.json`` is damaged.
        """
        return user_frames(self._all_frames(name))

    def source_line(self, name: str) -> str | None:
        """Return the line of the user's code that made a call, such as ``train.py:12``."""
        return user_line(tuple(self._all_frames(name)))

    def source_code(self, name: str) -> str:
        """Return the text of the line that `source_line` names; empty if unknown.

        Between two versions of a program lines move, and most keep their text.
        """
        frame = innermost_user_frame(tuple(self._all_frames(name)))
        return "" if frame is None else frame.code

    def scales_loss(self, name: str) -> bool:
        """Return whether a record is of a call by which a gradient scaler multiplies the loss.

        The scaler takes the factor back before the optimizer gets the gradients; where it does not,
        the facts of the optimizer's step tell.
        """
        found = map(parse_frame, self._all_frames(name))
        return any(each and each.is_of_scaler and each.function == "scale" for each in found)

    def requires_gradient(self, name: str) -> bool:
        """Return whether a result of a forward record requires a gradient, or got one."""
        outputs = [each for each in self.values(name) if each.role is Role.OUTPUT]
        if any(each.requires_grad for each in outputs):
            return True
        backward = backward_name(self.parsed(name))
        is_untold = all(each.requires_grad is None for each in outputs)  # of MindSpore
        return is_untold and backward is not None and backward in self.view.records

    def values(self, name: str) -> list[Value]:
        """Return the values of a record: inputs, parameters, outputs, gradients of parameters.

        They are made anew by each call and not kept.

        Raises:
            RecordNotFoundError: there is no such record.
            DumpFormatError: its text is damaged, or a value of a wrong type.
        """
        if name in self.joined:
            return self._joined_values(self.joined[name])
        found = self.view.records.values_of(name)
        return [value for value in found if value.role is not Role.OTHER]

    def values_of_both(self, other: Side, name: str) -> tuple[list[Value], list[Value]]:
        """Return the values of a record on this side and on another one; see `values`.

        Where the records are the same, to the byte, they are one list.
        """
        values = self.values(name)
        is_joined = name in self.joined or name in other.joined
        if not is_joined and self.view.records.has_same(other.view.records, name):
            return values, values
        return values, other.values(name)

    def _all_frames(self, name: str) -> list[str]:
        frames = self.view.frames(name)
        if not frames:
            forward = forward_name(self.parsed(name))
            frames = self.view.frames(forward) if forward is not None else []
        return frames

    def _joined_values(self, joined: JoinedRecord) -> list[Value]:
        records = {part.record for part in joined.slots if part.record in self.view.records}
        found = {
            (name, value.slot): value
            for name in records
            for value in self.view.records.values_of(name)
        }
        taken: dict[str, list[Value]] = {}
        for record, slot, whole in joined.slots:
            known = found.get((record, slot))
            parts = [known] if known is not None else list(_elements(found, record, slot))
            defers = known is not None and isinstance(known.value, str) and known.value in DEFERRING
            if parts and whole not in taken and not defers:
                taken[whole] = [_as_part(value, slot, whole) for value in parts]
        return [value for values in taken.values() for value in values]

    def _module_around(self, name: str) -> str | None:
        around = map(self.parsed, self.around(name))
        return next((parsed.path for parsed in around if parsed.is_module), None)

    def _find_mode(self) -> Mode:
        task = self.view.head.task
        if task == NOISE_FLOOR and self.source != NOISE:
            raise UnsupportedError(
                f"{self.view.records_path}: task {task} moved the results of operators; such a "
                "recording measures the noise of a reference: msprobe compare TARGET REFERENCE "
                "--noise"
            )
        if task not in _VALUE_TASKS:
            raise UnsupportedError(
                f'{self.view.records_path}: "task" is {task!r}, which keeps no values to compare; '
                "capture both runs with task statistics or tensor"
            )
        if task == "tensor":
            return Mode.TENSOR
        seen = 0
        has_files = False
        for name in self.names:
            for value in self.values(name):
                if not value.is_tensor:
                    continue
                if value.md5 is not None and task != "":
                    return Mode.MD5
                has_files = has_files or value.data_name is not None
                seen += 1
            if seen >= _TENSORS_TO_LOOK_AT:
                break
        return Mode.TENSOR if has_files else Mode.STATISTICS


def _elements(found: Mapping[tuple[str, str], Value], record: str, slot: str) -> Iterator[Value]:
    """Yield the elements of a list in a record."""
    place = 0
    while (value := found.get((record, f"{slot}.{place}"))) is not None:
        yield value
        place += 1


def _as_part(value: Value, slot: str, whole: str) -> Value:
    """Return a value of a record, or an element of it, as one of the operation around it."""
    role = Role.INPUT if value.role is Role.OTHER else value.role
    return msgspec.structs.replace(value, slot=whole + value.slot[len(slot) :], role=role)
