# SPDX-License-Identifier: Apache-2.0
"""Run a script or module as Python does: as ``__main__``, with its own arguments and folder."""

from __future__ import annotations

import ast
import importlib.util
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final

from msprobe.errors import UsageError
from msprobe.plain_text import reason

_MAIN: Final = "__main__"
_HANDLER: Final = "__torch_function__"
_PACKAGE: Final = str(Path(__file__).parents[1] / "_").removesuffix("_")


@dataclass(frozen=True, slots=True)
class Program:
    """A program that can be run.

    Attributes:
        source: its text, as it is in the file.
        file: the file it comes from.
        name: the first of its ``sys.argv``.
        folder: where it finds its own modules: the first entry of ``sys.path``.
        spec: of a module; None for a script.
    """

    source: str | bytes
    file: str
    name: str
    folder: str
    spec: ModuleSpec | None = None

    def tree(self) -> ast.Module:
        """Return its syntax tree.

        Raises:
            SyntaxError: it is no Python.
        """
        return ast.parse(self.source, self.file)


def script(path: Path) -> Program:
    """Return the program in a file, or in the ``__main__.py`` of a folder.

    Raises:
        UsageError: it cannot be read.
    """
    file = path.absolute()
    folder = file if file.is_dir() else file.resolve().parent
    named = path
    if file.is_dir():
        file, named = file / "__main__.py", path / "__main__.py"
    try:
        with io.open_code(str(file)) as opened:
            source = opened.read()
    except OSError as error:
        raise UsageError(f"{named}: the script cannot be read: {reason(error)}") from error
    return Program(source, str(file), str(path), str(folder))


def module(name: str) -> Program:
    """Return the program that is a module, or the ``__main__`` of a package, as in ``python -m``.

    The packages around it are imported.

    Raises:
        UsageError: there is no such module, or it has no source.
    """
    sys.path.insert(0, str(Path.cwd()))
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.{_MAIN}")
    except (ImportError, ValueError) as error:
        raise UsageError(f"-m {name}: {error}") from error
    finally:
        del sys.path[0]
    source = None if spec is None else getattr(spec.loader, "get_source", lambda _: None)(spec.name)
    if spec is None or source is None or spec.origin is None:
        raise UsageError(f"-m {name}: there is no such module, or no source of it")
    return Program(source, spec.origin, spec.origin, str(Path.cwd()), spec)


def run_program(
    program: Program,
    arguments: Sequence[str],
    *,
    change: Callable[[ast.Module], None] | None = None,
    names: Mapping[str, Any] | None = None,
) -> None:
    """Run a program in this process, until it returns or raises.

    Its exceptions are its own, and leave this function.

    Args:
        program: the program.
        arguments: what follows its name in ``sys.argv``.
        change: changes the syntax tree first.
        names: further global variables.
    """
    main = ModuleType(_MAIN)
    main.__dict__.update(names or {})
    main.__file__ = program.file
    main.__spec__ = program.spec
    main.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
    own = SourceFileLoader(_MAIN, program.file)
    main.__loader__ = own if program.spec is None else program.spec.loader
    main.__package__ = None if program.spec is None else program.spec.parent
    main.__annotations__ = {}
    # Kept: threads and exit handlers of the program may outlive its last line.
    sys.modules[_MAIN] = main
    sys.argv = [program.name, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = program.folder
    code: str | bytes | ast.Module = program.source
    if change is not None:
        code = program.tree()
        change(code)
    exec(compile(code, program.file, "exec", dont_inherit=True), main.__dict__)


def hide_own_frames() -> None:
    """Have the exception that ends the program printed as if Python had run it alone."""
    show = sys.excepthook

    def shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        names = sys.modules[_MAIN].__dict__
        while trace is not None and trace.tb_frame.f_globals is not names:
            trace = trace.tb_next
        trace = _without_own(trace)
        show(kind, error.with_traceback(trace), trace)

    sys.excepthook = shown


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames through which msprobe sees the calls of PyTorch.

    They are its own, those of ``torch.overrides``, and a first one of the function that is seen:
    it hands itself over to ``torch.overrides``, and is called again from there.
    """
    kept: list[TracebackType] = []
    is_handed_over = False
    while trace is not None:
        code = trace.tb_frame.f_code
        is_own = code.co_filename.startswith(_PACKAGE)
        if is_own or trace.tb_frame.f_globals.get("__name__") == "torch.overrides":
            is_handed_over |= is_own and code.co_name == _HANDLER
        else:
            if is_handed_over and kept and kept[-1].tb_frame.f_code is code:
                kept.pop()
            kept.append(trace)
            is_handed_over = False
        trace = trace.tb_next
    found = None
    for each in reversed(kept):
        found = TracebackType(found, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return found
