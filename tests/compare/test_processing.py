# SPDX-License-Identifier: Apache-2.0
"""Tensors are multiplied with the matrices that a file names before they are compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from msprobe.compare.tensors.processing import (
    Factor,
    Hand,
    MatrixProduct,
    Processing,
    multiply,
    read_processing,
)
from msprobe.compare.tensors.tensor_pairs import TensorJob, measure_pair
from msprobe.dump.tensor_files import StoredTensor
from msprobe.errors import ConfigError, ConfigFileError
from msprobe.numerics.elementwise import Tolerance


def config(folder: Path, text: str) -> Path:
    for name in ("left.npy", "right.npy"):
        np.save(folder / name, np.eye(2))
    path = folder / "matrices.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_section_names_side_hand_and_order(tmp_path):
    path = config(
        tmp_path,
        """
left_right_matmul:
  right_target_tensor_map: {right.npy: [x.pt]}
  left_target_tensor_map: {left.npy: [x.pt]}
  left_golden_tensor_map:
  right_golden_tensor_map: {}
left_matmul:
  golden_tensor_map:
    left.npy: [y.pt, z.pt]
right_matmul:
  target_tensor_map:
    "right.npy":
      - "x.pt"
""",
    )
    left, right = (tmp_path / name for name in ("left.npy", "right.npy"))
    assert read_processing(path) == Processing(
        target={
            "x.pt": MatrixProduct(
                (Factor(Hand.RIGHT, right), Factor(Hand.LEFT, left), Factor(Hand.RIGHT, right))
            )
        },
        reference={name: MatrixProduct((Factor(Hand.LEFT, left),)) for name in ("y.pt", "z.pt")},
    )


def test_matrices_are_found_from_the_current_folder_first(tmp_path, monkeypatch):
    path = config(tmp_path, "left_matmul: {target_tensor_map: {left.npy: [x.pt]}}")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert read_processing(path).target["x.pt"].factors[0].path == tmp_path / "left.npy"
    np.save(here / "left.npy", np.eye(3))
    assert read_processing(path).target["x.pt"].factors[0].path == here / "left.npy"


def test_all_maps_empty_as_in_a_fresh_copy(tmp_path):
    text = "right_matmul:\n  target_tensor_map: {}\n  golden_tensor_map: {}\nleft_matmul:\n"
    assert read_processing(config(tmp_path, text)) == Processing()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("left_matmull: {}", 1, ["left_matmull", "right_matmul", "left_right_matmul"]),
        ("left_matmul:\n  target_map: {}", 2, ["target_map", "golden_tensor_map"]),
        ("left_matmul:\n  left_target_tensor_map: {}", 2, ["left_target_tensor_map"]),
        ("left_matmul: [1]", 1, ["left_matmul", "a list"]),
        ("left_matmul:\n  target_tensor_map: [x]", 2, ["target_tensor_map"]),
        ("left_matmul:\n  target_tensor_map:\n    left.npy: x.pt", 3, ["x.pt", "a list"]),
        ("left_matmul:\n  target_tensor_map:\n    left.npy:\n    - [x]", 4, ["left.npy"]),
        ("left_matmul:\n  target_tensor_map:\n    no.npy: [x.pt]", 3, ["no.npy", "exists"]),
        ("left_matmul:\n  target_tensor_map:\n    left.csv: [x.pt]", 3, ["left.csv", ".npy"]),
        (
            "left_matmul:\n  target_tensor_map:\n    left.npy: [x.pt]\n    right.npy: [x.pt]",
            4,
            ["x.pt", "line 3"],
        ),
    ],
)
def test_faults_are_named_with_their_line(tmp_path, text, line, words):
    path = config(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_processing(path)
    message = str(caught.value)
    assert f"matrices.yaml, line {line}" in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("text", ["", "left: [", "\t"])
def test_what_is_no_yaml(tmp_path, text):
    with pytest.raises(ConfigFileError, match=r"matrices\.yaml"):
        read_processing(config(tmp_path, text))
    with pytest.raises(ConfigFileError, match=r"nowhere\.yaml"):
        read_processing(tmp_path / "nowhere.yaml")


def product(folder: Path, **matrices: np.ndarray) -> MatrixProduct:
    factors = []
    for name, matrix in matrices.items():
        np.save(folder / f"{name}.npy", matrix)
        factors.append(Factor(Hand(name.rstrip("0123456789")), folder / f"{name}.npy"))
    return MatrixProduct(tuple(factors))


def test_matrices_stand_on_their_sides(tmp_path):
    random = np.random.default_rng(0)
    left, value, right = (random.standard_normal(shape) for shape in ((4, 3), (3, 5), (5, 2)))
    both = product(tmp_path, left=left, right=right)
    found = multiply(StoredTensor(array=value, dtype="float64"), both)
    np.testing.assert_allclose(found.tensor.array, left @ value @ right, rtol=1e-14)
    assert found.tensor.dtype == "float64"
    assert found.warning == ""


@pytest.mark.parametrize(
    ("dtype", "storage", "wanted"),
    [
        ("float32", "f4", "float32"),
        ("float16", "f2", "float32"),
        ("bfloat16", "u2", "float32"),
        ("int32", "i4", "float64"),
        ("bool", "?", "float64"),
        ("complex64", "c8", "complex64"),
        ("complex128", "c16", "complex128"),
    ],
)
def test_types_of_the_product(tmp_path, dtype, storage, wanted):
    one = 0x3F80 if dtype == "bfloat16" else 1
    value = np.full((2, 2), one, storage)
    doubled = multiply(
        StoredTensor(array=value, dtype=dtype), product(tmp_path, left=2 * np.eye(2))
    )
    assert (doubled.tensor.dtype, str(doubled.tensor.array.dtype)) == (wanted, wanted)
    np.testing.assert_array_equal(doubled.tensor.array, np.full((2, 2), 2))


def test_a_matrix_that_does_not_fit_is_left_out_with_a_warning(tmp_path):
    value = StoredTensor(array=np.ones((2, 2), "f4"), dtype="float32")
    wrong = product(tmp_path, left=np.eye(3))
    found = multiply(value, wrong)
    assert found.tensor is value
    assert "left.npy" in found.warning
    partly = product(tmp_path, left1=np.eye(3), left2=3 * np.eye(2))
    found = multiply(value, partly)
    assert found.tensor.array.tolist() == [[3, 3], [3, 3]]
    assert "left1.npy" in found.warning
    assert "left2.npy" not in found.warning


@pytest.mark.torch
def test_rotated_values_are_turned_back_before_they_are_compared(tmp_path):
    torch = pytest.importorskip("torch")
    values = torch.randn(64, 32)
    rotation = torch.linalg.qr(torch.randn(32, 32, dtype=torch.float64))[0]
    torch.save((values.double() @ rotation).float(), tmp_path / "t.pt")
    torch.save(values, tmp_path / "r.pt")
    torch.save(rotation.T.contiguous(), tmp_path / "back.pth")
    job = TensorJob(0, tmp_path / "t.pt", tmp_path / "r.pt", Tolerance(0, 1e-6))
    assert measure_pair(job).metrics.mismatches > 1000
    back = MatrixProduct((Factor(Hand.RIGHT, tmp_path / "back.pth"),))
    job = TensorJob(0, job.target, job.reference, job.tolerance, target_matrices=back)
    outcome = measure_pair(job)
    assert outcome.problem == ""
    assert outcome.metrics.mismatches == 0
    for spoil in (lambda path: path.write_bytes(b"broken"), Path.unlink):
        spoil(tmp_path / "back.pth")
        outcome = measure_pair(job)
        assert "back.pth" in outcome.problem
        assert outcome.metrics.mismatches > 1000
