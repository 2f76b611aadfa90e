# SPDX-License-Identifier: Apache-2.0
"""Reference functions: what a recorded call should have returned, computed in another way.

Fused kernels exist on their device only. `golden` registers a function of plain PyTorch under the
name of such an operator; replays call it, in float64, in the operator's place. An adapter brings
functions of its own (`builtin`); those that users register come first.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar, cast

from msprobe.errors import ConfigFileError, UnsupportedError, UsageError
from msprobe.yaml_nodes import Node, read_yaml

Function = TypeVar("Function", bound=Callable[..., Any])

_OPERATORS: Final = "torch.ops."
# Prefixes of records for namespaces of torch.ops that have one of their own.
_NAMESPACES: Final = {"aten": "Aten", "npu": "NPU", "atb": "NPU"}
_YAML: Final = (".yaml", ".yml")
_FIELDS: Final = ("file", "forward", "description")
# A parameter of references that depend on the type in which the call was recorded.
_RECORDED_DTYPE: Final = "recorded_dtype"


class NoReferenceError(UnsupportedError):
    """A call has no reference values: it drew random numbers, or uses an unknown option."""


@dataclass(frozen=True, slots=True)
class Golden:
    """A reference function.

    Attributes:
        name: of the operator: ``npu_rms_norm``, ``my_ops.scale``, ``Autograd.Scale``.
        function: takes the arguments of the operator, returns what the operator returns; None
            instead of an output that nothing is known about. Gradients are those of autograd.
    """

    name: str
    function: Callable[..., Any]

    @property
    def description(self) -> str:
        """The first line of its documentation."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    def for_dtype(self, dtype: Any) -> Callable[..., Any]:
        """Return the function for calls that were recorded in a type.

        Args:
            dtype: the framework's type of the first floating-point tensor. Few functions need it:
                a default may be the type's machine epsilon.
        """
        if _RECORDED_DTYPE in inspect.signature(self.function).parameters:
            return partial(self.function, recorded_dtype=dtype)
        return self.function


# Modules that the user named.
_IMPORTED: Final[set[str]] = set()
REGISTERED: Final[dict[str, Golden]] = {}
"""References of users, by the name of the operator."""
# Those that come with msprobe.
_BUILTIN: Final[dict[str, Golden]] = {}


def register(target: object, function: Callable[..., Any]) -> None:
    """Make `function` the reference of an operator; the last one registered is taken.

    Args:
        target: the operator, as for `golden`.
        function: takes the operator's arguments.

    Raises:
        UsageError: `target` is no operator.
    """
    name = golden_name(target)
    REGISTERED[name] = Golden(name, function)


def find(names: Iterable[str]) -> Golden | None:
    """Return the reference of the first of these names that has one; a user's comes first."""
    wanted = [golden_name(name) for name in names]
    for known in (REGISTERED, _BUILTIN):
        for name in wanted:
            if name in known:
                return known[name]
    return None


def all_goldens() -> list[Golden]:
    """Return the references of all operators, by name."""
    return sorted({**_BUILTIN, **REGISTERED}.values(), key=lambda one: one.name)


def golden(*targets: object) -> Callable[[Function], Function]:
    """Register the decorated function as reference of operators.

    The function takes the operator's arguments, floating-point tensors in float64 on the CPU, and
    returns what the operator returns. Gradients come from autograd. Return None in place of an
    output that is not to be judged.

    Args:
        *targets: the operators: ``"torch.ops.my_ops.scale"``, ``"npu_rms_norm"``,
            ``"Functional.silu"`` as records are named; or a class: an ``autograd.Function``, whose
            reference takes the arguments of ``apply``, or an ``nn.Module``, whose reference takes
            those of ``forward`` and the module's parameters by name.

    Raises:
        UsageError: a target is neither a name nor such a class.
    """

    def add(function: Function) -> Function:
        for target in targets:
            register(target, function)
        return function

    if not targets or (callable(targets[0]) and not isinstance(targets[0], type)):
        raise UsageError('golden needs the name of an operator: @golden("torch.ops.my_ops.scale")')
    return add


def builtin_golden(*names: str) -> Callable[[Function], Function]:
    """Register the decorated function as one that comes with msprobe."""

    def add(function: Function) -> Function:
        for name in map(golden_name, names):
            _BUILTIN[name] = Golden(name, function)
        return function

    return add


def golden_name(target: object) -> str:
    """Return the name under which the reference of an operator is kept.

    Raises:
        UsageError: it is neither a name nor a class of modules or functions.
    """
    if isinstance(target, str):
        namespace, dot, api = target.removeprefix(_OPERATORS).replace("::", ".").partition(".")
        return f"{_NAMESPACES.get(namespace, namespace)}{dot}{api}"
    if isinstance(target, type):
        bases = {f"{base.__module__}.{base.__qualname__}" for base in target.__mro__}
        if bases & {"torch.nn.modules.module.Module", "mindspore.nn.cell.Cell"}:
            return target.__name__
        if "torch.autograd.function.Function" in bases:
            return f"Autograd.{target.__name__}"
    raise UsageError(
        f"golden: {target!r} is no operator; give a name, an nn.Module or an autograd.Function"
    )


def import_definitions(name: str) -> None:
    """Import what defines operators, functions or references.

    Args:
        name: of a module, or the path of a file as for `load_goldens`.

    Raises:
        ConfigFileError: the file is missing, cannot be read, or fails when it is run.
        UnsupportedError: the module cannot be imported.
    """
    if name.lower().endswith((".py", *_YAML)):
        load_goldens(name)
        return
    if Path(name).is_file():
        raise ConfigFileError(name, "is no file of definitions: its name must end in .py or .yaml")
    try:
        import_module(name)
    except ImportError as exc:
        raise UnsupportedError(f"{name} cannot be imported: {exc}") from exc
    _IMPORTED.add(name)


def whole_path(name: str) -> str:
    """Return a file's whole path, as processes elsewhere need it; names of modules as they are."""
    return str(Path(name).resolve()) if Path(name).is_file() else name


def imported_module(name: str) -> ModuleType | None:
    """Return a module that the user named to `import_definitions`, or one below it."""
    is_named = any(name == one or name.startswith(one + ".") for one in _IMPORTED)
    return sys.modules.get(name) if is_named else None


def load_goldens(path: str | Path) -> None:
    """Run a file that registers references, or the files that a YAML file names.

    The YAML has a list ``files`` of Python files, and may have ``operators``: the operator's name →
    ``file``, ``forward`` (the name of a function in it) and a free ``description``. Paths are
    relative to the YAML file.

    Raises:
        ConfigError: the YAML has an unknown key, or a value of a wrong kind.
        ConfigFileError: a file is missing, cannot be read, or fails when it is run.
    """
    path = Path(path)
    if path.suffix.lower() not in _YAML:
        _run_file(path)
        return
    for key, place, node in read_yaml(path).items("a mapping with files and operators"):
        if key == "files":
            for entry in node.elements("a list of Python files"):
                _run_file(path.parent / entry.text("the path of a Python file"))
        elif key == "operators":
            for name, _, fields in node.items("operators by name"):
                register(name, _named_function(fields))
        else:
            place.refuse(key, ("files", "operators"))


def _named_function(node: Node) -> Callable[..., Any]:
    """Return the function that an entry of ``operators`` names."""
    fields = {key: (place, value) for key, place, value in node.items("file and forward")}
    for key, (place, _) in fields.items():
        if key not in _FIELDS:
            place.refuse(key, _FIELDS)
    for key in ("file", "forward"):
        if key not in fields:
            node.refuse("an entry without " + key, "file and forward")
    module = _run_file(node.path.parent / fields["file"][1].text("the path of a Python file"))
    wanted = fields["forward"][1].text("the name of a function")
    function = module.get(wanted)
    if not callable(function):
        fields["forward"][1].refuse(wanted, "the name of a function of that file")
    return cast("Callable[..., Any]", function)


def _run_file(path: Path) -> Mapping[str, Any]:
    """Import a Python file and return its names; each file is run once."""
    name = f"msprobe_goldens_{path.resolve().as_posix().encode().hex()}"
    if name in sys.modules:
        return vars(sys.modules[name])
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigFileError(path, "there is no Python file here")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as exc:
        del sys.modules[name]
        raise ConfigFileError(path, f"{type(exc).__name__}: {exc}") from exc
    return vars(module)
