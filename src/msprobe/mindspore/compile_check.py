# SPDX-License-Identifier: Apache-2.0
"""`PrecisionChecker`: does a jitted cell compute what it computes in the dynamic graph?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import mindspore as ms
from mindspore import ParameterTuple, Tensor, nn, ops
from msprobe.checks.compile_check import (
    CheckRow,
    CompareResult,
    Probe,
    ResultKey,
    is_identical,
    judged_pair,
    judged_row,
    left_out,
    modules_below,
    same_row,
)
from msprobe.dump.tensor_files import StoredTensor, first_line
from msprobe.log import ensure_handler
from msprobe.mindspore.perturbation import dtype_of, is_float
from msprobe.replay.runner import Noise

Results = Mapping[ResultKey, StoredTensor]


class PrecisionChecker:
    """Compares cells that `mindspore.jit` compiled with the same cells in the dynamic graph.

    Each chosen cell is run again from the inputs and output gradients of the user's own run: in the
    dynamic graph, compiled, and in float64. A compiled result fails when its error is beyond what
    its type and its condition allow, and beyond twice the other's. Copies of the cells are
    compiled; the net itself stays as it is.
    """

    def __init__(self, **options: Any) -> None:
        """Choose how cells are compiled.

        Args:
            options: of `mindspore.jit`, such as ``jit_level="O0"``, ``backend="ms_backend"``.
        """
        self._options = options
        self._names: dict[nn.Cell, str] = {}
        self._ignored: set[nn.Cell] = set()
        ensure_handler()

    def wrap(self, cell: nn.Cell, name: str | None = None) -> nn.Cell:
        """Choose a cell; return it, unchanged."""
        self._names[cell] = name or type(cell).__name__
        return cell

    def wrap_by_policy(self, net: nn.Cell, cell_types: tuple[type, ...]) -> nn.Cell:
        """Choose all cells of these classes; return the net, unchanged."""
        for name, cell in net.cells_and_names():
            if isinstance(cell, cell_types):
                self.wrap(cell, name)
        return net

    def wrap_all_children(self, net: nn.Cell, depth: int = 1) -> nn.Cell:
        """Choose all cells that are `depth` levels below the net; return it, unchanged.

        A `CellList` or `CellDict` never runs and is no level.
        """
        for name, cell in modules_below(net, depth, _children_of, _never_runs):
            self.wrap(cell, name)
        return net

    def ignore(self, cell: nn.Cell) -> nn.Cell:
        """Leave a cell out even if it is chosen; return it."""
        self._ignored.add(cell)
        return cell

    def compare(self, fn: Callable[[nn.Cell], Tensor], net: nn.Cell) -> CompareResult:
        """Run `fn` and its backward pass in the dynamic graph, then compare each chosen cell.

        Without a choice these are the net's children. Parameters and random state are afterwards
        as they were.

        Args:
            fn: returns the loss.
            net: the net.
        """
        if not self._names:
            self.wrap_all_children(net)
        names = self._names or {net: type(net).__name__}
        chosen = {cell: name for cell, name in names.items() if cell not in self._ignored}
        random_state = ms.get_rng_state()
        kept = [(one, one.value().copy()) for one in net.get_parameters() if not one.requires_grad]
        try:
            with _Recorder(chosen) as recorder:
                loss = _with_gradients(fn, net)
            rows = tuple(_rows(recorder, self._options))
        finally:
            ms.set_rng_state(random_state)
            for parameter, values in kept:
                parameter.set_data(values)
        return CompareResult(rows=rows, loss=float(loss.asnumpy()) if loss.size == 1 else None)

    def report(self, result: CompareResult, csv_path: str | Path | None = None) -> None:
        """Log the answer, and write the table.

        Args:
            result: of `compare`.
            csv_path: the file; None for none.

        Raises:
            ReportWriteError: it cannot be written.
        """
        result.report(csv_path)


@dataclass(slots=True)
class _CellCall:
    """The first call of a cell.

    Attributes:
        cell: the cell.
        args: its positional arguments.
        outputs: its result, as a tuple.
        gradients: of the outputs, by number, as far as the backward pass came by.
    """

    cell: nn.Cell
    args: tuple[Any, ...]
    outputs: tuple[Any, ...] = ()
    gradients: dict[int, Tensor] = field(default_factory=dict)

    def copied(self, convert: Callable[[Tensor], Tensor] | None = None) -> nn.Cell:
        """Return a copy of the cell without dropout, its parameters converted."""
        made = copy.deepcopy(self.cell)
        for _, cell in made.cells_and_names():
            if isinstance(cell, nn.Dropout):
                cell.set_train(False)
        if convert is not None:
            for parameter in made.get_parameters():
                if is_float(parameter):
                    values = convert(parameter.value())
                    parameter.set_dtype(values.dtype)
                    parameter.set_data(values)
        return made

    def run(self, cell: nn.Cell, convert: Callable[[Tensor], Tensor] | None = None) -> Results:
        """Return outputs and gradients of a copy of the cell.

        Args:
            cell: the copy.
            convert: changes arguments with floating-point elements; None leaves them.
        """

        def given(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return convert(value) if convert is not None and is_float(value) else value.copy()

        args = tuple(map(given, self.args))
        outputs = _tuple_of(cell(*args))
        found = {ResultKey("forward", i): _stored(one) for i, one in enumerate(outputs)}
        if self.gradients:
            found.update(self._gradients(cell, args, outputs))
        return found

    def _gradients(
        self, cell: nn.Cell, args: tuple[Any, ...], outputs: Sequence[Tensor]
    ) -> Iterator[tuple[ResultKey, StoredTensor]]:
        parameters = list(cell.trainable_params())
        sens = tuple(
            self.gradients[number].astype(one.dtype)
            if number in self.gradients
            else ops.zeros_like(one)
            for number, one in enumerate(outputs)
        )
        whole = sens if len(sens) > 1 else sens[0]
        if parameters:
            grad = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)
            of_inputs, of_weights = grad(cell, ParameterTuple(parameters))(*args, whole)
        else:
            of_weights = ()
            of_inputs = ops.GradOperation(get_all=True, sens_param=True)(cell)(*args, whole)
        for index, grad in enumerate(_tuple_of(of_inputs)):
            yield ResultKey("input_grad", index), _stored(grad)
        for index, (parameter, grad) in enumerate(zip(parameters, of_weights, strict=True)):
            yield ResultKey("param_grad", index, parameter.name), _stored(grad)


class _Recorder:
    """Records the first call of each cell, and the gradients of its outputs."""

    def __init__(self, names: dict[nn.Cell, str]) -> None:
        self.names = names
        self.calls: dict[nn.Cell, _CellCall] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> _Recorder:
        self._handles = [cell.register_forward_hook(self._after) for cell in self.names]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _after(self, cell: nn.Cell, args: Any, out: Any) -> None:
        if cell in self.calls:
            return
        kept = tuple(one.copy() if isinstance(one, Tensor) else one for one in _tuple_of(args))
        call = self.calls[cell] = _CellCall(cell, kept, _tuple_of(out))
        # Not a backward hook: what it leaves in the cell cannot be copied.
        for number, one in enumerate(call.outputs):
            if isinstance(one, Tensor) and one._requires_grad:
                one.register_hook(_noting(call, number))


def _noting(call: _CellCall, number: int) -> Callable[[Tensor], None]:
    def note(grad: Tensor) -> None:
        call.gradients.setdefault(number, grad.copy())

    return note


def _children_of(cell: nn.Cell) -> Iterable[tuple[str, nn.Cell]]:
    children: Mapping[str, nn.Cell] = cell.name_cells()
    return children.items()


def _never_runs(cell: nn.Cell) -> bool:
    return type(cell).construct in (nn.CellList.construct, nn.CellDict.construct)


def _with_gradients(fn: Callable[[nn.Cell], Tensor], net: nn.Cell) -> Tensor:
    """Run a function and its backward pass; return the loss."""
    weights = net.trainable_params()
    if not weights:
        return fn(net)
    loss, _ = ms.value_and_grad(lambda: fn(net), None, weights)()
    return loss


def _rows(recorder: _Recorder, options: Mapping[str, Any]) -> Iterator[CheckRow]:
    for cell, name in recorder.names.items():
        call = recorder.calls.get(cell)
        if call is None:
            yield left_out(name, "it did not run")
            continue
        try:
            yield from list(_cell_rows(name, call, options))
        except Exception as error:  # noqa: BLE001 - one cell must not cost the others
            yield left_out(name, f"{type(error).__name__}: {first_line(error)}"[:250])


def _cell_rows(name: str, call: _CellCall, options: Mapping[str, Any]) -> Iterator[CheckRow]:
    """Yield the rows of one cell."""
    if not all(isinstance(one, Tensor) for one in call.outputs):
        yield left_out(name, "its result is no tensor and no tuple of tensors")
        return
    eager, again = (call.run(call.copied()) for _ in range(2))
    if not all(is_identical(one, again[key]) for key, one in eager.items()):
        yield left_out(name, "it draws random numbers")
        return
    cell = call.copied()
    cell.construct = ms.jit(cell.construct, **options)
    compiled = call.run(cell)
    parted = [key for key, one in compiled.items() if not is_identical(one, eager[key])]
    exact = _exact(call) if parted else None
    probes = _Probes(call)
    for key, one in compiled.items():
        if key not in parted:
            yield same_row(name, key, one)
            continue
        if exact is None:
            yield left_out(name, f"{key.check_type}.{key.number} differs, no float64 kernel")
            continue
        pair = one, eager[key]
        judged = (judged_pair(each, exact[key], probes.of(key), _shapes_of(call)) for each in pair)
        yield judged_row(name, key, *pair, *judged)


def _exact(call: _CellCall) -> Results | None:
    """Return the results in float64, None where this device cannot compute them."""
    try:
        return call.run(call.copied(_in_float64), _in_float64)
    except (RuntimeError, TypeError, ValueError):
        return None


def _shapes_of(call: _CellCall) -> list[Sequence[int]]:
    """Return the shapes of all that the results of a call are made of."""
    parts = [*call.args, *call.cell.get_parameters(), *call.gradients.values()]
    return [one.shape for one in parts if isinstance(one, Tensor)]


class _Probes:
    """Runs of a cell in float64 with random errors in what it is given."""

    def __init__(self, call: _CellCall) -> None:
        self._call = call
        self._known: dict[Noise, Results] = {}

    def of(self, key: ResultKey) -> Probe:
        """Return what makes one result."""

        def probe(noise: Noise) -> StoredTensor:
            if noise not in self._known:
                generator = np.random.default_rng(noise.seed)

                def moved(tensor: Tensor) -> Tensor:
                    values = tensor.astype(ms.float64).asnumpy()
                    signs = generator.choice([-noise.unit, noise.unit], size=values.shape)
                    return Tensor(values * (1 + signs))

                self._known[noise] = self._call.run(self._call.copied(moved), moved)
            return self._known[noise][key]

        return probe


def _in_float64(tensor: Tensor) -> Tensor:
    return tensor.astype(ms.float64)


def _tuple_of(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _stored(tensor: Tensor) -> StoredTensor:
    values = tensor.asnumpy()
    if values.dtype.kind not in "biufc":  # bfloat16 and float8, as their bit patterns
        values = values.view(np.uint16 if values.dtype.itemsize == 2 else np.uint8)
    return StoredTensor(array=values, dtype=dtype_of(tensor))
