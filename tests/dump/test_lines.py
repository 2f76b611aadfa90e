# SPDX-License-Identifier: Apache-2.0
"""Lines of the journal: the C extension writes what Python does, and an index that fits."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from msprobe.dump.lines import Call, Lines, PythonLines, Span, encode_text, new_lines
from msprobe.dump.records import TensorRecord

RAW = msgspec.Raw(b'{"type":"torch.Tensor","Max":NaN}')
RECORD = TensorRecord("torch.Tensor", "torch.float32", (2, 3), 1.5, -2.0, 0.25, 3.0)
DATA: list[Any] = [
    {"input_args": RAW, "input_kwargs": msgspec.Raw(b"{}"), "output": [RAW, None]},
    {"input": [RECORD, RAW, {"type": "int", "value": 3}], "output": None, "named": {"a": [RAW]}},
    {"weight": [], 'ein "Wört"': 2.5, "raised": "ValueError"},
    {"a": {1: "number as a key"}},
    {1: "number as a key"},
    RAW,
    [1, "two", None],
]
NAMES = ["Functional.relu.0.forward", "Module.größe.Linear", 'a"b\\c', "tab\there", "x\udcff", ""]


def filled(lines: Lines) -> None:
    for number, data in enumerate(DATA):
        lines.record(f"record.{number}", number - 2, data)
    for number, name in enumerate(NAMES):
        lines.record(name, 1 << 40, {"name": [RAW]})
        lines.call(f"call.{name}", number, name, number)
    lines.call("outermost", -1, None, None)


@pytest.fixture
def both() -> tuple[tuple[Lines, dict[str, Span], dict[str, Call]], ...]:
    if isinstance(new_lines(0, {}, {}), PythonLines):
        pytest.skip("the extension was not built, or is switched off")
    made = []
    for make in (new_lines, PythonLines):
        spans: dict[str, Span] = {}
        calls: dict[str, Call] = {}
        lines: Lines = make(100, spans, calls)
        assert lines.line(b'["head"]\n') == 109
        filled(lines)
        made.append((lines, spans, calls))
    return tuple(made)


def test_c_and_python_write_the_same(both: Any) -> None:
    (native, spans, calls), (python, other_spans, other_calls) = both
    assert not isinstance(native, PythonLines)
    assert native.size_bytes == python.size_bytes
    assert (spans, calls) == (other_spans, other_calls)
    written = native.take()
    assert written == python.take()
    assert len(written) == native.size_bytes - 100
    assert native.take() == python.take() == b""


def test_the_index_leads_to_the_values(both: Any) -> None:
    for lines, spans, _ in both:
        text = b" " * 100 + lines.take()
        for name, span in spans.items():
            begin = b'["r",%d,%b,' % (span.order, encode_text(name))
            assert text[: span.offset].endswith(begin)
            value = text[span.offset : span.offset + span.length]
            assert text[span.offset + span.length :].startswith(b"]\n")
            json.loads(value)


def test_data_that_has_no_form_in_json_leaves_no_trace(both: Any) -> None:
    for lines, spans, _ in both:
        before, waiting = lines.size_bytes, lines.record("good", 1, {})
        for bad in ({"a": [RAW, object()]}, {"a": "\udcff"}, object()):
            with pytest.raises((TypeError, UnicodeEncodeError)):
                lines.record("bad", 1, bad)
        assert "bad" not in spans
        assert lines.size_bytes == before + len(b'["r",1,"good",{}]\n')
        assert len(lines.take()) == waiting


def test_the_last_record_of_a_name_counts(both: Any) -> None:
    for lines, spans, _ in both:
        lines.take()
        begin = lines.size_bytes
        lines.record("again", 1, {"a": None})
        lines.record("again", 2, {"a": [None]})
        span = spans["again"]
        text = lines.take()
        assert text[span.offset - begin :][: span.length] == b'{"a":[null]}'
        assert span.order == 2


def test_many_lines_leave_no_memory_behind(both: Any) -> None:
    (lines, spans, _), _ = both
    lines.take()
    begin = lines.size_bytes
    value = {"a": msgspec.Raw(b'"%b"' % (b"x" * 5000))}
    for number in range(1000):
        waiting = lines.record(f"r{number}", number, value)
    assert waiting == len(lines.take()) == lines.size_bytes - begin
    assert lines.record("next", 0, {}) == len(b'["r",0,"next",{}]\n')
    assert len(spans) > 1000
