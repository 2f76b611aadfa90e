# SPDX-License-Identifier: Apache-2.0
"""Checksums of tensors: the XOR of words, and one that sees their order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from msprobe.pytorch.xor_checksum import checksum, xor_checksum

pytestmark = pytest.mark.torch


def expected(tensor: Tensor) -> int:
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    words = np.frombuffer(data + bytes(-len(data) % 8), dtype=np.int64)
    return int(np.bitwise_xor.reduce(words))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.complex64])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (4, 8)])
def test_it_is_the_xor_of_all_words(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = (torch.randn(shape) * 50).to(dtype)
    found = xor_checksum(tensor)
    assert (found.dtype, found.shape) == (torch.int64, ())
    assert found.item() == expected(tensor)


def test_any_layout_and_no_elements() -> None:
    tensor = torch.randn(6, 4, requires_grad=True)
    assert xor_checksum(tensor.t()).item() == expected(tensor.detach().t())
    assert xor_checksum(torch.empty(0, 3)).item() == 0


def test_the_default_sees_permutations_and_pairs() -> None:
    pairs = torch.tensor([1.0, 2.0, 1.0, 2.0])
    assert xor_checksum(pairs).item() == xor_checksum(pairs * 3).item() == 0
    assert checksum(pairs) != checksum(pairs * 3)
    words = torch.arange(4, dtype=torch.int64)
    assert xor_checksum(words).item() == xor_checksum(words.flip(0)).item()
    assert checksum(words) != checksum(words.flip(0))
    assert checksum(words.view(2, 2).t()) == checksum(words.view(2, 2).t().contiguous())
