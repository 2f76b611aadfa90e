# SPDX-License-Identifier: Apache-2.0
"""The values of a record, from its parsed JSON.

The reader is strict: a value of a wrong type is a `DumpFormatError` that names file, record, place
and key. A comparison spends most of its time here, as it reads every value of both
dumps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from copy import copy
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.dump.layout import INNER_PARAMETERS, unmarked_file_name
from msprobe.dump.record_names import PARAMETER_GRADIENTS, RecordKind, RecordName
from msprobe.dump.records import JsonTree
from msprobe.dump.stored_values import integers_of, optional_of, pair_of, shape_of, statistic_of
from msprobe.dump.values import Message, PartPath, Role, Value, path_label
from msprobe.errors import DumpFormatError
from msprobe.json_text import JSON_ERRORS

_T = TypeVar("_T")

_MAX_DEPTH: Final = 500
"""Deeper than any capture writes (the peer stops at 400); keeps hostile files off the stack."""
REMARKS: Final = "remarks"
"""Part with remarks: by value, why a gradient is missing or which other shares it includes."""

# Appearances of a value mostly lie close together. So many are remembered in each place.
_MOST_RECENT: Final = 1 << 10
_P2P_OPERATION: Final = "torch.distributed.P2POp"
_PROCESS_GROUPS: Final = ("torch.ProcessGroup", "mindspore.ProcessGroup")
_BARE: Final = "value"


# In the order in which rows are listed.
_PARTS: Final = {
    "input_args": Role.INPUT,
    "input_kwargs": Role.INPUT,
    "input": Role.INPUT,
    "parameters": Role.PARAMETER,
    INNER_PARAMETERS: Role.PARAMETER,
    "output": Role.OUTPUT,
    "output_kwargs": Role.OUTPUT,
}
_USUAL_KEYS: Final = frozenset(
    (
        *("type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad"),
        *("data_name", "md5", "value_id", "projections"),
    )
)
_SHARED: Final = (int, str, bool, type(None))  # of equal floats, zeros may have two signs
_numbers_of: Final = attrgetter("max", "min", "mean", "norm", "pair")
_integer: Final = partial(optional_of, kind=int)
_text: Final = partial(optional_of, kind=str)
_truth: Final = partial(optional_of, kind=bool)
# All of them fields of `Unusual`, but the last.
_UNUSUAL_KEYS: Final[Mapping[str, Callable[[JsonTree], object]]] = {
    "nan_count": _integer,
    "pos_inf_count": _integer,
    "neg_inf_count": _integer,
    "finite_max": statistic_of,
    "finite_min": statistic_of,
    "note": _text,
    "written": _truth,
    "undefined": _truth,
    "device": _text,
    "stride": integers_of,
}


class _UsualEntry(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A tensor or an argument with no other keys than these; see `Value`."""

    type: str
    value: Any = UNSET
    dtype: str | None = None
    shape: list[int] | UnsetType = UNSET
    Max: float | int | bool | None = None
    Min: float | int | bool | None = None
    Mean: float | int | bool | None = None
    Norm: float | int | bool | None = None
    requires_grad: bool | None = None
    data_name: str | None = None
    md5: str | None = None
    value_id: int | None = None
    stride: list[int] | None = None
    projections: tuple[float, float] | None = None


_UsualPart = list[_UsualEntry | None] | dict[str, _UsualEntry | None] | UnsetType


class _UsualCall(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The record of a call whose arguments and results are not nested; see `_PARTS`."""

    input_args: _UsualPart = UNSET
    input_kwargs: _UsualPart = UNSET
    input: _UsualPart = UNSET
    parameters: _UsualPart = UNSET
    inner_parameters: _UsualPart = UNSET
    output: _UsualPart = UNSET
    output_kwargs: _UsualPart = UNSET
    remarks: dict[str, str] | UnsetType = UNSET


_decode_call: Final = msgspec.json.Decoder(_UsualCall).decode
_CALLS: Final = (RecordKind.FORWARD, RecordKind.BACKWARD)


def is_entry(tree: JsonTree) -> bool:
    """Return whether a tree describes one value: it has a type.

    A user's own dict may have a key "type", too, but there its value is an entry, not a string.
    """
    return isinstance(tree, dict) and isinstance(tree.get("type"), str)


def parts_of(data: JsonTree) -> dict[str, JsonTree]:
    """Return the parts of a record that hold values."""
    if not _has_parts(data):
        return {_BARE: data}
    return {key: tree for key, tree in data.items() if not _is_note(key, tree)}


def notes_of(data: JsonTree) -> dict[str, JsonTree]:
    """Return the parts of a record that describe the call as a whole."""
    if not _has_parts(data):
        return {}
    return {key: tree for key, tree in data.items() if _is_note(key, tree)}


def _has_parts(data: JsonTree) -> bool:
    return isinstance(data, dict) and not is_entry(data)


def _is_note(key: str, tree: JsonTree) -> bool:
    if tree is None or key in _PARTS:
        return False
    if key == REMARKS:
        return _has_parts(tree)
    return not isinstance(tree, (dict, list))


class ValueReader:
    """Reads the values of the records of one file.

    Texts, types, shapes and places that values share are kept once: the same few hundred come back
    a million times. A value that appears again, as an argument of the next call or as a result of
    the module around, is the same object or at least holds the same numbers.

    Args:
        source: the file, for messages.
        level: of the dump.
    """

    def __init__(self, source: Path, *, level: str) -> None:
        self.source = source
        self._holds_saved_values = level == "debug"
        self.texts: dict[str, str] = {}
        self.shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.dtypes: dict[str | None, tuple[str, str]] = {None: ("", "")}
        self._places: dict[_SlotName, dict[PartPath, _Place]] = {}
        self._recent: dict[Hashable, Value] = {}

    def read(self, data: JsonTree, name: RecordName, part: str | None = None) -> list[Value]:
        """Return the values of a record: inputs, parameters, outputs, then everything else.

        Args:
            data: the record, as the file holds it.
            name: its name.
            part: only this part (``input_args`` …); None for all.

        Raises:
            DumpFormatError: a value is of a wrong type, or nested too deeply.
        """
        parts = parts_of(data)
        if part is not None:
            parts = {part: parts[part]} if part in parts else {}
        if not _has_parts(data):
            if name.kind in _CALLS and not self._holds_saved_values and not is_entry(data):
                problem = f"{name.full}: holds {data!r:.40} instead of inputs and outputs"
                raise DumpFormatError(self.source, problem)
            return self._walk(name, _bare_slot).all_of(parts, Role.SAVED)
        if self._holds_saved_values or name.kind is RecordKind.DEBUG:
            found = self._walk(name, _joined).all_of(parts, Role.SAVED)
        elif name.kind in PARAMETER_GRADIENTS:
            found = self._walk(name, _gradient_slot).all_of(parts, Role.PARAMETER_GRAD)
        else:
            found = self._walk(name, _call_slot).of_call(parts)
        remarks = data.get(REMARKS)
        if isinstance(remarks, dict):
            _add_remarks(found, remarks)
        return found

    def read_usual(self, text: bytes, name: RecordName) -> list[Value] | None:
        """Return the values of a usual record of a call, twice as fast as `read` does.

        Args:
            text: the record, as JSON.
            name: its name.

        Returns:
            As `read`. None if the record has anything unusual, a fault among it: then it is for
            `read` to say what.

        Raises:
            DumpFormatError: a value is of a wrong type.
        """
        if self._holds_saved_values or name.kind not in _CALLS:
            return None
        try:
            call = _decode_call(text)
        except (msgspec.DecodeError, *JSON_ERRORS):
            return None
        found = self._walk(name, _call_slot).of_usual(call)
        if found is not None and call.remarks is not UNSET:
            _add_remarks(found, call.remarks)
        return found

    def shared(self, value: Value, place: _Place) -> Value:
        """Return the object that a tensor was before, or the tensor with the numbers of that."""
        number = value.value_id
        known = place.recent.get(number)
        if known == value:
            return known
        _remember(place.recent, number, value)
        known = self._recent.get(number)
        if known is None:
            _remember(self._recent, number, value)
        elif _numbers_of(known) == _numbers_of(value):
            value.value_id, value.pair = known.value_id, known.pair
            value.max, value.min = known.max, known.min
            value.mean, value.norm = known.mean, known.norm
        return value

    def plain(self, place: _Place, role: Role, kind: str, value: JsonTree) -> Value:
        """Return an argument that is no tensor; the same object for the same argument."""
        key = (kind, type(value), value) if type(value) in _SHARED else None
        known = None if key is None else place.recent.get(key)
        if known is None:
            text = self.texts.setdefault(kind, kind)
            known = Value(place.path, place.slot, role, False, text, value=value)
            if key is not None:
                _remember(place.recent, key, known)
        return known

    def _walk(self, name: RecordName, slot_name: _SlotName) -> _Walk:
        return _Walk(self, name.full, slot_name, self._places.setdefault(slot_name, {}))


class _Place(msgspec.Struct, gc=False):
    """A place in records, the values' slot there, and values that were found there last."""

    path: PartPath
    slot: str
    recent: dict[Hashable, Value]


def _remember(recent: dict[Hashable, Value], key: Hashable, value: Value) -> None:
    if len(recent) == _MOST_RECENT:
        recent.clear()
    recent[key] = value


class _Walk:
    """Collects the values of one record."""

    __slots__ = ("_add", "_found", "_places", "_reader", "_record", "_slot_name")

    def __init__(
        self,
        reader: ValueReader,
        record: str,
        slot_name: _SlotName,
        places: dict[PartPath, _Place],
    ) -> None:
        self._reader = reader
        self._record = record
        self._slot_name = slot_name
        self._places = places
        self._found: list[Value] = []
        self._add = self._found.append

    def all_of(self, parts: Mapping[str, JsonTree], role: Role) -> list[Value]:
        """Return the values of all parts, which have one role."""
        for key, tree in parts.items():
            self.walk(tree, (key,), role)
        return self._found

    def of_call(self, parts: Mapping[str, JsonTree]) -> list[Value]:
        """Return the values of a call: of its known parts, then of others."""
        for key, role in _PARTS.items():
            if key in parts:
                self.walk(parts[key], (key,), role)
        known = len(self._found)
        for key, tree in parts.items():
            if key not in _PARTS:
                self.walk(tree, (key,), Role.INPUT)
        for value in self._found[known:]:
            # The random state before the call is a file, or nothing to compare.
            if not value.is_tensor:
                value.role = Role.OTHER
        return self._found

    def of_usual(self, call: _UsualCall) -> list[Value] | None:
        """Return the values of a call; None if one of them is unusual."""
        for key, role in _PARTS.items():
            part: _UsualPart = getattr(call, key)
            if part is UNSET:
                continue
            if type(part) is list:
                items: Iterable[tuple[Any, _UsualEntry | None]] = enumerate(part)
            elif type(part) is dict:
                items = part.items()
            else:
                return None
            for place, entry in items:
                found = self._place((key, place))
                if entry is None:
                    self._add(self._reader.plain(found, role, "NoneType", None))
                elif entry.shape is not UNSET and entry.value is UNSET:
                    self._add(self._usual_tensor(entry, found, role))
                elif entry.value is not UNSET and entry == _UsualEntry(entry.type, entry.value):
                    self._add(self._reader.plain(found, role, entry.type, entry.value))
                else:
                    return None
        return self._found

    def _usual_tensor(self, entry: _UsualEntry, place: _Place, role: Role) -> Value:
        """Return a tensor; does what `_tensor` does."""
        reader = self._reader
        path, slot = place.path, place.slot
        found_shape = entry.shape
        shape = reader.shapes.get(tuple(found_shape))  # type: ignore[arg-type]  # it is set
        if shape is None:
            shape = self._field(path, "shape", found_shape, shape_of)
            reader.shapes[shape] = shape
        dtypes = reader.dtypes.get(entry.dtype)
        if dtypes is None:
            raw_dtype = entry.dtype or ""
            dtypes = reader.dtypes[raw_dtype] = raw_dtype, normal_dtype(raw_dtype)
        largest, least, mean, norm = entry.Max, entry.Min, entry.Mean, entry.Norm
        if not (type(largest) is type(least) is type(mean) is type(norm) is float):
            largest = self._field(path, "Max", largest, statistic_of)
            least = self._field(path, "Min", least, statistic_of)
            mean = self._field(path, "Mean", mean, statistic_of)
            norm = self._field(path, "Norm", norm, statistic_of)
        if entry.data_name is not None:
            slot = self._slot_of_file(entry.data_name, slot, role)
        value = Value(
            path,
            slot,
            role,
            True,
            self._text(entry.type),
            dtypes[1],
            dtypes[0],
            shape,
            largest,
            least,
            mean,
            norm,
            entry.requires_grad,
            entry.data_name,
            entry.md5,
            entry.value_id,
        )
        if entry.stride is not None:
            value.stride = tuple(entry.stride)
        value.projections = entry.projections
        return value if entry.value_id is None else reader.shared(value, place)

    def walk(self, tree: JsonTree, path: PartPath, role: Role) -> None:
        """Collect the values below `tree`, which is at `path`."""
        kind = type(tree)
        if kind is dict:
            type_name = tree.get("type")
            if type(type_name) is str:
                if "shape" in tree:
                    self._add(self._tensor(tree, path, role, type_name))
                else:
                    self._add(self._scalar(tree, path, role, type_name))
                return
            if tree.get("class_type") == _P2P_OPERATION:
                self._add(self._p2p(tree, path, role))
                return
            items: Iterable[tuple[Any, Any]] = tree.items()
        elif kind is list:
            items = enumerate(tree)
        else:
            place = self._place(path)
            self._add(Value(place.path, place.slot, role, False, kind.__name__, value=tree))
            return
        if len(path) > _MAX_DEPTH:
            raise self._error(path[:3], f"nested deeper than {_MAX_DEPTH} levels")
        for key, item in items:
            self.walk(item, (*path, key), role)

    def _place(self, path: PartPath) -> _Place:
        """Return the one object that equal paths share."""
        try:
            return self._places[path]
        except KeyError:
            place = self._places[path] = _Place(path, self._slot_name(path), {})
            return place

    def _tensor(self, tree: dict[str, Any], path: PartPath, role: Role, type_name: str) -> Value:
        place = self._place(path)
        path, slot = place.path, place.slot
        get = tree.get
        found_shape = tree["shape"]
        try:
            shape = self._reader.shapes[tuple(found_shape)]
        except (KeyError, TypeError):
            shape = self._field(path, "shape", found_shape, shape_of)
            self._reader.shapes[shape] = shape
        try:
            raw_dtype, dtype = self._reader.dtypes[get("dtype")]
        except (KeyError, TypeError):
            raw_dtype = self._field(path, "dtype", get("dtype"), _text) or ""
            dtype = normal_dtype(raw_dtype)
            self._reader.dtypes[raw_dtype] = raw_dtype, dtype
        largest, least, mean, norm = get("Max"), get("Min"), get("Mean"), get("Norm")
        if not (type(largest) is type(least) is type(mean) is type(norm) is float):
            largest = self._field(path, "Max", largest, statistic_of)
            least = self._field(path, "Min", least, statistic_of)
            mean = self._field(path, "Mean", mean, statistic_of)
            norm = self._field(path, "Norm", norm, statistic_of)
        requires_grad = get("requires_grad")
        if requires_grad is not None and type(requires_grad) is not bool:
            requires_grad = self._field(path, "requires_grad", requires_grad, _truth)
        data_name = get("data_name")
        if data_name is not None and type(data_name) is not str:
            data_name = self._field(path, "data_name", data_name, _text)
        if data_name is not None:
            slot = self._slot_of_file(data_name, slot, role)
        md5 = get("md5")
        if md5 is not None and type(md5) is not str:
            md5 = self._field(path, "md5", md5, _text)
        value_id = get("value_id")
        if value_id is not None and type(value_id) is not int:
            value_id = self._field(path, "value_id", value_id, _integer)
        value = Value(
            path,
            slot,
            role,
            True,
            self._text(type_name),
            dtype=dtype,
            raw_dtype=raw_dtype,
            shape=shape,
            max=largest,
            min=least,
            mean=mean,
            norm=norm,
            requires_grad=requires_grad,
            data_name=data_name,
            md5=md5,
            value_id=value_id,
        )
        projections = get("projections")
        if projections is not None:
            value.projections = self._field(path, "projections", projections, pair_of)
        if not _USUAL_KEYS.issuperset(tree):
            self._add_unusual(value, tree)
        return value if value_id is None else self._reader.shared(value, place)

    def _add_unusual(self, value: Value, tree: dict[str, Any]) -> None:
        """Fill in the fields that few tensors have."""
        extra: dict[str, JsonTree] = {}
        facts: dict[str, Any] = {}
        for key, item in tree.items():
            if key in _UNUSUAL_KEYS:
                facts[key] = self._field(value.path, key, item, _UNUSUAL_KEYS[key])
            elif key not in _USUAL_KEYS:
                extra[key] = item
        if extra:
            facts["extra"] = extra
        value.stride = facts.pop("stride", None)
        if facts:
            value.add_unusual(**facts)

    def _scalar(self, tree: dict[str, Any], path: PartPath, role: Role, type_name: str) -> Value:
        place = self._place(path)
        path, slot = place.path, place.slot
        rest = {key: item for key, item in tree.items() if key != "type"}
        value = Value(path, slot, role, False, self._text(type_name))
        if type_name in _PROCESS_GROUPS and "group_ranks" in rest:
            ranks = self._field(path, "group_ranks", rest.pop("group_ranks"), integers_of)
            value.add_unusual(group_ranks=ranks)
            rest.setdefault("value", ranks and list(ranks))
        key = next((key for key in ("value", "format") if key in rest), None)
        if key is None:
            value.value = rest
        else:
            value.value = rest.pop(key)
            if rest:
                value.add_unusual(extra=rest)
        return value

    def _p2p(self, tree: dict[str, Any], path: PartPath, role: Role) -> Value:
        """Return the tensor that a point-to-point operation sends or receives."""
        tensor = tree.get("tensor")
        if tensor is not None and not is_entry(tensor):
            raise self._error(path, '"tensor" is not one tensor')
        self.walk(tensor, path, role)
        value = copy(self._found.pop())  # the tensor may appear elsewhere, too
        message = Message(
            self._entry(path, tree, "op", str),
            self._entry(path, tree, "peer", int),
            self._entry(path, tree, "tag", int),
            self._entry(path, tree, "group_id", str),
        )
        value.add_unusual(message=message)
        return value

    def _slot_of_file(self, data_name: str, slot: str, role: Role) -> str:
        """Return the slot in a file's name; `slot` for very long names, which were shortened."""
        stem, _, _ = unmarked_file_name(data_name).rpartition(".")
        if stem == self._record:
            return ""
        if stem.startswith(self._record) and stem[len(self._record)] == ".":
            named = stem[len(self._record) + 1 :]
            # Files of gradients of keyword arguments are named as those of the arguments.
            is_gradient = role is Role.OUTPUT and named.startswith("kwargs.")
            return self._text(f"output_{named}" if is_gradient else named)
        return slot

    def _text(self, text: str) -> str:
        return self._reader.texts.setdefault(text, text)

    def _entry(self, path: PartPath, tree: dict[str, Any], key: str, kind: type[_T]) -> _T | None:
        """Return the value of a plain JSON value, or of an entry with its type."""
        found = tree.get(key)
        if isinstance(found, dict):
            found = found.get("value")
        return self._field(path, key, found, partial(optional_of, kind=kind))

    def _field(
        self, path: PartPath, key: str, found: JsonTree, read: Callable[[JsonTree], _T]
    ) -> _T:
        try:
            return read(found)
        except ValueError as exc:
            raise self._error(path, f'"{key}" {exc}') from None

    def _error(self, path: PartPath, problem: str) -> DumpFormatError:
        return DumpFormatError(
            self._reader.source, f"{self._record}: {path_label(path)}: {problem}"
        )


# How the values of a kind of record are named: the end of the names of their rows.
_SlotName = Callable[[PartPath], str]


def _call_slot(path: PartPath) -> str:
    return _joined(("input" if path[0] in ("input_args", "input_kwargs") else path[0], *path[1:]))


def _gradient_slot(path: PartPath) -> str:
    # Each is a list of one. Were there more, only their order would tell them apart.
    return _joined((path[0], *path[2:]) if path[1:2] == (0,) else path)


def _bare_slot(path: PartPath) -> str:
    return _joined(path[1:])


def _joined(path: PartPath) -> str:
    return ".".join(map(str, path))


def _add_remarks(values: list[Value], remarks: dict[str, JsonTree]) -> None:
    """Give each value the remark on its place."""
    by_place: dict[str, str] = {}
    for place, remark in remarks.items():
        if isinstance(remark, str):
            by_place[place] = remark
        elif isinstance(remark, dict):
            by_place |= {f"{place}.{key}": str(text) for key, text in remark.items()}
    for number, value in enumerate(values):
        if value.slot in by_place:
            values[number] = copy(value)  # which may appear elsewhere, too
            values[number].add_unusual(remark=by_place[value.slot])
