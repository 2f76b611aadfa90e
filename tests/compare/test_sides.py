# SPDX-License-Identifier: Apache-2.0
"""One side of a comparison: names, values, modules and places in the code."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from pairing import write_side

import msprobe
from builders.records import backward, forward, tensor
from msprobe.compare.model import Mode, row_name
from msprobe.compare.sides import Side
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.dump.values import Message, Role
from msprobe.dump.writer import DumpHead, DumpWriter
from msprobe.errors import DumpFormatError, MsprobeError, RecordNotFoundError, UnsupportedError

DATA = Path(__file__).parent.parent / "dump" / "data"

# Made by the comparison of mindstudio-probe 26.2.0 from the same dumps.
ROW_NAMES = {
    "peer_mix_tensor": """
        Functional.linear.0.forward.input.0
        Functional.linear.0.forward.input.1
        Functional.linear.0.forward.input.2
        Functional.linear.0.forward.output.0
        Module.backward_0.0.Linear.forward.0.input.0
        Module.backward_0.0.Linear.forward.0.parameters.weight
        Module.backward_0.0.Linear.forward.0.parameters.bias
        Module.backward_0.0.Linear.forward.0.output.0
        Module.backward_0.Sequential.forward.0.input.0
        Module.backward_0.Sequential.forward.0.output.0
        Functional.relu.0.forward.input.0
        Functional.relu.0.forward.input.inplace
        Functional.relu.0.forward.output.0
        Module.act.ReLU.forward.0.input.0
        Module.act.ReLU.forward.0.output.0
        Tensor.log.0.forward.input.0
        Tensor.log.0.forward.output.0
        Tensor.sum.0.forward.input.0
        Tensor.sum.0.forward.output.0
        Tensor.sum.0.backward.input.0
        Tensor.sum.0.backward.output.0
        Tensor.log.0.backward.input.0
        Tensor.log.0.backward.output.0
        Functional.relu.0.backward.input.0
        Functional.relu.0.backward.output.0
        Module.act.ReLU.backward.0.input.0
        Module.act.ReLU.backward.0.output.0
        Functional.linear.0.backward.input.0
        Functional.linear.0.backward.output.0
        Functional.linear.0.backward.output.1
        Functional.linear.0.backward.output.2
        Module.backward_0.0.Linear.parameters_grad.0.bias
        Module.backward_0.0.Linear.parameters_grad.0.weight
        Module.backward_0.0.Linear.backward.0.input.0
        Module.backward_0.0.Linear.backward.0.output.0
        Module.backward_0.Sequential.backward.0.input.0
        Module.backward_0.Sequential.backward.0.output.0
    """,
    "peer_debug_tensor": """
        y.0.debug
        y_grad.0.debug
        nested.0.debug.a
        nested.0.debug.l.0
        nested.0.debug.l.1
        nested.0.debug.l.2
        nested_grad.0.debug.a
        nested_grad.0.debug.l.0
        nested_grad.0.debug.l.1
        nested_grad.0.debug.l.2
        i.0.debug
        i_grad.0.debug
        b16.0.debug
    """,
}


def open_side(folder: Path) -> Side:
    return Side(msprobe.open_dump(folder).step().rank(), source="target")


def side_of(directory: Path, record: Any, name: str = "Tensor.x.0.forward", **options: Any) -> Side:
    return write_side(directory, {name: record}, **options)


@pytest.mark.parametrize("dump", list(ROW_NAMES))
def test_rows_have_the_names_of_mindstudio_probe(dump: str) -> None:
    side = open_side(DATA / dump)
    rows = [row_name(name, value.slot) for name in side.names for value in side.values(name)]
    assert rows == ROW_NAMES[dump].split()


def test_parts_of_a_record_stand_in_the_order_of_its_rows(tmp_path: Path) -> None:
    record = {
        "output": [tensor()],
        "parameters": {"weight": tensor()},
        "input_kwargs": {"mask": tensor()},
        "input_args": [tensor(), [tensor(), {"k": tensor()}]],
    }
    values = side_of(tmp_path, record).values("Tensor.x.0.forward")
    assert [(value.slot, value.role) for value in values] == [
        ("input.0", Role.INPUT),
        ("input.1.0", Role.INPUT),
        ("input.1.1.k", Role.INPUT),
        ("input.mask", Role.INPUT),
        ("parameters.weight", Role.PARAMETER),
        ("output.0", Role.OUTPUT),
    ]


def test_slot_follows_the_name_of_the_file(tmp_path: Path) -> None:
    name = "Tensor.x.0.forward"
    record = forward(
        [tensor(data_name=f"{name}.input.0.pt")],
        [tensor(data_name="shortened_0123456789ab.pt")],
        mask=tensor(data_name=f"{name}.kwargs.mask.pt"),
    )
    values = side_of(tmp_path, record, task="tensor").values(name)
    assert [value.slot for value in values] == ["input.0", "kwargs.mask", "output.0"]


@pytest.mark.parametrize(
    ("entry", "kind", "value"),
    [
        (None, "NoneType", None),
        ({"type": "int", "value": 3}, "int", 3),
        ({"type": "slice", "value": [0, 5, None]}, "slice", [0, 5, None]),
        ({"type": "torch.Size", "value": [2, 3]}, "torch.Size", [2, 3]),
        ({"type": "torch.ProcessGroup", "group_ranks": [0, 1]}, "torch.ProcessGroup", [0, 1]),
        ({"type": "torch.device", "format": "npu:0"}, "torch.device", "npu:0"),
        (7, "int", 7),
    ],
)
def test_values_that_are_no_tensors(tmp_path: Path, entry: Any, kind: str, value: Any) -> None:
    [found] = side_of(tmp_path, forward([entry])).values("Tensor.x.0.forward")
    assert (found.is_tensor, found.type, found.value, found.shape) == (False, kind, value, None)


def test_empty_containers_have_no_rows(tmp_path: Path) -> None:
    assert side_of(tmp_path, forward([[], {}])).values("Tensor.x.0.forward") == []


def test_point_to_point_operation_is_its_tensor_with_what_is_sent_where(tmp_path: Path) -> None:
    operation = {
        "class_type": "torch.distributed.P2POp",
        "tensor": tensor((4,)),
        "op": "isend",
        "peer": 1,
        "tag": 0,
        "group_id": "77849d8c",
    }
    record = forward([[operation, {**operation, "tensor": None, "op": "irecv"}]])
    sent, received = side_of(tmp_path, record).values("Tensor.x.0.forward")
    assert (sent.slot, sent.shape) == ("input.0.0", (4,))
    assert sent.message == Message("isend", peer=1, tag=0, group_id="77849d8c")
    assert (received.slot, received.is_tensor) == ("input.0.1", False)
    assert received.message == Message("irecv", peer=1, tag=0, group_id="77849d8c")


def test_further_fields_and_remarks_are_kept(tmp_path: Path) -> None:
    more = {"nan_count": 2, "value_id": 7, "finite_max": 1.5, "finite_min": -2.0, "note": "meta"}
    more |= {"device": "cuda:0", "stride": [1, 2], "device_mesh": [0, 1]}
    record = backward([tensor(**more)], [None])
    record["remarks"] = {"output.0": "not needed"}
    given, missing = side_of(tmp_path, record).values("Tensor.x.0.forward")
    assert (given.value_id, given.nan_count, given.pos_inf_count) == (7, 2, None)
    assert (given.finite_max, given.finite_min, given.note) == (1.5, -2.0, "meta")
    assert (given.device, given.stride, given.remark) == ("cuda:0", (1, 2), None)
    assert given.extra == {"device_mesh": [0, 1]}
    assert missing.remark == "not needed"


def test_random_state_is_a_value_only_where_it_was_kept(tmp_path: Path) -> None:
    record = forward([tensor()]) | {"rng": {"cpu": None, "cuda:0": tensor((16,))}, "recomputed": 1}
    values = side_of(tmp_path, record).values("Tensor.x.0.forward")
    assert [value.slot for value in values] == ["input.0", "rng.cuda:0"]


def test_parameter_gradients_and_saved_values(tmp_path: Path) -> None:
    gradients = side_of(tmp_path, {"weight": [tensor()]}, "Module.fc.Linear.parameters_grad")
    [value] = gradients.values("Module.fc.Linear.parameters_grad")
    assert (value.slot, value.role) == ("weight", Role.PARAMETER_GRAD)
    saved = side_of(tmp_path / "2", {"output": [tensor()]}, "loss.0.debug", level="debug")
    [value] = saved.values("loss.0.debug")
    assert (value.slot, value.role) == ("output.0", Role.SAVED)


def test_statistics_as_text_are_numbers(tmp_path: Path) -> None:
    record = forward([tensor(Max="inf", Min="-inf", Mean="nan", Norm="Infinity")])
    [value] = side_of(tmp_path, record).values("Tensor.x.0.forward")
    assert (value.max, value.min, value.norm) == (math.inf, -math.inf, math.inf)
    assert isinstance(value.mean, float)
    assert math.isnan(value.mean)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"shape": "big"}, "\"shape\" is a list with 'b', not a list of sizes"),
        ({"shape": [2, -1]}, '"shape" is a list with -1'),
        ({"Max": "large"}, "\"Max\" is 'large', not a number"),
        ({"Norm": 1 << 700}, "an integer of 701 bits"),
        ({"dtype": ["torch.float32"]}, '"dtype" is list'),
        ({"requires_grad": "yes"}, "\"requires_grad\" is 'yes', not a bool"),
        ({"data_name": 5}, '"data_name" is 5, not a str'),
        ({"md5": 5}, '"md5" is 5, not a str'),
        ({"value_id": [7]}, '"value_id" is list, not a int'),
        ({"nan_count": "3"}, "\"nan_count\" is '3', not a int"),
        ({"finite_max": "big"}, "\"finite_max\" is 'big', not a number"),
        ({"note": 1}, '"note" is 1, not a str'),
        ({"stride": [1, "x"]}, '"stride" is list, not a list of integers'),
        ({"projections": [1.5]}, '"projections" is list, not a list of two finite numbers'),
        ({"projections": "ab"}, "\"projections\" is 'ab', not a list of two finite numbers"),
        ({"projections": [1.5, None]}, '"projections" is list, not a list of two finite numbers'),
    ],
)
def test_damaged_values_are_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], problem: str
) -> None:
    side = side_of(tmp_path, forward([tensor(**fields)]))
    with pytest.raises(DumpFormatError) as caught:
        side.values("Tensor.x.0.forward")
    assert "Tensor.x.0.forward: input.0" in str(caught.value)
    assert problem in str(caught.value)


def test_endless_nesting_is_refused(tmp_path: Path) -> None:
    tree: list[Any] = []
    for _ in range(800):
        tree = [tree]
    side = side_of(tmp_path, forward(tree))
    with pytest.raises(MsprobeError, match="nested"):
        side.values("Tensor.x.0.forward")


def test_unknown_record(tmp_path: Path) -> None:
    with pytest.raises(RecordNotFoundError, match="no record 'x'"):
        side_of(tmp_path, forward()).values("x")


@pytest.mark.parametrize(
    ("task", "fields", "mode"),
    [
        ("tensor", {}, Mode.TENSOR),
        ("statistics", {}, Mode.STATISTICS),
        ("statistics", {"md5": "0badcafe"}, Mode.MD5),
        ("", {}, Mode.STATISTICS),
        ("overflow_check", {"data_name": "a.pt"}, Mode.TENSOR),
    ],
)
def test_mode_follows_task_and_records(
    tmp_path: Path, task: str, fields: dict[str, Any], mode: Mode
) -> None:
    record = forward([{"type": "int", "value": 1}, tensor(**fields)])
    assert side_of(tmp_path, record, task=task).mode is mode


@pytest.mark.parametrize("task", ["structure", "free_benchmark"])
def test_dump_without_values_cannot_be_compared(tmp_path: Path, task: str) -> None:
    side = side_of(tmp_path, forward(), task=task)
    with pytest.raises(UnsupportedError, match=f"{task}.*statistics or tensor"):
        _ = side.mode


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("torch.float32", "float32"),
        ("Float32", "float32"),
        ("mindspore.BFloat16", "bfloat16"),
        ("torch.float8_e4m3fn", "float8_e4m3fn"),
        ("Bool", "bool"),
        ("torch.half", "float16"),
        ("torch.long", "int64"),
        ("", ""),
    ],
)
def test_dtypes_are_spelt_alike(raw: str, name: str) -> None:
    assert normal_dtype(raw) == name


def module_tree(tmp_path: Path) -> Side:
    names = [
        *("Functional.linear.0.forward", "Module.m.fc.Linear.forward.0", "Module.m.M.forward.0"),
        *("Torch.add.0.forward", "Torch.add.0.backward", "Functional.linear.0.backward"),
        "Module.m.fc.Linear.parameters_grad",
    ]
    parents = {
        "Functional.linear.0.forward": "Module.m.fc.Linear.forward.0",
        "Module.m.fc.Linear.forward.0": "Module.m.M.forward.0",
        "Module.m.M.forward.0": None,
        "Torch.add.0.forward": "Module.m.M.forward.0",
        "Functional.linear.0.backward": "Module.m.fc.Linear.backward.0",
    }
    stacks = {
        "Functional.linear.0.forward": [
            "File /env/lib/python3.11/site-packages/torch/nn/modules/linear.py, line 9, in forward",
            "File /home/u/model.py, line 12, in forward, \n return self.fc(x)",
            "File /env/lib/python3.11/site-packages/torch/nn/modules/module.py, line 1, in inner",
            "File /env/lib/python3.11/contextlib.py, line 81, in inner, \n return f()",
            "File /env/lib/python3.11/site-packages/megatron/train.py, line 3, in step",
            "File /home/u/torch/train.py, line 40, in <module>, \n main()",
        ],
        "Torch.add.0.forward": ["File torch/nn/modules/module.py, line 1, in inner"],
    }
    return write_side(tmp_path, {name: forward() for name in names}, parents=parents, stacks=stacks)


def test_module_around_a_record(tmp_path: Path) -> None:
    side = module_tree(tmp_path)
    assert {name: side.module(name) for name in side.names} == {
        "Functional.linear.0.forward": "m.fc",
        "Module.m.fc.Linear.forward.0": "m.fc",
        "Module.m.M.forward.0": "m",
        "Torch.add.0.forward": "m",
        "Torch.add.0.backward": "m",  # from its forward call: no parent is known
        "Functional.linear.0.backward": "m.fc",
        "Module.m.fc.Linear.parameters_grad": "m.fc",
    }
    assert side.parent("Module.m.fc.Linear.forward.0") == "Module.m.M.forward.0"
    assert side.parent("Torch.add.0.backward") is None


def test_frames_are_those_of_the_user(tmp_path: Path) -> None:
    side = module_tree(tmp_path)
    files = [frame.split(",")[0] for frame in side.frames("Functional.linear.0.backward")]
    assert files == [
        "File /home/u/model.py",
        "File /env/lib/python3.11/site-packages/megatron/train.py",
        "File /home/u/torch/train.py",
    ]
    assert side.source_line("Functional.linear.0.forward") == "model.py:12"
    assert side.source_line("Torch.add.0.forward") == "module.py:1"  # there is nothing better
    assert side.source_line("Module.m.M.forward.0") is None


def test_circular_parents_end(tmp_path: Path) -> None:
    parents = {"Torch.a.0.forward": "Torch.b.0.forward", "Torch.b.0.forward": "Torch.a.0.forward"}
    side = write_side(tmp_path, dict.fromkeys(parents, forward()), parents=parents)
    assert side.module("Torch.a.0.forward") == ""


def test_side_of_a_capture_that_was_killed(tmp_path: Path) -> None:
    writer = DumpWriter()
    try:
        dump = writer.open(tmp_path / "step0" / "rank", DumpHead("statistics", "mix", "pytorch"))
        dump.put_record("Tensor.x.0.forward", 0, forward([tensor(number=3.0)]))
        dump.flush()
        side = open_side(tmp_path)
        [value] = side.values("Tensor.x.0.forward")
        assert (side.mode, list(side.names), value.max) == (
            Mode.STATISTICS,
            ["Tensor.x.0.forward"],
            4.0,
        )
    finally:
        writer.close()


def test_files_of_tensors_are_found_beside_the_records() -> None:
    side = open_side(DATA / "peer_mix_tensor")
    name = "Functional.linear.0.forward"
    value = side.values(name)[0]
    assert value.data_name is not None
    path = side.tensor_path(value.data_name)
    assert path.is_file()
    assert path.parent.name == side.tensor_directory.name
