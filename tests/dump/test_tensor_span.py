# SPDX-License-Identifier: Apache-2.0
"""A tensor is found in its file whatever the archive's form, and files alike are known again."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from msprobe.dump.open_file import OpenFile
from msprobe.dump.tensor_archive_writer import write_archive
from msprobe.dump.tensor_files import read_tensor
from msprobe.dump.tensor_span import SpanFinder, TensorSpan
from msprobe.errors import DumpFormatError, UnsupportedError

VALUES = np.arange(12, dtype="f4").reshape(3, 4)


def good(path: Path, values: np.ndarray = VALUES) -> Path:
    write_archive(
        str(path), str(values.dtype), values.shape, memoryview(values.reshape(-1).view(np.uint8))
    )
    return path


def found_in(path: Path, finder: SpanFinder | None = None) -> tuple[TensorSpan, np.ndarray]:
    """Return the span and what is found there."""
    with OpenFile(path) as file:
        span = (finder or SpanFinder()).find(file).span
        raw = file.read(span.start, span.size)
    return span, np.frombuffer(raw, span.storage_type).reshape(span.shape)


def rewritten(path: Path, source: Path, **how: object) -> Path:
    """Write an archive anew, in another form."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            with new.open(str(how.get("prefix", "")) + name, "w", force_zip64="zip64" in how) as to:
                to.write(old.read(name))
        if "comment" in how:
            new.comment = b"a comment"
    if "before" in how:
        path.write_bytes(b"some bytes before" + path.read_bytes())
    return path


@pytest.mark.parametrize("count", [12, 60_000])
@pytest.mark.parametrize(
    "how", [{}, {"zip64": 1}, {"comment": 1}, {"before": 1}, {"prefix": "größe/"}]
)
def test_archives_of_every_form(tmp_path, how, count):
    values = np.arange(count, dtype="f4").reshape(3, -1)
    path = rewritten(tmp_path / "t.pt", good(tmp_path / "good.pt", values), **how)
    span, found = found_in(path)
    np.testing.assert_array_equal(found, values)
    assert span.is_plain
    np.testing.assert_array_equal(read_tensor(tmp_path, "t.pt").array, values)


@pytest.mark.torch
@pytest.mark.parametrize("size", [4, 400])
def test_strided_tensors_are_not_plain(tmp_path, size):
    torch = pytest.importorskip("torch")
    tensor = torch.randn(size, size)
    cases = {
        True: [tensor, tensor[1:], tensor[:1].T, tensor[:0].T, torch.tensor(1.0)],
        False: [tensor.T, tensor[:, 1:], tensor[0].expand(size, size), tensor.float()[::2]],
    }
    for is_plain, tensors in cases.items():
        for one in tensors:
            torch.save(one, tmp_path / "t.pt")
            with OpenFile(tmp_path / "t.pt") as file:
                assert SpanFinder().find(file).span.is_plain is is_plain
            np.testing.assert_array_equal(read_tensor(tmp_path, "t.pt").array, one.numpy())
            if is_plain:
                np.testing.assert_array_equal(found_in(tmp_path / "t.pt")[1], one.numpy())


@pytest.mark.torch
def test_files_alike_are_known_again_whoever_wrote_them(tmp_path):
    torch = pytest.importorskip("torch")
    finder, spans = SpanFinder(), []
    for number in range(20):
        tensor = torch.randn(3, 4)
        path = tmp_path / f"layer.{number:02}.pt"
        torch.save(tensor, path)
        span, found = found_in(path, finder)
        np.testing.assert_array_equal(found, tensor.numpy())
        spans.append(span)
        _, found = found_in(good(tmp_path / "own.pt", tensor.numpy()), finder)
        np.testing.assert_array_equal(found, tensor.numpy())
    assert all(span is spans[0] for span in spans)


def test_a_change_anywhere_but_in_the_elements_is_noticed(tmp_path):
    """What is known of a file never answers for one that would be read otherwise."""
    path = good(tmp_path / "t.pt")
    content = path.read_bytes()
    finder = SpanFinder()
    found_in(path, finder)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 0x5A
        path.write_bytes(changed)
        assert outcome(path, finder) == outcome(path, SpanFinder()), place


def outcome(path: Path, finder: SpanFinder) -> object:
    with OpenFile(path) as file:
        try:
            return finder.find(file)
        except (DumpFormatError, UnsupportedError) as exc:
            return str(exc)
