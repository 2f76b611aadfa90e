# SPDX-License-Identifier: Apache-2.0
"""What the writer writes, the reader reads: closed dumps, and journals of captures that died."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import msprobe
from msprobe.dump.locking import claim_rank_directory
from msprobe.dump.records import TensorRecord
from msprobe.dump.writer import DumpHead, DumpWriter

HEAD = DumpHead("statistics", "mix", "pytorch")
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
numbers = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=True)
)
tensors = st.builds(
    TensorRecord,
    st.just("torch.Tensor"),
    st.sampled_from(["torch.float32", "torch.bool"]),
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
    numbers,
    numbers,
    numbers,
    numbers,
    requires_grad=st.booleans(),
    value_id=st.one_of(st.just(msgspec.UNSET), st.integers(0, 99)),
    projections=st.one_of(st.just(msgspec.UNSET), st.just((1.5, -2.0))),
)
values = st.recursive(
    st.none() | tensors,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(names.filter(lambda key: key not in ("type", "shape")), inner, max_size=3)
    ),
    max_leaves=8,
)
records = st.dictionaries(names, st.lists(values, max_size=3), max_size=6)


def equal(left: object, right: object) -> bool:
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return left == right and type(left) is type(right)


def written_tensors(tree):
    if isinstance(tree, TensorRecord):
        yield tree
    elif isinstance(tree, (list, dict)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from written_tensors(item)


@settings(max_examples=60, deadline=None)
@given(records, st.booleans())
def test_records_come_back_as_they_were_written(written, is_killed):
    with TemporaryDirectory() as folder:
        directory = Path(folder) / "step3" / "rank1"
        writer = DumpWriter(flush_interval_s=60)
        dump = writer.open(directory, HEAD)
        for order, (name, parts) in enumerate(written.items()):
            dump.put_record(name, -order, {"output": parts}, nonfinite=True)
            dump.put_call(name, order, None, 0)
        dump.put_frames(0, ["File a.py, line 1, in f, \n x"])
        dump.build_json() if is_killed else dump.close()
        view = msprobe.open_dump(folder).step(3).rank(1)
        assert (view.incomplete_reason is not None) == is_killed
        assert list(view.records) == list(written)[::-1]
        assert list(view.parents) == list(written)
        for name, parts in written.items():
            assert view.frames(name) == ["File a.py, line 1, in f, \n x"]
            expected = list(written_tensors(parts))
            found = [tensor for _, tensor in view.records[name].tensors("output")]
            assert len(found) == len(expected)
            for read, wrote in zip(found, expected, strict=True):
                assert (read.raw_dtype, read.shape) == (wrote.dtype, wrote.shape)
                assert read.requires_grad is wrote.requires_grad
                assert read.projections == (
                    None if wrote.projections is msgspec.UNSET else wrote.projections
                )
                assert read.value_id == (
                    None if wrote.value_id is msgspec.UNSET else wrote.value_id
                )
                for key in ("max", "min", "mean", "norm"):
                    assert equal(getattr(read, key), getattr(wrote, key)), key
        writer.close()


def journal(directory: Path, *lines: str, end: str = "\n") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    head = '["head",{"version":1,"task":"statistics","level":"L1","framework":"pytorch",'
    head += '"dump_data_dir":null,"extra_info":true}]'
    path = directory / "journal.jsonl"
    path.write_text("\n".join([head, *lines]) + end)
    return path


def test_a_left_over_journal_is_read_and_said_to_be(tmp_path, caplog):
    journal(
        tmp_path / "step0" / "rank",
        '["r",2,"Functional.relu.1.forward",{"output":[]}]',
        '["r",1,"Functional.relu.0.forward",{"output":[]}]',
        '["c",0,"Functional.relu.0.forward","Module.a.A.forward.0",7]',
        '["s",7,["File a.py, line 1, in f, \\n x"]]',
        '["r",1,"Functional.relu.0.forward",{"output":[null]}]',
        '["r",3,"Functional.relu.2.forw',
        end="",
    )
    # Built at an earlier stop(): the journal holds all of it, and more.
    (tmp_path / "step0" / "rank" / "dump.json").write_text('{"data":{}}')
    with caplog.at_level(logging.WARNING, logger="msprobe"):
        view = msprobe.open_dump(tmp_path).step().rank()
        assert list(view.records) == ["Functional.relu.0.forward", "Functional.relu.1.forward"]
    assert "msprobe repair" in caplog.text
    assert "journal" in view.incomplete_reason
    assert "cut off" in view.incomplete_reason
    (output,) = view.records["Functional.relu.0.forward"].values()
    assert (output.path, output.is_null) == (("output", 0), True)
    assert view.parents == {"Functional.relu.0.forward": "Module.a.A.forward.0"}
    assert view.frames("Functional.relu.0.forward") == ["File a.py, line 1, in f, \n x"]


def test_a_capture_that_still_runs_is_told_from_one_that_died(tmp_path):
    journal(tmp_path / "step0" / "rank")
    view = msprobe.open_dump(tmp_path).step().rank()
    assert "ended" in view.incomplete_reason
    claim = claim_rank_directory(tmp_path, None)
    try:
        assert "still capturing" in view.incomplete_reason
    finally:
        claim.release()


@pytest.mark.parametrize("text", ["", "garbage\n", '["head",{"version":99}]\n', "[" * 99999 + "\n"])
def test_a_journal_without_a_usable_head_is_refused(tmp_path, text):
    directory = tmp_path / "rank"
    directory.mkdir()
    (directory / "journal.jsonl").write_text(text)
    with pytest.raises(msprobe.errors.DumpFormatError, match=r"journal\.jsonl"):
        list(msprobe.open_dump(tmp_path).step().rank().records)
