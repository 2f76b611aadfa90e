# SPDX-License-Identifier: Apache-2.0
"""The prompt of `msprobe parse`: look at kernel dumps and arrays step by step."""

from __future__ import annotations

import argparse
import cmd
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from msprobe.errors import MsprobeError, UsageError

if TYPE_CHECKING:
    from msprobe.dump.tensor_files import StoredTensor
    from msprobe.report.tables import Cell

# Default folders of results; the second is misspelt in the documents, too.
_SORTED: Final = "parse_data/acl_batch_convert"
_COMPARED: Final = "parse_data/acl_batch_comapre"
_CONVERTED: Final = "parse_data/convert_result"
_COLUMNS: Final = ("NPU File Name", "Bench File Name", "Mean", "Bench Mean", "Md5 Consistency",
                   "Max Abs Error", "Max Relative Error")  # fmt: skip
_THRESHOLD: Final = 0.001
_SHOWN_ELEMENTS: Final = 20


class ParsePrompt(cmd.Cmd):
    """Runs commands until ``exit``, Ctrl+C or the end of the input."""

    prompt = "Parse >>> "
    intro = (
        "cad, vc, dc: binary kernel dumps   pt, cn: arrays   pk: a record of a dump\n"
        "-h behind a command explains it; other lines go to the shell; exit ends"
    )

    def onecmd(self, line: str) -> bool:
        """Run one line; an error is printed in one line, and the prompt stays."""
        try:
            return bool(super().onecmd(line))
        except (MsprobeError, OSError) as exc:
            print(f"error: {exc}", file=sys.stderr)
        except SystemExit:  # argparse has shown the help
            pass
        return False

    def emptyline(self) -> bool:
        """Do nothing."""
        return False

    def default(self, line: str) -> None:
        """Run a line of the shell."""
        subprocess.run(line, shell=True, check=False)

    def do_EOF(self, _line: str) -> bool:  # noqa: N802 - what `cmd` calls at the end of the input
        """Leave the prompt."""
        print()
        return True

    def do_run(self, line: str) -> None:
        """Run a line of the shell that begins with the name of a command here."""
        self.default(line)

    def do_exit(self, _line: str) -> bool:
        """Leave the prompt."""
        return True

    def do_cad(self, line: str) -> None:
        """Convert binary files of a folder to .npy, in folders by operation and time."""
        parser = _Parser("cad", self.do_cad.__doc__)
        parser.add_argument("-m", dest="data", type=Path, required=True, metavar="DIR")
        parser.add_argument("-out", type=Path, default=Path(_SORTED), metavar="DIR")
        parser.add_argument("-asc", help="no effect: no other tool is needed")
        options = parser.parse(line)
        _convert(options.data, options.out / time.strftime("%Y%m%d%H%M%S"), by_operation=True)

    def do_dc(self, line: str) -> None:
        """Convert a binary file, or those of a folder, to .npy."""
        from msprobe.cli.parse import FORMATS

        parser = _Parser("dc", self.do_dc.__doc__)
        parser.add_argument("-n", dest="data", type=Path, required=True, metavar="PATH")
        parser.add_argument("-f", dest="layout", type=str.upper, choices=FORMATS, default="")
        parser.add_argument("-out", type=Path, default=Path(_CONVERTED), metavar="DIR")
        parser.add_argument("-cmp_path", help="no effect: no other tool is needed")
        options = parser.parse(line)
        _convert(options.data, options.out, wanted=options.layout)

    def do_vc(self, line: str) -> None:
        """Compare two folders of kernel values, .npy or binary, file by file, as a csv table."""
        parser = _Parser("vc", self.do_vc.__doc__)
        parser.add_argument("-m", dest="target", type=Path, required=True, metavar="DIR")
        parser.add_argument("-g", dest="reference", type=Path, required=True, metavar="DIR")
        parser.add_argument("-out", type=Path, default=Path(_COMPARED), metavar="DIR")
        parser.add_argument("-cmp_path", help="no effect: no other tool is needed")
        options = parser.parse(line)
        print(f"wrote {compare_folders(options.target, options.reference, options.out)}")

    def do_pt(self, line: str) -> None:
        """Show an array, and write it as text beside the file."""
        from msprobe.cli.array_files import read_array

        parser = _Parser("pt", self.do_pt.__doc__)
        parser.add_argument("-n", dest="path", type=Path, required=True, metavar="FILE")
        path: Path = parser.parse(line).path
        array = read_array(path)
        print(_specification(path, array))
        print(f"Path: {path}")
        print(f"TextFile: {_write_text(path, array)}")

    def do_pk(self, line: str) -> None:
        """Show a record of a dump: its values and where it was called."""
        from msprobe.cli import show
        from msprobe.cli.commands import names_of_commands
        from msprobe.cli.parser import parse_command

        parser = _Parser("pk", self.do_pk.__doc__)
        parser.add_argument("-f", dest="path", required=True, metavar="DUMP_JSON")
        parser.add_argument("-n", dest="name", required=True, metavar="NAME")
        options = parser.parse(line)
        shown = parse_command(names_of_commands()["show"], [options.path, options.name])
        show.run(shown)

    def do_cn(self, line: str) -> None:
        """Compare two arrays element by element; the shorter one is filled up with zeros."""
        parser = _Parser("cn", self.do_cn.__doc__)
        parser.add_argument("-m", dest="target", type=Path, required=True, metavar="FILE")
        parser.add_argument("-g", dest="reference", type=Path, required=True, metavar="FILE")
        parser.add_argument("-p", dest="shown", type=int, default=_SHOWN_ELEMENTS, metavar="N")
        parser.add_argument("-s", action="store_true", help="no effect: texts are always written")
        parser.add_argument("-al", dest="atol", type=float, default=_THRESHOLD, metavar="ERROR")
        parser.add_argument("-rl", dest="rtol", type=float, default=_THRESHOLD, metavar="ERROR")
        options = parser.parse(line)
        _compare_elements(options)


class _Parser(argparse.ArgumentParser):
    """Raises an error where argparse would end the process."""

    def __init__(self, prog: str, description: str | None) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def parse(self, line: str) -> argparse.Namespace:
        try:
            return self.parse_args(shlex.split(line))
        except ValueError as exc:
            raise UsageError(f"{self.prog}: {exc}") from exc

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message} ({self.prog} -h explains)")


def run_prompt() -> int:
    """Read commands from the user until the end; return the exit code."""
    try:
        ParsePrompt().cmdloop()
    except KeyboardInterrupt:
        print()
    return 0


def compare_folders(target: Path, reference: Path, output: Path) -> Path:
    """Compare the arrays in two folders and write a csv table; return its path.

    Files of kernels pair by operation and place, in the order of their times; others by their path.

    Raises:
        DumpFormatError: a folder holds no arrays, or one of them is damaged.
    """
    from tempfile import TemporaryDirectory

    from msprobe.report.table_files import write_table
    from msprobe.report.tables import Table

    with TemporaryDirectory() as converted:
        sides = [
            _arrays_in(folder, Path(converted) / name)
            for name, folder in (("target", target), ("reference", reference))
        ]
        places = dict.fromkeys([*sides[0], *sides[1]])
        rows = [_folder_row(*(side.get(place) for side in sides)) for place in places]
    name = f"batch_compare_{time.strftime('%Y%m%d%H%M%S')}"
    (path,) = write_table(Table.of(_COLUMNS, rows), output / name, "csv")
    return path


def _arrays_in(folder: Path, converted: Path) -> dict[tuple[str | int, ...], Path]:
    """Return the arrays below a folder, by pairing key; binary files are converted first."""
    from msprobe.dump.kernel_names import parse_kernel_file_name
    from msprobe.kernels.convert_binary import convert_binary

    paths = sorted(folder.rglob("*.npy"))
    if not paths:
        convert_binary(folder, converted)
        folder, paths = converted, sorted(converted.rglob("*.npy"))
    found: dict[tuple[str | int, ...], list[tuple[int, Path]]] = {}
    for path in paths:
        name = parse_kernel_file_name(path.name)
        if name is None:
            found.setdefault((str(path.relative_to(folder)),), []).append((0, path))
        else:
            key = (name.op_type, name.op_name, name.io, name.index)
            found.setdefault(key, []).append((name.time, path))
    return {
        (*key, number): path
        for key, times in found.items()
        for number, (_, path) in enumerate(sorted(times))
    }


def _folder_row(target: Path | None, reference: Path | None) -> list[Cell]:
    from msprobe.cli.array_files import array_value, read_array
    from msprobe.numerics.elementwise import Tolerance, compare_arrays

    paths = (target, reference)
    arrays = [None if path is None else read_array(path) for path in paths]
    names = ["" if path is None else path.name for path in paths]
    means = [
        None if path is None or array is None else array_value(path, array).mean
        for path, array in zip(paths, arrays, strict=True)
    ]
    left, right = arrays
    if left is None or right is None:
        return [*names, *means, None, None, None]
    is_same = left.dtype == right.dtype and left.array.tobytes() == right.array.tobytes()
    if left.array.shape != right.array.shape:
        return [*names, *means, False, None, None]
    metrics = compare_arrays(left, right, Tolerance(_THRESHOLD, _THRESHOLD))
    return [*names, *means, is_same, metrics.max_abs_err, metrics.max_rel_err]


def _convert(data: Path, output: Path, *, wanted: str = "", by_operation: bool = False) -> None:
    from msprobe.kernels.convert_binary import convert_binary

    done = convert_binary(data, output, wanted=wanted, by_operation=by_operation)
    for path in done.written:
        print(f" - {path}")
    for bad, problem in done.problems.items():
        print(f"{bad}: {problem}", file=sys.stderr)


def _specification(path: Path, array: StoredTensor) -> str:
    from msprobe.cli.array_files import array_value

    value = array_value(path, array)
    return (
        f"[Shape: {array.array.shape}] [Dtype: {array.dtype}] "
        f"[Max: {value.max}] [Min: {value.min}] [Mean: {value.mean}]"
    )


def _write_text(path: Path, array: StoredTensor) -> Path:
    import numpy as np

    from msprobe.files import replacing

    text = path.with_name(f"{path.name}.txt")
    values = array.values()
    lines = values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)
    with replacing(text) as temporary:
        np.savetxt(temporary, lines, fmt="%s")
    return text


def _compare_elements(options: argparse.Namespace) -> None:
    import numpy as np

    from msprobe.cli.array_files import read_array
    from msprobe.dump.tensor_files import StoredTensor
    from msprobe.numerics.elementwise import Tolerance, compare_arrays

    paths = (options.target, options.reference)
    arrays = [read_array(path) for path in paths]
    count = max(array.array.size for array in arrays)
    flat = [
        StoredTensor(
            array=np.pad(array.array.reshape(-1), (0, count - array.array.size)), dtype=array.dtype
        )
        for array in arrays
    ]
    metrics = compare_arrays(flat[0], flat[1], Tolerance(options.rtol, options.atol))
    left, right = (array.values() for array in flat)
    wide = np.result_type(left, right, np.float64)
    with np.errstate(all="ignore"):
        error = np.abs(np.subtract(left, right, dtype=wide))
        is_close = (error <= options.atol + options.rtol * np.abs(right)) | (left == right)
    is_close |= (left != left) & (right != right)
    _print_elements("Error Item Table", left, right, np.flatnonzero(~is_close)[: options.shown])
    _print_elements("Top Item Table", left, right, np.arange(min(options.shown, count)))
    for side, path, array in zip(("Left", "Right"), paths, arrays, strict=True):
        print(f"{side}:")
        print(f" |- NpyFile: {path}")
        print(f" |- TxtFile: {_write_text(path, array)}")
        print(f" |- NpySpec: {_specification(path, array)}")
    share = metrics.mismatches / count if count else 0.0
    print(f"NumCnt:   {count}")
    print(f"AllClose: {metrics.mismatches == 0}")
    print(f"CosSim:   {metrics.cosine}")
    print(f"ErrorPer: {share}  (rl= {options.rtol}, al= {options.atol})")


def _print_elements(title: str, left: Any, right: Any, places: Any) -> None:
    print(title)
    print(f"{'Index':>10} {'Left':>24} {'Right':>24} {'Diff':>24}")
    for place in places.tolist():
        a, b = left[place].item(), right[place].item()
        print(f"{place:>10} {a!s:>24} {b!s:>24} {abs(a - b)!s:>24}")
