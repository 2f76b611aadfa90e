# SPDX-License-Identifier: Apache-2.0
"""Mapping files: what they say is done, and what is wrong with them is said with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pairing import both, names_of, rows_of, write_side

from builders.records import backward, forward, tensor
from msprobe.compare.matching import data_mapping_of, pair_operations
from msprobe.compare.model import Match, OperationPair, Row, row_name
from msprobe.compare.options import CompareOptions
from msprobe.compare.sides import Side
from msprobe.errors import ConfigError, ConfigFileError, UsageError


def write(directory: Path, text: str, name: str = "mapping.yaml") -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def row_names(rows: list[Row]) -> list[tuple[str | None, str | None]]:
    return [
        (
            None if row.target is None else row_name(row.pair.target or "", row.target.slot),
            None
            if row.reference is None
            else row_name(row.pair.reference or "", row.reference.slot),
        )
        for row in rows
    ]


FAULTS: list[tuple[str, str, str]] = [
    # Any mapping file
    ("data_mapping", "", "mapping.yaml: is empty"),
    ("data_mapping", "a: [1", "mapping.yaml: line "),
    ("data_mapping", "a: b\n a: c\n", "mapping.yaml: line 2, column"),
    (
        "data_mapping",
        "a: b\nc: d\na: e\n",
        'line 3: "a" is "given twice"; use each key once; it is on line 1',
    ),
    # Data mappings
    ("data_mapping", "- a\n", 'line 1: "the file" is "a list"; use lines of the form'),
    ("data_mapping", "just text", '"the file" is "just text"'),
    ("data_mapping", "a: b\nc: [d]\n", 'line 2: "c" is "a list"; use the name of a row'),
    ("data_mapping", "a: b\nc:\n", 'line 2: "c" is null'),
    ("data_mapping", "? [a, b]\n: c\n", "use a name"),
    # Cell mappings
    ("cell_mapping", "- a\n", "use lines of the form  cell: module"),
    ("cell_mapping", "a: b\n\nfc: {x: y}\n", 'line 3: "fc" is "a mapping"'),
    # API mappings
    ("api_mapping", "a: b\n", "use a list of records with ms_api and pt_api"),
    ("api_mapping", "- ms_api: Functional.a\n", 'line 1: "[0]" is ["ms_api"]; use a record'),
    (
        "api_mapping",
        "- ms_api: Functional.a\n  pt_api: Torch.a\n  ms_argz: [0]\n",
        'line 3: "[0]" is "ms_argz"; use one of ms_api, pt_api, ms_args',
    ),
    (
        "api_mapping",
        "- ms_api: Functional.a\n  pt_api: Torch.a\n  ms_argz: [0]\n",
        'did you mean "ms_args"?',
    ),
    ("api_mapping", "- ms_api: relu\n  pt_api: Torch.a\n", 'line 1: "[0].ms_api" is "relu"'),
    (
        "api_mapping",
        "- ms_api: Functional.a\n  pt_api: Torch.a\n  ms_args: [0, 1]\n  pt_args: [0]\n",
        'line 4: "[0].pt_args" is ["0"]; use as many as ms_args, which are 2',
    ),
    (
        "api_mapping",
        "- ms_api: Functional.a\n  pt_api: Torch.a\n  ms_args: [0]\n",
        "both ms_args and pt_args; pt_args is missing",
    ),
    (
        "api_mapping",
        "- ms_api: Functional.a\n  pt_api: Torch.a\n  ms_args: 0\n  pt_args: [0]\n",
        'line 3: "[0].ms_args" is "0"; use a list',
    ),
    (
        "api_mapping",
        "- ms_api: Functional.a\n  pt_api: Torch.a\n  ms_args: [0, 0]\n  pt_args: [0, 1]\n",
        "each argument once; 0 is there twice",
    ),
    # Layer mappings
    ("layer_mapping", "A: b\n", 'line 1: "A" is "b"; use lines of the form  child'),
    ("layer_mapping", "A:\n  b: [c]\n", 'line 2: "A.b" is "a list"'),
    ("layer_mapping", "TopLayer: {a: b}\nCell: {a: c}\n", "line 2"),
]


def paired(directory: Path, kind: str, mapping: Any) -> list[OperationPair]:
    """Pair a cell with a module by a mapping of one of the kinds."""
    target = modules(directory, "target", "Cell.fc2.Dense.forward.0")
    reference = modules(directory, "reference", "Module.head.Linear.forward.0")
    options: dict[str, Any] = {kind: mapping}
    return pair_operations(target, reference, CompareOptions(**options))


@pytest.mark.parametrize(("kind", "text", "message"), FAULTS)
def test_faults_are_named_with_their_line(
    tmp_path: Path, kind: str, text: str, message: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        paired(tmp_path, kind, path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match=r"nowhere\.yaml: cannot be read"):
        paired(tmp_path, "cell_mapping", tmp_path / "nowhere.yaml")
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"a: \xff\xfe\n")
    with pytest.raises(ConfigFileError, match="is not UTF-8 text"):
        paired(tmp_path, "cell_mapping", path)
    with pytest.raises(ConfigFileError, match="cannot be read"):
        paired(tmp_path, "cell_mapping", tmp_path)


def test_tags_of_yaml_are_not_executed(tmp_path: Path) -> None:
    path = write(tmp_path, "a: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(ConfigError):
        paired(tmp_path, "data_mapping", path)


def test_references_inside_a_file(tmp_path: Path) -> None:
    """YAML may name a piece and use it again; that is read once and never multiplied."""
    path = write(tmp_path, "TopLayer: &shared {fc2: head}\nOther: *shared\n")
    assert paired(tmp_path, "layer_mapping", path)[0].match is Match.MAPPED
    bomb = "a: &a [x, x]\n" + "".join(
        f"{name}: &{name} [*{before}, *{before}]\n"
        for before, name in zip(
            "abcdefghijklmnopqrstuvwx", "bcdefghijklmnopqrstuvwxyz", strict=False
        )
    )
    with pytest.raises(ConfigError, match='line 1: "a" is "a list"'):
        paired(tmp_path, "data_mapping", write(tmp_path, bomb))


def linears(directory: Path, **options: Any) -> tuple[Side, Side]:
    names = [f"Functional.linear.{n}.forward" for n in (0, 1)]
    made = {n: forward([tensor(), tensor((3, 3))], [tensor()], bias=tensor((3,))) for n in names}
    return both(directory, made, made, **options)


ROWS = ["input.0", "input.1", "input.bias", "output.0"]


@pytest.mark.parametrize("form", ["file", "dict"])
def test_each_line_of_a_data_mapping_maps_one_row(tmp_path: Path, form: str) -> None:
    target, reference = linears(tmp_path)
    crossed = {
        f"Functional.linear.{a}.forward.input.0": f"Functional.linear.{b}.forward.input.0"
        for a, b in ((0, 1), (1, 0))
    }
    source: Any = crossed
    if form == "file":
        source = write(tmp_path, "".join(f"{a}: {b}\n" for a, b in crossed.items()))
    rows = rows_of(target, reference, CompareOptions(data_mapping=source))
    names = [f"Functional.linear.{n}.forward.{slot}" for n in (0, 1) for slot in ROWS]
    assert sorted(row_names(rows)) == sorted((name, crossed.get(name, name)) for name in names)
    matches = {row.name: (row.pair.match, row.pair.confidence) for row in rows}
    assert {matches[name] for name in crossed} == {(Match.MAPPED, 1.0)}
    assert {matches[name] for name in names if name not in crossed} == {(Match.EXACT, 1.0)}


def test_a_data_mapping_that_lists_all_rows_leads_the_operation(tmp_path: Path) -> None:
    """Then gradients follow their forward calls."""
    zero, one = "Functional.linear.0", "Functional.linear.1"
    made = {f"{name}.forward": forward([tensor()], [tensor()]) for name in (zero, one)}
    made |= {f"{name}.backward": backward([tensor()], [tensor()]) for name in (one, zero)}
    target, reference = both(tmp_path, made, made)
    mapping = {
        f"{a}.forward.{slot}": f"{b}.forward.{slot}"
        for a, b in ((zero, one), (one, zero))
        for slot in ("input.0", "output.0")
    }
    pairs = pair_operations(target, reference, CompareOptions(data_mapping=mapping))
    assert set(names_of(pairs)) == {
        (f"{a}.{direction}", f"{b}.{direction}")
        for a, b in ((zero, one), (one, zero))
        for direction in ("forward", "backward")
    }
    assert {(pair.match, pair.confidence) for pair in pairs} == {(Match.MAPPED, 1.0)}


def test_rows_that_are_not_listed_follow_where_neither_operation_has_another_partner(
    tmp_path: Path,
) -> None:
    made = forward([tensor(), tensor((3, 3))], [tensor()])
    target = write_side(tmp_path, {"NPU.npu_gelu.0.forward": made})
    reference = write_side(tmp_path, {"Functional.gelu.0.forward": made}, source="reference")
    mapping = {"NPU.npu_gelu.0.forward.input.0": "Functional.gelu.0.forward.input.0"}
    assert row_names(rows_of(target, reference, CompareOptions(data_mapping=mapping))) == [
        (f"NPU.npu_gelu.0.forward.{slot}", f"Functional.gelu.0.forward.{slot}")
        for slot in ("input.0", "input.1", "output.0")
    ]


def test_data_mapping_of_single_rows(tmp_path: Path) -> None:
    target, reference = linears(tmp_path)
    zero, one = "Functional.linear.0.forward", "Functional.linear.1.forward"
    options = CompareOptions(
        data_mapping={
            f"{zero}.input.0": f"{zero}.input.1",
            f"{zero}.input.1": f"{zero}.input.0",
            f"{one}.output.0": "N/A",
        }
    )
    assert row_names(rows_of(target, reference, options)) == [
        (f"{zero}.input.0", f"{zero}.input.1"),
        (f"{zero}.input.1", f"{zero}.input.0"),
        (f"{zero}.input.bias", f"{zero}.input.bias"),
        (f"{zero}.output.0", f"{zero}.output.0"),
        (f"{one}.input.0", f"{one}.input.0"),
        (f"{one}.input.1", f"{one}.input.1"),
        (f"{one}.input.bias", f"{one}.input.bias"),
        (f"{one}.output.0", None),
        (None, f"{one}.output.0"),
    ]


def test_data_mapping_from_one_operation_to_several(tmp_path: Path) -> None:
    """q, k and v of the reference are the outputs of one call of the target."""
    target = write_side(
        tmp_path,
        {"Functional.qkv.0.forward": forward([tensor()], [tensor(number=n) for n in (1, 2, 3)])},
    )
    names = [f"Functional.{part}.0.forward" for part in "qkv"]
    reference = write_side(
        tmp_path, {n: forward([tensor()], [tensor()]) for n in names}, source="reference"
    )
    mapping = {
        f"Functional.qkv.0.forward.output.{n}": f"{name}.output.0" for n, name in enumerate(names)
    }
    rows = rows_of(target, reference, CompareOptions(data_mapping=mapping))
    found = row_names(rows)
    for name, partner in mapping.items():
        assert (name, partner) in found
    everything = [name for pair in found for name in pair if name is not None]
    assert len(everything) == len(set(everything)) == 4 + 6
    assert {row.pair.match for row in rows if row.target} == {Match.MAPPED}


def test_data_mapping_in_python_is_checked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="are not two names"):
        paired(tmp_path, "data_mapping", {"a": 3})


def test_data_mapping_knows_both_spellings_of_keywords(tmp_path: Path) -> None:
    target, reference = linears(tmp_path)
    zero = "Functional.linear.0.forward"
    options = CompareOptions(data_mapping={f"{zero}.kwargs.bias": f"{zero}.input.1"})
    assert (f"{zero}.input.bias", f"{zero}.input.1") in row_names(
        rows_of(target, reference, options)
    )


def modules(directory: Path, source: str, *names: str) -> Side:
    return write_side(
        directory,
        {name: forward([tensor()], [tensor()]) for name in names},
        source=source,
        framework="mindspore" if source == "target" else "pytorch",
    )


@pytest.mark.parametrize(
    ("text", "cell", "module"),
    [
        ("fc2.Dense: head.Linear", "Cell.fc2.Dense", "Module.head.Linear"),
        ("Cell.fc2.Dense: Module.head.Linear", "Cell.fc2.Dense", "Module.head.Linear"),
        ("net.enc: encoder", "Cell.net.enc.fc.Dense", "Module.encoder.fc.Linear"),
        ("net.enc.fc: encoder.out", "Cell.net.enc.fc.Dense", "Module.encoder.out.Linear"),
        ("layer: blocks.", "Cell.layer7.fc.Dense", "Module.blocks.7.fc.Linear"),
    ],
)
def test_cell_mapping(tmp_path: Path, text: str, cell: str, module: str) -> None:
    path = write(tmp_path, f"{text}\n")
    suffixes = ["forward.0", "backward.0", "parameters_grad"]
    target = modules(tmp_path, "target", *[f"{cell}.{end}" for end in suffixes])
    reference = modules(tmp_path, "reference", *[f"{module}.{end}" for end in suffixes])
    pairs = pair_operations(target, reference, CompareOptions(cell_mapping=path))
    assert names_of(pairs) == [(f"{cell}.{end}", f"{module}.{end}") for end in suffixes]
    assert {pair.match for pair in pairs} == {Match.MAPPED}


def test_cell_mapping_without_a_file(tmp_path: Path) -> None:
    target = modules(tmp_path, "target", "Cell.fc.Dense.forward.0")
    reference = modules(tmp_path, "reference", "Module.fc.Linear.forward.0")
    [pair] = pair_operations(target, reference, CompareOptions(cell_mapping=True))
    assert pair.match is Match.ALIAS


def test_cell_mapping_also_works_the_other_way_round(tmp_path: Path) -> None:
    path = write(tmp_path, "fc2.Dense: head.Linear\n")
    cell = modules(tmp_path, "target", "Cell.fc2.Dense.forward.0")
    module = modules(tmp_path, "reference", "Module.head.Linear.forward.0")
    [pair] = pair_operations(module, cell, CompareOptions(cell_mapping=path))
    assert pair.match is Match.MAPPED


API_MAPPING = """
- ms_api: Functional.fancy
  pt_api: Torch.plain
  ms_args: [0, 1, scale]
  pt_args: [1, 0, 2]
  ms_outputs: [0]
  pt_outputs: [1]
  ms_parameters: [gamma]
  pt_parameters: [weight]
"""


@pytest.mark.parametrize("output_key", ["outputs", "output"])
def test_api_mapping_of_arguments_and_outputs(tmp_path: Path, output_key: str) -> None:
    path = write(tmp_path, API_MAPPING.replace("outputs", output_key))
    record = forward([tensor((1,)), tensor((2,)), tensor((9,))], [tensor((4,))], scale=tensor((3,)))
    target = write_side(
        tmp_path,
        {"Functional.fancy.0.forward": record, "Functional.fancy.0.backward": backward([tensor()])},
        framework="mindspore",
    )
    other = forward([tensor((2,)), tensor((1,)), tensor((3,))], [tensor((8,)), tensor((4,))])
    reference = write_side(
        tmp_path,
        {
            "Torch.plain.0.forward": other,
            "Torch.plain.0.backward": backward([None, tensor()]),
        },
        source="reference",
    )
    options = CompareOptions(api_mapping=path)
    pairs = pair_operations(target, reference, options)
    assert [pair.match for pair in pairs] == [Match.MAPPED, Match.MAPPED]
    ms, pt = "Functional.fancy.0.forward", "Torch.plain.0.forward"
    found = row_names(rows_of(target, reference, options))
    assert found[:6] == [
        (f"{ms}.input.0", f"{pt}.input.1"),
        (f"{ms}.input.1", f"{pt}.input.0"),
        (f"{ms}.input.2", None),
        (f"{ms}.input.scale", f"{pt}.input.2"),
        (f"{ms}.output.0", f"{pt}.output.1"),
        (None, f"{pt}.output.0"),
    ]
    assert ("Functional.fancy.0.backward.input.0", "Torch.plain.0.backward.input.1") in found


def test_api_mapping_also_works_the_other_way_round(tmp_path: Path) -> None:
    path = write(tmp_path, API_MAPPING)
    ms = write_side(
        tmp_path,
        {"Functional.fancy.0.forward": forward([tensor((1,)), tensor((2,))])},
        framework="mindspore",
    )
    pt = write_side(
        tmp_path,
        {"Torch.plain.0.forward": forward([tensor((2,)), tensor((1,))])},
        source="reference",
    )
    rows = rows_of(pt, ms, CompareOptions(api_mapping=path))
    assert [(r.target and r.target.shape, r.reference and r.reference.shape) for r in rows] == [
        ((2,), (2,)),
        ((1,), (1,)),
    ]


def test_api_mapping_names_a_primitive_by_its_class_whatever_holds_it(tmp_path: Path) -> None:
    path = write(tmp_path, API_MAPPING.replace("Functional.fancy", "Primitive.Fancy"))
    record = forward([tensor((1,)), tensor((2,))])
    ms = write_side(tmp_path, {"Primitive.op.Fancy.0.forward": record}, framework="mindspore")
    other = forward([tensor((2,)), tensor((1,))])
    pt = write_side(tmp_path, {"Torch.plain.0.forward": other}, source="reference")
    called, function = "Primitive.op.Fancy.0.forward", "Torch.plain.0.forward"
    assert row_names(rows_of(ms, pt, CompareOptions(api_mapping=path))) == [
        (f"{called}.input.0", f"{function}.input.1"),
        (f"{called}.input.1", f"{function}.input.0"),
    ]


def test_user_records_go_before_what_is_known(tmp_path: Path) -> None:
    path = write(tmp_path, "- ms_api: Functional.expand_dims\n  pt_api: Tensor.mine\n")
    names = ("expand_dims", "transpose")
    ms = {f"Functional.{name}.0.forward": forward([tensor()]) for name in names}
    names = ("Tensor.unsqueeze", "Tensor.mine", "Torch.permute")
    pt = {f"{name}.0.forward": forward([tensor()]) for name in names}
    target = write_side(tmp_path, ms, framework="mindspore")
    reference = write_side(tmp_path, pt, source="reference")
    pairs = pair_operations(target, reference, CompareOptions(api_mapping=path))
    assert {pair.target: pair.reference for pair in pairs if pair.target} == {
        "Functional.expand_dims.0.forward": "Tensor.mine.0.forward",
        "Functional.transpose.0.forward": "Torch.permute.0.forward",
    }


LAYER_MAPPING = """
TopLayer:
  network: module
Attention:
  qkv_proj: query_key_value
  core.attn: core_attention(CoreAttention)
  softmax: softmax_out
"""


def layered(directory: Path, source: str, root: str, children: dict[str, str], first: int) -> Side:
    records: dict[str, Any] = {}
    parents: dict[str, str | None] = {}
    stack = f"Module.{root}.ParallelTransformer.forward.0"
    for n in range(2):
        layer = f"{root}.layers.{first + n}"
        block = f"Module.{layer}.Attention.forward.0"
        for child in children.values():
            name = f"Module.{layer}.{child}.Linear.forward.0"
            if child == "core.attn":
                core = f"Module.{layer}.core.Core.forward.0"
                records[core] = forward()
                parents[core] = block
            records[name] = forward([tensor()], [tensor(number=n)])
            parents[name] = block
        softmax = f"Functional.{'softmax' if source == 'target' else 'softmax_out'}.{n}.forward"
        records[softmax] = forward([tensor()])
        parents[softmax] = block
        records[block] = forward()
        parents[block] = stack
    records[stack] = forward()
    parents[stack] = None
    return write_side(directory, records, source=source, parents=parents)


def test_layer_mapping(tmp_path: Path) -> None:
    """Children renamed by class, at any depth; pipeline stages may count layers on their own."""
    path = write(tmp_path, LAYER_MAPPING)
    mine = {"qkv": "qkv_proj", "core": "core.attn", "out": "out"}
    theirs = {"qkv": "query_key_value", "core": "core_attention", "out": "out"}
    target = layered(tmp_path, "target", "network", mine, first=4)
    reference = layered(tmp_path, "reference", "module", theirs, first=0)
    options = CompareOptions(layer_mapping=path)
    partners = dict(names_of(pair_operations(target, reference, options)))
    for n in range(2):
        for child, other in zip(mine.values(), theirs.values(), strict=True):
            name = f"Module.network.layers.{4 + n}.{child}.Linear.forward.0"
            assert partners[name] == f"Module.module.layers.{n}.{other}.Linear.forward.0"
        assert partners[f"Functional.softmax.{n}.forward"] == f"Functional.softmax_out.{n}.forward"
    rows = rows_of(target, reference, options)
    mapping = data_mapping_of(rows)
    assert (
        mapping["Functional.softmax.1.forward.input.0"]
        == "Functional.softmax_out.1.forward.input.0"
    )
    # The data mapping that was made leads to the same rows.
    again = rows_of(target, reference, CompareOptions(data_mapping=mapping))
    assert set(row_names(again)) == set(row_names(rows))


def test_old_name_of_the_top_layer(tmp_path: Path) -> None:
    path = write(tmp_path, "Cell:\n  a: b\n")
    target = write_side(tmp_path, {"Module.a.Attention.forward.0": forward()})
    reference = write_side(
        tmp_path, {"Module.b.Attention.forward.0": forward()}, source="reference"
    )
    [pair] = pair_operations(target, reference, CompareOptions(layer_mapping=path))
    assert pair.match is Match.MAPPED


def test_data_mapping_goes_before_the_others(tmp_path: Path) -> None:
    path = write(tmp_path, "a.Dense: b.Linear\n")
    target = modules(tmp_path, "target", "Cell.a.Dense.forward.0", "Cell.c.Dense.forward.0")
    reference = modules(
        tmp_path, "reference", "Module.b.Linear.forward.0", "Module.x.Linear.forward.0"
    )
    rows = {"Cell.a.Dense.forward.0.input.0": "Module.x.Linear.forward.0.input.0"}
    pairs = pair_operations(target, reference, CompareOptions(cell_mapping=path, data_mapping=rows))
    assert ("Cell.a.Dense.forward.0", "Module.x.Linear.forward.0") in names_of(pairs)
