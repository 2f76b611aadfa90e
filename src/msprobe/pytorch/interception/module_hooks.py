# SPDX-License-Identifier: Apache-2.0
"""Observe the modules of the user's models through torch's global module hooks.

No module is changed. The hooks fire for every module of the process, in every thread; calls of
other modules and of other threads pass.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules import module as module_code
from torch.nn.modules.lazy import LazyModuleMixin
from torch.overrides import TorchFunctionMode

from msprobe.capture.call import Call
from msprobe.capture.calls import Calls
from msprobe.capture.headroom import Headroom
from msprobe.capture.recomputation import Recomputations
from msprobe.capture.session import Session
from msprobe.capture.stacks import Stack, calling_frame
from msprobe.capture.token_range import TokenGate
from msprobe.capture.values import Found
from msprobe.dump.layout import INNER_PARAMETERS
from msprobe.pytorch.apis.api_rules import FAST_PATH_MODULES
from msprobe.pytorch.gradients.input_edges import InputEdges, input_edges
from msprobe.pytorch.gradients.quick_taps import tap_gradients
from msprobe.pytorch.gradients.shared_edges import SharedEdges
from msprobe.pytorch.interception import mode_stack
from msprobe.pytorch.interception.call_recorder import CallRecorder, QuickCall
from msprobe.pytorch.interception.compiled import is_compiled_module
from msprobe.pytorch.interception.function_mode import ApiObserver
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.tracing import is_tracing
from msprobe.pytorch.training.model_calls import ModelCalls
from msprobe.pytorch.training.model_contents import Prefixed
from msprobe.pytorch.values.tensor_search import tensors_in

_is_compiling: Final = torch.compiler.is_compiling
_functorch_active: Final = torch._C._are_functorch_transforms_active
_COMPILED_PART: Final = "_orig_mod"  # under which torch.compile keeps the module it was given
_CALLERS: Final = (
    module_code.__file__,
    str(Path(torch.__file__).parent / "_dynamo" / "eval_frame.py"),
)
_SKIPPED_CLASSES: Final = frozenset({"FullyShardedDataParallel"})
# Modules that read the parameters of modules in them, which they do not call.
_READERS: Final = (
    nn.MultiheadAttention,
    *filter(None, [getattr(nn, "LinearCrossEntropyLoss", None)]),
)


def class_name(module: nn.Module) -> str:
    """Return the class under which a module is recorded: that of the plain, unsharded model.

    FSDP2 swaps the class of a module for one that it makes, ``FSDPLinear`` for a ``Linear``. A lazy
    module swaps its own at its first call, ``LazyLinear`` for ``Linear``.
    """
    kind = type(module)
    if isinstance(module, LazyModuleMixin) and module.cls_to_become is not None:
        return module.cls_to_become.__name__
    made_of = kind.__mro__[1:3]
    if len(made_of) == 2 and made_of[0].__name__ == "FSDPModule":
        return made_of[1].__name__
    return kind.__name__


class ModuleNames:
    """Record names of the modules of the user's models."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        """Create it without a name."""
        # None for modules that are not recorded.
        self._by_id: dict[int, tuple[weakref.ref[nn.Module], str | None]] = {}

    @classmethod
    def of_models(cls, models: Sequence[Prefixed], keeps_compiled: bool) -> ModuleNames:
        """Name every module, with the prefix of its model in front.

        A compiled model has the names of the model that it was made from.

        Args:
            models: the models.
            keeps_compiled: whether compiled code stays compiled. Of a compiled module only its
                wrapper is then seen; otherwise the module inside it is.
        """
        names = cls()
        for prefix, model in models:
            seen: set[int] = set()
            waiting: list[tuple[str, Any]] = [(f"Module.{prefix}", model)]
            while waiting:
                path, module = waiting.pop()
                if id(module) in seen:
                    continue
                seen.add(id(module))
                is_compiled = is_compiled_module(module)
                kind = class_name(module._orig_mod if is_compiled else module)
                is_recorded = kind not in _SKIPPED_CLASSES and (keeps_compiled or not is_compiled)
                names._by_id[id(module)] = (
                    weakref.ref(module),
                    f"{path}{kind}" if is_recorded else None,
                )
                for name, part in reversed(module._modules.items()):
                    if part is not None:
                        waiting.append((path if name == _COMPILED_PART else f"{path}{name}.", part))
        return names

    @classmethod
    def of_one(cls, module: nn.Module, name: str) -> ModuleNames:
        """Name one module as if it lay at `name`."""
        names = cls()
        base = f"Module.{name}.{class_name(module)}"
        names._by_id[id(module)] = (weakref.ref(module), base)
        return names

    def find(self, module: nn.Module) -> str | None:
        """Return ``Module.{path}.{Class}``, None for a module that is not recorded."""
        known = self._by_id.get(id(module))
        if known is None or known[0]() is not module:
            return None
        return known[1]

    def lacks(self, module: nn.Module) -> bool:
        """Return whether a module was no part of the models when these were looked through."""
        known = self._by_id.get(id(module))
        return known is None or known[0]() is not module

    def items(self) -> Iterator[tuple[nn.Module, str]]:
        """Yield the modules that are alive with their names."""
        for reference, name in self._by_id.values():
            module = reference()
            if module is not None and name is not None:
                yield module, name


def only_evaluates(module: nn.Module, *, with_grad: bool) -> bool:
    """Return whether a call has no gradients, and neither the module nor a part of it trains.

    A wrapper may keep the flag with which it was made: DeepSpeed's engine hands `eval()` on, and
    `DDP` may be made around a model in evaluation mode. So the parts with parameters count, too.
    """
    return not with_grad and not (
        module.training and any(part.training for part in module.modules() if part._parameters)
    )


class _Open:
    """A module call between its begin and its end."""

    __slots__ = (
        "call",
        "edges",
        "found",
        "is_lazy",
        "module",
        "paused",
        "quick",
        "stack",
        "thread",
    )

    def __init__(self, module: nn.Module, call: Call | None, stack: Stack) -> None:
        self.module = module
        self.call = call
        self.stack = stack
        self.found: Found = []
        self.edges: InputEdges | None = None
        self.quick: QuickCall | None = None
        # Another thread may call the same module meanwhile, unrecorded.
        self.thread = threading.get_ident()
        # Whether the function mode was taken away for a fused kernel.
        self.paused = False
        # Whether its parameters get their shapes and values in this call.
        self.is_lazy = isinstance(module, LazyModuleMixin) and module.has_uninitialized_params()


class ModuleObserver:
    """Turns module calls into events of the session.

    Attributes:
        names: the modules to record; None to record none and only watch.
        hides: the modules of the models, while one module alone is recorded; else None.
        with_grad: whether gradients were on when the latest recorded call began.
    """

    def __init__(
        self,
        session: Session,
        names: ModuleNames | None,
        recomputations: Recomputations,
        shared: SharedEdges,
        recorder: CallRecorder | None,
        mode: TorchFunctionMode | None,
        gate: TokenGate | None,
        headroom: Headroom,
        model_calls: ModelCalls,
    ) -> None:
        """Create it, not yet installed.

        Args:
            session: receives the events.
            names: the modules to record; None to record none and only watch (level L1).
            recomputations: recognises repeated calls.
            shared: divides gradients among calls.
            recorder: records plain calls; None for no quick way.
            mode: the function mode that is on, which steps aside for fused kernels.
            gate: limits observation to some forward calls of the root model.
            headroom: keeps room for the frames of hooked modules.
            model_calls: follows the outermost calls.
        """
        self._session = session
        self.names = names
        self.hides: ModuleNames | None = None
        self.with_grad = True
        self._recomputations = recomputations
        self._shared = shared
        self._recorder = recorder
        self._mode = mode
        self._gate = gate
        self._headroom = headroom
        self._model_calls = model_calls
        self._open: list[_Open] = []
        self._hooks = ExitStack()

    def install(self) -> None:
        """Register the hooks; the session's undo removes them."""
        undo = self._session.undo
        undo.callback(self.suspend)
        self.resume()
        self._session.calls.close_lost = self._close_lost
        undo.callback(self._stop)

    def resume(self) -> None:
        """Register the hooks."""
        hooks = self._hooks
        before = module_code.register_module_forward_pre_hook(self._before)
        hooks.callback(before.remove)
        after = module_code.register_module_forward_hook(
            self._after, with_kwargs=True, always_call=True
        )
        hooks.callback(after.remove)
        # The handle forgets this table (torch 2.13), and torch then believes that a hook is on.
        hooks.callback(module_code._global_forward_hooks_with_kwargs.pop, after.id, None)

    def suspend(self) -> None:
        """Remove the hooks; calls that are open go on."""
        self._hooks.close()

    def _stop(self) -> None:
        calls = self._session.calls
        calls.close_lost = None
        self._model_calls.close()
        self._close_lost(self._session.stacks.at(calling_frame()))
        self._open.clear()

    # -- before --------------------------------------------------------------------------------

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        # The compiler would follow us into our own objects.
        if not (_is_compiling() or (self.names is None and self._is_inner(module))):
            self.enter(module, args, sys._getframe(1))

    def _is_inner(self, module: nn.Module) -> bool:
        """Return whether a call inside of an outermost one is of no interest, at level L1."""
        opened = self._model_calls.opened
        return not (
            opened is None
            or opened is module
            or self.hides is not None
            or self._gate is not None
            or isinstance(module, FAST_PATH_MODULES)
            or threading.get_ident() != self._session.thread
            or not self._headroom.suffices()
        )

    def enter(self, module: nn.Module, args: tuple[Any, ...], frame: FrameType) -> None:
        """Note that a module call begins.

        Args:
            module: what is called.
            args: the positional arguments.
            frame: torch's, which calls the hooks of the module.
        """
        session = self._session
        in_own_thread = threading.get_ident() == session.thread
        if self._gate is not None and in_own_thread:
            self._gate.before(module)
        if not session.observing or is_tracing():
            return
        if not in_own_thread and torch._C._current_graph_task_id() == -1:
            session.account.skipped["module calls in other threads"] += 1
            session.account.expected = "a module in another thread"
            return
        self._headroom.keep()
        base = self.names.find(module) if self.names is not None else None
        if self.hides is not None:
            session.calls.hide(self.hides.find(module))
        elif base is None and self._open and self.names is not None and self.names.lacks(module):
            quietly(session, "module begin", self._note_added, module)
        fused = self._mode is not None and isinstance(module, FAST_PATH_MODULES)
        if base is not None or fused:
            with_grad = self.with_grad = torch.is_grad_enabled()
            quietly(session, "module begin", self._begin, module, base, frame, with_grad, args)
        if self._model_calls.is_outermost(module):
            quietly(session, "data", self._begin_outermost, module, frame, args)

    def _note_added(self, module: nn.Module) -> None:
        parts = self._open[-1].module._modules.values()
        if any(part is module for part in parts):
            self._session.account.skipped["calls of modules added while recording"] += 1

    def _begin_outermost(self, module: nn.Module, frame: FrameType, args: tuple[Any, ...]) -> None:
        opened = self._open[-1] if self._open else None
        call = opened.call if opened is not None and opened.module is module else None
        record = call.forward_name if call is not None and call.keeps_forward else None
        self._model_calls.begin(module, args, keyword_arguments(frame), record)

    def _begin(
        self,
        module: nn.Module,
        base: str | None,
        frame: FrameType,
        with_grad: bool,
        args: tuple[Any, ...],
    ) -> None:
        session = self._session
        stack = session.stacks.at(frame)
        self._close_lost(stack)
        kwargs = keyword_arguments(frame)
        fused = isinstance(module, FAST_PATH_MODULES) and self._may_be_fused(
            module, args, kwargs, with_grad
        )
        if base is None and not fused:
            return
        name = base or f"Torch.{type(module).__name__}"
        call = quick = None
        is_one_api = type(module).forward is nn.Linear.forward
        recorder = self._recorder
        is_lazy = isinstance(module, LazyModuleMixin)
        is_slow = is_lazy or stack.traits.checkpointed or isinstance(module, _READERS)
        if not (base is None or recorder is None or is_slow):
            own = module._parameters
            quick = recorder.begin(base, stack, args, kwargs, own, with_grad, is_one_api)
        if quick is not None:
            call = quick.call
        elif base is not None or (isinstance(self._mode, ApiObserver) and not session.muted):
            call = self._recomputations.begin(name, stack, frame, is_module=base is not None)
        opened = _Open(module, call, stack)
        self._open.append(opened)
        if fused and self._mode is not None and mode_stack.is_installed(self._mode):
            mode_stack.remove(self._mode)
            opened.paused = True
        if quick is not None and recorder is not None:
            if quick.is_described:
                opened.quick = quick
                return
            recorder.unfold(quick)
        if call is None:
            return
        calls = session.calls
        is_searched = calls.inputs(call, args, kwargs, opened.found)
        if base is not None and not opened.is_lazy:
            _take_parameters(calls, call, module)
        if not with_grad or not call.keeps_gradients or _functorch_active():
            return
        if not is_searched:
            tensors_in(args, kwargs, opened.found)
        opened.edges = input_edges(call, opened.found, len(args), is_one_api=is_one_api)

    def _may_be_fused(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        with_grad: bool,
    ) -> bool:
        """Return whether torch would run this module as one fused kernel.

        torch's own condition asks whether a function mode is on: with ours on it would take
        another way, and the last bits would differ.
        """
        if self._mode is None or module.training or not mode_stack.is_installed(self._mode):
            return False
        found: Found = []
        tensors_in(args, kwargs, found)
        watched = [tensor for tensor, _ in found] + list(module.parameters())
        return not (with_grad and any(tensor.requires_grad for tensor in watched))

    # -- compiled modules ----------------------------------------------------------------------

    def begin_compiled(self, frame: FrameType) -> bool:
        """Note that compiled code begins; return whether it is a module that is recorded.

        Its hooks lie inside of the code that ``module.compile()`` compiles.

        Args:
            frame: of torch's wrapper of compiled functions.
        """
        session = self._session
        compiled: Any = frame.f_locals.get("fn")
        if getattr(compiled, "__func__", None) is not nn.Module._call_impl:
            return False
        module, args = compiled.__self__, frame.f_locals["args"]
        if self._gate is not None:
            self._gate.before(module)
        base = self.names.find(module) if self.names is not None else None
        if base is None or not session.observing or "result" not in frame.f_code.co_varnames:
            return False
        with_grad = torch.is_grad_enabled()
        quietly(session, "module begin", self._begin, module, base, frame, with_grad, args)
        if self._model_calls.is_outermost(module):
            quietly(session, "data", self._begin_outermost, module, frame, args)
        return True

    def end_compiled(self, frame: FrameType) -> None:
        """Note that the compiled module returned, or raised."""
        session, variables = self._session, frame.f_locals
        module, finished = variables["fn"].__self__, "result" in variables
        if self._model_calls.is_open_here(module):
            quietly(session, "data", self._model_calls.end, finished)
        quietly(session, "module end", self._finish, module, finished, variables.get("result"))

    # -- after ---------------------------------------------------------------------------------

    def _after(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        # torch calls this with (kwargs, output), after an exception with (output,) alone.
        if _is_compiling():  # the compiler would follow us into our own objects
            return
        if not self._open and self._model_calls.opened is not module:
            return
        try:
            session = self._session
            finished = len(rest) == 2
            if self._model_calls.is_open_here(module):
                quietly(session, "data", self._model_calls.end, finished)
            if not self._has_open(module):
                return
            quietly(session, "module end", self._finish, module, finished, rest[-1])
        except RecursionError:  # one of the user's is being raised; an outer call ends this one
            return

    def _has_open(self, module: nn.Module) -> bool:
        here = threading.get_ident()
        return any(one.module is module and one.thread == here for one in reversed(self._open))

    def _close_lost(self, stack: Stack) -> None:
        """End the open calls that do not enclose a call with this stack: no hook saw their end.

        They raised what torch catches for no hook, such as a KeyboardInterrupt.
        """
        here = threading.get_ident()
        while self._open and self._open[-1].thread == here:
            if stack.is_inside(self._open[-1].stack):
                return
            opened = self._open.pop()
            if opened.paused:
                self._resume()
            self._raised(opened, BaseException.__name__)

    def _resume(self) -> None:
        if self._mode is not None and self._session.capturing:
            mode_stack.install_lowest(self._mode)

    def _finish(self, module: nn.Module, finished: bool, output: Any) -> None:
        while self._open:
            opened = self._open.pop()
            if opened.paused:
                self._resume()
            is_ours = opened.module is module
            if is_ours and finished and opened.call is not None:
                self._end(opened, opened.call, output)
            else:
                self._raised(opened, _error_name())
            if is_ours:
                return

    def _raised(self, opened: _Open, error: str) -> None:
        if opened.call is not None:
            self._unfold(opened)
            self._session.calls.raised(opened.call, error)

    def _unfold(self, opened: _Open) -> None:
        quick, recorder = opened.quick, self._recorder
        if quick is not None and recorder is not None:
            opened.edges = quick.edges
            recorder.unfold(quick)

    def _end(self, opened: _Open, call: Call, output: Any) -> None:
        quick, recorder = opened.quick, self._recorder
        if quick is not None and recorder is not None and recorder.end(quick, output, False, None):
            return
        self._unfold(opened)
        calls = self._session.calls
        calls.outputs(call, output)
        if opened.is_lazy and call.is_module:
            _take_parameters(calls, call, opened.module)
        if opened.edges is not None:
            tap_gradients(self._session, self._shared, recorder, opened.edges, output)
        calls.end(call)


def _error_name() -> str:
    """Return the class of the exception that ends a module: torch is handling it right now."""
    kind = sys.exc_info()[0]
    return kind.__name__ if kind is not None else "exception"


def _take_parameters(calls: Calls, call: Call, module: nn.Module) -> None:
    """Record the parameters of a module, and those that it reads of modules in it."""
    calls.part(call, "parameters", _own_parameters(module))
    if isinstance(module, _READERS):
        parts = module.named_children()
        inner = {
            f"{name}.{key}": one
            for name, part in parts
            for key, one in _own_parameters(part).items()
        }
        calls.part(call, INNER_PARAMETERS, inner)


def _own_parameters(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in module._parameters.items() if value is not None}


def keyword_arguments(frame: FrameType) -> Mapping[str, Any]:
    """Return the keyword arguments of the call whose pre-hook runs.

    A global pre-hook is not given them; they are a variable of torch's frame that calls it, and of
    the one that calls a compiled module.
    """
    if frame.f_code.co_filename not in _CALLERS:
        return {}
    kwargs = frame.f_locals.get("kwargs")
    return kwargs if type(kwargs) is dict or isinstance(kwargs, Mapping) else {}
