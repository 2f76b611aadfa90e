# SPDX-License-Identifier: Apache-2.0
"""Matrices that tensors are multiplied with before they are compared, and the file that names them.

Where one side works with rotated or scaled weights, its values have to be turned back first. The
file (``--config``) says which matrix belongs to which saved tensors::

    left_matmul:                      # matrix @ tensor
      target_tensor_map:
        rotation.npy: [Module.fc1.Linear.forward.0.input.0.pt]
    right_matmul:                     # tensor @ matrix
      golden_tensor_map:
        rotation.pt: [Functional.linear.0.forward.output.0.pt]
    left_right_matmul:                # left matrix @ tensor @ right matrix
      left_target_tensor_map: {}
      right_target_tensor_map: {}

``golden`` is the reference. A matrix is found from the current folder or beside the file itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from msprobe.dump.open_file import FileIdentity, OpenFile
from msprobe.dump.tensor_files import StoredTensor, read_open_tensor
from msprobe.errors import DumpFormatError, MsprobeError
from msprobe.numerics.element_types import Category, element_type

if TYPE_CHECKING:
    from msprobe.yaml_nodes import Node


class Hand(StrEnum):
    """The side of the tensor on which a matrix multiplies."""

    LEFT = "left"
    RIGHT = "right"


class Factor(NamedTuple):
    """One matrix to multiply with."""

    hand: Hand
    path: Path


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """The matrices of one tensor, in the order in which they are applied."""

    factors: tuple[Factor, ...]


class Processed(NamedTuple):
    """A tensor after its multiplication; the warning says which factor could not be applied."""

    tensor: StoredTensor
    warning: str


# Section and key → side and hand. In the order in which factors are applied.
_MAPS: Final[Mapping[str, Mapping[str, tuple[str, Hand]]]] = {
    "right_matmul": {
        "target_tensor_map": ("target", Hand.RIGHT),
        "golden_tensor_map": ("reference", Hand.RIGHT),
    },
    "left_matmul": {
        "target_tensor_map": ("target", Hand.LEFT),
        "golden_tensor_map": ("reference", Hand.LEFT),
    },
    "left_right_matmul": {
        "left_target_tensor_map": ("target", Hand.LEFT),
        "right_target_tensor_map": ("target", Hand.RIGHT),
        "left_golden_tensor_map": ("reference", Hand.LEFT),
        "right_golden_tensor_map": ("reference", Hand.RIGHT),
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Processing:
    """The matrices for the tensors of both sides.

    Attributes:
        target: file name of a saved tensor (``data_name``) → its matrices.
        reference: the same for the reference's tensors.
    """

    target: Mapping[str, MatrixProduct] = field(default_factory=dict)
    reference: Mapping[str, MatrixProduct] = field(default_factory=dict)


def read_processing(path: Path) -> Processing:
    """Read the file that names the matrices.

    Raises:
        ConfigFileError: it cannot be read or is no YAML.
        ConfigError: a section, key or value is unknown, or a matrix does not exist; it names the
            line.
    """
    from msprobe.yaml_nodes import read_yaml

    sections: dict[str, Node] = {}
    for name, place, section in read_yaml(path).items("a mapping of sections"):
        if name not in _MAPS:
            place.refuse(name, _MAPS)
        sections[name] = section
    found: dict[str, dict[str, list[Factor]]] = {"target": {}, "reference": {}}
    for name, keys in _MAPS.items():
        if name not in sections:
            continue
        for key, data_name, matrix in _entries(sections[name], keys):
            side, hand = keys[key]
            found[side].setdefault(data_name, []).append(Factor(hand, matrix))
    products = {
        side: {name: MatrixProduct(tuple(factors)) for name, factors in tensors.items()}
        for side, tensors in found.items()
    }
    return Processing(target=products["target"], reference=products["reference"])


def _entries(
    section: Node, keys: Mapping[str, tuple[str, Hand]]
) -> Iterator[tuple[str, str, Path]]:
    """Yield key, ``data_name`` and matrix of everything in a section, in the order of `keys`."""
    if section.kind == "null":
        return
    found: dict[str, Node] = {}
    for key, place, value in section.items("a mapping of tensor maps"):
        if key not in keys:
            place.refuse(key, keys)
        found[key] = value
    for key in keys:
        if key not in found or found[key].kind == "null":
            continue
        taken: dict[str, int] = {}
        for matrix, place, names in found[key].items("a mapping of matrix files to data names"):
            matrix_path = _find_matrix(matrix, place)
            for name in names.elements("a list of data names"):
                data_name = name.text("a data name")
                if data_name in taken:
                    name.refuse(data_name, f"one matrix each; see line {taken[data_name]}")
                taken[data_name] = name.line
                yield key, data_name, matrix_path


def _find_matrix(name: str, place: Node) -> Path:
    if Path(name).suffix not in (".npy", ".pt", ".pth"):
        place.refuse(name, "a matrix in a .npy, .pt or .pth file")
    candidates = [Path(name), place.path.parent / name]
    found = [candidate for candidate in candidates if candidate.is_file()]
    if not found:
        place.refuse(name, "a file that exists, seen from the current folder or from this file's")
    return found[0].resolve()


def multiply(tensor: StoredTensor, product: MatrixProduct | None) -> Processed:
    """Return a tensor multiplied with its matrices, in float64 (complex128).

    Dimensions of size 1 are dropped first. The result is rounded to float32 (complex64) where the
    tensor itself was no wider. A factor that cannot be applied is left out, with a warning.

    Args:
        tensor: the saved tensor.
        product: its matrices; None for none.

    Raises:
        UnsupportedError: the elements are no numbers one by one.
    """
    if product is None:
        return Processed(tensor, "")
    kind = element_type(tensor.dtype)
    is_complex = kind.category is Category.COMPLEX
    value = tensor.values().squeeze().astype(np.complex128 if is_complex else np.float64)
    warnings = []
    for factor in product.factors:
        try:
            value = _apply(value, factor)
        except (MsprobeError, OSError, ValueError) as exc:
            warnings.append(f"not multiplied with {factor.path}: {exc}")
    if len(warnings) == len(product.factors):
        return Processed(tensor, "; ".join(warnings))
    return Processed(_rounded(value, tensor.dtype), "; ".join(warnings))


def _apply(value: NDArray[Any], factor: Factor) -> NDArray[Any]:
    matrix = _matrix(factor.path, FileIdentity.of(factor.path.stat()))
    operands = (matrix, value) if factor.hand is Hand.LEFT else (value, matrix)
    with np.errstate(all="ignore"):
        product: NDArray[Any] = np.matmul(*operands)
    return product


def _rounded(value: NDArray[Any], dtype: str) -> StoredTensor:
    is_wide = dtype in ("float64", "complex128") or element_type(dtype).category in (
        Category.INTEGER,
        Category.BOOLEAN,
    )
    if value.dtype.kind == "c":
        name = "complex128" if is_wide else "complex64"
    else:
        name = "float64" if is_wide else "float32"
    with np.errstate(over="ignore"):
        return StoredTensor(array=value.astype(name), dtype=name)


# One matrix usually belongs to many tensors. The identity keeps a rewritten file from being taken
# for the old one.
@lru_cache(maxsize=8)
def _matrix(path: Path, identity: FileIdentity) -> NDArray[Any]:
    with OpenFile(path) as file:
        if file.identity != identity:
            raise DumpFormatError(path, "changed while it was read")
        values = read_open_tensor(file).values()
    if values.dtype.kind not in "biufc":
        raise DumpFormatError(path, f"holds {values.dtype}, which are no numbers")
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
