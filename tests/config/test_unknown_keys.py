# SPDX-License-Identifier: Apache-2.0
"""Keys that have no effect are named, once each, with the nearest name that has one."""

from __future__ import annotations

import pytest


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert all(record.name == "msprobe.config.loading" for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"stpe": []}, '"stpe" is not a known key and ignored; did you mean "step"?'),
        ({"Level": "L0"}, '"Level" is not a known key and ignored; did you mean "level"?'),
        ({"DUMP-PATH": 1}, 'did you mean "dump_path"?'),
        ({"dump_Path": 1}, 'did you mean "dump_path"?'),
        ({"zzz": 1}, '"zzz" is not a known key and ignored'),
        ({"": 1}, '"" is not a known key and ignored'),
        (
            {"statistics": {"datamode": 1}},
            '"statistics.datamode" is not a known key and ignored; did you mean "data_mode"?',
        ),
        (
            {"task": "tensor", "tensor": {"tensor_list": ["a"]}},
            '"tensor.tensor_list" has no effect here; it belongs to task statistics',
        ),
        (
            {"task": "structure", "structure": {"scope": []}},
            '"structure.scope" has no effect here; it belongs to task statistics or tensor',
        ),
        (
            {"scope": []},
            '"scope" has no effect here; it belongs in the section "statistics"',
        ),
        (
            {"statistics": {"step": [1]}},
            '"statistics.step" has no effect here; it belongs at the top of the file',
        ),
        ({"load": {"path": 3}}, '"load" is not supported and ignored: inputs of modules'),
        (
            {"statistics": {"request_id": "a"}},
            '"statistics.request_id" is not supported and ignored: calls cannot be selected',
        ),
        (
            {"task": "tensor", "tensor": {"bench_path": "x"}},
            '"tensor.bench_path" is not supported and ignored',
        ),
        (
            {"statistics": {"slice": [{}, {"dim": 0, "stop": 3}]}},
            '"statistics.slice[1].stop" is not a known key and ignored',
        ),
        ({"diff_nums": 3}, '"diff_nums" is not supported and ignored'),
    ],
)
def test_each_key_without_effect_warns_once(load, caplog, content, expected):
    load(content)
    (warning,) = warnings_of(caplog)
    assert expected in warning
    assert "config.json: " in warning


def test_each_of_several_keys_has_its_own_warning(load, caplog):
    load({"a1": 1, "b1": 2, "statistics": {"c1": 3, "list": []}})
    warnings = warnings_of(caplog)
    assert [text.split('"')[1] for text in warnings] == ["a1", "b1", "statistics.c1"]


def test_schema_reference_for_editors_is_no_unknown_key(load, caplog):
    load({"$schema": "./config.schema.json"})
    assert warnings_of(caplog) == []


def test_a_key_cannot_forge_lines_of_the_log(load, caplog):
    load({"a\nERROR all is lost": 1, "k" * 10_000: 2})
    first, second = warnings_of(caplog)
    assert "\n" not in first
    assert len(second) < 500
