# SPDX-License-Identifier: Apache-2.0
"""A pickle read as data: dicts, lists and tuples, and a description of everything else.

Nothing is unpickled. The opcodes drive a small stack machine; where a pickle asks for a class or a
call, a `Described` object takes its place that merely says so. There is no way to make this reader
import or call anything.
"""

from __future__ import annotations

import io
import os
import pickletools
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any, BinaryIO, Final

import msgspec

# The same variable switches off all C extensions.
_NATIVE_VARIABLE: Final = "MSPROBE_NATIVE"
_MARK: Final = object()


class GlobalName(msgspec.Struct, frozen=True):
    """A class or function that the pickle refers to, by its full name."""

    name: str


class PersistentId(msgspec.Struct, frozen=True):
    """A reference to something outside the pickle: a tensor's storage."""

    value: Any


class Described(msgspec.Struct, eq=False):
    """An object that the pickle would make.

    Attributes:
        function: the callable, a `GlobalName` in files that programs write.
        arguments: with what.
        state: its attributes, None if the pickle sets none.
        items: entries that would be added to it, as to a dict or list.
    """

    function: Any
    arguments: Any
    state: Any = None
    items: Any = None

    @property
    def name(self) -> str:
        """The full name of the function or class; empty if it is no plain name."""
        return self.function.name if isinstance(self.function, GlobalName) else ""


def read_pickle(pickled: bytes | BinaryIO, references: list[PersistentId] | None = None) -> Any:
    """Return the tree that a pickle describes.

    Args:
        pickled: the pickle, or a file that is read up to the pickle's end.
        references: gets every reference to something outside, in order.

    Raises:
        ValueError: it is damaged, or uses opcodes that no known program writes.
    """
    machine = _Machine(references)
    try:
        if isinstance(pickled, bytes) and b"\\" not in pickled:
            return machine.run(pickled)
        # pickletools warns of bad escapes in text of protocol 0. The filters of warnings belong to
        # all threads, so they are left alone where there cannot be any.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return machine.run(pickled)
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError) as exc:
        raise ValueError(f"damaged pickle ({type(exc).__name__}: {exc})") from exc


class _Machine:
    def __init__(self, references: list[PersistentId] | None) -> None:
        self._references = references
        # Shapes and strides of one dimension: a model has many tensors and few different ones.
        self._sizes: dict[int, tuple[int]] = {}
        self._stack: list[Any] = []
        # Programs number what they keep from 0 on; other numbers go into the dict.
        self._memo: list[Any] = []
        self._far: dict[int, Any] = {}

    def run(self, pickled: bytes | BinaryIO) -> Any:
        if isinstance(pickled, bytes):
            return self._run_bytes(pickled)
        for opcode, argument, _ in pickletools.genops(pickled):
            if opcode.name == "STOP":
                return self._end()
            self.do(opcode.name, argument)
        raise ValueError("the pickle has no end")

    def _run_bytes(self, pickled: bytes) -> Any:
        """Do the same as `run` with a file, faster."""
        at = 0
        if _NATIVE is None or self._references is not None:
            while (opcode := pickled[at]) != _STOP:
                at = _FAST[opcode](self, pickled, at + 1)
            return self._end()
        run, stack, memo, sizes = _NATIVE.run, self._stack, self._memo, self._sizes
        while (opcode := pickled[at := run(pickled, at, stack, memo, sizes)]) != _STOP:
            at = _FAST[opcode](self, pickled, at + 1)
        return self._end()

    def do(self, name: str, argument: Any) -> None:
        """Carry out an opcode."""
        if name in _LITERALS:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _GETS:
            self._stack.append(self._kept(int(argument)))
        elif name in _PUTS:
            self._keep(int(argument))
        elif name == "MEMOIZE":
            self._keep(len(self._memo) + len(self._far))
        elif name not in ("PROTO", "FRAME"):
            handler = _HANDLERS.get(name)
            if handler is None:
                raise ValueError(f"pickle opcode {name} is not expected here")
            handler(self, argument)

    def rare(self, pickled: bytes, at: int) -> int:
        """Carry out an opcode that is not among the frequent ones; return where it ends."""
        opcode = _OPCODES.get(chr(pickled[at - 1]))
        if opcode is None:
            raise ValueError(f"at position {at - 1}, opcode {pickled[at - 1 : at]!r} is unknown")
        argument = None
        if opcode.arg is not None:
            stream = io.BytesIO(pickled)
            stream.seek(at)
            argument = opcode.arg.reader(stream)
            at = stream.tell()
        self.do(opcode.name, argument)
        return at

    # The frequent opcodes: each takes the bytes and its place, and returns where the next one is.

    def get(self, pickled: bytes, at: int) -> int:
        self._stack.append(self._kept(pickled[at]))
        return at + 1

    def get_long(self, pickled: bytes, at: int) -> int:
        self._stack.append(self._kept(int.from_bytes(pickled[at : at + 4], "little")))
        return at + 4

    def put(self, pickled: bytes, at: int) -> int:
        self._keep(pickled[at])
        return at + 1

    def put_long(self, pickled: bytes, at: int) -> int:
        number = int.from_bytes(pickled[at : at + 4], "little")
        if number == len(self._memo):  # nearly always
            self._memo.append(self._stack[-1])
        else:
            self._keep(number)
        return at + 4

    def small_number(self, pickled: bytes, at: int) -> int:
        self._stack.append(pickled[at])
        return at + 1

    def text(self, pickled: bytes, at: int) -> int:
        start = at + 4
        end = start + int.from_bytes(pickled[at:start], "little")
        if end > len(pickled):
            raise ValueError("a text reaches beyond the pickle")
        self._stack.append(str(pickled[start:end], "utf-8", "surrogatepass"))
        return end

    def plain_tuple(self, _: bytes, at: int) -> int:
        self._stack.append(tuple(self._to_mark()))
        return at

    def plain_mark(self, _: bytes, at: int) -> int:
        self._stack.append(_MARK)
        return at

    def plain_false(self, _: bytes, at: int) -> int:
        self._stack.append(False)
        return at

    def plain_empty(self, _: bytes, at: int) -> int:
        self._stack.append(())
        return at

    def plain_single(self, _: bytes, at: int) -> int:
        last = self._stack[-1]
        is_size = type(last) is int
        self._stack[-1] = self._sizes.setdefault(last, (last,)) if is_size else (last,)
        return at

    def plain_pair(self, _: bytes, at: int) -> int:
        self._stack[-2:] = ((self._stack[-2], self._stack[-1]),)
        return at

    def number(self, pickled: bytes, at: int) -> int:
        self._stack.append(int.from_bytes(pickled[at : at + 2], "little"))
        return at + 2

    def plain_reduce(self, _: bytes, at: int) -> int:
        self.reduce(None)
        return at

    def plain_reference(self, _: bytes, at: int) -> int:
        self.persistent_id(None)
        return at

    def _end(self) -> Any:
        found = self._stack.pop()
        if found is _MARK:
            raise ValueError("the pickle ends with a mark")
        return found

    def _keep(self, number: int) -> None:
        if number == len(self._memo):
            self._memo.append(self._stack[-1])
        elif 0 <= number < len(self._memo):
            self._memo[number] = self._stack[-1]
        else:
            self._far[number] = self._stack[-1]

    def _kept(self, number: int) -> Any:
        return self._memo[number] if 0 <= number < len(self._memo) else self._far[number]

    def _to_mark(self) -> list[Any]:
        stack = self._stack
        begin = len(stack) - 1
        while stack[begin] is not _MARK:  # without a mark, an IndexError in the end
            begin -= 1
        items = stack[begin + 1 :]
        del stack[begin:]
        return items

    def global_(self, argument: Any) -> None:
        self._stack.append(_global_name(argument.replace(" ", ".")))

    def stack_global(self, _: Any) -> None:
        attribute, module = self._stack.pop(), self._stack.pop()
        self._stack.append(_global_name(f"{module}.{attribute}"))

    def reduce(self, _: Any) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        if function is _ORDERED_DICT:
            pairs = arguments[0] if arguments else []
            self._stack.append({key: value for key, value in pairs})  # noqa: C416 (as written)
        else:
            self._stack.append(Described(function, arguments))

    def new_object(self, _: Any) -> None:
        arguments, kind = self._stack.pop(), self._stack.pop()
        self._stack.append(Described(kind, arguments))

    def new_object_with_keywords(self, _: Any) -> None:
        keywords, arguments = self._stack.pop(), self._stack.pop()
        self._stack.append(Described(self._stack.pop(), (*arguments, keywords)))

    def build(self, _: Any) -> None:
        state = self._stack.pop()
        if isinstance(self._stack[-1], Described):
            self._stack[-1].state = state

    def persistent_id(self, _: Any) -> None:
        value = self._stack.pop()
        if isinstance(value, tuple) and value[:1] == ("module",) and len(value) > 1:
            # A class of modules, as PyTorch wrote it before 1.6, with its source code behind it.
            self._stack.append(value[1])
            return
        reference = PersistentId(value)
        if self._references is not None:
            self._references.append(reference)
        self._stack.append(reference)

    def set_item(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._entries()[key] = value

    def set_items(self, _: Any) -> None:
        items = self._to_mark()
        self._entries().update(zip(items[::2], items[1::2], strict=True))

    def append(self, _: Any) -> None:
        item = self._stack.pop()
        self._elements().append(item)

    def append_all(self, _: Any) -> None:
        items = self._to_mark()
        self._elements().extend(items)

    def add_items(self, _: Any) -> None:
        items = self._to_mark()
        self._stack[-1].extend(items)

    def collect(self, kind: Any) -> None:
        self._stack.append(kind(self._to_mark()))

    def tuple_of(self, count: int) -> None:
        items = [self._stack.pop() for _ in range(count)]
        self._stack.append(tuple(reversed(items)))

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop(self, _: Any) -> None:
        self._stack.pop()

    def pop_mark(self, _: Any) -> None:
        self._to_mark()

    def duplicate(self, _: Any) -> None:
        self._stack.append(self._stack[-1])

    def _entries(self) -> dict[Any, Any]:
        target: Any = self._stack[-1]
        if isinstance(target, Described):
            target.items = {} if target.items is None else target.items
            target = target.items
        if not isinstance(target, dict):
            raise TypeError("entries are added to something that is no dict")
        return target

    def _elements(self) -> list[Any]:
        target: Any = self._stack[-1]
        if isinstance(target, Described):
            target.items = [] if target.items is None else target.items
            target = target.items
        if not isinstance(target, list):
            raise TypeError("elements are added to something that is no list")
        return target


def _global_name(name: str) -> GlobalName:
    return _ORDERED_DICT if name == _ORDERED_DICT.name else GlobalName(name)


def _pairs_to_dict(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


_STOP: Final = ord(".")
_OPCODES: Final = {opcode.code: opcode for opcode in pickletools.opcodes}
_Step = Callable[[_Machine, bytes, int], int]
_FREQUENT: Final[dict[str, _Step]] = {
    "h": _Machine.get,
    "j": _Machine.get_long,
    "q": _Machine.put,
    "r": _Machine.put_long,
    "K": _Machine.small_number,
    "M": _Machine.number,
    "X": _Machine.text,
    "t": _Machine.plain_tuple,
    "(": _Machine.plain_mark,
    "\x89": _Machine.plain_false,
    ")": _Machine.plain_empty,
    "\x85": _Machine.plain_single,
    "\x86": _Machine.plain_pair,
    "R": _Machine.plain_reduce,
    "Q": _Machine.plain_reference,
}
_FAST: Final = [_FREQUENT.get(chr(code), _Machine.rare) for code in range(256)]

_ORDERED_DICT: Final = GlobalName("collections.OrderedDict")
_CONSTANTS: Final = {
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
    "EMPTY_TUPLE": (),
    "MARK": _MARK,
}
_LITERALS: Final = frozenset(
    (
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "UNICODE",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
    )
)
_GETS: Final = frozenset(("GET", "BINGET", "LONG_BINGET"))
_PUTS: Final = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
_HANDLERS: Final[dict[str, Any]] = {
    "GLOBAL": _Machine.global_,
    "STACK_GLOBAL": _Machine.stack_global,
    "REDUCE": _Machine.reduce,
    "NEWOBJ": _Machine.new_object,
    "NEWOBJ_EX": _Machine.new_object_with_keywords,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.persistent_id,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.append_all,
    "ADDITEMS": _Machine.add_items,
    "POP": _Machine.pop,
    "POP_MARK": _Machine.pop_mark,
    "DUP": _Machine.duplicate,
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    # A list: the members of a set may be descriptions, which cannot be hashed.
    "EMPTY_SET": lambda machine, _: machine.push([]),
    "FROZENSET": lambda machine, _: machine.collect(list),
    "LIST": lambda machine, _: machine.collect(list),
    "TUPLE": lambda machine, _: machine.collect(tuple),
    "DICT": lambda machine, _: machine.collect(_pairs_to_dict),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
}


def _load_native() -> Any:
    if os.environ.get(_NATIVE_VARIABLE) == "0":
        return None
    try:
        native: Any = import_module("msprobe.dump.formats._opcodes")
    except ImportError:
        return None
    native.setup(_ORDERED_DICT, Described, PersistentId, _MARK)
    return native


_NATIVE: Final = _load_native()
