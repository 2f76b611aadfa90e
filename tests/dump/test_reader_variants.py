# SPDX-License-Identifier: Apache-2.0
"""Every documented variant of a dump opens and means the same."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import msprobe
from builders.dumps import write_rank
from msprobe.dump.record_names import RecordKind
from msprobe.dump.values import Message, Role, Value
from msprobe.errors import DumpFormatError, RecordNotFoundError

DATA = Path(__file__).parent / "data"
TENSOR = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 1.0, "Min": 0.0}


def only_rank(path: Path):
    return msprobe.open_dump(path).step().rank()


@pytest.mark.parametrize("name", ["peer_mix_tensor", "peer_l1_md5", "peer_debug_tensor"])
def test_every_value_of_a_dump_of_the_peer_is_understood(name):
    view = only_rank(DATA / name)
    file = "debug.json" if "debug" in name else "dump.json"
    text = (view.directory / file).read_text()
    raw = json.loads(text)["data"]
    assert list(view.records) == list(raw)
    tensors = [tensor for record in view.records.values() for _, tensor in record.tensors()]
    assert len(tensors) == text.count('"shape"')
    assert all(tensor.type == "torch.Tensor" for tensor in tensors)
    assert sum(math.isnan(t.max) for t in tensors if t.max is not None) == text.count('"Max": NaN')
    assert all(record.name.kind is not RecordKind.OTHER for record in view.records.values())


def test_values_of_a_peer_record():
    view = only_rank(DATA / "peer_mix_tensor")
    record = view.records["Module.backward_0.0.Linear.forward.0"]
    values = {value.label: value for value in record.values()}
    assert list(values) == ["input.0", "parameters.weight", "parameters.bias", "output.0"]
    assert values["output.0"] == Value(
        path=("output", 0),
        slot="output.0",
        role=Role.OUTPUT,
        is_tensor=True,
        type="torch.Tensor",
        dtype="float32",
        raw_dtype="torch.float32",
        shape=(1, 2),
        max=-0.18854664266109467,
        min=-0.5397958159446716,
        mean=-0.36417123675346375,
        norm=0.57177734375,
        requires_grad=True,
        data_name="Module.backward_0.0.Linear.forward.0.output.0.pt",
    )
    assert record.name.path == "backward_0.0"
    assert view.ancestors(record.name.full) == ["Module.backward_0.Sequential.forward.0"]
    assert view.frames(record.name.full)[-1] == "File train.py, line 16, in <module>, \n y=m(x)"


def test_checksums_of_a_peer_dump():
    view = only_rank(DATA / "peer_l1_md5")
    sums = [t.md5 for record in view.records.values() for _, t in record.tensors()]
    assert sums
    assert all(len(md5) == 8 and int(md5, 16) >= 0 for md5 in sums)


def test_nested_values_of_a_peer_debug_dump():
    view = only_rank(DATA / "peer_debug_tensor")
    values = view.records["nested.0.debug"].values()
    assert [value.label for value in values] == ["a", "l.0", "l.1", "l.2"]
    assert (values[1].type, values[1].value) == ("int", 1)
    gradients = {value.path: value for value in view.records["nested_grad.0.debug"].values()}
    assert gradients["l", 2].is_null
    (gradient,) = view.records["i_grad.0.debug"].values()
    assert (gradient.path, gradient.is_null) == (("value",), True)
    assert view.head.level == "debug"


def test_every_path_into_a_dump_opens_it(tmp_path):
    record = {"Functional.relu.0.forward": {"output": [TENSOR]}}
    for step in (0, 10, 2):
        for rank in ("rank10", "rank2"):
            write_rank(tmp_path / f"step{step}" / rank, record)
    (tmp_path / "step0" / "kernel_config_0.json").write_text("{}")
    (tmp_path / "stepx").mkdir()
    dump = msprobe.open_dump(tmp_path)
    assert list(dump.steps) == [0, 2, 10]
    assert list(dump.steps[2].ranks) == [2, 10]
    for path in ("step2", "step2/rank10", "step2/rank10/dump.json"):
        found = msprobe.open_dump(tmp_path / path)
        assert list(found.steps) == [2]
        assert 10 in found.steps[2].ranks
    assert len(list(dump.rank_views())) == 6
    with pytest.raises(RecordNotFoundError, match="no step 7; there are: 0, 2, 10"):
        dump.step(7)
    with pytest.raises(RecordNotFoundError, match="several ranks"):
        dump.step(2).rank()
    with pytest.raises(RecordNotFoundError, match="no rank 3; there are: 2, 10"):
        dump.step(2).rank(3)


@pytest.mark.parametrize(
    ("folder", "key"), [("rank3", 3), ("rank", "rank"), ("proc4711", "proc4711")]
)
@pytest.mark.parametrize("step", ["step1", "."])
def test_rank_folders_of_every_kind_with_and_without_steps(tmp_path, folder, key, step):
    write_rank(tmp_path / step / folder, {"Functional.relu.0.forward": {"output": [TENSOR]}})
    found = msprobe.open_dump(tmp_path).step()
    assert list(found.ranks) == [key]
    assert found.number == (1 if step == "step1" else 0)
    assert found.rank() is found.ranks[key]
    if folder == "rank":
        assert found.rank(0) is found.ranks[key]


def test_relative_paths_know_their_step(tmp_path, monkeypatch):
    directory = write_rank(tmp_path / "step7" / "rank0", {})
    monkeypatch.chdir(directory)
    for path in (".", "..", "dump.json", "../rank0"):
        assert list(msprobe.open_dump(path).steps) == [7], path


def test_mindspore_dump_in_two_halves(tmp_path):
    tensor = {
        "type": "mindspore.Tensor",
        "dtype": "BFloat16",
        "shape": [2, 3],
        "Max": 1.5,
        "Min": -1.0,
        "Mean": 0.0,
        "Norm": 2.0,
        "md5": "8c82d797",
        "layout": {"Device Matrix": [2], "Partial": []},
        "hsdp_shard_size": -1,
    }
    names = ["Cell.fc1.Dense.forward.0", "Cell.fc1.Dense.parameters_grad", "Mint.sum.0.backward"]
    for mode in ("graph", "pynative"):
        directory = tmp_path / mode / "step0" / "rank0"
        write_rank(directory, {n: {"output": [tensor]} for n in names}, framework="mindspore")
    step = msprobe.open_dump(tmp_path).step()
    assert list(step.ranks) == ["graph/rank0", "pynative/rank0"]
    view = step.ranks["graph/rank0"]
    assert (view.mode, view.rank, view.head.framework) == ("graph", 0, "mindspore")
    assert [view.records.parsed(name).class_name for name in names] == ["Dense", "Dense", None]
    value = dict(view.records[names[0]].tensors())[("output", 0)]
    assert value.requires_grad is None
    assert (value.dtype, value.raw_dtype) == ("bfloat16", "BFloat16")
    assert value.extra["layout"] == {"Device Matrix": [2], "Partial": []}


def test_a_head_without_framework_is_guessed_from_the_names(tmp_path):
    old = {"task": "run_ut", "level": "L0", "data": {"Cell.fc.Dense.forward.0": {"output": []}}}
    (tmp_path / "rank").mkdir()
    (tmp_path / "rank" / "dump.json").write_text(json.dumps(old))
    view = only_rank(tmp_path)
    assert (view.head.task, view.head.framework) == ("run_ut", "mindspore")


@pytest.mark.parametrize(
    "stack",
    [
        {"0": [["Functional.relu.0.forward", "b"], ["File a.py, line 1, in f, \n x"]]},
        {"Functional.relu.0.forward": ["File a.py, line 1, in f, \n x"], "b": ["other"]},
        # Our own writer may leave several entries with equal frames.
        {"0": [["b"], []], "1": [["Functional.relu.0.forward"], ["File a.py, line 1, in f, \n x"]]},
    ],
)
def test_both_shapes_of_stack_json(tmp_path, stack):
    write_rank(tmp_path / "rank", {"Functional.relu.0.forward": {"output": [TENSOR]}})
    (tmp_path / "rank" / "stack.json").write_text(json.dumps(stack, indent=1))
    view = only_rank(tmp_path)
    assert view.frames("Functional.relu.0.forward") == ["File a.py, line 1, in f, \n x"]
    assert view.frames("unknown") == []


def test_every_kind_of_entry_in_construct_json(tmp_path):
    construct = {
        "Functional.relu.0.forward": ["Module.a.A.forward.0", 1],
        "Module.a.A.forward.0": [None, 1],
        "Tensor.add.0.forward": "optimizer",
        "optimizer": None,
        "clip_grad": None,
        "megatron_micro_step_number": 2,
    }
    write_rank(tmp_path / "rank", {})
    (tmp_path / "rank" / "construct.json").write_text(json.dumps(construct))
    view = only_rank(tmp_path)
    assert view.parents == {
        "Functional.relu.0.forward": "Module.a.A.forward.0",
        "Module.a.A.forward.0": None,
        "Tensor.add.0.forward": "optimizer",
        "optimizer": None,
        "clip_grad": None,
    }
    assert view.call_tree.micro_steps["Functional.relu.0.forward"] == 1
    assert view.call_tree.micro_step_count == 2
    assert view.ancestors("Functional.relu.0.forward") == ["Module.a.A.forward.0"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("NaN", math.nan),
        ('"NaN"', math.nan),
        ('"nan"', math.nan),
        ("Infinity", math.inf),
        ('"Infinity"', math.inf),
        ('"inf"', math.inf),
        ("-Infinity", -math.inf),
        ('"-inf"', -math.inf),
    ],
)
@pytest.mark.parametrize("one_line", [True, False])
def test_nan_and_infinity_in_every_spelling(tmp_path, written, read, one_line):
    record = {"output": [{**TENSOR, "Max": "@"}]}
    text = '{"task":"statistics","level":"L1","framework":"pytorch","dump_data_dir":null,"data":{'
    line_break = "\n" if one_line else " "
    text += f'{line_break}"Functional.relu.0.forward": {json.dumps(record)}{line_break}}}}}'
    (tmp_path / "rank").mkdir()
    (tmp_path / "rank" / "dump.json").write_text(text.replace('"@"', written))
    view = only_rank(tmp_path)
    ((_, tensor),) = view.records["Functional.relu.0.forward"].tensors()
    assert tensor.max == read or (math.isnan(tensor.max) and math.isnan(read))
    assert (tensor.has_nan, tensor.has_inf) == (math.isnan(read), math.isinf(read))
    assert view.records.may_be_nonfinite("Functional.relu.0.forward")


def two_records(path: Path, largest: float) -> None:
    records = {
        f"Functional.relu.{number}.forward": {"output": [TENSOR | {"Max": largest + number}]}
        for number in range(2)
    }
    write_rank(path / "rank", records)


def test_records_are_readable_after_their_text_was_released(tmp_path):
    two_records(tmp_path, 3.0)
    view, other = only_rank(tmp_path), only_rank(tmp_path)
    before = {name: record.values() for name, record in view.records.items()}
    view.release_text()
    assert {name: record.values() for name, record in view.records.items()} == before
    assert all(view.records.has_same(other.records, name) for name in before)
    assert view.records.values_of("Functional.relu.1.forward")[0].max == 4.0


def test_a_file_that_changes_after_its_text_was_released_is_an_error(tmp_path):
    two_records(tmp_path, 3.0)
    view = only_rank(tmp_path)
    assert len(view.records) == 2
    view.release_text()
    two_records(tmp_path, 13.0)
    with pytest.raises(DumpFormatError, match=r"dump\.json: has changed while it was read"):
        view.records["Functional.relu.1.forward"]


ODD_NAMES = ["a.b.0.forward", 'quo"te\\', '\n  "x": {', "é\ud800", "", "data", " }"]


@pytest.mark.parametrize("indent", [None, 0, 1, 2, "\t"])
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("count", [0, 1, len(ODD_NAMES)])
def test_formatting_makes_no_difference(tmp_path, indent, order, count):
    inner = {"output": [None, "\n }\n}", {"data": {"": [], "b": {}}}, 1.5, {}], "data": {"x": None}}
    data = {name: [inner, None, [], "text"][number % 4] for number, name in enumerate(ODD_NAMES)}
    data = dict(list(data.items())[:count])
    tree = {"task": "x", "level": "L0", "framework": "pytorch", "extra": {"data": {}}, "data": data}
    (tmp_path / "rank").mkdir()
    text = json.dumps(dict(list(tree.items())[::order]), indent=indent)
    (tmp_path / "rank" / "dump.json").write_text(text)
    view = only_rank(tmp_path)
    assert {name: record.data for name, record in view.records.items()} == data
    assert (view.head.task, view.head.level) == ("x", "L0")


def test_a_line_break_inside_a_value_is_not_taken_for_the_end_of_a_record(tmp_path):
    text = '{"task":"statistics","level":"L1","framework":"pytorch","data":{'
    text += '\n"a": {"output":[\nnull]},\n"b": {"output":[null,\nnull]}\n}}'
    (tmp_path / "rank").mkdir()
    (tmp_path / "rank" / "dump.json").write_text(text)
    view = only_rank(tmp_path)
    assert {name: len(view.records[name].values()) for name in view.records} == {
        "a": 1,
        "b": 2,
    }


def test_values_that_are_no_tensors(tmp_path):
    arguments = [
        {"type": "slice", "value": [0, None, 2]},
        {"type": "torch.memory_format", "format": "channels_last"},
        {"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "77849d8c"},
        {"class_type": "torch.distributed.P2POp", "tensor": TENSOR, "op": "isend", "peer": 1},
        {"type": {"type": "str", "value": "a user's key"}},
        {},
        None,
    ]
    name = "Distributed.batch_isend_irecv.0.forward"
    record = {"input_args": arguments, "raised": "ValueError: no", "remarks": {"input.0": "lost"}}
    write_rank(tmp_path / "rank", {name: record})
    found = only_rank(tmp_path).records[name]
    values = {value.label: value for value in found.values()}
    assert (values["input.0"].type, values["input.0"].value) == ("slice", [0, None, 2])
    assert values["input.1"].value == "channels_last"
    assert (values["input.2"].value, values["input.2"].group_ranks) == ([0, 1], (0, 1))
    assert values["input.2"].extra == {"group_id": "77849d8c"}
    assert values["input.3"].shape == (2,)
    assert values["input.3"].message == Message(operation="isend", peer=1)
    assert values["input.4.type"].value == "a user's key"
    assert values["input.6"].is_null
    assert values["input.0"].remark == "lost"
    assert found.notes == {"raised": "ValueError: no", "remarks": {"input.0": "lost"}}


def test_structure_dump_has_a_tree_and_no_records(tmp_path):
    write_rank(tmp_path / "rank", {}, task="structure")
    (tmp_path / "rank" / "construct.json").write_text('{"Module.a.A.forward.0": null}')
    view = only_rank(tmp_path)
    assert len(view.records) == 0
    assert list(view.parents) == ["Module.a.A.forward.0"]


def test_an_unloaded_view_reads_again_when_asked(tmp_path):
    directory = write_rank(tmp_path / "rank", {"a.b.0.forward": {"output": [None]}})
    view = only_rank(tmp_path)
    assert (list(view.records), view.head.level) == (["a.b.0.forward"], "mix")
    write_rank(directory, {}, level="L0")
    assert len(view.records) == 1
    view.unload()
    assert (len(view.records), view.head.level) == (0, "L0")


def test_a_missing_record_says_so(tmp_path):
    write_rank(tmp_path / "rank", {})
    records = only_rank(tmp_path).records
    with pytest.raises(RecordNotFoundError, match=r"dump\.json: holds no record 'x'"):
        records["x"]
    assert records.get("x") is None


def test_account_tells_whether_the_dump_is_complete(tmp_path):
    directory = write_rank(tmp_path / "rank", {})
    assert only_rank(tmp_path).incomplete_reason is None
    (directory / "account.json").write_text('{"complete": false}')
    assert "account.json" in only_rank(tmp_path).incomplete_reason


def test_nothing_there_is_said_plainly(tmp_path):
    with pytest.raises(DumpFormatError, match="does not exist"):
        msprobe.open_dump(tmp_path / "nowhere")
    with pytest.raises(DumpFormatError, match="holds no dump"):
        msprobe.open_dump(tmp_path)
    (tmp_path / "step0" / "rank0").mkdir(parents=True)
    with pytest.raises(DumpFormatError, match="holds no dump"):
        msprobe.open_dump(tmp_path)


@pytest.mark.parametrize("indent", [None, 1])
def test_a_dump_of_100_000_records_opens_without_parsing_them(tmp_path, indent):
    record = {"input_args": [TENSOR] * 3, "input_kwargs": {}, "output": [TENSOR]}
    names = [f"Functional.linear.{n}.forward" for n in range(100_000)]
    if indent:
        line = json.dumps(record, indent=1).replace("\n", "\n  ")
        lines = ",".join(f'\n  "{name}": {line}' for name in names)
        text = f'{{\n "task": "statistics",\n "data": {{{lines}\n }}\n}}'
    else:
        line = json.dumps(record)
        lines = ",".join(f'\n"{name}": {line}' for name in names)
        text = f'{{"task":"statistics","data":{{{lines}\n}}}}'
    (tmp_path / "rank").mkdir()
    broken = "Functional.linear.55555.forward"
    place = text.index('"Max": 1.0', text.index(broken))
    text = f'{text[:place]}"Max": one{text[place + 10 :]}'
    (tmp_path / "rank" / "dump.json").write_text(text)
    view = only_rank(tmp_path)
    assert len(view.records) == 100_000
    assert next(view.records["Functional.linear.77777.forward"].tensors())[1].max == 1.0
    with pytest.raises(DumpFormatError):  # the first time that anyone reads it
        list(view.records[broken].tensors())


def test_a_rank_of_a_process_without_a_number(tmp_path):
    write_rank(tmp_path / "step0" / "rank", {})
    with pytest.raises(RecordNotFoundError, match="no rank 3; there is one process, without a"):
        msprobe.open_dump(tmp_path).step(0).rank(3)
