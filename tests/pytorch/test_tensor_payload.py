# SPDX-License-Identifier: Apache-2.0
"""Tensor files: what ``torch.save`` would write, from memory that is used again."""

from __future__ import annotations

import io
import threading
import zipfile
from pathlib import Path

import pytest
import torch

from msprobe.dump.tensor_archive_writer import TYPED_STORAGES, UNTYPED
from msprobe.dump.tensor_files import read_tensor
from msprobe.pytorch.values.buffer_pool import LEAST_BYTES, MAX_IDLE_BYTES, BufferPool, capacity_for
from msprobe.pytorch.values.tensor_payload import TensorFile, snapshot

SHAPES = ((), (1,), (3,), (2, 3), (300, 2), (2, 3, 4), (2, 1, 3, 7), (70000,), (2,) * 7)
DTYPES = sorted(TYPED_STORAGES) + sorted(UNTYPED)


def any_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    size_bytes = torch.Size(shape).numel() * dtype.itemsize
    bits = torch.randint(0, 256, (size_bytes,), dtype=torch.uint8, generator=generator)
    return (bits % 2 if dtype is torch.bool else bits).view(dtype).view(shape)


def bits_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def saved_by_torch(tensor: torch.Tensor) -> bytes:
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getvalue()


def write(tensor: torch.Tensor, path: Path) -> None:
    payload = snapshot(tensor, BufferPool())
    assert payload is not None
    payload.write(path)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", DTYPES)
def test_file_is_the_one_of_torch_save(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    tensor = any_bits(shape, getattr(torch, name))
    path = tmp_path / "a.pt"
    write(tensor, path)
    wanted = saved_by_torch(tensor)
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(io.BytesIO(wanted)) as reference:
        assert archive.testzip() is None
        names = reference.namelist()
        if archive.namelist() == names:  # the torch that this follows
            assert path.read_bytes() == wanted
        else:
            assert archive.read("archive/data.pkl") == reference.read("archive/data.pkl")
    for mapped in (False, True):
        loaded = torch.load(path, weights_only=True, mmap=mapped)
        assert loaded.dtype is tensor.dtype
        assert loaded.shape == tensor.shape
        assert bits_of(loaded) == bits_of(tensor)
    ours = read_tensor(tmp_path, "a.pt")
    assert ours.dtype == name
    assert ours.array.shape == shape
    assert ours.array.tobytes() == bits_of(tensor)


def test_views_are_saved_as_contiguous_values(tmp_path: Path) -> None:
    base = any_bits((40, 60), torch.float32)
    complex_ = torch.view_as_complex(torch.randn(300, 200, 2))
    views = {
        "transposed": base.t(),
        "strided": base[::2, 5:],
        "expanded": base[:, :1].expand(40, 60),
        "conjugate": complex_.conj(),
        "negative": complex_.conj().imag,
        "channels": torch.randn(2, 8, 50, 50).to(memory_format=torch.channels_last),
    }
    for name, view in views.items():
        write(view, tmp_path / f"{name}.pt")
        loaded = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        assert loaded.is_contiguous()
        assert bits_of(loaded) == bits_of(view.resolve_conj().resolve_neg()), name
        assert loaded.untyped_storage().nbytes() == view.numel() * view.element_size()


@pytest.mark.filterwarnings(
    "ignore:torch.quantize_per_tensor", "ignore:TypedStorage", "ignore:Validating sparse tensor"
)
def test_what_is_no_plain_tensor_is_left_to_torch(tmp_path: Path) -> None:
    sparse = torch.eye(5).to_sparse()
    quantised = torch.quantize_per_tensor(torch.randn(200, 200), 0.1, 3, torch.quint8)
    write(sparse, tmp_path / "sparse.pt")
    write(quantised, tmp_path / "quantised.pt")
    assert torch.equal(torch.load(tmp_path / "sparse.pt").to_dense(), torch.eye(5))
    loaded = torch.load(tmp_path / "quantised.pt")
    assert loaded.q_zero_point() == 3
    assert torch.equal(loaded.int_repr(), quantised.int_repr())
    marked = torch.ones(3)
    marked.requires_grad_()
    TensorFile(marked).write(tmp_path / "marked.pt")
    assert torch.load(tmp_path / "marked.pt", weights_only=True).requires_grad


@pytest.mark.parametrize("count", [10, 100_000])
def test_a_snapshot_keeps_the_value_while_the_program_overwrites_it(
    count: int, tmp_path: Path
) -> None:
    pool = BufferPool()
    tensor = torch.zeros(count)
    payloads = []
    for number in range(4):
        payloads.append(snapshot(tensor.fill_(number), pool))
    for number, payload in enumerate(payloads):
        assert payload is not None
        payload.write(tmp_path / "a.pt")
        # Its memory is free again now; the others must not notice.
        again = snapshot(torch.full((count,), 77.0), pool)
        assert again is not None
        loaded = torch.load(tmp_path / "a.pt", weights_only=True)
        assert torch.equal(loaded, torch.full((count,), float(number)))


def test_buffers_are_used_again_and_bounded() -> None:
    pool = BufferPool()
    first = pool.take(LEAST_BYTES)
    pool.give(first)
    assert pool.take(LEAST_BYTES - 1) is first
    assert pool.take(LEAST_BYTES) is not first
    buffers = [pool.take(1 << 20) for _ in range(100)]
    for buffer in buffers:
        pool.give(buffer)
    assert 0 < pool.idle_bytes <= MAX_IDLE_BYTES


def test_capacities_waste_at_most_a_quarter() -> None:
    for size in [*range(1, 5000), 10**6, 10**7 + 1, (1 << 31) - 1]:
        capacity = capacity_for(size)
        assert size <= capacity <= size * 1.25


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        write(torch.ones(300, 300), Path("/dev/full"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_value_of_a_side_stream_is_complete_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(500_000_000)  # the device is busy when the other thread wants to read
        value = torch.full((1 << 20,), 7.0, device="cuda")
        payload = snapshot(value, BufferPool())
        value.zero_()
        assert payload is not None
    thread = threading.Thread(target=payload.write, args=(path,))
    thread.start()
    thread.join()
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    assert loaded.unique().tolist() == [7.0]
