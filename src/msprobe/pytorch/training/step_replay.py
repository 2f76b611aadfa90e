# SPDX-License-Identifier: Apache-2.0
"""`StepReplay`: the step that made the flight recorder write is run again, with task tensor.

Before the first call of the user's step function in a step, the state that it changes is copied,
and the arguments of each call. When the last steps are written, the calls of the newest one are
made again from there, recorded with the tensors of the calls in which the trouble begins. Then
everything is put back: the training goes on with the same bits.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves, tree_map

from msprobe.capture.session import Session
from msprobe.config import Config, StatisticsSection, Task, TensorSection
from msprobe.dump.rank_view import RankView
from msprobe.dump.troubled_calls import troubled_calls
from msprobe.dump.values import Value
from msprobe.files import write_whole
from msprobe.pytorch.interception.guard import guard
from msprobe.pytorch.training.apart import CommunicationError, apart, has_other_ranks
from msprobe.pytorch.training.kept_state import KeptState, RandomStates

logger = logging.getLogger(__name__)

FOLDER: Final = "replay"
"""Folder of the replayed steps, in the dump path."""
_RESULT: Final = "replay.json"

Record = Callable[[Config, int, Sequence[nn.Module], Callable[[], None]], None]
"""Records a step with other settings: the settings, its number, the models, and its work."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the step function, with the random state and the autocast it was made in."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random: RandomStates
    autocast: dict[str, torch.dtype]
    gradients: list[Tensor | None] = field(default_factory=list)
    """Of its results, as far as they arrived: a trainer may scale the loss."""


class _UnknownOptimizerError(Exception):
    """An optimizer steps whose state or gradients are not those of the step: the replay is over."""


class StepReplay:
    """Takes the calls of a step, and makes them again when the step is written."""

    def __init__(
        self,
        session: Session,
        function: Callable[..., object],
        parts: Sequence[object],
        models: Callable[[], Sequence[nn.Module]],
        record: Record,
        *,
        ends_backward: bool,
    ) -> None:
        """Create it; from now on it is told of steps that are written.

        Args:
            session: the state of the run.
            function: makes a step, or a part of it, from the arguments of a call.
            parts: objects whose state it changes, besides the models.
            models: the models that are recorded.
            record: records the replay.
            ends_backward: whether the replay runs the backward pass, from the function's result.
        """
        self._ends_backward = ends_backward
        self._session = session
        self._function = function
        self._parts = tuple(parts)
        self._models = models
        self._record = record
        self._step: int | None = None
        self._before: KeptState | None = None
        self._calls: list[_Call] = []
        self._is_replaying = False
        if session.flight is not None:
            session.flight.on_written = self._written

    def wrapped(self) -> Callable[..., Any]:
        """Return the step function as the training is to call it."""

        @functools.wraps(self._function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.take(args, kwargs)
            result = self._function(*args, **kwargs)
            if self._ends_backward:
                self._returned(result)
            return result

        return call

    def watch(self, model: nn.Module) -> None:
        """Take the calls of a model, in place of those of a step function."""
        before = model.register_forward_pre_hook(
            lambda _, args, kwargs: self.take(args, kwargs), with_kwargs=True, prepend=True
        )
        after = model.register_forward_hook(lambda _, args, result: self._returned(result))
        self._session.run_undo.callback(before.remove)
        self._session.run_undo.callback(after.remove)

    def take(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Copy the state and the arguments: a call of the step function begins."""
        session = self._session
        if session.capturing and not self._is_replaying:
            with session.spending():
                session.attempt("replay_step", self._take, args, dict(kwargs))

    def _take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        number = self._session.step_number
        with guard():
            if self._step != number:
                self._step, self._calls = number, []
                self._before = KeptState([*self._models(), *self._parts])
            self._calls.append(_Call(_copied(args), _copied(kwargs), RandomStates(), _autocast()))

    def _returned(self, result: Any) -> None:
        """Note the gradients of the results of a call when they arrive."""
        session = self._session
        if session.capturing and not self._is_replaying and self._step == session.step_number:
            session.attempt("replay_step", _keep_gradients, result, self._calls[-1].gradients)

    def _written(self, step: int, folder: Path, reason: str) -> None:
        if step != self._step or self._before is None:
            logger.warning(
                "replay_step: step %d cannot run again: the step function was not called in it",
                step,
            )
            return
        recorded = _records(folder)
        before = [_records(path) for path in _earlier(folder, step)]
        calls = troubled_calls(recorded, before)
        config = self._settings(calls)
        present = KeptState([*self._models(), *self._parts])
        self._is_replaying = True
        ended: list[str] = []
        try:
            self._record(
                config, step, self._models(), functools.partial(self._again, self._before, ended)
            )
        finally:
            self._is_replaying = False
            present.restore()
        result = config.dump_path / folder.parent.name / folder.name
        self._report(recorded, result, calls, reason, ended)

    def _settings(self, calls: Iterable[str]) -> Config:
        config = self._session.config
        section = config.section
        assert isinstance(section, StatisticsSection)
        return replace(
            config,
            task=Task.TENSOR,
            section=TensorSection(
                name_filters=tuple(calls) or section.name_filters,
                scope=section.scope,
                data_mode=section.data_mode,
                black_list=section.black_list,
            ),
            dump_path=config.dump_path / FOLDER,
            step=(),
            dump_enable=None,
            enable_dataloader=False,
            facts=False,
        )

    def _again(self, before: KeptState, ended: list[str]) -> None:
        """Make the calls of the step again; an exception of the user's ends them."""
        before.enter()
        is_alone = not has_other_ranks()
        # Gradients that were not reduced over the ranks must reach no optimizer.
        known = {id(each) for each in self._parts if is_alone}

        def refuse(optimizer: torch.optim.Optimizer, *_: object) -> None:
            if id(optimizer) not in known:
                raise _UnknownOptimizerError

        handle = register_optimizer_step_pre_hook(refuse)
        try:
            with nullcontext() if is_alone else apart():
                self._make_calls()
        except _UnknownOptimizerError:
            pass
        except CommunicationError as error:
            logger.warning(
                "replay_step: step %s ran again up to a communication: %s", self._step, error
            )
        except Exception as error:  # noqa: BLE001 - it may be the very trouble
            ended.append(f"{type(error).__name__}: {error}")
        finally:
            handle.remove()

    def _make_calls(self) -> None:
        for call in self._calls:
            call.random.restore()
            with ExitStack() as around:
                for device, dtype in call.autocast.items():
                    around.enter_context(torch.autocast(device, dtype))
                result = self._function(*_copied(call.args), **_copied(call.kwargs))
            if self._ends_backward:
                backward_from(result, call.gradients)

    def _report(
        self,
        recorded: RankView,
        folder: Path,
        calls: Sequence[str],
        reason: str,
        ended: Sequence[str],
    ) -> None:
        replayed = _records(folder)
        names = [name for name in replayed.records if name in recorded.records]
        other = [name for name in names if not _agree(recorded, replayed, name)]
        content = {
            "step": self._step,
            "because": reason,
            "calls": list(calls),
            "records": len(names),
            "differ": other,
            "exception": ended[0] if ended else None,
        }
        write_whole(folder / _RESULT, [json.dumps(content, indent=1).encode()])
        words = "with the same values"
        if not names:
            words = "without these calls: they lie outside of the step function"
        elif other:
            words = f"with other values in {len(other)} of {len(names)} records, first {other[0]}"
        logger.warning(
            "step %s ran again %s; tensors of %s are in %s",
            self._step,
            words,
            ", ".join(calls[:3]) + (" …" if len(calls) > 3 else "") or "all calls",
            folder,
        )


def _autocast() -> dict[str, torch.dtype]:
    """Return the types of the devices for which autocast is on."""
    return {
        device: torch.get_autocast_dtype(device)
        for device in {"cpu", torch._C._get_accelerator().type}
        if torch.is_autocast_enabled(device)
    }


def backward_from(outputs: Any, gradients: Sequence[Tensor | None] = ()) -> None:
    """Run a backward pass from the loss in the outputs of a model, or from all they hold.

    Args:
        outputs: of the model.
        gradients: of these results; ones where there is none.
    """
    roots = _roots(outputs)
    given = [*gradients, *[None] * len(roots)][: len(roots)]
    if roots:
        with torch._C.DisableTorchFunction():  # no call of the model: it makes no record
            filled = [
                torch.ones_like(root) if gradient is None else gradient.clone()
                for root, gradient in zip(roots, given, strict=True)
            ]
        torch.autograd.backward(roots, filled)


def _roots(outputs: Any) -> list[Tensor]:
    named = outputs if isinstance(outputs, Mapping) else getattr(outputs, "__dict__", {})
    loss = named.get("loss")
    return [each for each in tree_leaves(outputs if loss is None else loss) if _has_gradient(each)]


def _keep_gradients(outputs: Any, gradients: list[Tensor | None]) -> None:
    for place, root in enumerate(_roots(outputs)):
        gradients.append(None)

        def arrived(gradient: Tensor, place: int = place) -> None:
            with guard():
                gradients[place] = gradient.clone()

        root.register_hook(arrived)  # type: ignore[no-untyped-call]  # torch


def _has_gradient(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad and value.is_floating_point()


def _copied(value: Any) -> Any:
    """Return arguments whose tensors are copies, which the model may write into."""

    def copy(tensor: Any) -> Any:
        if not isinstance(tensor, Tensor) or isinstance(tensor, nn.Parameter):
            return tensor
        made = tensor.detach().clone(memory_format=torch.preserve_format)
        return made.requires_grad_(tensor.requires_grad)

    return tree_map(copy, value)


def _records(folder: Path) -> RankView:
    return RankView(folder)


def _earlier(folder: Path, step: int) -> list[Path]:
    """Return the folders of the steps before, as far as they were written."""
    found = (folder.parent.parent / f"step{number}" / folder.name for number in range(step))
    return [path for path in found if path.is_dir()]


def _agree(recorded: RankView, replayed: RankView, name: str) -> bool:
    """Return whether the values of a record have the same statistics in both."""
    return list(map(_facts, recorded.records.values_of(name))) == list(
        map(_facts, replayed.records.values_of(name))
    )


def _facts(value: Value) -> tuple[object, ...]:
    numbers = (value.max, value.min, value.mean, value.norm, value.nan_count)
    return (value.path[1:], value.dtype, value.shape, *map(repr, numbers))  # NaN equals itself
