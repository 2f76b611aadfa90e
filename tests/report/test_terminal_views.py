# SPDX-License-Identifier: Apache-2.0
"""What people see, at several widths; golden files are refreshed with pytest --overwrite."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

import msprobe
from msprobe.dump.rank_view import RankView
from msprobe.plain_text import plain
from msprobe.report.as_json import overview_json, record_json
from msprobe.report.grid import cut_middle
from msprobe.report.nonfinite import find_nonfinite
from msprobe.report.overview_lines import overview_lines
from msprobe.report.record_lines import record_lines
from msprobe.report.tree_lines import TreeOptions, tree_lines
from msprobe.report.value_text import (
    number_text,
)

PEER = Path(__file__).parents[1] / "dump" / "data"


def view_of(path: Path) -> RankView:
    return next(msprobe.open_dump(path).rank_views())


def tree(view: RankView, **options) -> list:
    return list(tree_lines(view, find_nonfinite(view), TreeOptions(**options)))


def text_of(lines) -> str:
    return "".join(f"{line.plain}\n" for line in lines)


@pytest.mark.parametrize("width", [80, 110, 160])
def test_tree(sample, golden, width):
    view = view_of(sample)
    text = text_of(tree(view, width=width))
    plain = [str(line) for line in tree(view, width=width, styled=False)]
    assert plain == text.splitlines()
    assert max(map(cell_len, text.splitlines())) <= width
    golden(f"tree_{width}.txt", text)


def test_tree_without_line_drawing(sample, golden):
    text = text_of(tree(view_of(sample), width=80, unicode=False))
    assert not set(text) & set("├└│─")
    golden("tree_ascii.txt", text)


def test_overview(sample, golden):
    dump = msprobe.open_dump(sample)
    view = dump.step().rank(0)
    text = text_of(overview_lines(dump, view, find_nonfinite(view), width=80))
    golden("overview.txt", text.replace(str(sample), "dump"))


@pytest.mark.parametrize("width", [80, 160])
def test_record(sample, golden, width):
    view = view_of(sample)
    names = (
        "Module.layers.0.self_attn.MultiheadAttention.forward.0",
        "Module.layers.0.Block.backward.0",
        "Torch.linalg_cholesky.0.forward",
    )
    text = "\n".join(text_of(record_lines(view, view.records[name], width=width)) for name in names)
    golden(f"record_{width}.txt", text)


@pytest.mark.parametrize("name", ["peer_mix_tensor", "peer_l1_md5", "peer_debug_tensor"])
def test_tree_of_a_dump_of_the_peer(golden, name):
    golden(f"{name}.txt", text_of(tree(view_of(PEER / name), width=80)))


def test_depth_and_limit_say_what_they_hide(sample):
    view = view_of(sample)
    lines = text_of(tree(view, width=120, depth=2))
    assert "0 Block" in lines
    assert "+8 inside" in lines
    assert "Tensor.any.0" not in lines
    lines = text_of(tree(view, width=120, limit=3))
    assert "14 more calls" in lines
    assert "Functional.embedding.0" in lines


def test_selected_calls_keep_what_encloses_them(sample):
    lines = text_of(tree(view_of(sample), width=120, selected={"Tensor.any.0.forward"}))
    names = [re.split("  +", line[4:].strip(" └─├│"))[0] for line in lines.splitlines()]
    assert names[:4] == ["forward", "GPT", "layers.0 Block", "Tensor.any.0"]
    assert names[4] == ""


def test_nan_begins_in_the_innermost_call_whose_arguments_are_finite(sample):
    found = find_nonfinite(view_of(sample))
    assert found.first == "Functional.multi_head_attention_forward.0.forward"
    assert [name for name, mark in found.marks.items() if mark == "!!"] == [found.first]
    assert len(found.marks) == 7


def test_nan_from_outside_is_reported_at_its_first_appearance(tmp_path):
    nan = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [], "Max": math.nan}
    (tmp_path / "rank").mkdir()
    data = {f"Functional.relu.{n}.forward": {"input_args": [nan], "output": [nan]} for n in (0, 1)}
    (tmp_path / "rank" / "dump.json").write_text(json.dumps({"data": data}))
    found = find_nonfinite(view_of(tmp_path))
    assert found.first == "Functional.relu.0.forward"
    assert set(found.marks.values()) == {"!"}


def test_nan_from_a_literal_begins_in_the_call_and_not_in_its_backward(tmp_path):
    good = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [], "Max": 1.0}
    nan = {**good, "Max": math.nan}
    data = {
        "Tensor.mul.0.forward": {"input_args": [good, {"type": "float", "value": math.nan}]},
        "Tensor.sum.0.forward": {"input_args": [nan], "output": [nan]},
        "Tensor.sum.0.backward": {"input": [good], "output": [nan]},
        "Tensor.exp.0.forward": {"input_args": [good], "output": [good]},
        "Tensor.exp.0.backward": {"input": [good], "output": [nan]},
    }
    data["Tensor.mul.0.forward"]["output"] = [nan]
    (tmp_path / "rank").mkdir()
    (tmp_path / "rank" / "dump.json").write_text(json.dumps({"data": data}))
    assert find_nonfinite(view_of(tmp_path)).marks == {
        "Tensor.mul.0.forward": "!!",
        "Tensor.sum.0.forward": "!",
        "Tensor.sum.0.backward": "!",
        "Tensor.exp.0.backward": "!!",
    }


def test_marks_stand_out_with_and_without_colour(sample):
    lines = tree(view_of(sample), width=120)
    line = next(line for line in lines if "multi_head_attention" in line.plain)
    assert line.plain.startswith("!!")
    red = [line.plain[span.start : span.end] for span in line.spans if "red" in str(span.style)]
    assert "!!" in red
    assert "-inf" in red


def test_json_views_are_strict_json(sample):
    dump = msprobe.open_dump(sample)
    view = dump.step().rank(0)
    overview = json.loads(json.dumps(overview_json(dump, view), allow_nan=False))
    assert overview["steps"] == [0, 12]
    assert overview["ranks"] == [0, 1]
    name = "Module.layers.0.self_attn.MultiheadAttention.forward.0"
    record = json.loads(json.dumps(record_json(view, view.records[name]), allow_nan=False))
    values = {value["part"]: value for value in record["values"]}
    assert values["output.0.0"]["max"] == "Infinity"
    assert values["output.0.0"]["pos_inf_count"] == 2
    assert values["kwargs.size"] == {"part": "kwargs.size", "type": "torch.Size", "value": [8, 128]}
    assert record["inside"] == ["Module.layers.0.Block.forward.0", "Module.GPT.forward.0"]
    assert len(record["frames"]) == 5


@given(st.one_of(st.floats(), st.integers(-(2**63), 2**64), st.booleans(), st.none()))
@pytest.mark.parametrize("width", [7, 8, 9])
def test_numbers_fit_and_mean_what_they_say(width, value):
    text = number_text(value, width)
    assert len(text) <= width
    if value is None or isinstance(value, bool) or not math.isfinite(value):
        return
    if abs(value) < 1e307:  # beyond, rounding gives a number that float() does not know
        one_digit = 0.5
        assert float(text) == pytest.approx(float(value), rel=one_digit, abs=5e-324)
    if 1e-9 < abs(value) < 1e9 and width == 9:
        assert float(text) == pytest.approx(float(value), rel=0.0051)


@given(st.text(max_size=40), st.integers(1, 30))
def test_cut_text_fits(text, width):
    shown = cut_middle(plain(text), width)
    assert cell_len(shown) <= width
    if cell_len(plain(text)) <= width:
        assert shown == plain(text)


@given(st.text(st.characters(exclude_categories=()), max_size=30))
def test_no_text_from_a_dump_reaches_the_terminal_as_a_command(text):
    shown = plain(text)
    assert shown.isprintable() or all(not (ord(c) < 32 or 127 <= ord(c) < 160) for c in shown)
    shown.encode()
