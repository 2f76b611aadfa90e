# SPDX-License-Identifier: Apache-2.0
"""Binary kernel dumps become files of arrays: types, orders of elements, names, refusals."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.kernel_binaries import (
    Value,
    binary,
    to_fractal_nz,
    to_fractal_z,
    to_fractal_z_3d,
    to_nc1hwc0,
    to_ndc1hwc0,
    write,
)
from builders.protobuf import block, number
from msprobe.cli import main
from msprobe.dump.open_file import OpenFile
from msprobe.dump.tensor_files import read_tensor
from msprobe.errors import DumpFormatError
from msprobe.kernels.binary_dump import read_binary_dump
from msprobe.kernels.convert_binary import FileType, convert_binary, read_value

NAME = "MatMul.Default_fc1_MatMul-op0.3.1.1795182233644492"
ND, NCHW = 2, 0


def values_of(path, wanted=""):
    with OpenFile(path) as file:
        return [read_value(file, value, wanted=wanted) for value in read_binary_dump(path).values]


def one(tmp_path, data_type, raw, shape, layout=ND, wanted="", **more):
    path = write(tmp_path / NAME, [Value("output", data_type, layout, shape, raw, **more)])
    return values_of(path, wanted)[0]


def numbers(shape, dtype=np.float32):
    return (np.arange(np.prod(shape)) % 120).reshape(shape).astype(dtype)


# -- the header --------------------------------------------------------------------------------


def test_the_header(tmp_path):
    a, b, c = (numbers((size,)) for size in (2, 3, 4))
    path = write(
        tmp_path / NAME,
        [
            Value("input", 1, ND, (2,), a.tobytes()),
            Value("output", 1, ND, (3,), b.tobytes(), packed=False),
            Value("input", 1, ND, (2, 2), c.tobytes(), original=(4,)),
        ],
    )
    header = read_binary_dump(path)
    assert (header.version, header.op_name, header.time) == (
        "2.0",
        "Default/MatMul-op1",
        1_795_182_233_644_492,
    )
    assert [(v.io, v.index, v.shape, v.size_bytes) for v in header.values] == [
        ("output", 0, (3,), 12),
        ("input", 0, (2,), 8),
        ("input", 1, (2, 2), 16),
    ]
    for found, stored in zip(values_of(path), (b, a, c), strict=True):
        assert np.array_equal(found, stored)


# -- types -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data_type", "dtype"),
    [
        (1, "float32"), (2, "float16"), (3, "int8"), (4, "uint8"), (5, "int16"), (6, "uint16"),
        (7, "int32"), (8, "int64"), (9, "uint32"), (10, "uint64"), (11, "bool"), (12, "float64"),
        (16, "complex64"), (17, "complex128"), (18, "int8"), (19, "int16"), (20, "int32"),
        (21, "uint8"), (22, "uint16"),
    ],
)  # fmt: skip
def test_types_of_whole_bytes(tmp_path, data_type, dtype):
    stored = np.array([[0, 1, 100], [3, 4, 5]]).astype(dtype)
    if dtype.startswith("complex"):
        stored = stored * np.array(1 + 2j, dtype)
    found = one(tmp_path, data_type, stored.tobytes(), (2, 3))
    assert found.dtype == stored.dtype
    assert np.array_equal(found, stored)


def test_bfloat16_becomes_float32(tmp_path):
    exact = np.array([1.5, -2.0, np.inf, 0.15625], np.float32)
    raw = (exact.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    found = one(tmp_path, 27, raw, (4,))
    assert found.dtype == np.float32
    assert np.array_equal(found, exact)


@pytest.mark.parametrize(
    ("data_type", "raw", "expected"),
    [
        (28, [0x21, 0xF8, 0x07], [1, 2, -8, -1, 7]),
        (29, [0b10110001, 0b1], [1, 0, 0, 0, 1, 1, 0, 1, 1]),
        (30, [0b11_10_01_00, 0b10], [0, 1, -2, -1, -2]),
        (31, [0b11_10_01_00, 0b10], [0, 1, 2, 3, 2]),
    ],
)
def test_types_of_which_several_lie_in_a_byte(tmp_path, data_type, raw, expected):
    found = one(tmp_path, data_type, bytes(raw), (len(expected),))
    assert found.tolist() == expected
    assert found.dtype == (np.int8 if data_type in (28, 30) else np.uint8)


@pytest.mark.parametrize(
    ("data_type", "words"), [(13, "string (13)"), (0, "undefined (0)"), (99, "unknown (99)")]
)
def test_other_types_are_refused_by_name(tmp_path, data_type, words):
    with pytest.raises(DumpFormatError, match=NAME) as refusal:
        one(tmp_path, data_type, b"1234", (4,))
    assert f"output 0 has the type {words}, which cannot be converted" in str(refusal.value)


# -- orders of elements ------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 16, 3, 3), (1, 17, 2, 5), (3, 3, 1, 1)])
@pytest.mark.parametrize(("layout", "c0"), [(3, 16), (12, 4)])
@pytest.mark.parametrize("original", ["NCHW", "NHWC", "HWCN"])
def test_feature_maps(tmp_path, shape, layout, c0, original):
    x = numbers(shape)
    stored = to_nc1hwc0(x, c0)
    sizes = tuple(dict(zip("NCHW", shape, strict=True))[letter] for letter in original)
    found = one(tmp_path, 1, stored.tobytes(), stored.shape, layout, original=sizes)
    assert np.array_equal(found, x)
    found = one(tmp_path, 1, stored.tobytes(), stored.shape, layout, "NHWC", original=sizes)
    assert np.array_equal(found, x.transpose(0, 2, 3, 1))


def test_a_feature_map_without_its_original_shape_keeps_the_filling(tmp_path):
    stored = to_nc1hwc0(numbers((1, 3, 2, 2)), 4)
    found = one(tmp_path, 1, stored.tobytes(), stored.shape, 3)
    assert found.shape == (1, 4, 2, 2)
    assert (found[:, 3] == 77).all()


@pytest.mark.parametrize("shape", [(16, 16, 3, 3), (20, 3, 5, 1), (1, 33, 2, 2)])
def test_weights_of_convolutions(tmp_path, shape):
    x = numbers(shape, np.float16)
    stored = to_fractal_z(x, 16, 16)
    found = one(tmp_path, 2, stored.tobytes(), stored.shape, 4, original=shape)
    assert np.array_equal(found, x)
    height_first = tuple(shape[place] for place in (2, 3, 1, 0))
    found = one(tmp_path, 2, stored.tobytes(), stored.shape, 4, original=height_first)
    assert found.shape == shape


@pytest.mark.parametrize("shape", [(2, 17, 3, 2, 2), (1, 4, 1, 1, 1)])
def test_volumes_and_their_weights(tmp_path, shape):
    x = numbers(shape)
    stored = to_ndc1hwc0(x, 16)
    found = one(tmp_path, 1, stored.tobytes(), stored.shape, 32, original=shape)
    assert np.array_equal(found, x)
    found = one(tmp_path, 1, stored.tobytes(), stored.shape, 32, "NDHWC", original=shape)
    assert np.array_equal(found, x.transpose(0, 2, 3, 4, 1))
    stored = to_fractal_z_3d(x, 16, 16)
    found = one(tmp_path, 1, stored.tobytes(), stored.shape, 33, original=shape)
    assert np.array_equal(found, x)


@pytest.mark.parametrize("shape", [(16, 16), (17, 5), (2, 3, 40, 33), (7,), (1, 1)])
def test_matrices(tmp_path, shape):
    x = numbers(shape)
    stored = to_fractal_nz(x.reshape((1, *shape)) if len(shape) == 1 else x, 16, 16)
    found = one(tmp_path, 1, stored.tobytes(), stored.shape, 29, original=shape)
    assert found.shape == shape
    assert np.array_equal(found, x)


@pytest.mark.parametrize(
    ("layout", "letters", "target"),
    [
        (0, "NCHW", "NCHW"), (1, "NHWC", "NCHW"), (14, "CHWN", "NCHW"), (16, "HWCN", "NCHW"),
        (27, "NDHWC", "NCDHW"), (30, "NCDHW", "NCDHW"), (31, "DHWCN", "NCDHW"), (34, "CN", "NC"),
        (35, "NC", "NC"), (47, "NCL", "NCL"),
    ],
)  # fmt: skip
def test_plain_orders(tmp_path, layout, letters, target):
    stored = numbers(tuple(range(2, 2 + len(letters))))
    found = one(tmp_path, 1, stored.tobytes(), stored.shape, layout)
    sizes = dict(zip(letters, stored.shape, strict=True))
    assert found.shape == tuple(sizes[letter] for letter in target)
    assert np.array_equal(np.einsum(f"{target}->{letters}", found), stored)


def test_plain_elements_get_the_shape_of_the_program(tmp_path):
    stored = numbers((6,))
    assert one(tmp_path, 1, stored.tobytes(), (6,), ND, original=(2, 3)).shape == (2, 3)
    assert one(tmp_path, 1, stored[:1].tobytes(), ()).shape == ()


def test_a_wanted_order_leaves_tensors_of_other_dimensions_alone(tmp_path):
    matrix = numbers((2, 3))
    assert one(tmp_path, 1, matrix.tobytes(), (2, 3), ND, "NHWC").shape == (2, 3)
    volume = numbers((1, 2, 3, 4, 5))
    assert one(tmp_path, 1, volume.tobytes(), volume.shape, 30, "NHWC").shape == volume.shape


@pytest.mark.parametrize(
    ("layout", "shape", "more", "problem"),
    [
        (5, (2,), {}, "the layout 5 is not known"),
        (13, (1, 1, 16, 16), {}, "the layout FRACTAL_Z_C04 (13) cannot be converted"),
        (4, (9, 1, 16, 16), {}, "without the original shape"),
        (4, (9, 1, 16, 16), {"original": (16, 16, 2, 3)}, "[9, 1, 16, 16] does not fit"),
        (4, (9, 1, 16, 16), {"sub_layout": 4}, "with 4 groups"),
        (3, (1, 1, 2, 2), {}, "has 5 dimensions, not 4"),
        (3, (1, 1, 2, 2, 16), {"original": (1, 17, 2, 2)}, "does not fit the original sizes"),
        (29, (16, 16), {}, "has 4 dimensions at least, not 2"),
        (29, (1, 1, 16, 16), {"original": (17, 3)}, "does not fit the original sizes"),
        (0, (4, 4), {}, "the layout NCHW has 4 dimensions, not 2"),
    ],
)
def test_orders_that_cannot_be_changed_are_refused(tmp_path, layout, shape, more, problem):
    raw = numbers(shape).tobytes()
    with pytest.raises(DumpFormatError) as refusal:
        one(tmp_path, 1, raw, shape, layout, **more)
    assert problem in str(refusal.value)
    assert NAME in str(refusal.value)
    assert one(tmp_path, 1, raw, shape, layout, "STORED", **more).shape == shape


# -- files -------------------------------------------------------------------------------------


def test_folders_are_converted_as_they_are(tmp_path):
    x, w = numbers((1, 3, 2, 2)), numbers((4,))
    data = tmp_path / "data"
    stored = to_nc1hwc0(x, 16)
    write(
        data / "0" / NAME,
        [
            Value("input", 1, 3, stored.shape, stored.tobytes(), original=x.shape),
            Value("output", 1, ND, (4,), w.tobytes()),
        ],
    )
    (data / "0" / "notes.txt").write_text("no dump")
    done = convert_binary(data, tmp_path / "out")
    assert done.problems == {}
    assert [path.relative_to(tmp_path / "out").as_posix() for path in done.written] == [
        f"0/{NAME}.output.0.4.npy",
        f"0/{NAME}.input.0.1x3x2x2.npy",
    ]
    assert np.array_equal(np.load(done.written[1]), x)


def test_names_with_threads_and_without_streams(tmp_path):
    raw = numbers((1,)).tobytes()
    for name in ("Add.x-op1.5.1732082705016774", f"{NAME}.4.1.0.0"):
        write(tmp_path / "data" / name, [Value("output", 1, ND, (1,), raw)])
    done = convert_binary(tmp_path / "data", tmp_path / "out")
    assert len(done.written) == 2


def test_pt_files(tmp_path):
    x = numbers((2, 3))
    write(
        tmp_path / "data" / NAME,
        [
            Value("output", 1, ND, (2, 3), x.tobytes()),
            Value("output", 1, ND, (), x.tobytes()[:4]),
            Value("output", 1, ND, (0, 3), b""),
        ],
    )
    done = convert_binary(tmp_path / "data", tmp_path / "out", file_type=FileType.PT)
    assert [path.name for path in done.written] == [
        f"{NAME}.output.0.2x3.pt",
        f"{NAME}.output.1.pt",
        f"{NAME}.output.2.0x3.pt",
    ]
    found = [read_tensor(tmp_path / "out", path.name).array for path in done.written]
    assert np.array_equal(found[0], x)
    assert [each.shape for each in found] == [(2, 3), (), (0, 3)]


def test_pt_files_open_in_torch(tmp_path):
    torch = pytest.importorskip("torch")
    x = numbers((2, 3))
    write(tmp_path / NAME, [Value("output", 1, ND, (2, 3), x.tobytes())])
    (path,) = convert_binary(tmp_path / NAME, tmp_path, file_type=FileType.PT).written
    assert torch.equal(torch.load(path, weights_only=True), torch.from_numpy(x))


def test_long_names_go_through_mapping_csv_both_ways(tmp_path):
    long = f"Add.{'x' * 225}.3.1.1795182233644492"
    digits = "1" * 32
    data, out = tmp_path / "data", tmp_path / "out"
    write(data / digits, [Value("output", 1, ND, (2,), numbers((2,)).tobytes())])
    (data / "mapping.csv").write_text(f"{digits},{long}\n")
    (path,) = convert_binary(data, out).written
    assert path.stem.isdigit()
    assert len(path.stem) == 32
    assert (out / "mapping.csv").read_text() == f"{path.name},{long}.output.0.2.npy\n"


def test_notes_on_overflows_become_json(tmp_path):
    raw = bytearray(2048)
    struct.pack_into("<6Q", raw, 256, 514, 563, 57, 0, 0x1008005B0000, 0x100800297000)
    struct.pack_into("<3Q", raw, 1024, 0x1008005AE000, 1, 32)
    struct.pack_into("<Q", raw, 768, 3)
    name = "Opdebug.Node_OpDebug.3.1.1795182233644492"
    write(tmp_path / name, [Value("output", 4, ND, (2048,), bytes(raw))])
    (path,) = convert_binary(tmp_path, tmp_path / "out").written
    assert path.name == f"{name}.output.0.json"
    found = json.loads(path.read_text())
    assert found["AI Core"] == {
        "model_id": 514,
        "stream_id": 563,
        "task_id": 57,
        "task_type": 0,
        "pc_start": "0x1008005b0000",
        "para_base": "0x100800297000",
        "kernel_code": "0x1008005ae000",
        "block_idx": 1,
        "status": 32,
    }
    assert found["L2 Atomic Add"]["status"] == 3
    assert found["DHA Atomic Add"]["status"] == 0


def test_what_cannot_be_converted_keeps_nothing_else_from_it(tmp_path, capsys):
    x = numbers((2,)).tobytes()
    bad = write(
        tmp_path / "data" / NAME,
        [Value("output", 13, ND, (8,), x), Value("input", 1, ND, (2,), x)],
    )
    torn = tmp_path / "data" / NAME.replace("MatMul", "Add")
    torn.write_bytes(binary([Value("output", 1, ND, (2,), x)])[:-1])
    out = tmp_path / "out"
    assert main(["parse", "-d", str(tmp_path / "data"), "-out", str(out)]) == 2
    said = capsys.readouterr()
    assert "1 file written" in said.out
    assert f"{bad}: output 0 has the type string (13)" in said.err
    assert f"{torn}: output 0 has 8 bytes, but the file ends after 7" in said.err
    assert [path.name for path in out.iterdir()] == [f"{NAME}.input.0.2.npy"]


@pytest.mark.parametrize("flag", ["-out", "-o", "--output"])
def test_the_command(tmp_path, capsys, flag):
    x = numbers((1, 2, 3, 4))
    write(tmp_path / NAME, [Value("output", 1, NCHW, x.shape, x.tobytes())])
    words = ["parse", "-d", str(tmp_path / NAME), flag, str(tmp_path / "out"), "-f", "nhwc"]
    assert main([*words, "-t", "npy"]) == 0
    assert "1 file written" in capsys.readouterr().out
    found = np.load(tmp_path / "out" / f"{NAME}.output.0.1x3x4x2.npy")
    assert np.array_equal(found, x.transpose(0, 2, 3, 1))


def test_without_binary_files_it_refuses(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["parse", "-d", str(tmp_path / "empty")]) == 2
    assert "holds no binary files" in capsys.readouterr().err
    assert main(["parse", "-d", str(tmp_path / "nothing")]) == 2
    assert "does not exist" in capsys.readouterr().err


# -- damaged and hostile files -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "a header of 0 bytes, a file of 0"),
        (b"\x01\x02", "is no binary dump"),
        (struct.pack("<Q", 2**63) + b"abc", "a header of 9223372036854775808 bytes"),
        (struct.pack("<Q", 3) + b"\x0f\x00\x00", "a field has the tag 15"),
        (struct.pack("<Q", 2) + b"\x0a\x7f", "field 1 ends behind the message"),
        (struct.pack("<Q", 3) + b"\x10\xff\xff", "cut off inside a number"),
        (struct.pack("<Q", 13) + b"\x10" + b"\xff" * 12, "more than ten bytes"),
        (struct.pack("<Q", 4) + b"\x0a\x02\xff\xfe", "a name that is no text"),
    ],
)
def test_other_files_are_no_binary_dumps(tmp_path, content, problem):
    path = tmp_path / NAME
    path.write_bytes(content)
    with pytest.raises(DumpFormatError, match=problem):
        read_binary_dump(path)


@pytest.mark.parametrize("size", [9, 2**40, 2**64 - 1])
def test_sizes_beyond_the_file_are_refused_before_anything_is_read(tmp_path, size):
    write(tmp_path / NAME, [Value("output", 1, ND, (2,), b"12345678", size=size)])
    with pytest.raises(DumpFormatError, match=f"output 0 has {size} bytes, but the file ends"):
        read_binary_dump(tmp_path / NAME)


def test_shapes_that_need_more_bytes_are_refused(tmp_path):
    with pytest.raises(DumpFormatError, match=r"has 8 bytes; \[3, 1\] of float32 need more"):
        one(tmp_path, 1, b"12345678", (3, 1))


@pytest.mark.parametrize("shape", [(2**63, 2**63, 0), (0, 2**62, 2**62), (1,) * 33])
def test_impossible_shapes_are_refused(tmp_path, shape):
    with pytest.raises(DumpFormatError):
        one(tmp_path, 1, b"1234", shape)


def test_a_field_of_another_kind_is_refused(tmp_path):
    header = block(3, block(1, b"text"))
    (tmp_path / NAME).write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(DumpFormatError, match="data_type is written in another way"):
        read_binary_dump(tmp_path / NAME)


def test_fields_of_later_versions_are_passed_over(tmp_path):
    later = number(99, 5) + block(98, b"abc") + b"\xbd\x06abcd" + b"\xb9\x06abcdefgh"
    raw = numbers((2,)).tobytes()
    (tmp_path / NAME).write_bytes(binary([Value("output", 1, ND, (2,), raw)], extra=later))
    assert len(values_of(tmp_path / NAME)) == 1


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damage_raises_nothing_else(tmp_path_factory, data):
    x = np.arange(64, dtype=np.float32)
    whole = bytearray(
        binary(
            [
                Value("output", 1, 3, (1, 1, 2, 2, 16), x.tobytes(), original=(1, 3, 2, 2)),
                Value("input", 28, 29, (1, 1, 8, 8), x.tobytes()[:32], original=(5, 6)),
                Value("input", 27, 4, (4, 1, 2, 4), x.tobytes()[:64], original=(2, 3, 2, 2)),
            ]
        )
    )
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, 180))
        whole[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(whole))))
    path = tmp_path_factory.mktemp("fuzz") / NAME
    path.write_bytes(whole[:cut])
    done = convert_binary(path, path.parent)
    for written in done.written:
        np.load(written, allow_pickle=False)


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=200))
def test_any_bytes_raise_nothing_else(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / NAME
    path.write_bytes(struct.pack("<Q", len(content) // 2) + content)
    convert_binary(path, path.parent)
