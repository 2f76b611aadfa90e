# SPDX-License-Identifier: Apache-2.0
"""Record each step of MindSpore's optimizers.

In the dynamic graph, and where the program calls an optimizer itself, the call shows the gradients.
A cell or function that uses an optimizer may be compiled as a whole: then its parameters, states
and settings are read around the call of that code. Values are read on the CPU only.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mindspore import Tensor, nn
from msprobe.capture.session import Session
from msprobe.dump.facts import (
    Fingerprints,
    Number,
    OptimizedParameters,
    OptimizerGroup,
    OptimizerStep,
    Option,
    sample_index,
)
from msprobe.mindspore.adapter import host_values
from msprobe.mindspore.compiled.optimizers import OPTIMIZERS, is_optimizer
from msprobe.mindspore.describing import dtype_name
from msprobe.mindspore.guard import Guard, must_not_run, quietly
from msprobe.mindspore.start_state import print_of

# Attributes of every cell, and some of every optimizer, are no settings.
_NO_OPTIONS: Final = frozenset(
    (
        *vars(nn.Cell()),
        *("decay_flags", "enable_tuple_broaden", "exec_weight_decay", "global_step"),
        *("global_step_increase_tensor", "grad_centralization_flags", "init_learning_rate"),
        *("learning_rate", "need_scale", "optim_filter", "param_length", "reciprocal_scale"),
        "skip_auto_parallel_compile",
    )
)
_NO_OPTION_PREFIXES: Final = ("_", "dynamic_", "group_", "is_group", "learning_rate_group")
_WHERE: Final = "optimizer step"

Row = list[int | float | None]


class OptimizerSteps:
    """Takes the calls of optimizers from `install` until the step of the run ends.

    Attributes:
        unseen: in this context an optimizer runs; its own calls are not to be recorded there.
        told: identities of the parameters that records of the step are about.
        ran_compiled: whether the step ran compiled code, which may have changed others as well.
    """

    unseen: Callable[[], AbstractContextManager[None]] = staticmethod(nullcontext)

    def __init__(self, session: Session) -> None:
        """Create it.

        Args:
            session: its facts get the records.
        """
        self._session = session
        self._trained: frozenset[int] = frozenset()
        self._calls: Counter[int] = Counter()
        self._numbers: dict[int, int] = {}
        self._is_installed = False
        self._is_running = False
        self._is_in_graphs = False
        self.told: set[int] = set()
        self.ran_compiled = False

    def install(self, models: Sequence[nn.Cell], *, in_graphs: bool = False) -> None:
        """Watch the optimizers until the step ends.

        Args:
            models: optimizers that train none of their parameters are left out; all count if there
                is no model.
            in_graphs: whether cells are compiled, with the optimizers that they hold.
        """
        self._is_in_graphs = in_graphs
        self._trained = frozenset(id(one) for model in models for one in model.get_parameters())
        if not self._is_installed:
            self._is_installed = True
            self.told.clear()
            self.ran_compiled = in_graphs
            undo = self._session.step_undo
            undo.callback(self._removed)
            for kind in (nn.Cell,) if in_graphs else OPTIMIZERS:
                undo.callback(_divert_calls(kind, self._around))

    def _removed(self) -> None:
        self._is_installed = False
        self._calls.clear()

    def _around(self, run: Callable[..., Any], cell: Any, args: Any, kwargs: Any) -> Any:
        """Run a call; of an optimizer that wraps another one only the outer one counts."""
        optimizers = [] if self._is_running else self._optimizers_in(cell)
        if not optimizers:
            return run(cell, *args, **kwargs)
        is_alone = cell is optimizers[0]
        unseen = self.unseen() if is_alone else nullcontext()
        with self._observed(optimizers, args if is_alone else None), unseen:
            return run(cell, *args, **kwargs)

    def around_compiled(self, cells: Sequence[nn.Cell]) -> AbstractContextManager[None]:
        """Return a context for a call of compiled code that refers to some cells."""
        if self._is_running or not self._is_installed:
            return nullcontext()
        self.ran_compiled = True
        found = {id(one): one for cell in cells for one in self._optimizers_in(cell)}
        return self._observed([*found.values()], None, may_idle=True)

    @contextmanager
    def _observed(
        self,
        optimizers: Sequence[Any],
        gradients: tuple[Any, ...] | None,
        *,
        may_idle: bool = False,
    ) -> Iterator[None]:
        """Record what a call makes of what optimizers hold; it may not call them at all."""
        if not optimizers:
            yield
            return
        self._wait_for_graphs()
        drafts = [
            quietly(self._session, _WHERE, self._begin, optimizer, gradients)
            for optimizer in optimizers
        ]
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False
        self._wait_for_graphs()
        for draft in drafts:
            if draft is not None:
                quietly(self._session, _WHERE, self._finish, draft, may_idle)

    def _wait_for_graphs(self) -> None:
        """Wait for graphs that hand over values, which needs the session's lock: reads hold it."""
        if self._is_in_graphs:
            self._session.wait_for_graphs()

    def _optimizers_in(self, cell: Any) -> list[Any]:
        """Return the optimizers of this run that a call of a cell runs."""
        if threading.get_ident() != self._session.thread:
            return []
        if is_optimizer(cell):
            return [cell] if self._is_wanted(cell) else []
        found: list[Any] = []
        for _, part in cell.cells_and_names():
            inner = any(part is one for outer in found for _, one in outer.cells_and_names())
            if is_optimizer(part) and not inner and self._is_wanted(part):
                found.append(part)
        return found

    def _is_wanted(self, optimizer: Any) -> bool:
        trained = self._trained
        return not trained or any(id(one) in trained for one in optimizer.parameters)

    def _begin(self, optimizer: nn.Cell, args: tuple[Any, ...] | None) -> _Draft:
        number = self._numbers.setdefault(id(optimizer), len(self._numbers))
        call = self._calls[number]
        self._calls[number] += 1
        if args is None:  # a graph hands them over
            return _Draft(optimizer, number, call, None)
        given = args[0] if args else ()
        gradients = list(given) if isinstance(given, tuple | list) else [given]
        return _Draft(optimizer, number, call, gradients)

    def _finish(self, draft: _Draft, may_idle: bool) -> None:
        step = draft.step(self._session.calls.last_record)
        if may_idle and not draft.has_run():
            self._calls[draft.number] -= 1
            return
        self.told.update(map(id, draft.parameters))
        self._session.facts.append("events", step)


def _divert_calls(kind: Any, around: Callable[..., Any]) -> Callable[[], None]:
    """Run the calls of a class of optimizers through `around` until the undo is called.

    Hooks of the cells would do, but MindSpore compiles these into code that calls an optimizer.
    """
    original = kind.__call__

    def call(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return around(original, optimizer, args, kwargs)

    is_own = "__call__" in vars(kind)
    kind.__call__ = call

    def undo() -> None:
        if vars(kind).get("__call__") is not call:
            return
        if is_own:
            kind.__call__ = original
        else:  # inherited
            del kind.__call__

    return undo


class _Draft:
    """The record of one call of an optimizer."""

    def __init__(
        self, optimizer: Any, number: int, call: int, gradients: Sequence[Any] | None
    ) -> None:
        """Read everything that the optimizer changes next.

        Args:
            optimizer: the optimizer.
            number: which one of the run.
            call: which of its calls in this step.
            gradients: what it is given; None where that is not known.
        """
        self._optimizer = optimizer
        self.number, self._call = number, call
        self.parameters = list(optimizer.parameters)
        count = len(self.parameters)
        known = gradients or ()
        self._gradients = _Columns([*known, *[None] * count][:count])
        # A trained parameter has one, even if it cannot be read.
        self._has_gradient = self._gradients.are_there if gradients is not None else [True] * count
        self._before = _Columns(self.parameters)
        self._has_changed = False  # known when it has ended
        self._states = {
            name: _Columns(values) for name, values in states_of(optimizer, self.parameters).items()
        }
        self._groups = list(groups_of(optimizer))
        self._steps = _steps_of(optimizer)

    def has_run(self) -> bool:
        """Return whether the optimizer itself ran, which changes its states if it has any.

        Other code may have changed the parameters.
        """
        if _steps_of(self._optimizer) != self._steps:
            return True
        states = [one.prints != _Columns(one.tensors).prints for one in self._states.values()]
        return any(states or [self._has_changed])

    def step(self, record: str | None) -> OptimizerStep:
        """Return the record, with the parameters as they are now.

        Args:
            record: the last forward record of the step so far.
        """
        parameters = self.parameters
        after = _Columns(parameters)
        self._has_changed = after.prints != self._before.prints
        kind = type(self._optimizer)
        columns = {
            "before": self._before,
            "gradient": self._gradients,
            **self._states,
            "after": after,
        }
        samples: dict[str, list[Row | None]] = {
            "index": [list(sample_index(int(one.size))) for one in parameters],
            **{name: one.samples for name, one in columns.items()},
        }
        return OptimizerStep(
            class_name=f"{kind.__module__}.{kind.__qualname__}",
            number=self.number,
            call=self._call,
            record=record,
            groups=self._groups,
            parameters=OptimizedParameters(
                name=[one.name for one in parameters],
                shape=[list(one.shape) for one in parameters],
                dtype=[dtype_name(one) for one in parameters],
                has_gradient=self._has_gradient,
                steps=[self._steps] * len(parameters),
                gradient=self._gradients.prints,
                state={name: one.prints for name, one in self._states.items()},
                before=self._before.prints,
                after=after.prints,
                samples=samples,
            ),
        )


def _steps_of(optimizer: Any) -> Number:
    """Return how many steps an optimizer has taken, where it counts them."""
    counts = getattr(optimizer, "global_step", None)
    counted = None if counts is None else host_values(counts)
    return None if counted is None else float(counted.reshape(-1)[0])


class _Columns:
    """Numbers of some tensors, by column; None for what is no tensor."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.tensors = tensors
        self.are_there = [isinstance(one, Tensor) for one in tensors]
        values = [host_values(one) if isinstance(one, Tensor) else None for one in tensors]
        prints = [print_of(one) for one in values]
        self.prints = Fingerprints(
            checksum=[checksum for checksum, _, _ in prints],
            norm=[norm for _, norm, _ in prints],
            projections=[projections for _, _, projections in prints],
        )
        self.samples: list[Row | None] = [_samples(one) for one in values]


def _samples(values: NDArray[Any] | None) -> Row | None:
    if values is None or values.dtype.kind == "c":
        return None
    index = sample_index(values.size)
    some = values.reshape(-1)[: index.stop : index.step]
    wide = some if some.dtype.kind in "biuf" else some.astype(np.float32)
    row: Row = wide.tolist()
    return row


def states_of(optimizer: Any, parameters: Sequence[Any]) -> dict[str, list[Any]]:
    """Return name of a state → its tensors, by parameter: ``moment1.fc.weight`` is of two parts."""
    places = {one.name: place for place, one in enumerate(parameters)}
    own = {id(one) for one in parameters}
    found: dict[str, list[Any]] = {}
    for one in optimizer.get_parameters():
        if id(one) in own:
            continue
        state, _, name = one.name.partition(".")
        if name in places:
            found.setdefault(state, [None] * len(parameters))[places[name]] = one
    return found


def groups_of(optimizer: Any) -> Iterator[OptimizerGroup]:
    """Yield the groups of an optimizer, parameters of equal settings together.

    Schedules are asked for what holds in its next step.
    """
    places = {id(one): place for place, one in enumerate(optimizer.parameters)}
    groups = getattr(optimizer, "param_groups", None)
    if groups is not None:  # those of mindspore.experimental
        for group in groups:
            options = {key: _described(value) for key, value in group.items() if key != "params"}
            members = [places[id(one)] for one in group["params"] if id(one) in places]
            yield OptimizerGroup(options=options, parameters=members)
        return
    common = {
        key: shown
        for key, value in _attributes(optimizer).items()
        if (shown := _described(value)) is not None
    }
    decayed = getattr(optimizer, "decay_flags", ())  # MindSpore leaves out gamma and beta
    rates = _of_parameters(optimizer, "lr", "learning_rate", len(places))
    decays = _of_parameters(optimizer, "weight_decay", "weight_decay", len(places))
    scale = common.get("loss_scale")  # MindSpore multiplies the decay by it
    if isinstance(scale, float):
        decays = [one / scale if isinstance(one, int | float) else one for one in decays]
    together: dict[str, tuple[Option, Option, list[int]]] = {}
    for place, (rate, decay) in enumerate(zip(rates, decays, strict=True)):
        is_left_out = len(decayed) > place and not decayed[place]
        own = (rate, 0.0 if is_left_out else decay)
        together.setdefault(repr(own), (*own, []))[2].append(place)
    for rate, decay, members in together.values():
        options = {**common, "lr": rate, "weight_decay": decay}
        yield OptimizerGroup(options=options, parameters=members)


def _attributes(optimizer: Any) -> Mapping[str, Any]:
    """Return the attributes that may be settings: numbers, switches, texts, tensors of them."""
    own = {id(one) for one in optimizer.parameters}
    parameters = {key: value for key, value in optimizer._params.items() if id(value) not in own}
    return {
        key: value
        for key, value in {**vars(optimizer), **parameters}.items()
        if key not in _NO_OPTIONS and not key.startswith(_NO_OPTION_PREFIXES)
    }


def _of_parameters(optimizer: Any, name: str, common: str, count: int) -> list[Option]:
    """Return a setting of each of `count` parameters."""
    own = [*(getattr(optimizer, f"group_{name}", None) or ())][:count]
    shared = [] if len(own) == count else [getattr(optimizer, common, None)]
    settings = [*own, *shared * (count - len(own))]
    now = {id(one): _described(_now(optimizer, one)) for one in settings}
    return [now[id(one)] for one in settings]


def _now(optimizer: Any, value: Any) -> Any:
    """Return what a setting is in the next step, if that can be asked for."""
    if not isinstance(value, nn.Cell) or must_not_run():
        return value
    with Guard():  # not called as a cell: in graph mode it would be compiled
        return value.construct(optimizer.global_step)


def _described(value: Any) -> Option:
    """Return a setting in the form in which it is written; None for what is no setting."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list) and all(isinstance(one, int | float) for one in value):
        return list(value)
    if isinstance(value, nn.Cell):  # a schedule that was not asked
        return f"<{type(value).__name__}>"
    values = host_values(value) if isinstance(value, Tensor) and value.size == 1 else None
    return None if values is None else values.reshape(-1)[0].item()
