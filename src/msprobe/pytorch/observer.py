# SPDX-License-Identifier: Apache-2.0
"""Everything that watches a run, installed by `start` and taken away by `stop`."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from types import FrameType
from typing import Any, Final

import torch
from torch import nn

from msprobe.capture.headroom import Headroom
from msprobe.capture.session import Session
from msprobe.capture.task_checks import noise_seed
from msprobe.capture.token_range import TokenGate
from msprobe.config import CompileMode, Level, Task
from msprobe.pytorch.apis.api_table import ApiTable
from msprobe.pytorch.distributed.collective_facts import CollectiveFacts
from msprobe.pytorch.distributed.collectives import CollectiveRecorder
from msprobe.pytorch.distributed.dry_runs import hook_dry_runs
from msprobe.pytorch.gradients.parameter_gradients import ParameterGradients
from msprobe.pytorch.gradients.shared_edges import SharedEdges
from msprobe.pytorch.interception import mode_stack
from msprobe.pytorch.interception.autograd_functions import watch_autograd_functions
from msprobe.pytorch.interception.backward_entry import BackwardEntry
from msprobe.pytorch.interception.call_outlines import CallOutlines
from msprobe.pytorch.interception.call_recorder import new_call_recorder
from msprobe.pytorch.interception.checkpoint import recomputations
from msprobe.pytorch.interception.compiled import run_eagerly
from msprobe.pytorch.interception.compiled_regions import CompiledRegions
from msprobe.pytorch.interception.function_mode import ApiObserver, torch_redispatch
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.kernels import ApisAboveKernels, KernelObserver
from msprobe.pytorch.interception.module_hooks import ModuleNames, ModuleObserver
from msprobe.pytorch.interception.noise import NoiseMode
from msprobe.pytorch.training.cleared_gradients import ClearedGradients
from msprobe.pytorch.training.losses import Losses
from msprobe.pytorch.training.model_calls import ModelCalls
from msprobe.pytorch.training.model_contents import Prefixed
from msprobe.pytorch.training.optimizer_steps import FactDrafts, OptimizerSteps, StepCounts
from msprobe.pytorch.training.training_calls import TrainingCalls
from msprobe.pytorch.values.adapter import TorchAdapter

logger = logging.getLogger(__name__)

_LAUNCHED_WITH: Final = "WORLD_SIZE"  # set by torchrun and its like
_graph_task = torch._C._current_graph_task_id


class Observer:
    """Installs the hooks and modes of the configured level.

    Attributes:
        apis: the function mode; None at levels that do not record APIs.
        collectives: records collectives; None at the same levels.
        kernels: the dispatch mode of level L2, where APIs and modules only give their names.
    """

    def __init__(
        self,
        session: Session,
        adapter: TorchAdapter,
        table: ApiTable,
        batch_index: Callable[[], int | None],
        look_at_flags: Callable[[int], None],
        *,
        redispatch: Callable[..., Any] | None = torch_redispatch,
    ) -> None:
        """Create it; nothing is installed.

        Args:
            session: receives the calls and gradients.
            adapter: reads tensors.
            table: the treatment of each function.
            batch_index: see `ModelCalls`.
            look_at_flags: see `ModelCalls`.
            redispatch: see `ApiObserver`.
        """
        self._session = session
        self._adapter = adapter
        self.recomputations = recomputations(session)
        self._headroom = Headroom(session)
        self._regions = CompiledRegions(session, self._step_aside)
        self._backward = BackwardEntry()
        self._shared = SharedEdges(session, self._backward)
        self._recorder = new_call_recorder(session, adapter, self._shared)
        self._losses = Losses(session)
        level = session.config.level
        self.apis: ApiObserver | None = None
        self.collectives: CollectiveRecorder | None = None
        if level in (Level.L1, Level.MIX):
            self.apis = self._observer_of(table, redispatch)
            self.collectives = CollectiveRecorder(session, adapter, table, self.recomputations)
        is_outlined = level is Level.L0 and session.config.facts
        self._outlines = CallOutlines(session, table, adapter.known) if is_outlined else None
        name_input = None if self._outlines is None else self._outlines.name_input
        self._model_calls = ModelCalls(session, batch_index, look_at_flags, name_input)
        self.kernels: KernelObserver | None = None
        if level is Level.L2:
            self.apis = self._observer_of(ApisAboveKernels(table), redispatch)
            self.kernels = KernelObserver(session, adapter, table)
        seed = noise_seed(session.config)
        self._noise = None if seed is None else NoiseMode(session, seed)
        self._records_modules = level in (Level.L0, Level.MIX, Level.L2)
        self._drafts = FactDrafts(adapter.known, self._counts)
        in_closure = nullcontext if self.apis is None else self.apis.in_closure
        self._optimizers = OptimizerSteps(session, self._go_to_sleep, self._drafts, in_closure)
        self._training_calls = TrainingCalls(
            session, self._go_to_sleep, passes=lambda: self._losses.count
        )
        self._cleared = ClearedGradients(session, self._optimizers, lambda: self._losses.count)
        self._models: tuple[weakref.ref[nn.Module], ...] = ()
        self._names: ModuleNames | None = None
        self._parameters = self._watch_of(ModuleNames()) if self._records_modules else None
        self._enters_engine = redispatch is None
        self._modules: ModuleObserver | None = None
        # While one module alone is dumped.
        self._only: ModuleNames | None = None
        self._only_parameters: ParameterGradients | None = None

    def _counts(self) -> StepCounts:
        outlined = None if self._outlines is None else self._outlines.count
        return StepCounts(outlined, self._losses.count)

    def _observer_of(self, table: ApiTable, redispatch: Callable[..., Any] | None) -> ApiObserver:
        return ApiObserver(
            self._session,
            self._adapter,
            table,
            self.recomputations,
            self._shared,
            self._recorder,
            redispatch,
        )

    def watch(self, models: Sequence[Prefixed]) -> None:
        """Record the modules that these models consist of now, from the next `install` on."""
        self._models = tuple(weakref.ref(model) for _, model in models)
        self._drafts.watch(models)
        found = [model for _, model in models]
        quietly(self._session, "looking through models", self._model_calls.watch, found)
        if not self._records_modules:
            return
        keeps_compiled = self._session.config.compile is CompileMode.MODULES_ONLY
        self._names = quietly(
            self._session, "naming modules", ModuleNames.of_models, models, keeps_compiled
        )
        if self._parameters is not None:
            self._parameters.names = self._names or ModuleNames()

    def extend(self, models: Sequence[Prefixed]) -> None:
        """Record the modules of these models from now on, in the middle of a step, too."""
        self.watch(models)
        if self._modules is not None and self._only is None:
            self._modules.names = self._names
        if self._parameters is not None:
            quietly(self._session, "watching parameters", self._parameters.install)

    def enter(self, module: nn.Module, args: tuple[Any, ...], frame: FrameType) -> None:
        """Note that a module call begins whose hooks torch had collected before `install`."""
        if self._modules is not None:
            self._modules.enter(module, args, frame)

    def _watch_of(self, names: ModuleNames) -> ParameterGradients | None:
        takes_gradients = self._session.calls.selection.data_mode.backward
        structure = self._session.config.task is Task.STRUCTURE
        if not takes_gradients or structure or self.kernels is not None:
            return None
        config = self._session.config
        judges_modules = config.level is Level.L0 and config.task is Task.TENSOR
        return ParameterGradients(self._session, names, self._backward if judges_modules else None)

    def begin_only(self, names: ModuleNames) -> None:
        """Record the modules of `names` and nothing else until `end_only`."""
        self._only = names
        self._only_parameters = self._watch_of(names)
        self._session.muted += 1
        if self._modules is not None:
            self._modules.names, self._modules.hides = names, self._names
        if self._only_parameters is not None and self._session.capturing:
            quietly(self._session, "watching parameters", self._only_parameters.install)

    def end_only(self) -> None:
        """Record everything again."""
        self._only = self._only_parameters = None
        self._session.muted -= 1
        if self._modules is not None:
            self._modules.names, self._modules.hides = self._names, None

    @property
    def dumps_one_module(self) -> bool:
        """Whether execution is between `begin_only` and `end_only`."""
        return self._only is not None

    def install(self, token_range: tuple[int, int] | None) -> None:
        """Begin to watch; the session's undo stack gets every way back.

        A part that cannot be installed is noted and leaves the others working.

        Args:
            token_range: forward calls of the first model to which observation is limited.
        """
        session = self._session
        session.attempt("recursion limit", self._headroom.install, session)
        session.attempt("hooking modules", self._install_modules, token_range)
        if session.facts.is_open and not self._losses.is_installed:
            session.attempt("hooking backward", self._losses.install, self._backward)
        stays_compiled = bool(session.attempt("compiled code", run_eagerly, session))
        for parameters in (self._parameters, self._only_parameters):
            if parameters is not None:
                quietly(session, "watching parameters", parameters.install)
        session.attempt("hooking collectives", self._install_collectives)
        session.attempt("dry runs", self._install_dry_runs)
        if self.kernels is not None:
            session.attempt("dispatch mode", self.kernels.install)
        if self._noise is not None:  # below the mode that records kernels
            session.attempt("noise", self._noise.install)
        if self.apis is not None:
            session.attempt("function mode", self._install_mode, self.apis)
            session.attempt("hooking autograd", self._install_diversions, self.apis)
        elif self._outlines is not None and not stays_compiled:
            session.attempt("function mode", self._outlines.install)
        if session.config.facts:
            session.attempt("hooking optimizers", self._optimizers.install)
            session.attempt("hooking training calls", self._training_calls.install)
            session.attempt("hooking zero_grad", self._cleared.install)
        elif session.config.task is Task.NAN_CHECK:
            # An update's hundreds of small calls cost several times those of the model.
            session.attempt("hooking optimizers", self._optimizers.install)
            session.attempt("hooking gradient scalers", self._training_calls.install_scalers)
        if stays_compiled:
            self._adapter.memo.active = False  # compiled code writes without telling
            session.attempt("compiled code", self._regions.install)

    def _go_to_sleep(self, has_closure: bool) -> Callable[[], None]:
        """Record no calls of an optimizer, which is summarised; return how to end that."""
        config = self._session.config
        if self._outlines is not None:
            return (lambda: None) if has_closure else self._outlines.go_to_sleep()
        if self.apis is None or config.optimizer_apis or config.level is Level.L2:
            return lambda: None
        return self.apis.go_to_sleep(wakes_with_grad=has_closure)

    def _step_aside(self, frame: FrameType, back: ExitStack) -> None:
        """Remove the hooks and modes that compiled code would run into.

        Args:
            frame: of torch's wrapper of the compiled function that begins.
            back: gets the ways back.
        """
        modules = self._modules
        if modules is not None and modules.begin_compiled(frame):
            back.callback(modules.end_compiled, frame)
        if modules is not None:
            modules.suspend()
            back.callback(modules.resume)
        if self.apis is not None and mode_stack.is_installed(self.apis):
            mode_stack.remove(self.apis)
            back.callback(mode_stack.install_lowest, self.apis)
        if self.kernels is not None:
            self.kernels.suspend()
            back.callback(self.kernels.resume)
        if self._noise is not None:
            self._noise.suspend()
            back.callback(self._noise.resume)

    def _install_modules(self, token_range: tuple[int, int] | None) -> None:
        session = self._session
        gate = None
        if token_range is not None:
            if len(self._models) > 1:
                logger.warning("token_range counts the forward calls of the first model only")
            root = self._models[0]()
            if root is not None:
                gate = TokenGate(session, root, token_range, self._adapter.forget_values)
        names = self._names if self._only is None else self._only
        modules = ModuleObserver(
            session,
            names,
            self.recomputations,
            self._shared,
            self._recorder,
            self.apis or self._outlines,
            gate,
            self._headroom,
            self._model_calls,
        )
        modules.hides = None if self._only is None else self._names
        modules.install()
        self._modules = modules

    def _install_collectives(self) -> None:
        session, observer = self._session, self.collectives
        if observer is not None:
            session.undo.callback(observer.write_left_over)
        if not _may_communicate() or (observer is None and not session.facts.is_open):
            return
        from msprobe.pytorch.distributed.functional_collectives import hook_functional_collectives
        from msprobe.pytorch.distributed.process_groups import hook_collectives

        watched = observer or CollectiveFacts(session, lambda: self._losses.count)
        session.undo.callback(hook_collectives(watched))
        session.undo.callback(hook_functional_collectives(watched))

    def _install_dry_runs(self) -> None:
        self._session.undo.callback(hook_dry_runs(self._unobserved))

    @contextmanager
    def _unobserved(self) -> Iterator[None]:
        """Context in which nothing is recorded, not even a loss."""
        session, losses = self._session, self._losses
        before = session.observing
        session.observing, losses.is_asleep = False, True
        try:
            yield
        finally:
            self._adapter.forget_values()  # written unseen
            losses.is_asleep = False
            session.observing = before and session.capturing

    def _install_mode(self, apis: ApiObserver) -> None:
        # The engine restores the mode stack after each node: inside it only the flag changes.
        if _graph_task() != -1:
            return
        apis.left.keep()
        mode_stack.install_lowest(apis)
        self._session.undo.callback(apis.left.remove_from, self._session.thread)
        # At L2 there is none: operators write what no API tells.
        self._adapter.memo.active = self.kernels is None
        self._session.undo.callback(self._end_memo)

    def _install_diversions(self, apis: ApiObserver) -> None:
        session = self._session
        if session.config.compile is not CompileMode.MODULES_ONLY:
            session.undo.callback(watch_autograd_functions(apis))
        if not self._enters_engine:
            return
        if not self._backward.open(session.undo, apis.inside_backward):
            session.account.note("this version of torch hides what is recomputed in a backward")

    def _end_memo(self) -> None:
        self._adapter.memo.active = False
        self._adapter.forget_values()

    def next_step(self) -> None:
        """Forget the state of the step that is over."""
        self.recomputations.next_step()
        self._model_calls.next_step()
        self._adapter.next_step()
        if self.kernels is not None:
            self.kernels.next_step()
        if self._noise is not None:
            self._noise.next_step()
        if self._outlines is not None:
            self._outlines.next_step()
        if self.apis is not None and _graph_task() == -1:
            mode_stack.remove(self.apis)  # left behind by a stop inside a backward pass


def _may_communicate() -> bool:
    """Return whether this process belongs to a group, or was launched to join one."""
    distributed = torch.distributed
    return distributed.is_available() and (
        distributed.is_initialized() or _LAUNCHED_WITH in os.environ
    )
