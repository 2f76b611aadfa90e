# SPDX-License-Identifier: Apache-2.0
"""`write_op_script`: one recorded call of MindSpore as a script that judges it on any machine."""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

import numpy as np

import mindspore
from mindspore import Tensor
from msprobe.checks.op_scripts import (
    LINE,
    Allowed,
    ScriptError,
    ScriptOptions,
    allowed_error,
    dictionary_lines,
    docstring_text,
    power_text,
)
from msprobe.checks.shrinking import shrunk
from msprobe.checks.verify_call import CallReport, ResultRow, VerifyOptions, verify_call
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.dump.rank_view import RankView
from msprobe.dump.stack_frames import user_line
from msprobe.dump.tensor_files import StoredTensor
from msprobe.dump.values import PartPath
from msprobe.errors import UnsupportedError
from msprobe.files import replacing
from msprobe.mindspore.replay.functions import function_of, function_path
from msprobe.mindspore.replay.tensors import MAKERS, from_mindspore, to_mindspore
from msprobe.replay.arguments import Rebuilder, readings
from msprobe.replay.forms import gradient_forms
from msprobe.replay.recorded_calls import RecordedCall, recorded_call
from msprobe.replay.runner import CannotReplayError, runner_for
from msprobe.replay.tensors import TensorSource

# Rows of the documented check of MindSpore.
_METRICS: Final = (
    "    size = float(np.sqrt((target**2).sum() * (exact**2).sum()))",
    "    cosine = (1e-8 + float((target * exact).sum())) / (1e-8 + size)",
    "    relative_error = float((error / np.maximum(np.abs(exact), 1e-300)).max(initial=0.0))",
    "    print(f\"    Cosine {cosine:.6g} {'pass' if cosine > 0.99 else 'error'}\")",
    "    largest = float(error.max(initial=0.0))",
    "    print(f\"    MaxAbsErr {largest:.6g} {'pass' if largest < 0.001 else 'error'}\")",
    '    print(f"    MaxRelativeErr {relative_error:.6g}")',
)


class _Unrecorded(TensorSource):
    """Makes all tensors of their statistics."""

    def read(self, tree: Mapping[str, Any], place: str) -> StoredTensor:
        without = {key: value for key, value in tree.items() if key != "data_name"}
        return super().read(without, place)

    def has_values(self, tree: Mapping[str, Any]) -> bool:
        return False


@dataclass(slots=True)
class _Judged:
    """Results or gradients that the script judges, by their expression or the input's name."""

    targets: dict[str, StoredTensor] = field(default_factory=dict)
    exact: dict[str, StoredTensor] = field(default_factory=dict)
    allowed: dict[str, Allowed] = field(default_factory=dict)


def write_op_script(view: RankView, name: str, path: Path, options: ScriptOptions) -> Path:
    """Write the script of one call; a file of tensors lies beside it where they are large.

    Args:
        view: the rank that recorded the call.
        name: of its forward record.
        path: of the script.
        options: what it shows.

    Raises:
        ScriptError: the call cannot be run again, or an argument cannot be written down.
        RecordNotFoundError: there is no such call.
    """
    call = recorded_call(view, name)
    if options.backward and not call.passes:
        raise ScriptError(name, "no backward pass of it was recorded")
    try:
        script = _Script(view, call, options)
        lines = list(script.lines(path))
    except (CannotReplayError, UnsupportedError) as exc:
        raise ScriptError(name, str(exc)) from exc
    path.parent.mkdir(parents=True, exist_ok=True)
    if script.beside:
        with replacing(path.with_suffix(".npz")) as temporary, temporary.open("wb") as file:
            np.savez(file, **script.beside)
    with replacing(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class _Script:
    """The parts of a script.

    Attributes:
        beside: arrays of the file beside it.
    """

    def __init__(self, view: RankView, call: RecordedCall, options: ScriptOptions) -> None:
        self.beside: dict[str, Any] = {}
        self._options = options
        self._line = user_line(tuple(view.frames(call.name)))
        seed = options.seed
        tensors = TensorSource(view) if seed is None else _Unrecorded(view, seed=seed)
        runner, judging = runner_for("mindspore"), VerifyOptions(device=options.device)
        if options.shrink_s is not None:
            record = call.passes[0].name if options.backward else call.name
            call, judging = shrunk(
                call, runner, tensors, judging, record=record, seconds=options.shrink_s
            )
        self._call = call
        self._inputs: dict[str, StoredTensor] = {}
        self._places: dict[PartPath, str] = {}
        self._source = self._call_source(tensors)
        self._incoming = self._arrived(tensors) if options.backward else {}
        self._found = _Judged()
        self._report: CallReport = verify_call(call, runner, tensors, judging, self._add)
        self._runs = self._report.generated or judging.rerun
        if not self._found.allowed:
            raise ScriptError(call.name, f"{self._report.reason}: {self._report.detail}")

    def _call_source(self, tensors: TensorSource) -> str:
        """Return the call as an expression of its inputs."""
        call = self._call
        function_of(call)
        tensors.begin(call.name)
        rebuilder = Rebuilder(tensors, to_mindspore, MAKERS)
        args = [rebuilder.value(tree, ("input", i)) for i, tree in enumerate(call.args)]
        args = next(readings(call, args))
        texts = [self._text(one, f"input{i}", ("output", i)) for i, one in enumerate(args)]
        for key, tree in call.kwargs.items():
            if not key.isidentifier() or keyword.iskeyword(key):
                raise UnsupportedError(f"{key!r} is no name that a script can hold")
            value = rebuilder.value(tree, (key,))
            texts.append(f"{key}={self._text(value, key, ('output_kwargs', key))}")
        return f"{function_path(call)}({', '.join(texts)})"

    def _text(self, value: Any, name: str, place: PartPath) -> str:
        if isinstance(value, Tensor):
            name = self._places.get(_as_place(self._call.first_place(place)), name)
            self._inputs.setdefault(name, from_mindspore(value))
            self._places[place] = name
            return name
        if isinstance(value, (list, tuple)):
            parts = [
                self._text(one, f"{name}_{key}", (*place, key)) for key, one in enumerate(value)
            ]
            is_list = isinstance(value, list)
            joined = ", ".join(parts)
            return f"[{joined}]" if is_list else f"({joined}{',' * (len(parts) == 1)})"
        if isinstance(value, mindspore.Type):
            return f"mindspore.{normal_dtype(str(value)).replace('bool', 'bool_')}"
        if value is None or value is ... or isinstance(value, (bool, int, float, str, slice)):
            return f'float("{value}")' if value in (np.inf, -np.inf) else repr(value)
        where = ".".join(map(str, place))
        raise UnsupportedError(f"{where} is a {type(value).__name__}, which no script can hold")

    def _arrived(self, tensors: TensorSource) -> dict[str, StoredTensor]:
        return {
            self._output(place[2:]): tensors.read(form, ".".join(map(str, place)))
            for place, form in gradient_forms(self._call.passes[0])
        }

    def _output(self, place: PartPath) -> str:
        """Return the expression of a result."""
        first, *rest = place
        outputs = self._call.outputs
        is_one = isinstance(outputs, list) and len(outputs) == 1
        keys = rest if is_one else [first, *rest]
        return "output" + "".join(f"[{int(key)}]" for key in keys)

    def _add(self, row: ResultRow, found: StoredTensor, reference: StoredTensor) -> None:
        """Take a judged result, if the script shows it."""
        place = _as_place(row.slot)
        if self._options.backward:
            if row.record != self._call.passes[0].name or place not in self._places:
                return
            name = self._places[place]
        elif row.record == self._call.name:
            name = self._output(place[1:])
        else:
            return
        self._found.targets[name] = found
        self._found.exact[name] = reference
        self._found.allowed[name] = allowed_error(row, found, reference)

    def lines(self, path: Path) -> Iterator[str]:
        """Yield the lines of the script."""
        question = "are its gradients right?" if self._incoming else "is its result right?"
        made = f", called at {self._line}" if self._line else ""
        yield f'"""{docstring_text(self._call.name + made)}: {question}'
        yield ""
        yield from wrap(docstring_text(self._answer(path)), LINE)
        yield '"""'
        yield ""
        body = list(self._values())
        yield "import sys"
        yield from ["from pathlib import Path"] if self.beside else []
        yield from ("", "import mindspore", "import numpy as np", "")
        if self.beside:
            yield 'data = np.load(Path(__file__).with_suffix(".npz"))'
        yield from body
        yield from self._functions()
        yield from self._judging()

    def _answer(self, path: Path) -> str:
        record = self._call.passes[0].name if self._incoming else self._call.name
        rows = [row for row in self._report.rows if row.record == record and row.judgement]
        worst = max(rows, key=lambda row: row.judgement.ratio if row.judgement else 0.0)
        assert worst.judgement is not None
        found = worst.judgement
        default = "that of the CPU" if self._runs else "the recorded one"
        return (
            f"{worst.slot} of {worst.record} ({worst.dtype}) was {found.verdict}: error "
            f"{found.error:.3g}, {found.ulps:.3g} ulp, {found.ratio:.3g} times what its type "
            f"explains. Judges the result of DEVICE: python {path.name} [DEVICE] ({default}). "
            "Exits with 1 if it is wrong."
        )

    def _values(self) -> Iterator[str]:
        yield from self._table("inputs", self._inputs)
        if self._incoming:
            yield from self._table("incoming", self._incoming)
        if not self._runs:
            yield from self._table("recorded", self._found.targets, typed=False)
        yield f"# By {self._report.by}."
        yield from self._table("expected", self._found.exact, typed=False)
        yield "# Allowed error of an element: a part of its exact value, and an absolute one."
        yield from dictionary_lines(
            "budgets",
            [
                f'"{name}": ({power_text(one.relative)}, {one.absolute})'
                for name, one in self._found.allowed.items()
            ],
        )

    def _table(
        self, title: str, values: Mapping[str, StoredTensor], *, typed: bool = True
    ) -> Iterator[str]:
        """Yield a dictionary of arrays, with the names of their types if they become tensors."""
        entries = []
        beside = {f"{title} {name}": one.values() for name, one in values.items()}
        largest = max((array.size for array in beside.values()), default=0)
        kinds = {one.dtype.replace("bool", "bool_") for one in values.values()}
        if len(values) > 1 and largest > self._options.inline and (not typed or len(kinds) == 1):
            self.beside |= beside
            names = ", ".join(f'"{name}"' for name in values)
            read = f'data[f"{title} {{name}}"]'
            text = f"({read}, mindspore.{kinds.pop()})" if typed else read
            yield f"{title} = {{name: {text} for name in [{names}]}}"
            return
        for name, one in values.items():
            array = one.values()
            if array.size <= self._options.inline:
                numbers = array.reshape(-1).tolist()
                listed = ", ".join(_number(number) for number in numbers)
                text = f"np.array([{listed}]).reshape({array.shape})"
            else:
                key = f"{title} {name}"
                self.beside[key] = array
                text = f'data["{key}"]'
            kind = one.dtype.replace("bool", "bool_")
            entries.append(
                f'"{name}": ({text}, mindspore.{kind})' if typed else f'"{name}": {text}'
            )
        yield from dictionary_lines(title, entries)

    def _functions(self) -> Iterator[str]:
        yield from ("", "def call(" + ", ".join(self._inputs) + "):")
        yield from (f"    return {self._source}", "", "def results(device):")
        yield "    mindspore.set_device(device)"
        yield "    values = {k: mindspore.Tensor(np.array(v), t) for k, (v, t) in inputs.items()}"
        if self._incoming:
            wanted = ", ".join(f'"{name}"' for name in self._found.targets)
            roots = ", ".join(self._incoming)
            yield f"    names = [{wanted}]"
            yield "    def roots(*leaves):"
            made = "call(**{**values, **dict(zip(names, leaves))})"
            if roots == "output":
                yield f"        return {made}"
            else:
                yield from (f"        output = {made}", f"        return {roots}")
            arrived = "arrived = tuple" if len(self._incoming) > 1 else "(arrived,) = "
            yield f"    {arrived}(mindspore.Tensor(np.array(v), t) for v, t in incoming.values())"
            yield "    take = mindspore.ops.GradOperation(get_all=True, sens_param=True)"
            yield "    found = take(roots)(*[values[name] for name in names], arrived)"
        else:
            yield "    output = call(**values)"
            yield f"    found = [{', '.join(self._found.targets)}]"
        yield "    half = mindspore.bfloat16  # NumPy has none"
        yield "    plain = [one.float() if one.dtype == half else one for one in found]"
        yield "    return dict(zip(budgets, (one.asnumpy() for one in plain)))"

    def _judging(self) -> Iterator[str]:
        yield ""
        if self._runs:
            yield 'found = results(sys.argv[1] if len(sys.argv) > 1 else "CPU")'
        else:
            yield "found = results(sys.argv[1]) if len(sys.argv) > 1 else recorded"
        yield from (
            "failed = False",
            "for name, (relative, absolute) in budgets.items():",
            "    target, exact = (np.asarray(one[name], np.float64).reshape(-1)"
            " for one in (found, expected))",
            "    same = (target == exact) | (np.isnan(target) & np.isnan(exact))",
            "    error = np.where(same, 0.0, np.abs(target - exact))",
            "    budget = relative * np.abs(exact) + absolute + 1e-300",
            "    ratio = np.nan_to_num(error / budget, nan=np.inf)",
            "    at = int(ratio.argmax())",
            "    failed |= bool(ratio[at] > 1)",
            *(_METRICS if self._options.metrics else ()),
            "    print(f\"{name}: {'wrong' if ratio[at] > 1 else 'right'}, element {at} is \"",
            '          f"{target[at]:.9g} instead of {exact[at]:.9g}; "',
            '          f"error {error[at]:.3g}, budget {budget[at]:.3g}")',
            "sys.exit(failed)",
        )


def _as_place(slot: str) -> PartPath:
    return tuple(int(key) if key.isdigit() else key for key in slot.split("."))


def _number(number: Any) -> str:
    if isinstance(number, float) and not np.isfinite(number):
        return f'float("{number}")'
    return repr(number)
