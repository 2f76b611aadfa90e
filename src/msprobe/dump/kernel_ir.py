# SPDX-License-Identifier: Apache-2.0
"""Reads MindSpore's graphs as text (``*.ir``): source line and inputs of each operator.

    %1(equiv_5_x) = PrimFunc_MatMul(%para5_inputs0, %0) {…} cnode_primal_attrs: {unique_id: "8528"}
        : (<Tensor[Float32], (3, 4)>, …) -> (<Tensor[Float32], (3, 8)>)
        # Fullname with scope: (Default/network-WithLoss/0-Dense/MatMul-op0)
        # In file net.py:423~438, 4~19/    def construct(self, *inputs):/
        # In file net.py:425, 19~37/            return self._impl(*inputs)/

Older versions write ``: full_name_with_scope: (…)`` and ``# In file net.py(425)/    …/``. Frames
are outermost first; one that spans the next, such as the ``def`` around it, says nothing more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from msprobe.errors import DumpFormatError
from msprobe.files import reading

_NODE: Final = re.compile(r"\s*(?:%\w+(?:\(.*?\))?\s*=\s|Return\()")
_CALL: Final = re.compile(r"\s*(%\w+)(?:\(.*?\))?\s*=\s*(?:PrimFunc_)?(\w+)\(")
_OPERAND: Final = re.compile(r"%para\d+_[^\s,()]+|%\w+")
_SUBGRAPH: Final = re.compile(r"\s*subgraph ")
_GRAPH: Final = re.compile(r"\s*(?:subgraph |\}|# )")
_PARAMETER: Final = re.compile(r"\s*%para\d+_([^\s:,()]+)\s*:\s*<")
_SCOPE: Final = re.compile(r"\s*[#:]\s*full_?\s?name[ _]with[ _]scope\s*:\s*\((.*)\)", re.I)
_FRAME: Final = re.compile(
    r"\s*#\s*In file (?P<file>.+?)"
    r"(?::(?P<line>\d{1,9})(?:~(?P<end>\d{1,9}))?(?:,\s*\d+~\d+)?|\((?P<old>\d{1,9})\))"
    r"/(?P<source>.*)"
)
_OWN_ID: Final = re.compile(r'\bunique_id\s*:\s*"?(\w+)')
_FORWARD_ID: Final = re.compile(r'\bforward_unique_id\s*:\s*"?(\w+)')
_FUNCTION: Final = re.compile(r"(?:async\s+)?def\s+(\w+)")
# Constants are part of a node's text, and may be long.
_LONGEST_LINE: Final = 1 << 20


class SourceLine(NamedTuple):
    """A place in the program.

    Attributes:
        file: path as MindSpore wrote it.
        line: number, from 1.
        function: the function around it; empty if unknown.
        source: the text of the line.
    """

    file: str
    line: int
    function: str
    source: str

    def __str__(self) -> str:
        """Return the line in the form of call stacks."""
        return f"File {self.file}, line {self.line}, in {self.function}, \n {self.source}"


class IrValue(NamedTuple):
    """A value inside a graph: an output of an operator, or a parameter.

    Attributes:
        scope: full name of the operator, or the parameter's name.
        output: which of its outputs.
    """

    scope: str
    output: int


class _Call(NamedTuple):
    """An operator as other lines refer to it."""

    kind: str
    scope: str
    operands: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class IrOperator:
    """One operator of a graph.

    Attributes:
        scope: full name, such as ``Default/network-WithLoss/0-Dense/MatMul-op0``.
        identity: its ``unique_id``; empty if it has none.
        forward: ``unique_id`` of the operator that it is the gradient of; empty if of none.
        frames: where the program called it, outermost first.
        inputs: the values that it is given, by place; None for constants.
    """

    scope: str = ""
    identity: str = ""
    forward: str = ""
    frames: list[SourceLine] = field(default_factory=list)
    inputs: list[IrValue | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class IrGraph:
    """Content of one file.

    Attributes:
        operators: in the order of the file; those without a scope are left out.
        parameters: names of weights and inputs.
    """

    operators: list[IrOperator]
    parameters: list[str]


def read_ir(path: str | os.PathLike[str]) -> IrGraph:
    """Read the text form of a graph.

    Raises:
        DumpFormatError: the file cannot be read, or holds no operator with a scope.
    """
    path = Path(path)
    operators: list[IrOperator] = []
    parameters: dict[str, None] = {}
    calls: dict[str, _Call] = {}  # of the graph that is being read
    with reading(path, DumpFormatError), path.open(encoding="utf-8", errors="replace") as file:
        for block in _blocks(file, parameters):
            if block and _SUBGRAPH.match(block[0]):
                calls = {}
                continue
            operator = _operator(block)
            if block:
                _add_inputs(operator, block[0], calls)
            if operator.scope:
                operators.append(operator)
    if not operators:
        raise DumpFormatError(path, "is no graph in text form: it names no operator's scope")
    return IrGraph(operators=operators, parameters=list(parameters))


def _blocks(lines: Iterator[str], parameters: dict[str, None]) -> Iterator[list[str]]:
    """Yield the lines of each operator; note the parameters on the way."""
    block: list[str] = []
    for line in lines:
        text = line[:_LONGEST_LINE]
        if found := _PARAMETER.match(text):
            parameters[found[1]] = None
        elif _NODE.match(text):
            yield block
            block = [text]
        elif block and _GRAPH.match(text) and not _belongs_to_node(text):
            yield block
            block = []
        elif block:
            block.append(text)
        if _SUBGRAPH.match(text):
            yield [text]
    yield block


def _add_inputs(operator: IrOperator, line: str, calls: dict[str, _Call]) -> None:
    """Find the values that an operator is given; note how others refer to it."""
    found = _CALL.match(line)
    if found is None:
        return
    operands = _operands(line, found.end())
    calls[found[1]] = _Call(found[2], operator.scope, operands)
    operator.inputs = [_value(each, calls) for each in operands]


def _operands(line: str, start: int) -> tuple[str, ...]:
    """Return what is between the brackets of a call, parted at its commas."""
    depth, begin, found = 0, start, []
    for place in range(start, len(line)):
        letter = line[place]
        if letter in "([{<":
            depth += 1
        elif letter in ")]}>":
            depth -= 1
        if depth < 0 or (depth == 0 and letter == ","):
            found.append(line[begin:place].strip())
            begin = place + 1
        if depth < 0:
            break
    return tuple(found)


def _value(operand: str, calls: Mapping[str, _Call], index: int = 0) -> IrValue | None:
    """Return the value that an operand names; None for constants."""
    if _OPERAND.fullmatch(operand) is None:
        return None
    if operand.startswith("%para"):
        return IrValue(operand.partition("_")[2], 0)
    call = calls.get(operand)
    if call is None:
        return None
    if call.kind == "TupleGetItem":
        number = re.search(r"\((\d+)\)", call.operands[1]) if len(call.operands) > 1 else None
        return _value(call.operands[0], calls, int(number[1]) if number else 0)
    if call.kind in ("Load", "Depend") and call.operands:
        return _value(call.operands[0], calls, index)
    if call.kind == "MakeTuple":
        return _value(call.operands[index], calls) if index < len(call.operands) else None
    return IrValue(call.scope, index) if call.scope else None


def _belongs_to_node(text: str) -> bool:
    """Return whether a line that begins like a remark is about the operator above it."""
    return text.startswith((" ", "\t")) and text.lstrip().startswith("#")


def _operator(block: list[str]) -> IrOperator:
    found = IrOperator()
    raw: list[tuple[str, int, int, str]] = []
    for text in block:
        if frame := _FRAME.match(text):
            raw.append(_raw_frame(frame))
        elif scope := _SCOPE.match(text):
            found.scope = scope[1].strip()
        elif "unique_id" in text:
            if own := _OWN_ID.search(text):
                found.identity = own[1]
            if forward := _FORWARD_ID.search(text):
                found.forward = forward[1]
    found.frames = _narrowest(raw)
    return found


def _raw_frame(frame: re.Match[str]) -> tuple[str, int, int, str]:
    line = int(frame["line"] or frame["old"])
    source = frame["source"].rstrip()
    return frame["file"], line, int(frame["end"] or line), source.removesuffix("/").strip()


def _narrowest(frames: list[tuple[str, int, int, str]]) -> list[SourceLine]:
    """Return the frames that span no further one, with the functions around them."""
    kept: list[SourceLine] = []
    function = ""
    for place, (file, line, end, source) in enumerate(frames):
        if named := _FUNCTION.match(source):
            function = named[1]
        if place + 1 < len(frames):
            next_file, next_line, next_end, _ = frames[place + 1]
            if next_file == file and line <= next_line and next_end <= end:
                continue
        kept.append(SourceLine(file, line, function, source))
    return kept
