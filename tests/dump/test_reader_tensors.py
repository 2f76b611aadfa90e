# SPDX-License-Identifier: Apache-2.0
"""Saved values are read without torch, bit for bit as torch reads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import msprobe
from msprobe.dump.tensor_files import StoredTensor, read_tensor
from msprobe.errors import RecordNotFoundError, UnsupportedError

DATA = Path(__file__).parent / "data"

PLAIN = (
    *("float64", "float32", "float16", "int64", "int32", "int16", "int8", "bool"),
    *("uint8", "uint16", "uint32", "uint64", "complex64", "complex128"),
)
NARROW = (
    *("bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
)


def parameter(tensor):
    return pytest.importorskip("torch").nn.Parameter(tensor)


def save(folder: Path, tensor: object) -> StoredTensor:
    torch = pytest.importorskip("torch")
    torch.save(tensor, folder / "t.pt")
    return read_tensor(folder, "t.pt")


@pytest.mark.torch
@pytest.mark.parametrize("dtype", PLAIN)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0, 3)])
def test_plain_types(tmp_path, dtype, shape):
    torch = pytest.importorskip("torch")
    wanted = (torch.arange(6) - 2)[: max(int(np.prod(shape)), 0)].reshape(shape)
    wanted = wanted.to(getattr(torch, dtype))
    stored = save(tmp_path, wanted)
    assert stored.dtype == dtype
    assert stored.array.dtype == wanted.numpy().dtype
    assert stored.array.shape == shape
    np.testing.assert_array_equal(stored.values(), wanted.numpy())


@pytest.mark.torch
@pytest.mark.parametrize("dtype", NARROW)
def test_every_bit_pattern_of_narrow_types_widens_exactly(tmp_path, dtype):
    torch = pytest.importorskip("torch")
    bits = torch.arange(65536, dtype=torch.int32)
    raw = bits.to(torch.uint16) if dtype == "bfloat16" else bits[:256].to(torch.uint8)
    wanted = raw.view(getattr(torch, dtype))
    stored = save(tmp_path, wanted)
    assert stored.dtype == dtype
    np.testing.assert_array_equal(stored.array, raw.numpy())
    assert stored.values().dtype == np.float32
    np.testing.assert_array_equal(stored.values(), wanted.float().numpy())


@pytest.mark.torch
@pytest.mark.parametrize(
    "make",
    [
        lambda t: t.T,
        lambda t: t[1:, ::2],
        lambda t: t.reshape(1, 3, 2, 2).permute(0, 2, 3, 1),
        parameter,
        lambda t: (t + 1j).conj(),
        lambda t: (t + 1j).conj().imag,
        lambda t: t.requires_grad_().clone(),
    ],
)
def test_views_parameters_and_lazy_signs(tmp_path, make):
    torch = pytest.importorskip("torch")
    wanted = make(torch.arange(12.0).reshape(3, 4))
    stored = save(tmp_path, wanted)
    expected = wanted.detach().resolve_conj().resolve_neg().numpy()
    np.testing.assert_array_equal(stored.array, expected)


# torch warns that quantised tensors will go.
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.torch
@pytest.mark.parametrize(
    "make",
    [
        lambda torch: torch.eye(3).to_sparse(),
        lambda torch: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        lambda torch: {"a": torch.ones(2)},
        lambda torch: [torch.ones(2)],
        lambda torch: torch.ones(2, device="meta"),
    ],
)
def test_special_tensors_are_left_to_torch_with_a_hint(tmp_path, make):
    torch = pytest.importorskip("torch")
    torch.save(make(torch), tmp_path / "t.pt")
    with pytest.raises(UnsupportedError, match=r"t\.pt: .*weights_only=True"):
        read_tensor(tmp_path, "t.pt")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda torch: {"a": torch.ones(2)}, "dict"),
        (lambda torch: torch.nn.Linear(2, 2), r"torch\.nn\.modules\.linear\.Linear"),
        (lambda torch: torch.float32, r"torch\.float32"),
    ],
)
def test_what_is_no_tensor_is_named(tmp_path, make, found):
    torch = pytest.importorskip("torch")
    torch.save(make(torch), tmp_path / "t.pt")
    with pytest.raises(UnsupportedError, match=f"holds no tensor but {found};"):
        read_tensor(tmp_path, "t.pt")


@pytest.mark.torch
def test_the_old_file_format_is_named(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save(torch.ones(2), tmp_path / "t.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(UnsupportedError, match="old format"):
        read_tensor(tmp_path, "t.pt")


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.array(3), np.zeros((0, 2))])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_files(tmp_path, array, order):
    np.save(tmp_path / "t.npy", np.asarray(array, order=order))
    stored = read_tensor(tmp_path, "t.npy")
    assert stored.dtype == array.dtype.name
    np.testing.assert_array_equal(stored.values(), array)


def test_saved_values_of_the_peer_agree_with_its_statistics():
    view = msprobe.open_dump(DATA / "peer_mix_tensor").step().rank()
    seen = 0
    for record in view.records.values():
        for _, tensor in record.tensors():
            if not (view.tensor_directory / tensor.data_name).exists():
                with pytest.raises(RecordNotFoundError, match="no such tensor file"):
                    view.tensor(tensor)
                continue
            values = view.tensor(tensor).values()
            assert values.shape == tensor.shape
            assert (values.max(), values.min()) == (tensor.max, tensor.min)
            seen += 1
    assert seen == 3


def test_half_precision_values_of_the_peer():
    view = msprobe.open_dump(DATA / "peer_debug_tensor").step().rank()
    ((_, tensor),) = view.records["b16.0.debug"].tensors()
    stored = view.tensor(tensor)
    assert stored.dtype == "bfloat16"
    assert stored.array.dtype == np.uint16
    assert stored.values().min() == tensor.min


def test_values_that_were_not_saved_are_said_not_to_be():
    view = msprobe.open_dump(DATA / "peer_l1_md5").step().rank()
    ((_, tensor), *_) = view.records["Functional.relu.0.forward"].tensors()
    with pytest.raises(RecordNotFoundError, match="not saved"):
        view.tensor(tensor)


def test_reading_loads_no_framework():
    code = f"""
import sys, msprobe
view = msprobe.open_dump({str(DATA / "peer_mix_tensor")!r}).step().rank()
view.tensor("Functional.linear.0.forward.input.0.pt").values()
assert not {{"torch", "mindspore"}} & set(sys.modules), "a framework was imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
