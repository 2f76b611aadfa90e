# SPDX-License-Identifier: Apache-2.0
"""The earliest cause in time of everything in which two runs differ, as one line.

A run begins with its settings; then come environment, seeds, data, weights and flags. What
differs later follows from what differs earlier, so the earliest difference is the cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from msprobe.plain_text import count_text
from msprobe.run_config.levels import Aspect, Difference, Item, ItemResult, Level

_MAX_VALUE: Final = 60
_SET_BY_SCHEDULE: Final = re.compile(r"(optimizer\.\d+\.group\.\d+\.)(lr|momentum|betas)")
# Schedules that set what the optimizer starts from as well.
_SET_THEIR_START: Final = re.compile(r"(OneCycleLR|CyclicLR)\b")
_START: Final = re.compile(
    r"optimizer\.\d+\.group\.\d+\.(lr|betas|momentum|initial_lr|(max|min|base)_(lr|momentum))"
)
_NAMED: Final = 3


class Kind(StrEnum):
    """Kind of a cause, in the order in which causes act."""

    ARGUMENT = "argument"
    TEXT = "text of the launch script"
    MODEL = "model"
    OPTIMIZER = "optimizer"
    SCHEDULE = "schedule"
    CLIPPING = "clipping"
    SCALER = "scaler"
    LOADER = "data loader"
    OBJECT = "object"
    DTYPE = "dtype"
    VARIABLE = "variable"
    PACKAGE = "package"
    SYSTEM = "system"
    SEED = "seed"
    RANDOM_CALL = "random call"
    GENERATOR = "random state"
    ORDER = "data order"
    DATA = "data"
    WEIGHTS = "weights"
    BUFFERS = "buffers"
    MODE = "flag"
    CODE = "code"
    COURSE = "course"
    """Weights part during the run, with nothing before that differs."""
    INCOMPLETE = "incomplete"
    """Nothing differs, but something could not be compared."""
    NOTHING = "nothing"


_PLACE: Final = {kind: place for place, kind in enumerate(Kind)}
_KINDS: Final[Mapping[Item, Kind]] = {
    Item.ARGUMENTS: Kind.ARGUMENT,
    Item.MODULES: Kind.MODEL,
    Item.OPTIMIZER: Kind.OPTIMIZER,
    Item.SCHEDULE: Kind.SCHEDULE,
    Item.CLIP: Kind.CLIPPING,
    Item.SCALER: Kind.SCALER,
    Item.LOADER: Kind.LOADER,
    Item.OBJECTS: Kind.OBJECT,
    Item.ENV: Kind.VARIABLE,
    Item.PACKAGES: Kind.PACKAGE,
    Item.SYSTEM: Kind.SYSTEM,
    Item.RANDOM: Kind.RANDOM_CALL,
    Item.GENERATORS: Kind.GENERATOR,
    Item.DATASET: Kind.DATA,
    Item.WEIGHTS: Kind.WEIGHTS,
    Item.BUFFERS: Kind.BUFFERS,
    Item.MODES: Kind.MODE,
}
_ASPECTS: Final[Mapping[Aspect, Kind]] = {
    Aspect.SEED: Kind.SEED,
    Aspect.DTYPE: Kind.DTYPE,
    Aspect.ORDER: Kind.ORDER,
    Aspect.CODE: Kind.CODE,
    Aspect.TEXT: Kind.TEXT,
    Aspect.LATER: Kind.COURSE,
    Aspect.NOT_COMPARED: Kind.INCOMPLETE,
}
# Settings count even where only one run has them: a flag is there or not.
_SETTINGS: Final = tuple(Kind)[: tuple(Kind).index(Kind.VARIABLE)]
# What a program computes; everything else it is given.
_EFFECTS: Final = (
    *(Kind.SEED, Kind.RANDOM_CALL, Kind.GENERATOR, Kind.ORDER, Kind.DATA, Kind.WEIGHTS),
    Kind.BUFFERS,
)
_WORDS: Final[Mapping[Kind, str]] = {
    Kind.MODEL: "setting of the model",
    Kind.OPTIMIZER: "setting of the optimizer",
    Kind.SCHEDULE: "setting of the learning-rate schedule",
    Kind.CLIPPING: "gradient clipping",
    Kind.SCALER: "gradient scaler",
    Kind.OBJECT: "attribute of the program's",
    Kind.VARIABLE: "environment variable",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The first difference of two runs.

    Attributes:
        kind: the kind of the cause.
        difference: the cause; None if nothing differs.
        alike: how many further differences are of the same kind.
        consequences: what differs after it, an entry an item.
    """

    kind: Kind
    difference: Difference | None = None
    alike: int = 0
    consequences: tuple[str, ...] = ()

    def explains(self, item: Item) -> bool:
        """Return whether the differences of an item may follow from the cause."""
        kind = _KINDS.get(item)
        first = self.difference
        if kind is None or first is None or kind not in _EFFECTS or first.item is item:
            return False
        return _PLACE[self.kind] < _PLACE[kind]

    @property
    def sentence(self) -> str:
        """The conclusion in words."""
        first = self.difference
        if first is None:
            return "nothing that matters differs"
        if self.kind is Kind.INCOMPLETE:
            return f"nothing differs, but {_where_it_is(first)}: not everything was compared"
        name = _WORDS.get(self.kind, self.kind.value)
        note = f" ({first.note})" if first.note else ""
        more = f", and {count_text(self.alike, 'further one')} of this kind" if self.alike else ""
        values = _values(first.bench, first.cmp)
        if self.kind is Kind.COURSE:
            return f"{first.name} differs{more}, with nothing that differs before"
        return f"{name} {first.name}: {values}{note}{more}"


def conclude(items: Mapping[Item, ItemResult]) -> Conclusion:
    """Return the earliest cause of all differences of two runs."""
    found = [each for item in items.values() for each in item.differences]
    matters = [each for each in found if each.level is not Level.INFO]
    if any(each.item is Item.SCHEDULE for each in matters):
        # A schedule sets the learning rate when it is made; what it starts from is `initial_lr`.
        sets_start = any(
            each.item is Item.SCHEDULE and _SET_THEIR_START.search(f"{each.bench} {each.cmp}")
            for each in matters
        )
        if sets_start:
            matters = [each for each in matters if not _START.fullmatch(each.name)]
        names = {each.name for each in matters}
        matters = [
            each
            for each in matters
            if not (place := _SET_BY_SCHEDULE.fullmatch(each.name))
            or f"{place[1]}initial_{place[2]}" in names
        ]
    if not matters:
        return Conclusion(kind=Kind.NOTHING)
    first = min(matters, key=lambda each: (_doubt(each), *_moment(each)))
    kind = kind_of(first)
    return Conclusion(
        kind=kind,
        difference=first,
        alike=sum(kind_of(each) is kind for each in matters) - 1,
        consequences=tuple(_consequences(matters, kind)),
    )


def kind_of(difference: Difference) -> Kind:
    """Return the kind of cause that a difference is."""
    of_item = _KINDS.get(difference.item, Kind.INCOMPLETE)
    if difference.aspect is Aspect.LATER and of_item not in _EFFECTS:
        return of_item  # a flag that changed during the run
    return _ASPECTS.get(difference.aspect) or of_item


def _doubt(difference: Difference) -> int:
    """Return a number that is smaller the surer a difference is a cause when there are others.

    Code and the text of a launch script may hold any cause, but say less than what they have
    changed. What may matter (another library path) is no cause as long as something is there that
    does.
    """
    kind = kind_of(difference)
    if difference.aspect is Aspect.LATER:
        return _PLACE[Kind.COURSE]
    if kind is Kind.INCOMPLETE:
        return _PLACE[kind]
    if kind in (Kind.CODE, Kind.TEXT):
        return 1
    is_sure = difference.level is Level.ERROR or kind in _SETTINGS
    return 0 if is_sure or difference.aspect is Aspect.CAUSE else 2


def _moment(difference: Difference) -> tuple[int, int, int, bool]:
    is_data = difference.item is Item.DATASET
    return (
        difference.step,
        _PLACE[kind_of(difference)],
        -difference.level.weight,
        is_data,
    )


def _consequences(differences: Sequence[Difference], cause: Kind) -> Iterable[str]:
    by_kind: dict[Kind, list[Difference]] = {}
    for each in differences:
        by_kind.setdefault(kind_of(each), []).append(each)
    for kind in Kind:
        is_effect = kind in (*_EFFECTS, Kind.COURSE)
        if kind is cause or kind not in by_kind or not is_effect:
            continue
        found = by_kind[kind]
        names = ", ".join(each.name for each in found[:_NAMED])
        more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
        label = "weights and data later on" if kind is Kind.COURSE else kind.value
        yield f"{label}: {names}{more}"


def _where_it_is(difference: Difference) -> str:
    if difference.bench is None or difference.cmp is None:
        side = "cmp" if difference.bench is None else "bench"
        return f"only {side} holds {difference.name}"
    return f"{difference.name} cannot be compared ({difference.note})"


def _values(bench: str | None, cmp: str | None) -> str:
    """Return both values; of long ones the part where they begin to differ."""
    start = 0
    if bench is not None and cmp is not None and max(len(bench), len(cmp)) > _MAX_VALUE:
        pairs = enumerate(zip(bench, cmp, strict=False))
        apart = next((place for place, (one, other) in pairs if one != other), 0)
        start = bench.rfind(" ", 0, apart) + 1
    return f"{_value(bench, start)} → {_value(cmp, start)}"


def _value(text: str | None, start: int) -> str:
    if text is None:
        return "not set"
    shown = "…" + text[start:] if start else text
    return shown if len(shown) <= _MAX_VALUE else shown[: _MAX_VALUE - 1] + "…"
