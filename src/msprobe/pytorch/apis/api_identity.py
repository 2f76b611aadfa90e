# SPDX-License-Identifier: Apache-2.0
"""Find the record name of a function object.

A function mode is handed bare function objects: Python functions, methods of a C type, getters
wrapped as ``__get__``, operators of ``torch.ops``. `identify` finds the public name of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.overrides import resolve_name

_TENSOR_PATH = "torch.Tensor."
# The C class whose static methods are the functions of `torch`.
_FUNCTIONS_CLASS = "_VariableFunctionsClass."


@dataclass(frozen=True, slots=True)
class Identity:
    """Names of one function.

    Attributes:
        path: full Python or operator name, such as ``torch.nn.functional.linear``.
        prefix: first part of its records' names, such as ``Functional``.
        api: second part, such as ``linear``.
        op_namespace: namespace in ``torch.ops``; empty for everything that is no operator.
        internal: a C function that torch does not publish, such as ``torch._C._set_grad_enabled``.
    """

    path: str
    prefix: str
    api: str
    op_namespace: str = ""
    internal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """Prefixes of record names, by module and operator namespace.

    Attributes:
        modules: module path to prefix; the longest matching path decides.
        op_namespaces: namespace in ``torch.ops`` to prefix; any other is its own prefix.
        vf: functions of ``torch`` that are reached through ``torch._VF``.
        renames: public path to the API's better-known name.
    """

    modules: Mapping[str, str]
    op_namespaces: Mapping[str, str]
    vf: frozenset[str]
    renames: Mapping[str, str]

    def of_module(self, module: str) -> str:
        """Return the prefix for functions of `module`."""
        path = module
        while path:
            if path in self.modules:
                return self.modules[path]
            path = path.rpartition(".")[0]
        return module.partition(".")[0]


def identify(func: Any, prefixes: Prefixes) -> Identity:
    """Return the names of `func`, whatever kind of callable it is. Never raises."""
    if isinstance(func, OpOverload | OpOverloadPacket):
        return _operator_identity(func, prefixes)
    if isinstance(func, HigherOrderOperator):
        name = str(func._name)
        return Identity(f"torch.ops.higher_order.{name}", "Torch", name)
    path = _public_path(func)
    if path.startswith(_TENSOR_PATH):
        return Identity(path, "Tensor", path.removeprefix(_TENSOR_PATH))
    if path:
        module, _, api = path.rpartition(".")
        prefix = "VF" if module == "torch" and api in prefixes.vf else prefixes.of_module(module)
        return Identity(path, prefix, prefixes.renames.get(path, api))
    return _unpublished_identity(func, prefixes)


def _operator_identity(op: OpOverload[Any, Any] | OpOverloadPacket, prefixes: Prefixes) -> Identity:
    qualified = op._schema.name if isinstance(op, OpOverload) else op._qualified_op_name
    namespace, _, api = str(qualified).partition("::")
    prefix = prefixes.op_namespaces.get(namespace, namespace)
    return Identity(f"torch.ops.{namespace}.{api}", prefix, api, namespace)


def _public_path(func: Any) -> str:
    try:
        return resolve_name(func) or ""
    except TypeError:  # unhashable
        return ""


def _unpublished_identity(func: Any, prefixes: Prefixes) -> Identity:
    """Name a function that torch's own list of overridable functions does not know."""
    name = _text(func, "__name__") or type(func).__name__
    qualified = _text(func, "__qualname__") or name
    module = _text(func, "__module__")
    if qualified.startswith(_FUNCTIONS_CLASS):
        return Identity(f"torch.{name}", "VF" if name in prefixes.vf else "Torch", name)
    if qualified.startswith(("TensorBase.", "Tensor.")) and module in ("", "torch._tensor"):
        return Identity(_TENSOR_PATH + name, "Tensor", name)
    if name in ("__get__", "__set__", "__delete__"):
        owner = _text(getattr(func, "__self__", None), "__name__") or "attribute"
        return Identity(f"{_TENSOR_PATH}{owner}.{name}", "Tensor", f"{owner}.{name}")
    if module.startswith("torch._C"):
        # torch._C._linalg.linalg_norm, torch._C._sparse._sparse_mm: the family is said twice.
        family = module.rpartition(".")[2].lstrip("_") + "_"
        published = module.count(".") == 2 and family != "functorch_"
        bare = name.lstrip("_")
        repeats = published and bare.startswith(family)
        return Identity(
            f"{module}.{name}",
            prefixes.of_module(module),
            bare.removeprefix(family) if repeats else name,
            internal=not published,
        )
    if not module:
        module = type(func).__module__
    return Identity(f"{module}.{qualified}", prefixes.of_module(module), name)


def _text(owner: object, attribute: str) -> str:
    value = getattr(owner, attribute, None)
    return value if isinstance(value, str) else ""
