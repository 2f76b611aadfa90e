# SPDX-License-Identifier: Apache-2.0
"""`write_op_script`: one recorded call as a script that judges it on any machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

import torch

from msprobe.checks.op_scripts import (
    LINE,
    Allowed,
    ScriptError,
    ScriptOptions,
    dictionary_lines,
    docstring_text,
    power_text,
)
from msprobe.checks.shrinking import shrunk
from msprobe.checks.verify_call import CallReport, ResultRow, VerifyOptions, verify_call
from msprobe.dump.rank_view import RankView
from msprobe.dump.stack_frames import user_line
from msprobe.errors import UnsupportedError
from msprobe.files import replacing
from msprobe.pytorch.replay.functions import functions_named
from msprobe.pytorch.replay.modules import ModuleFunction
from msprobe.pytorch.replay.runner import RUNNER
from msprobe.pytorch.scripts.call_source import CallSource, call_source, output_text
from msprobe.pytorch.scripts.seeded_tensors import SeededTensors
from msprobe.pytorch.scripts.shown_call import ShownCall, shown_call
from msprobe.pytorch.scripts.tensor_source import TensorTexts, number_text
from msprobe.replay.recorded_calls import RecordedCall, recorded_call
from msprobe.replay.runner import CannotReplayError

# Two functions whose results in float64 agree this well compute the same.
_SAME: Final = 1e-10
# Longer tables of tensors are saved in the file.
_ENTRIES: Final = 6


# Rows of the metrics that mindstudio-probe judges by, with its limits for each type.
_METRICS: Final = (
    "    worst, size = float(error.max()), target.norm() * exact.norm()",
    "    cosine = float((target.conj() * exact).sum().real / size) if worst else 1.0",
    '    print(f"    cosine               {cosine:<12.6g} "'
    " + ('pass' if cosine > 0.99 else 'error'))",
    "    word = 'pass' if worst < 0.001 else 'warning'",
    "    print(f'    max absolute error   {worst:<12.6g} {word}')",
    "    strict = 2 if found[name].itemsize == 2 else 3  # fewer digits: an error, more: a warning",
    "    for digits in (2, 3, 4):",
    "        share = float((error < 10.0**-digits * exact.abs().clamp_min(2.0**-24))"
    ".double().mean())",
    "        word = 'pass' if share > 1 - 10.0**-digits else 'error' if digits <= strict else "
    "'warning'",
    "        print(f'    share within 1e-{digits}    {share:<12.6g} {word}')",
)


@dataclass(frozen=True, slots=True)
class _Result:
    """One result or gradient that the script judges.

    Attributes:
        name: in the script's output: ``output[1]``, ``gradient of weight``.
        text: expression of the result, or name of the input whose gradient it is.
        target: as recorded, or as computed again in the recorded types.
        reference: in float64.
        allowed: its allowed error.
    """

    name: str
    text: str
    target: torch.Tensor
    reference: torch.Tensor
    allowed: Allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Parts of a script.

    Attributes:
        shown: the call.
        report: its judgements.
        source: its source.
        results: what is judged.
        incoming: gradients that arrived, by expression of the result.
        recipes: expressions of tensors that are made of a seed, by name.
        reference_name: what computed the references if the script cannot.
        line: line of the user's code that made the call.
        metrics: whether the metrics of mindstudio-probe are printed as well.
    """

    shown: ShownCall
    report: CallReport
    source: CallSource
    results: list[_Result]
    incoming: dict[str, torch.Tensor]
    recipes: dict[str, str]
    reference_name: str | None
    line: str | None
    metrics: bool

    @property
    def rows(self) -> list[ResultRow]:
        """The judgements of what the script shows."""
        call = self.shown.call
        record = call.passes[0].name if self.shown.backward else call.name
        return [row for row in self.report.rows if row.record == record and row.judgement]

    @property
    def is_complex(self) -> bool:
        """Whether a tensor is complex."""
        tensors = [*self.source.inputs.values(), *(one.reference for one in self.results)]
        return any(isinstance(one, torch.Tensor) and one.is_complex() for one in tensors)


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
        parts = _parts(view, call, options)
    except (CannotReplayError, UnsupportedError) as exc:
        raise ScriptError(name, str(exc)) from exc
    texts = TensorTexts(inline=options.inline)
    lines = list(_lines(parts, texts, path))
    path.parent.mkdir(parents=True, exist_ok=True)
    if texts.beside:
        with replacing(path.with_suffix(".pt")) as temporary:
            torch.save(texts.beside, temporary)
    with replacing(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _parts(view: RankView, call: RecordedCall, options: ScriptOptions) -> _Parts:
    tensors = SeededTensors(view, inline=options.inline, seed=options.seed)
    judging = VerifyOptions(device=options.device)
    if options.shrink_s is not None:
        record = call.passes[0].name if options.backward else call.name
        call, judging = shrunk(
            call, RUNNER, tensors, judging, record=record, seconds=options.shrink_s
        )
    report = verify_call(call, RUNNER, tensors, judging)
    if not report.is_judged:
        raise ScriptError(call.name, f"{report.reason}: {report.detail}")
    tensors.begin(call.name)
    prepared = RUNNER.prepare(call, tensors)
    shown = shown_call(call, prepared, report, tensors, backward=options.backward, options=judging)
    if not shown.allowed:
        raise ScriptError(call.name, "nothing of it was judged")
    named, is_plain = _named_function(shown)
    source = call_source(call, shown.args, shown.kwargs, named)
    return _Parts(
        shown=shown,
        report=report,
        source=source,
        results=list(_results(shown, source)),
        incoming={output_text(call.outputs, at): one for at, one in shown.incoming.items()},
        recipes=_recipes(shown, source, tensors.recipes),
        reference_name=None if is_plain else report.by,
        line=user_line(tuple(view.frames(call.name))),
        metrics=options.metrics,
    )


def _named_function(shown: ShownCall) -> tuple[Any, bool]:
    """Return the function that the record names, and whether it gives the references itself."""
    if isinstance(shown.function, ModuleFunction):
        return shown.function, True
    functions = functions_named(shown.call.prefix, shown.call.api)
    if shown.function in functions:
        return shown.function, True
    for function in functions:
        try:
            found = replace(shown, function=function).run()
        except CannotReplayError:
            continue
        if all(_is_close(found.get(place), one) for place, one in shown.references.items()):
            return function, True
    return next(iter(functions), None), False


def _is_close(found: torch.Tensor | None, reference: torch.Tensor) -> bool:
    if found is None or found.shape != reference.shape or found.dtype != reference.dtype:
        return False
    return torch.allclose(found, reference, rtol=_SAME, atol=_SAME, equal_nan=True)


def _results(shown: ShownCall, source: CallSource) -> Iterator[_Result]:
    for place, allowed in shown.allowed.items():
        if shown.backward:
            text = source.places.get(place, "")
            name = f"gradient of {text}"
        else:
            text = name = output_text(shown.call.outputs, place[1:])
        if text:
            yield _Result(name, text, shown.targets[place], shown.references[place], allowed)


def _recipes(shown: ShownCall, source: CallSource, recipes: Mapping[str, str]) -> dict[str, str]:
    """Return the expressions of tensors that were made of a seed by their names in the script."""
    places = {
        name: ("input", *place[1:]) if place[0] == "output" else place[1:]
        for place, name in source.places.items()
    }
    for one in shown.call.passes[:1]:
        for place in shown.incoming:
            text = output_text(shown.call.outputs, place)
            places[text] = ("gradient", one.name, *place)
    keys = {name: ".".join(map(str, place)) for name, place in places.items()}
    return {name: recipes[key] for name, key in keys.items() if key in recipes}


def _lines(parts: _Parts, texts: TensorTexts, path: Path) -> Iterator[str]:
    """Yield the lines of the script."""
    yield from _heading(parts, path)
    body = list(_values(parts, texts))
    yield "import sys"
    if texts.beside:
        yield "from pathlib import Path"
    yield from ("import torch", "")
    if any("seeded(" in line for line in body):
        yield "seeded = torch.Generator().manual_seed"
    if texts.beside:
        yield 'data = torch.load(Path(__file__).with_suffix(".pt"), weights_only=True)'
    yield from body
    yield from _functions(parts)
    judging = list(_judging(parts))
    if parts.metrics:
        judging[-1:-1] = _METRICS
    yield from judging


def _heading(parts: _Parts, path: Path) -> Iterator[str]:
    question = "are its gradients right?" if parts.incoming else "is its result right?"
    made = f", called at {parts.line}" if parts.line else ""
    yield f'"""{docstring_text(parts.shown.call.name + made)}: {question}'
    yield ""
    row = max(parts.rows, key=lambda one: one.judgement.ratio if one.judgement else 0.0)
    assert row.judgement is not None
    found = row.judgement
    text = (
        f"{row.slot} of {row.record} ({row.dtype}) was {found.verdict}: error {found.error:.3g}, "
        f"{found.ulps:.3g} ulp, {found.ratio:.3g} times what its type explains."
    )
    if found.remark:
        text += f" {found.remark[0].upper()}{found.remark[1:]}."
    if parts.source.is_known:
        default = "the recorded one" if parts.shown.is_recorded else "that of the CPU"
        text += f" Judges the result of DEVICE: python {path.name} [DEVICE] ({default})."
    yield from wrap(docstring_text(f"{text} Exits with 1 if it is wrong."), LINE)
    yield '"""'
    yield ""


def _values(parts: _Parts, texts: TensorTexts) -> Iterator[str]:
    """Yield the inputs, the gradients that arrived, what was recorded, and what is allowed."""
    inputs = parts.source.inputs
    yield from _table("inputs", inputs, texts, parts.recipes)
    if parts.incoming:
        yield from _table("incoming", parts.incoming, texts, parts.recipes)
    if parts.shown.is_recorded:
        recorded = {one.name: one.target for one in parts.results}
        yield from _table("recorded", recorded, texts, {})
    if parts.reference_name is not None:
        yield f"# By a reference function of msprobe, in float64 ({parts.reference_name})."
        expected = {one.name: one.reference for one in parts.results}
        yield from _table("expected", expected, texts, {})
    yield "# Allowed error of an element: a part of its exact value, and an absolute one."
    budgets = [(one.name, one.allowed) for one in parts.results]
    yield from dictionary_lines(
        "budgets",
        [
            f'"{name}": ({power_text(allowed.relative)}, {number_text(allowed.absolute)})'
            for name, allowed in budgets
        ],
    )


def _table(
    title: str, values: Mapping[str, Any], texts: TensorTexts, recipes: Mapping[str, str]
) -> Iterator[str]:
    """Yield a dictionary of tensors."""
    tensors = [one for one in values.values() if isinstance(one, torch.Tensor)]
    is_large = len(tensors) > 1 and not recipes and any(map(texts.is_large, tensors))
    if len(tensors) == len(values) and (is_large or len(values) > _ENTRIES):
        texts.beside[title] = {name: one.detach().cpu() for name, one in values.items()}
        yield f'{title} = data["{title}"]'
        return
    entries = []
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            text = recipes.get(name) or texts.of(f"{title} {name}", value)
        else:
            text = f'torch.device("{value}")' if isinstance(value, torch.device) else str(value)
        entries.append(f'"{name}": {text}')
    yield from dictionary_lines(title, entries)


def _functions(parts: _Parts) -> Iterator[str]:
    """Yield the functions that make the call."""
    if not parts.source.is_known:
        return
    yield ""
    yield f"def call({', '.join(parts.source.inputs)}):"
    yield f"    return {parts.source.text}"
    yield from ("", "def on(value, device, wide):")
    kinds = {type(one) for one in parts.source.inputs.values()}
    if torch.device in kinds:
        yield "    if isinstance(value, torch.device):"
        yield "        return torch.device(device)"
    if torch.dtype in kinds:
        yield "    if isinstance(value, torch.dtype):"
        yield "        return torch.float64 if wide and value.is_floating_point else value"
    yield "    kind = torch.float64 if wide and value.is_floating_point() else value.dtype"
    if parts.is_complex:
        yield "    kind = torch.complex128 if wide and value.is_complex() else kind"
    yield "    return value.to(device, kind, copy=True)"
    yield from ("", "def results(device, wide=False):")
    yield "    values = {name: on(value, device, wide) for name, value in inputs.items()}"
    if parts.incoming:
        wanted = ", ".join(f'"{one.text}"' for one in parts.results)
        yield f"    leaves = [values[name].requires_grad_() for name in [{wanted}]]"
        yield "    output = call(**values)"
        yield "    arrived = [on(one, device, wide) for one in incoming.values()]"
        outputs = ", ".join(parts.incoming)
        yield f"    found = torch.autograd.grad([{outputs}], leaves, arrived)"
        yield "    return dict(zip(budgets, found))"
    else:
        yield "    output = call(**values)"
        pairs = ", ".join(f'"{one.name}": {one.text}' for one in parts.results)
        yield f"    return {{{pairs}}}"


def _judging(parts: _Parts) -> Iterator[str]:
    """Yield the comparison."""
    yield ""
    if parts.reference_name is None:
        yield 'expected = results("cpu", wide=True)'
    if not parts.source.is_known:
        yield "found = recorded"
    elif parts.shown.is_recorded:
        yield "found = results(sys.argv[1]) if len(sys.argv) > 1 else recorded"
    else:
        yield 'found = results(sys.argv[1] if len(sys.argv) > 1 else "cpu")'
    wide = "torch.complex128" if parts.is_complex else "torch.float64"
    yield from (
        "failed = False",
        "for name, (relative, absolute) in budgets.items():",
        "    target, exact = (one[name].detach().cpu().reshape(-1) for one in (found, expected))",
        "    same = (target == exact.to(target.dtype)) | (target.isnan() & exact.isnan())",
        f"    target, exact = target.to({wide}), exact.to({wide})",
        "    error, budget = (target - exact).abs(), relative * exact.abs() + absolute + 1e-300",
        '    ratio = (error / budget).nan_to_num(float("inf")).masked_fill(same, 0.0)',
        "    at = int(ratio.argmax())",
        "    failed |= bool(ratio[at] > 1)",
        "    print(f\"{name}: {'wrong' if ratio[at] > 1 else 'right'}, element {at} is \"",
        '          f"{target[at]:.9g} instead of {exact[at]:.9g}; "',
        '          f"error {error[at]:.3g}, budget {budget[at]:.3g}")',
        "sys.exit(failed)",
    )
