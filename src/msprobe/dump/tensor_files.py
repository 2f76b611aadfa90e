# SPDX-License-Identifier: Apache-2.0
"""The values of dumped tensors: ``.npy`` and ``.pt`` files, read without trusting them.

Neither framework is needed. A ``.pt`` file is read straight from its zip archive (see
`msprobe.dump.tensor_archive`); NumPy has no bfloat16 or float8, so `StoredTensor.array` holds such
values as raw unsigned integers and `StoredTensor.values` widens them to float32, exactly. Special
tensors (sparse, quantised, subclasses …) are left to torch. Nothing in a file is ever executed.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msprobe.dump.formats.dtypes import widen
from msprobe.dump.layout import is_bare_name
from msprobe.dump.open_file import OpenFile
from msprobe.errors import DumpFormatError, RecordNotFoundError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

READ_ERRORS: Final = (  # errors that damaged and hostile files can cause
    OSError,
    ValueError,
    TypeError,
    EOFError,
    OverflowError,
    MemoryError,
    SyntaxError,
    RecursionError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor's values as they were saved.

    Attributes:
        array: the values; bfloat16 as uint16 and float8 as uint8 bit patterns.
        dtype: the true type without a framework's prefix: ``float32``, ``bfloat16`` …
    """

    array: NDArray[Any]
    dtype: str

    def values(self) -> NDArray[Any]:
        """Return numbers to compute with: bfloat16 and float8 widened to float32, exactly.

        Raises:
            UnsupportedError: a packed type (float4) that has no element-wise values.
        """
        return widen(self.array, self.dtype)


def read_tensor(directory: Path, data_name: str) -> StoredTensor:
    """Return the tensor saved as `data_name` in a ``dump_tensor_data`` folder.

    Args:
        directory: the folder.
        data_name: the file, as the record names it.

    Raises:
        RecordNotFoundError: there is no such file.
        DumpFormatError: the name leaves the folder, or the file is damaged or hostile.
        UnsupportedError: a special tensor (sparse, quantised …) that only torch can read.
    """
    with OpenFile(locate_tensor_file(directory, data_name)) as file:
        return read_open_tensor(file)


def read_open_tensor(file: OpenFile) -> StoredTensor:
    """Return the tensor in an open ``.npy`` or ``.pt`` file.

    Raises:
        DumpFormatError: the file is damaged or hostile.
        UnsupportedError: a special tensor (sparse, quantised …) that only torch can read.
    """
    try:
        return _read_npy(file) if file.is_npy else _read_pt(file)
    except READ_ERRORS as exc:
        raise DumpFormatError(file.name, f"cannot be read: {first_line(exc)}") from exc


def locate_tensor_file(directory: Path, data_name: str) -> Path:
    """Return the file that `data_name` means, once it is certain to lie inside `directory`.

    Raises:
        RecordNotFoundError: there is no such file.
        DumpFormatError: the name points outside the folder, or at something that is no file, or
            is of an unknown kind.
    """
    if is_bare_name(data_name) and data_name.endswith((".pt", ".npy")):
        # Nearly all names are like this. A file that is no link is inside the folder.
        path = directory / data_name
        if _is_plain_file(path):
            return path
    relative = Path(data_name)
    if "\0" in data_name or relative.is_absolute() or ".." in relative.parts:
        raise DumpFormatError(directory, f"data_name {data_name!r} leaves the folder")
    if relative.suffix not in (".npy", ".pt"):
        raise DumpFormatError(directory, f"data_name {data_name!r} is neither .npy nor .pt")
    try:
        # The folder itself may be a link to a larger disk; its files must not lead out of it.
        base = directory.resolve(strict=True)
        path = (base / relative).resolve(strict=True)
        mode = path.stat().st_mode
    except FileNotFoundError as exc:
        raise RecordNotFoundError(directory / relative, "there is no such tensor file") from exc
    except (OSError, RuntimeError, ValueError) as exc:
        raise DumpFormatError(directory, f"data_name {data_name!r}: {first_line(exc)}") from exc
    if not path.is_relative_to(base):
        raise DumpFormatError(directory, f"data_name {data_name!r} is a link out of the folder")
    if not stat.S_ISREG(mode):
        raise DumpFormatError(path, "is not a plain file")
    return path


def npy_type_and_shape(path: Path) -> tuple[str, tuple[int, ...]]:
    """Return type and shape of a ``.npy`` file, without reading its elements.

    Raises:
        RecordNotFoundError: there is no such file.
        DumpFormatError: the file is damaged or hostile.
    """
    from msprobe.dump.formats.npy import numpy_dtype_name, read_npy_header

    with OpenFile(path) as file:
        try:
            header = read_npy_header(file)
        except READ_ERRORS as exc:
            raise DumpFormatError(path, f"cannot be read: {first_line(exc)}") from exc
    return numpy_dtype_name(header.dtype), header.shape


def _read_npy(file: OpenFile) -> StoredTensor:
    import numpy as np

    from msprobe.dump.formats.npy import numpy_dtype_name, read_npy_header

    header = read_npy_header(file)
    flat = np.frombuffer(file.read(header.start, header.size), dtype=header.dtype)
    array = flat.reshape(header.shape, order="F" if header.is_fortran_order else "C")
    return StoredTensor(array=array, dtype=numpy_dtype_name(array.dtype))


def _read_pt(file: OpenFile) -> StoredTensor:
    from msprobe.dump.formats.torch_archive import SpecialTensorError
    from msprobe.dump.tensor_archive import read_archive

    try:
        array, dtype = read_archive(file)
    except SpecialTensorError as exc:
        raise special_tensor(file.name, exc) from exc
    return StoredTensor(array=array, dtype=dtype)


def special_tensor(path: str, exc: Exception) -> UnsupportedError:
    """Return the error for a tensor that only torch can read."""
    hint = "torch.load(view.tensor_path(…), weights_only=True) may read it"
    return UnsupportedError(f"{path}: {exc}; {hint}")


def _is_plain_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def first_line(exc: BaseException) -> str:
    """Return the first line of an error's message, cut to a readable length."""
    text = str(exc).strip()
    return text.splitlines()[0][:200] if text else type(exc).__name__
