# SPDX-License-Identifier: Apache-2.0
"""Two tensor files are compared as their arrays are, however they are stored and however large."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.compare.tensors.tensor_pairs import (
    TensorJob,
    TensorOutcome,
    Workspace,
    measure_pair,
)
from msprobe.dump.tensor_archive_writer import write_archive
from msprobe.dump.tensor_files import StoredTensor, read_tensor
from msprobe.numerics.elementwise import Tolerance, compare_arrays

TOLERANCE = Tolerance(1e-3, 1e-6)
TYPES = (
    *("float64", "float32", "float16", "bfloat16", "complex64", "complex128"),
    *("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
STORAGE = {
    "bfloat16": "u2",
    **{dtype: "u1" for dtype in TYPES if dtype.startswith("float8")},
}


def random_bits(dtype: str, count: int, seed: int) -> np.ndarray:
    """Return elements of every kind: any bits that the type can have, NaN and Inf among them."""
    storage = np.dtype(STORAGE.get(dtype, dtype))
    if storage == np.bool_:
        return np.random.default_rng(seed).integers(0, 2, count).astype(bool)
    raw = np.random.default_rng(seed).bytes(count * storage.itemsize)
    return np.frombuffer(raw, storage)


def write_pt(path: Path, dtype: str, array: np.ndarray) -> Path:
    write_archive(str(path), dtype, array.shape, memoryview(array.reshape(-1).view(np.uint8)))
    return path


def measure(target: Path, reference: Path, workspace: Workspace | None = None) -> TensorOutcome:
    return measure_pair(TensorJob(7, target, reference, TOLERANCE), workspace)


def oracle(target: Path, reference: Path):
    stored = [read_tensor(path.parent, path.name) for path in (target, reference)]
    flat = [StoredTensor(array=one.array.reshape(-1), dtype=one.dtype) for one in stored]
    return compare_arrays(*flat, TOLERANCE)


def without_norms(metrics):
    return dataclasses.replace(metrics, target_norm=None, reference_norm=None)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", [1, 1001, 300_001])
def test_any_bits_of_every_type_are_measured_as_whole_arrays_are(tmp_path, dtype, count):
    first = random_bits(dtype, count, 1)
    second = first.copy()
    second[count // 2 :] = random_bits(dtype, count - count // 2, 2)
    paths = [
        write_pt(tmp_path / f"{name}.pt", dtype, array)
        for name, array in (("t", first), ("r", second))
    ]
    outcome = measure(*paths)
    assert outcome.problem == ""
    assert outcome.index == 7
    assert repr(outcome.metrics) == repr(oracle(*paths))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", [3, 300_001])
@pytest.mark.parametrize("kind", ["pt", "npy"])
def test_equal_values_need_no_measuring_and_give_the_same_metrics(tmp_path, dtype, count, kind):
    array = np.zeros(count, STORAGE.get(dtype, dtype))
    array[:] = random_bits(dtype, 1, 5) if dtype[:3] in ("int", "uin", "boo") else 0
    paths = [tmp_path / f"{name}.{kind}" for name in "tr"]
    for path in paths:
        if kind == "pt":
            write_pt(path, dtype, array)
        else:
            np.save(path, array)
    found = measure(*paths).metrics
    assert found.is_equal
    assert repr(without_norms(found)) == repr(without_norms(oracle(*paths)))


@pytest.mark.parametrize("dtype", [t for t in TYPES if "float" in t or "complex" in t])
@pytest.mark.parametrize("count", [256, 600_001])
def test_nonfinite_elements_of_equal_tensors_are_counted(tmp_path, dtype, count):
    array = np.zeros(count, STORAGE.get(dtype, dtype))
    if array.itemsize == 1:
        array[-256:] = np.arange(256)
    elif dtype == "bfloat16":
        array[-3:] = [0x7FC0, 0x7F80, 0xFF80]
    else:
        array[-3:] = [np.nan, np.inf, -np.inf]
    paths = [write_pt(tmp_path / f"{name}.pt", dtype, array) for name in "tr"]
    found = measure(*paths).metrics
    assert repr(found) == repr(oracle(*paths))
    assert found.is_equal
    if array.itemsize > 1 and not dtype.startswith("complex"):  # whose Inf has no sign
        assert (found.target_nan, found.target_pos_inf, found.reference_neg_inf) == (1, 1, 1)


def test_a_difference_in_the_last_element_of_many_pieces_is_found(tmp_path):
    first = np.random.default_rng(0).standard_normal(700_001).astype("f4")
    second = first.copy()
    second[-1] += 1
    paths = [write_pt(tmp_path / f"{n}.pt", "float32", a) for n, a in (("t", first), ("r", second))]
    found = measure(*paths).metrics
    assert (found.unequal, found.max_abs_index) == (1, 700_000)
    assert repr(found) == repr(oracle(*paths))


@pytest.mark.parametrize("count", [50_000, 400_000])
def test_types_may_differ(tmp_path, count):
    values = np.random.default_rng(0).standard_normal(count).astype("f4")
    halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    paths = [
        write_pt(tmp_path / "t.pt", "bfloat16", halves),
        write_pt(tmp_path / "r.pt", "float32", values),
    ]
    outcome = measure(*paths)
    assert repr(outcome.metrics) == repr(oracle(*paths))
    assert outcome.metrics.unequal > 0
    assert outcome.bytes_read == count * 6
    np.save(tmp_path / "r.npy", values.astype(np.float64))
    assert measure(paths[0], tmp_path / "r.npy").metrics.max_abs_err > 0


@pytest.mark.parametrize(
    ("target", "reference", "is_comparable"),
    [
        ((1, 6), (6,), True),
        ((), (1, 1), True),
        ((2, 1, 3), (2, 3), True),
        ((2, 3), (3, 2), False),
        ((6,), (2, 3), False),
        ((6,), (5,), False),
        ((0, 3), (3, 0), False),
        ((0,), (1, 0), True),
    ],
)
def test_dimensions_of_size_one_make_no_difference_others_do(
    tmp_path, target, reference, is_comparable
):
    np.save(tmp_path / "t.npy", np.zeros(target, "f4"))
    np.save(tmp_path / "r.npy", np.zeros(reference, "f4"))
    outcome = measure(tmp_path / "t.npy", tmp_path / "r.npy")
    assert (outcome.metrics is not None) is is_comparable
    if not is_comparable:
        assert str(list(target)) in outcome.problem
        assert str(list(reference)) in outcome.problem
        assert str(tmp_path / "t.npy") in outcome.problem


@pytest.mark.parametrize("size", [8, 400])
def test_layouts_of_npy_files(tmp_path, size):
    values = np.random.default_rng(0).standard_normal((size, size))
    np.save(tmp_path / "plain.npy", values)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(values))
    np.save(tmp_path / "big.npy", values.astype(">f8"))
    other = values.copy()
    other[3, 5] += 0.5
    np.save(tmp_path / "other.npy", np.asfortranarray(other))
    for name in ("fortran", "big"):
        assert measure(tmp_path / "plain.npy", tmp_path / f"{name}.npy").metrics.is_equal
    found = measure(tmp_path / "other.npy", tmp_path / "big.npy").metrics
    assert (found.max_abs_index, found.unequal) == (3 * size + 5, 1)


@pytest.mark.torch
@pytest.mark.parametrize("size", [8, 400])
def test_views_and_lazy_signs_of_pt_files(tmp_path, size):
    torch = pytest.importorskip("torch")
    values = torch.randn(size, size, dtype=torch.complex64)
    torch.save(values, tmp_path / "plain.pt")
    kinds = {
        "transposed": (values.T, values.T.contiguous()),
        "part": (values[2:5], values[2:5].clone()),
        "conjugate": (values.conj(), values.conj().resolve_conj()),
        "negative": (values.conj().imag, values.conj().imag.clone()),
        "parameter": (torch.nn.Parameter(values), values),
    }
    for name, (lazy, plain) in kinds.items():
        torch.save(lazy, tmp_path / f"{name}.pt")
        torch.save(plain, tmp_path / "wanted.pt")
        outcome = measure(tmp_path / f"{name}.pt", tmp_path / "wanted.pt")
        assert outcome.problem == "", name
        assert outcome.metrics.is_equal, name


@pytest.mark.torch
def test_what_only_torch_can_read_is_compared_as_files(tmp_path):
    torch = pytest.importorskip("torch")
    for folder, value in (("one", 1.0), ("same", 1.0), ("other", 2.0)):
        (tmp_path / folder).mkdir()
        torch.save(torch.eye(3).mul(value).to_sparse(), tmp_path / folder / "t.pt")
    same = measure(tmp_path / "one/t.pt", tmp_path / "same/t.pt")
    assert (same.metrics, same.problem) == (None, "")
    assert "special" in measure(tmp_path / "one/t.pt", tmp_path / "other/t.pt").problem


@pytest.mark.torch
def test_files_of_one_size_are_not_taken_for_each_other(tmp_path):
    torch = pytest.importorskip("torch")
    workspace = Workspace()
    tensors = {
        "f32": torch.randn(64, 32),
        "i32": torch.randint(-9, 9, (64, 32), dtype=torch.int32),
        "row": torch.randn(32, 64),
        "par": torch.nn.Parameter(torch.randn(64, 32)),
        "tra": torch.randn(32, 64).T,
    }
    for _ in range(2):  # the second time all kinds are known
        for name, tensor in tensors.items():
            for other, second in tensors.items():
                torch.save(tensor, tmp_path / f"{name}.pt")
                torch.save(second, tmp_path / f"{other}.pt")
                outcome = measure(tmp_path / f"{name}.pt", tmp_path / f"{other}.pt", workspace)
                if tensor.shape != second.shape:
                    assert "shapes" in outcome.problem
                    continue
                wanted = (tensor.double() - second.double()).abs().max().item()
                assert outcome.metrics.max_abs_err == wanted


def test_one_file_behind_both_names_is_read_once(tmp_path):
    values = np.random.default_rng(0).standard_normal(300_000).astype("f4")
    write_pt(tmp_path / "t.pt", "float32", values)
    os.link(tmp_path / "t.pt", tmp_path / "r.pt")
    outcome = measure(tmp_path / "t.pt", tmp_path / "r.pt")
    assert outcome.metrics.is_equal
    assert outcome.bytes_read == values.nbytes


def damaged(path: Path, how: str, count: int) -> None:
    values = np.random.default_rng(0).standard_normal(count).astype("f4")
    write_pt(path, "float32", values)
    content = bytearray(path.read_bytes())
    match how:
        case "missing":
            path.unlink()
        case "folder":
            path.unlink()
            path.mkdir()
        case "pipe":
            path.unlink()
            os.mkfifo(path)
        case "empty":
            path.write_bytes(b"")
        case "garbage":
            path.write_bytes(b"\x01\x02" * 5000)
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "flipped bit":
            content[len(content) // 2] ^= 4
            path.write_bytes(content)
        case "other sizes":
            at = content.index(b"PK\1\2") + 24
            content[at : at + 4] = b"\xff\xff\xff\x7f"
            path.write_bytes(content)


@pytest.mark.parametrize(
    "how",
    ["missing", "folder", "pipe", "empty", "garbage", "cut", "flipped bit", "other sizes"],
)
@pytest.mark.parametrize("count", [100, 300_000])
@pytest.mark.parametrize("is_target", [True, False])
def test_a_bad_file_is_a_problem_that_names_it(tmp_path, how, count, is_target):
    good, bad = tmp_path / "good.pt", tmp_path / "bad.pt"
    write_pt(good, "float32", np.zeros(count, "f4"))
    damaged(bad, how, count)
    for workspace in (Workspace(), None):
        if workspace is not None:
            measure(good, good, workspace)
        outcome = measure(*((bad, good) if is_target else (good, bad)), workspace)
        assert outcome.metrics is None
        assert str(bad) in outcome.problem
        assert str(good) not in outcome.problem


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_no_damage_raises(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("fuzz")
    kind = data.draw(st.sampled_from(["pt", "npy"]))
    count = data.draw(st.sampled_from([5, 40_000]))
    path, good = folder / f"bad.{kind}", folder / "good.npy"
    values = np.arange(count, dtype="f4")
    np.save(good, values)
    if kind == "pt":
        write_pt(path, "float32", values)
    else:
        np.save(path, values)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        from_end = data.draw(st.booleans())
        at = data.draw(st.integers(0, 1500))
        at = max(len(content) - 1 - at, 0) if from_end else min(at, len(content) - 1)
        if data.draw(st.booleans()):
            content[at] = data.draw(st.integers(0, 255))
        else:
            del content[at : at + data.draw(st.integers(1, 30))]
    path.write_bytes(content)
    outcome = measure(path, good)
    assert (outcome.metrics is None) == bool(outcome.problem)


def test_damage_is_told_from_a_difference_also_where_both_files_have_it(tmp_path):
    for name in ("t.pt", "r.pt"):
        damaged(tmp_path / name, "flipped bit", 300_000)
    outcome = measure(tmp_path / "t.pt", tmp_path / "r.pt")
    assert outcome.metrics is None
    assert "damaged" in outcome.problem


def quantised(torch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch is about to drop them
        return torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8)


@pytest.mark.torch
def test_special_tensors_and_packed_types_are_problems(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save(torch.eye(3), tmp_path / "plain.pt")
    special = {
        "sparse": torch.eye(3).to_sparse(),
        "quantised": quantised(torch),
        "several": [torch.eye(3), torch.eye(3)],
        "packed": torch.zeros(3, 3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    }
    for name, tensor in special.items():
        torch.save(tensor, tmp_path / f"{name}.pt")
        outcome = measure(tmp_path / f"{name}.pt", tmp_path / "plain.pt")
        assert outcome.metrics is None
        assert outcome.problem, name
    (tmp_path / "text.npy").write_bytes(b"")
    np.save(tmp_path / "text.npy", np.array([["a", "b"]]))
    np.save(tmp_path / "other.npy", np.array([["a", "c"]]))
    outcome = measure(tmp_path / "text.npy", tmp_path / "other.npy")
    assert "cannot be compared" in outcome.problem


@pytest.mark.torch
def test_files_written_without_checksums_are_readable(tmp_path):
    torch = pytest.importorskip("torch")
    from torch.serialization import set_crc32_options

    set_crc32_options(False)
    try:
        torch.save(torch.ones(70), tmp_path / "t.pt")
        torch.save(torch.ones(70_000), tmp_path / "t2.pt")
    finally:
        set_crc32_options(True)
    torch.save(torch.ones(70), tmp_path / "r.pt")
    torch.save(torch.zeros(70_000), tmp_path / "r2.pt")
    assert measure(tmp_path / "t.pt", tmp_path / "r.pt").metrics.is_equal
    assert measure(tmp_path / "t2.pt", tmp_path / "r2.pt").metrics.max_abs_err == 1


MEMORY_PROGRAM = """
import resource, sys
from pathlib import Path
from msprobe.numerics.elementwise import Tolerance
from msprobe.compare.tensors.tensor_pairs import TensorJob, measure_pair
folder = Path(sys.argv[1])
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
measure_pair(TensorJob(0, folder / "small.npy", folder / "small.npy", Tolerance(0, 0)))
before = peak()
for name in ("same", "other"):
    outcome = measure_pair(TensorJob(0, folder / "t.npy", folder / f"{name}.npy", Tolerance(0, 0)))
    print(outcome.metrics.unequal)
print(peak() - before)
"""


def test_memory_does_not_grow_with_the_tensor(tmp_path):
    # 400 MiB a file, all zeros and without blocks on the disk.
    for name in ("t", "same", "other"):
        array = np.lib.format.open_memmap(tmp_path / f"{name}.npy", "w+", "<f4", (100 << 20,))
        if name == "other":
            array[-5] = 1
        del array
    np.save(tmp_path / "small.npy", np.zeros(3, "f4"))
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_PROGRAM, tmp_path],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    same, other, grown_mib = map(int, done.stdout.split())
    assert (same, other) == (0, 1)
    assert grown_mib < 40
