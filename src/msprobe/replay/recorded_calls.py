# SPDX-License-Identifier: Apache-2.0
"""`RecordedCall`: one call as its records tell it, with its backward passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from msprobe.dump.layout import INNER_PARAMETERS
from msprobe.dump.rank_view import RankView
from msprobe.dump.record_names import RecordKind, RecordName, backward_name
from msprobe.dump.records import JsonTree
from msprobe.dump.tensor_files import StoredTensor
from msprobe.dump.values import PartPath
from msprobe.errors import DumpFormatError
from msprobe.operators.lookup import operator_named, operator_of
from msprobe.operators.operator import Family, Operator
from msprobe.replay.forms import tensor_forms
from msprobe.replay.module_settings import ModuleSettings, module_settings

_MOST_PASSES: Final = 64
_DEEPEST: Final = 100
# As docs/tasks/gradients.md has it: "same as output.0".
_SAME: Final = "same as"
# Losses whose target is the second argument, of classes by number, and the place of `ignore_index`.
_CLASS_LOSSES: Final = {
    "cross_entropy": 4,
    "cross_entropy_loss": 4,
    "nll_loss": 4,
    "nll_loss_nd": 4,
}
_IGNORED: Final = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardPass:
    """Gradients of one call in one backward pass, as recorded.

    Attributes:
        name: the record's name.
        incoming: gradients of the outputs, by position (by field for a named tuple).
        outgoing: gradients of the positional arguments.
        outgoing_kwargs: gradients of the keyword arguments.
        remarks: by place (``input.0``), what a gradient includes or why it is missing.
    """

    name: str
    incoming: JsonTree
    outgoing: JsonTree
    outgoing_kwargs: Mapping[str, JsonTree] = field(default_factory=dict)
    remarks: Mapping[str, Any] = field(default_factory=dict)

    def remark_at(self, place: PartPath) -> str:
        """Return the remark on a gradient, such as ``("output", 0)``; empty if there is none."""
        first, *rest = map(str, place)
        found = self.remarks.get(".".join([first, *rest]))
        by_key = self.remarks.get(first)
        if found is None and isinstance(by_key, dict):
            found = by_key.get(".".join(rest))
        return found if isinstance(found, str) else ""

    def repeats(self, place: PartPath) -> bool:
        """Return whether the argument is one passed before, where the whole gradient is."""
        return self.remark_at(place).startswith(_SAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One call, with everything needed to run it again but the elements of its tensors.

    Attributes:
        name: the forward record's name.
        prefix: ``Functional``, ``Tensor``, ``Module`` …
        api: ``linear``, ``__add__``; a module's path.
        class_name: of a module; None for functions.
        framework: ``pytorch`` or ``mindspore``.
        args: forms of the positional arguments.
        kwargs: forms of the keyword arguments.
        parameters: forms of a module's own parameters, and of those of modules in it.
        outputs: forms of the results: a list, or an object by field for a named tuple.
        passes: its backward passes.
        random: states of the random generators before the call, where recorded.
        module: of a module, how it was made; None where that was not recorded.
        attributes: of an operator object of MindSpore's, how it was made.
    """

    name: str
    prefix: str
    api: str
    class_name: str | None
    framework: str
    args: Sequence[JsonTree]
    kwargs: Mapping[str, JsonTree]
    parameters: Mapping[str, JsonTree]
    outputs: JsonTree
    passes: tuple[BackwardPass, ...]
    random: Mapping[str, JsonTree]
    module: ModuleSettings | None = None
    attributes: Mapping[str, JsonTree] = field(default_factory=dict)

    @property
    def function(self) -> str:
        """The function's name, without number: ``Functional.linear``."""
        return f"{self.prefix}.{self.api}"

    @property
    def operator(self) -> Operator:
        """Facts about the function."""
        if self.class_name is not None:
            return operator_named(self.class_name)
        is_mindspore = self.framework == "mindspore"
        operator = operator_of(self.prefix, self.api, is_mindspore=is_mindspore)
        return replace(operator, family=Family.ADDITIVE) if self._adds_up(operator) else operator

    def _adds_up(self, operator: Operator) -> bool:
        """Return whether an operator that usually moves elements is asked to add them up."""
        match operator.name:
            case "index_put":
                given = self.kwargs.get("accumulate", [*self.args, *4 * [None]][3])
                is_put = isinstance(given, dict) and given.get("value") is True
                return is_put or "scatteradd" in self.api.replace("_", "").lower()
            case "scatter":
                return "reduce" in self.kwargs
        return False

    @property
    def may_draw(self) -> bool:
        """Whether it may take random numbers, by itself or through modules in it."""
        return self.operator.draws_random or bool(self.module and self.module.children)

    def first_place(self, place: PartPath) -> str:
        """Return where a tensor was passed first whose gradient has a place; empty if only there.

        Args:
            place: such as ``("output", 1)``; the first one comes as ``output.0``.
        """
        remarks = (one.remark_at(place) for one in self.passes if one.repeats(place))
        return next((one.removeprefix(_SAME).strip() for one in remarks), "")

    @property
    def wanted_gradients(self) -> frozenset[PartPath]:
        """The places of arguments whose gradients were recorded: ``("output_kwargs", "x")``."""
        return frozenset(
            place
            for one in self.passes
            for part, tree in (("output", one.outgoing), ("output_kwargs", one.outgoing_kwargs))
            for place, _ in tensor_forms(tree, (part,))
        )

    def has_shapes_of(self, outputs: Mapping[PartPath, StoredTensor]) -> bool:
        """Return whether results of a replay have the recorded shapes, where there are any."""
        for place, form in tensor_forms(self.outputs, ("output",)):
            found = outputs.get(place)
            if found is not None and "shape" in form and list(found.array.shape) != form["shape"]:
                return False
        return True


def call_names(view: RankView) -> list[str]:
    """Return the names of all forward records, in order of execution."""
    parsed = (view.records.parsed(name) for name in view.records)
    return [name.full for name in parsed if name.kind is RecordKind.FORWARD and not name.recompute]


def recorded_call(view: RankView, name: str) -> RecordedCall:
    """Return one call.

    Args:
        view: the rank that recorded it.
        name: of its forward record.

    Raises:
        RecordNotFoundError: there is no such record.
        DumpFormatError: it is damaged.
    """
    record = view.records[name]
    parts: Mapping[str, Any] = record.data if isinstance(record.data, dict) else {}
    _require_shallow(view, name, parts)
    call = call_of(record.name, parts, view.head.framework)
    call = replace(call, passes=tuple(_passes(view, name, parts.get("output"))))
    if not record.name.is_module:
        return call
    call = replace(call, passes=tuple(_with_parameters(view, record.name, call.passes)))
    module = module_settings(view.facts, record.name.path)
    if module is None or not module.children:
        return replace(call, module=module)
    inner = _parameters_inside(view, record.name)
    return (
        call
        if inner is None
        else replace(call, module=module, parameters={**call.parameters, **inner})
    )


def _require_shallow(view: RankView, name: str, tree: JsonTree) -> None:
    """Refuse a record that is nested more deeply than arguments are, as damaged files may be."""
    level: list[Any] = [tree]
    for _ in range(_DEEPEST):
        level = [
            item
            for one in level
            for item in (one.values() if isinstance(one, dict) else one)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    problem = f"{name}: nested deeper than {_DEEPEST} levels"
    raise DumpFormatError(view.records_path, problem)


def _parameters_inside(view: RankView, name: RecordName) -> Mapping[str, Any] | None:
    """Return the parameters of the modules that a module called, by their names in it.

    None where one was called twice: it may be in several places, which settings do not tell.
    """
    found: dict[str, Any] = {}
    start = f"{name.path}." if name.path else ""
    seen = set()
    for one in map(view.records.parsed, view.calls_inside(name.full)):
        if not one.is_module or one.path in seen or not one.path.startswith(start):
            return None
        seen.add(one.path)
        record = view.records[one.full].data if one.full in view.records else None
        if isinstance(record, dict):
            inside = one.path.removeprefix(start)
            found |= {f"{inside}.{key}": form for key, form in _parameters(record).items()}
    return found


def call_of(name: RecordName, parts: Mapping[str, Any], framework: str) -> RecordedCall:
    """Return a call without its backward passes.

    Args:
        name: of its forward record.
        parts: the parts of that record.
        framework: that made it.
    """
    args = _items(parts.get("input_args") or parts.get("input"))
    kwargs = _fields(parts.get("input_kwargs"))
    if name.path in _CLASS_LOSSES:
        args, kwargs = _with_ignored(args, kwargs, _CLASS_LOSSES[name.path])
    return RecordedCall(
        name=name.full,
        prefix=name.prefix,
        api=name.path,
        class_name=name.class_name,
        framework=framework,
        args=args,
        kwargs=kwargs,
        parameters=_parameters(parts),
        outputs=parts.get("output"),
        passes=(),
        random=_fields(parts.get("rng")),
        attributes=_fields(parts.get("attributes")),
    )


def pass_of(name: str, outputs: JsonTree, parts: Mapping[str, Any]) -> BackwardPass:
    """Return a backward pass.

    Args:
        name: of its record.
        outputs: of its call.
        parts: the parts of its record.
    """
    return BackwardPass(
        name=name,
        incoming=_nested_as(outputs, parts.get("input")),
        outgoing=parts.get("output"),
        outgoing_kwargs=_fields(parts.get("output_kwargs")),
        remarks=_fields(parts.get("remarks")),
    )


def _with_ignored(
    args: Sequence[JsonTree], kwargs: Mapping[str, Any], place: int
) -> tuple[Sequence[JsonTree], Mapping[str, Any]]:
    """Return the arguments of a loss; the form of its target names the class that is left out."""
    given = kwargs.get("ignore_index", args[place] if place < len(args) else None)
    number = given.get("value") if isinstance(given, dict) else None
    ignored = {"ignored": number if isinstance(number, int) else _IGNORED}
    if len(args) > 1 and isinstance(args[1], dict):
        return [args[0], {**args[1], **ignored}, *args[2:]], kwargs
    target = kwargs.get("target")
    return args, {**kwargs, "target": {**target, **ignored}} if isinstance(target, dict) else kwargs


def _passes(view: RankView, name: str, outputs: JsonTree) -> Iterator[BackwardPass]:
    for number in range(_MOST_PASSES):
        full = backward_name(view.records.parsed(name), number)
        if full is None or full not in view.records:
            return
        data = view.records[full].data
        if isinstance(data, dict):
            _require_shallow(view, full, data)
            yield pass_of(full, outputs, data)


def _with_parameters(
    view: RankView, name: RecordName, passes: Iterable[BackwardPass]
) -> Iterator[BackwardPass]:
    """Yield the passes over a module's call, with gradients of its parameters that it made alone.

    That of a parameter holds what was there before and what all calls add, unless it says so.
    """
    full = f"{name.base}.{RecordKind.PARAMETERS_GRAD}"
    data = view.records[full].data if full in view.records else None
    for one in passes:
        own = {
            key: forms[0]
            for key, forms in _fields(data).items()
            if isinstance(forms, list) and forms and _fields(forms[0]).get("all_of") == one.name
        }
        yield replace(one, outgoing_kwargs={**one.outgoing_kwargs, **own})


def _nested_as(outputs: JsonTree, gradients: JsonTree) -> JsonTree:
    """Return gradients in the containers of their outputs: modules' records list them flat."""
    places = [place for place, form in tensor_forms(outputs, ()) if "shape" in form]
    if (
        all(len(place) == 1 for place in places)
        or not isinstance(gradients, list)
        or len(gradients) != len(places)
        or any(isinstance(one, list) for one in gradients)
    ):
        return gradients
    return _placed(outputs, iter(gradients))


def _placed(tree: JsonTree, gradients: Iterator[JsonTree]) -> JsonTree:
    if isinstance(tree, list):
        return [_placed(one, gradients) for one in tree]
    if not isinstance(tree, dict):
        return None
    if not isinstance(tree.get("type"), str):
        return {key: _placed(one, gradients) for key, one in tree.items()}
    return next(gradients) if "shape" in tree else None


def _parameters(parts: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**_fields(parts.get("parameters")), **_fields(parts.get(INNER_PARAMETERS))}


def _items(tree: JsonTree) -> Sequence[JsonTree]:
    return tree if isinstance(tree, list) else []


def _fields(tree: JsonTree) -> Mapping[str, Any]:
    return tree if isinstance(tree, dict) else {}
