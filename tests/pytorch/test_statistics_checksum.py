# SPDX-License-Identifier: Apache-2.0
"""Checksums are zlib's CRC-32 of the contiguous bytes."""

from __future__ import annotations

import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.pytorch.values import checksum
from msprobe.pytorch.values.checksum import crc32_hex


def reference(t):
    bits = t.resolve_conj().resolve_neg().contiguous()
    return f"{zlib.crc32(bytes(bits.clone().untyped_storage().tolist())):08x}"


def test_known_values():
    assert crc32_hex(torch.arange(6, dtype=torch.bfloat16)) == "3ae021b3"
    assert crc32_hex(torch.arange(6, dtype=torch.float32)) == "91e79017"
    assert crc32_hex(torch.empty(3, 0)) == "00000000"
    assert crc32_hex(torch.tensor(1.5)) == reference(torch.tensor(1.5))


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.float8_e5m2, torch.uint64, torch.bool, torch.complex128],
    ids=str,
)
def test_views_have_the_checksum_of_their_contiguous_copy(dtype):
    x = torch.randint(0, 2, (4, 5, 6)).to(dtype)
    for view in (x, x.permute(2, 0, 1), x[1:, ::2], x[..., 3], x[:, :1].expand(4, 3, 6), x[2, 3]):
        assert crc32_hex(view) == reference(view)


@settings(deadline=None)
@given(st.permutations(range(4)), st.integers(1, 200))
def test_pieces_join_to_the_whole_in_row_major_order(order, limit):
    x = torch.arange(2 * 3 * 4 * 5, dtype=torch.int16).reshape(2, 3, 4, 5).permute(order)
    joined = torch.cat([piece.reshape(-1) for piece in checksum.row_pieces(x, limit)])
    assert torch.equal(joined, x.reshape(-1))


def test_large_strided_tensors_go_in_pieces():
    x = torch.randn(3, 1000, 301).permute(2, 1, 0)
    assert x.numel() * 4 > 2 * checksum.PIECE_BYTES
    assert crc32_hex(x) == f"{zlib.crc32(x.contiguous().numpy()):08x}"


def test_lazy_views_are_hashed_as_their_values():
    z = torch.complex(torch.arange(3.0), torch.arange(3.0, 6.0))
    assert crc32_hex(z.conj()) == reference(z.conj()) != crc32_hex(z)
    assert crc32_hex(z.conj().imag) == reference(-z.imag)


def test_the_sign_of_zero_and_the_payload_of_nan_count():
    assert crc32_hex(torch.tensor([0.0])) != crc32_hex(torch.tensor([-0.0]))
    payloads = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert crc32_hex(payloads[:1]) != crc32_hex(payloads[1:])
    assert crc32_hex(payloads[::1]) == reference(payloads)


def test_packed_and_strided_float4():
    x = torch.arange(24, dtype=torch.uint8).reshape(4, 6)
    assert crc32_hex(x.view(torch.float4_e2m1fn_x2).t()) == reference(x.t())


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_hash_indices_and_values():
    a = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    b = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    for convert in (torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_csc):
        assert crc32_hex(convert(a)) == crc32_hex(convert(a.clone())) != crc32_hex(convert(b))


def test_what_cannot_be_read_has_no_checksum():
    released = torch.ones(4)
    released.untyped_storage().resize_(0)
    assert crc32_hex(released) is None
    assert crc32_hex(torch.ones(4, device="meta")) is None
