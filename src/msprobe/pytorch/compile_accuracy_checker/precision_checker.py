# SPDX-License-Identifier: Apache-2.0
"""`PrecisionChecker`: does the compiled model compute what the eager one does, module by module?"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import nn

from msprobe.checks.budgets import unit_of
from msprobe.checks.compile_check import (
    FAIL,
    CheckRow,
    CompareResult,
    Probe,
    ResultKey,
    judged_pair,
    judged_row,
    left_out,
    modules_below,
)
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.dump.layout import safe_file_name
from msprobe.dump.tensor_files import StoredTensor
from msprobe.errors import UsageError
from msprobe.log import ensure_handler
from msprobe.pytorch.compile_accuracy_checker.graphs import Compiler, GraphWatch
from msprobe.pytorch.compile_accuracy_checker.module_run import (
    ModuleCall,
    Results,
    output_tensors,
)
from msprobe.pytorch.live.operator_facts import tensors_of
from msprobe.pytorch.replay.rebuilding import from_torch
from msprobe.replay.arguments import converted
from msprobe.replay.runner import Noise

# `mode` of `torch.compile`, which stands for inductor with other options.
_MODES: Final = ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_MOST_VERSIONS: Final = 100_000


class PrecisionChecker:
    """Compares modules that a backend of `torch.compile` compiled with the eager ones.

    Each wrapped module is run again from the inputs and output gradients of the user's own run:
    eagerly, compiled, and in float64. A compiled result fails when its error is beyond what its
    type and its condition allow, and beyond twice the eager result's. Copies of the modules are
    compiled; the model itself stays as it is.
    """

    def __init__(
        self,
        backend: str | Compiler = "aot_eager",
        threshold: float = 1e-4,
        dump_graphs: bool = False,
        graph_dir: str | Path = "./graph_dump",
        cast_dtype: torch.dtype | None = None,
        capture_input: bool = True,
        single_pass: bool = True,
    ) -> None:
        """Choose what is compiled and how.

        Args:
            backend: a name (``inductor``, ``aot_eager``, ``eager``), a mode of inductor
                (``reduce-overhead``), or a function that compiles a graph.
            threshold: accepted; limits follow from the types and the measured conditions.
            dump_graphs: whether the captured graphs are written to `graph_dir`.
            graph_dir: folder of these.
            cast_dtype: type to which modules and inputs are cast before they are compared.
            capture_input: whether inputs are copied, so that the run may overwrite them.
            single_pass: all modules are recorded in one run of the function; False runs it once
                for each module, which needs memory for one module's inputs at a time.

        Raises:
            UsageError: there is no such backend.
        """
        self._compiler = _compiler(backend)
        self.threshold = threshold
        self._graph_dir = Path(graph_dir) if dump_graphs else None
        self._cast_dtype = cast_dtype
        self._copies = capture_input
        self._single_pass = single_pass
        self._names: dict[nn.Module, str] = {}
        self._ignored: set[nn.Module] = set()
        self._recorder: _Recorder | None = None
        self._loss: torch.Tensor | None = None
        ensure_handler()

    def wrap(self, module: nn.Module, name: str | None = None) -> nn.Module:
        """Choose a module; return it, unchanged."""
        self._names[module] = name or type(module).__name__
        return module

    def wrap_by_policy(self, model: nn.Module, module_types: tuple[type, ...]) -> nn.Module:
        """Choose all modules of these classes; return the model, unchanged."""
        for name, module in model.named_modules():
            if issubclass(type(module), module_types):
                self.wrap(module, name)
        return model

    def wrap_all_children(self, model: nn.Module, depth: int = 1) -> nn.Module:
        """Choose all modules that are `depth` levels below the model; return it, unchanged.

        Containers that only hold modules, such as `ModuleList`, never run and are no level.
        """
        for name, module in modules_below(model, depth, nn.Module.named_children, _never_runs):
            self.wrap(module, name)
        return model

    def ignore(self, module: nn.Module) -> nn.Module:
        """Leave a module out even if it is chosen; return it."""
        self._ignored.add(module)
        return module

    def ignore_by_policy(self, model: nn.Module, module_types: tuple[type, ...]) -> nn.Module:
        """Leave all modules of these classes out; return the model."""
        self._ignored.update(one for one in model.modules() if isinstance(one, module_types))
        return model

    def compare(self, fn: Callable[[nn.Module], torch.Tensor], model: nn.Module) -> CompareResult:
        """Run `fn` with the model, then compare each chosen module.

        Without a choice these are the model's children. Gradients, buffers and random state are
        afterwards as they were.

        Args:
            fn: returns the loss; it may run the backward pass itself.
            model: the model.
        """
        chosen = self._chosen(model)
        groups = [chosen] if self._single_pass else [{one: name} for one, name in chosen.items()]
        rows: list[CheckRow] = []
        loss = None
        for group in groups:
            with _state_kept(model), torch.random.fork_rng():
                recorder = _Recorder(group, copies=self._copies)
                with recorder:
                    loss = fn(model)
                    if isinstance(loss, torch.Tensor) and loss.requires_grad:
                        recorder.run_backward(loss)
                rows += self._rows(recorder)
        return CompareResult(rows=tuple(rows), loss=_number(loss))

    def install(self, model: nn.Module) -> nn.Module:
        """Begin to record the chosen modules in the user's own step; return the model.

        Raises:
            UsageError: it has been installed already.
        """
        if self._recorder is not None:
            raise UsageError("PrecisionChecker: installed already; collect first")
        self._recorder = _Recorder(self._chosen(model), copies=self._copies)
        self._recorder.__enter__()
        return model

    def record_loss(self, loss: torch.Tensor) -> None:
        """Note the loss of the step."""
        self._loss = loss.detach()

    def collect(self, loss: torch.Tensor | None = None) -> CompareResult:
        """End recording and compare the modules that ran.

        Raises:
            UsageError: nothing was installed.
        """
        if self._recorder is None:
            raise UsageError("PrecisionChecker: call install(model) before the step")
        recorder, self._recorder = self._recorder, None
        recorder.__exit__()
        if loss is not None:
            self.record_loss(loss)
        with torch.random.fork_rng():
            rows = tuple(self._rows(recorder))
        return CompareResult(rows=rows, loss=_number(self._loss))

    def report(self, result: CompareResult, csv_path: str | Path | None = None) -> None:
        """Log the answer, and write the table.

        Args:
            result: of `compare` or `collect`.
            csv_path: the file; None for none.

        Raises:
            ReportWriteError: it cannot be written.
        """
        result.report(csv_path)

    def _chosen(self, model: nn.Module) -> dict[nn.Module, str]:
        if not self._names:
            self.wrap_all_children(model)
        names = self._names or {model: type(model).__name__}
        return {one: name for one, name in names.items() if one not in self._ignored}

    def _rows(self, recorder: _Recorder) -> Iterator[CheckRow]:
        for name, call in recorder.calls:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the user's own run gave them
                    rows = list(self._module_rows(name, call))
                yield from rows
            except Exception as exc:  # noqa: BLE001 - one module must not cost the others
                text = f"{type(exc).__name__}: {(str(exc).splitlines() or [''])[0][:200]}"
                yield left_out(name, text)
        ran = {name for name, _ in recorder.calls}
        for name in recorder.names:
            if name not in ran:
                yield left_out(name, "it did not run")

    def _module_rows(self, name: str, call: ModuleCall) -> Iterator[CheckRow]:
        """Yield the rows of one module."""
        own = self._cast_dtype
        module = call.copied(own)
        eager = call.run(module, module, dtype=own)
        if not _is_same(eager, _again(call, own)):
            yield left_out(name, "it draws random numbers")
            return
        exact_module = call.copied(own).double()
        exact = call.run(exact_module, exact_module, dtype=torch.float64)
        watch = GraphWatch(self._compiler)
        compiled = self._compiled(call, watch)
        if self._graph_dir is not None:
            watch.save(self._graph_dir, safe_file_name(name))
        if not watch.seen:
            yield left_out(name, "nothing of it was compiled")
            return
        probes = _Probes(call)
        rows = [
            _row(name, key, compiled[key], eager[key], exact[key], probes, call)
            for key in eager
            if key in compiled and key in exact
        ]
        graph = ""
        if any(row.status == FAIL for row in rows):
            graph = watch.first_wrong() or "a backward graph"
        for row in rows:
            yield replace(row, graph=graph) if row.status == FAIL else row

    def _compiled(self, call: ModuleCall, watch: GraphWatch) -> Results:
        module = call.copied(self._cast_dtype)
        # Every copy is a new version of the same code: dynamo would give up after eight.
        limits: dict[str, Any] = {
            "recompile_limit": _MOST_VERSIONS,
            "accumulated_recompile_limit": _MOST_VERSIONS,
        }
        with torch._dynamo.config.patch(limits):
            run = torch.compile(module, backend=watch, dynamic=False)
            return call.run(run, module, dtype=self._cast_dtype)


class _Recorder:
    """Records the first call of each module, and the gradients of its outputs."""

    def __init__(self, names: dict[nn.Module, str], *, copies: bool) -> None:
        self.calls: list[tuple[str, ModuleCall]] = []
        self.names = list(names.values())
        self._modules = names
        self._copies = copies
        self._seen: dict[nn.Module, ModuleCall] = {}
        self._handles: list[Any] = []
        self._has_gradients = False

    def __enter__(self) -> _Recorder:
        for module in self._modules:
            self._handles += [
                module.register_forward_pre_hook(self._before, with_kwargs=True),
                module.register_forward_hook(self._after),
            ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def run_backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass unless the function did."""
        if not self._has_gradients:
            loss.backward()  # type: ignore[no-untyped-call]  # not annotated in torch

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if module in self._seen or torch.compiler.is_compiling():
            return
        device = next((one.device.type for one in tensors_of([*args, *kwargs.values()])), "cpu")
        is_cast = torch.is_autocast_enabled(device)
        call = ModuleCall(
            module,
            converted(tuple(args), self._kept),
            converted(dict(kwargs), self._kept),
            (device, torch.get_autocast_dtype(device)) if is_cast else None,
        )
        self._seen[module] = call
        self.calls.append((self._modules[module], call))

    def _kept(self, value: Any, _: object) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        own = value.detach().clone() if self._copies else value.detach()
        is_float = own.dtype.is_floating_point
        return own.requires_grad_() if value.requires_grad and is_float else own

    def _after(self, module: nn.Module, _: Any, out: Any) -> None:
        call = self._seen.get(module)
        if call is None or call.gradients or torch.compiler.is_compiling():
            return
        for number, one in enumerate(output_tensors(out)):
            if one.requires_grad:
                one.register_hook(self._noting(call, number))  # type: ignore[no-untyped-call]

    def _noting(self, call: ModuleCall, number: int) -> Callable[[torch.Tensor], None]:
        def note(grad: torch.Tensor) -> None:
            self._has_gradients = True
            call.gradients.setdefault(number, grad.detach().clone())

        return note


class _Probes:
    """Runs of a module in float64 with random errors; each serves all its results."""

    def __init__(self, call: ModuleCall) -> None:
        self._call = call
        self._known: dict[Noise, Results] = {}

    def of(self, key: ResultKey) -> Probe:
        """Return what makes one result."""

        def probe(noise: Noise) -> StoredTensor:
            if noise not in self._known:
                module = self._call.copied(torch.float64, noise)
                self._known[noise] = self._call.run(
                    module, module, dtype=torch.float64, noise=noise
                )
            return from_torch(self._known[noise][key])

        return probe


def _row(
    name: str,
    key: ResultKey,
    compiled: torch.Tensor,
    eager: torch.Tensor,
    exact: torch.Tensor,
    probes: _Probes,
    call: ModuleCall,
) -> CheckRow:
    """Return the row of one result."""
    unit = 0.0 if call.autocast is None else unit_of(normal_dtype(str(call.autocast[1])))
    shapes: Sequence[Sequence[int]] = [
        *(one.shape for one in tensors_of([*call.args, *call.kwargs.values()])),
        *(one.shape for one in call.module.parameters()),
        *(one.shape for one in call.gradients.values()),
    ]
    results = from_torch(compiled), from_torch(eager)
    own, other = (
        judged_pair(one, from_torch(exact), probes.of(key), shapes, unit) for one in results
    )
    return judged_row(name, key, *results, own, other)


def _again(call: ModuleCall, dtype: torch.dtype | None) -> Results:
    module = call.copied(dtype)
    return call.run(module, module, dtype=dtype, seed=4321)


def _is_same(first: Results, second: Results) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(one.nan_to_num(), second[key].nan_to_num()) for key, one in first.items()
    )


def _never_runs(module: nn.Module) -> bool:
    return type(module).forward is nn.Module.forward


def _number(loss: object) -> float | None:
    return float(loss.detach()) if isinstance(loss, torch.Tensor) and loss.numel() == 1 else None


@contextmanager
def _state_kept(model: nn.Module) -> Iterator[None]:
    """Context after which gradients and buffers are as they were before."""
    grads = [(one, one.grad) for one in model.parameters()]
    buffers = [(one, one.detach().clone()) for one in model.buffers()]
    for one, _ in grads:
        one.grad = None
    try:
        yield
    finally:
        with torch.no_grad():
            for one, grad in grads:
                one.grad = grad
            for buffer, values in buffers:
                buffer.copy_(values)


def _compiler(backend: str | Compiler) -> Compiler:
    """Return the function that compiles a graph.

    Raises:
        UsageError: there is no such backend.
    """
    if callable(backend):
        return backend
    if backend in _MODES:
        made: Any = torch._TorchCompileInductorWrapper
        return cast("Compiler", made(backend, None, None))
    from torch._dynamo.backends.registry import lookup_backend  # takes a second

    try:
        return cast("Compiler", lookup_backend(backend))
    except Exception as exc:
        raise UsageError(f"PrecisionChecker: there is no backend {backend!r}") from exc
