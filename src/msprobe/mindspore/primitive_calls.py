# SPDX-License-Identifier: Apache-2.0
"""Observe the primitives that a model's cells hold as attributes: ``Primitive.{attr}.{Class}``.

A cell calls ``self.matmul(x, w)`` on an operator object; no name of the API table is looked up.
While capturing, the class of the object is one that records; `stop` gives it its class back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from mindspore.ops import Primitive

from mindspore import nn
from msprobe.capture.session import Session
from msprobe.mindspore.api_calls import ApiObserver
from msprobe.mindspore.api_choice import warn_of_unknown_names

# They describe a tensor, order or show things, and compute nothing.
_NO_COMPUTATION: Final = frozenset(
    {
        "Assert",
        "CellBackwardHook",
        "Depend",
        "DType",
        "DumpGradient",
        "DynamicShape",
        "HistogramSummary",
        "HookBackward",
        "ImageSummary",
        "InsertGradientOf",
        "IsInstance",
        "IsSubClass",
        "Load",
        "Partial",
        "Print",
        "Rank",
        "ScalarSummary",
        "Shape",
        "Size",
        "StopGradient",
        "TensorDump",
        "TensorShape",
        "TensorSummary",
        "UpdateState",
        "typeof",
    }
)


# MindSpore's names of functions on shapes and types, which it computes while compiling.
_ON_CONSTANTS: Final = "constexpr_prim"


def is_computation(primitive: Any) -> bool:
    """Return whether a primitive computes something."""
    if getattr(primitive, "name", type(primitive).__name__) in _NO_COMPUTATION:
        return False
    return _ON_CONSTANTS not in (getattr(primitive, "attrs", None) or ())


def attributes_of(primitive: Any) -> Mapping[str, Any]:
    """Return the arguments that an operator object was made with."""
    return getattr(primitive, "init_attrs", None) or {}


class PrimitiveObserver:
    """Turns the calls of primitives into events of the session."""

    def __init__(
        self,
        session: Session,
        apis: ApiObserver,
        chooses: Callable[[Any], bool] = is_computation,
    ) -> None:
        """Create it; `apis` makes the records of the primitives that `chooses` accepts."""
        self._session = session
        self._apis = apis
        self._chooses = chooses
        self._classes: dict[tuple[type, str], type] = {}
        # Names of the user's that are still to be looked for.
        self._unchecked = session.config.section.black_list

    def install(self, models: Sequence[nn.Cell]) -> None:
        """Watch the primitives of every cell; the session's undo ends it."""
        if self._unchecked:
            warn_of_unknown_names(self._unchecked, _held_by(models))
            self._unchecked = ()
        undo = self._session.undo.callback
        changed: set[int] = set()
        for model in models:
            for cell in (one for _, one in model.cells_and_names()):
                for attribute, primitive in cell._primitives.items():
                    kind = type(primitive)
                    if id(primitive) in changed or not self._chooses(primitive):
                        continue
                    changed.add(id(primitive))
                    try:
                        primitive.__class__ = self._recording(kind, attribute)
                    except TypeError:  # a layout that Python cannot exchange
                        self._session.account.skipped["primitives that refuse"] += 1
                        continue
                    undo(_restore, primitive, kind)

    def _recording(self, kind: type, attribute: str) -> type:
        known = self._classes.get((kind, attribute))
        if known is not None:
            return known
        apis = self._apis
        base: Any = kind

        def call(primitive: Any, *args: Any, **kwargs: Any) -> Any:
            def run(*args: Any, **kwargs: Any) -> Any:
                return base.__call__(primitive, *args, **kwargs)

            if not apis.is_on():
                return run(*args, **kwargs)
            name = primitive.name if isinstance(primitive, Primitive) else kind.__name__
            full = f"Primitive.{attribute}.{name}"
            return apis.record(full, run, args, kwargs, attributes_of(primitive))

        made = type(kind.__name__, (base,), {"__call__": call, "__module__": kind.__module__})
        self._classes[kind, attribute] = made
        return made


def _held_by(models: Sequence[nn.Cell]) -> Iterator[tuple[str, str]]:
    for model in models:
        for _, cell in model.cells_and_names():
            for attribute, primitive in cell._primitives.items():
                yield attribute, str(getattr(primitive, "name", type(primitive).__name__))


def _restore(primitive: Any, kind: type) -> None:
    primitive.__class__ = kind
