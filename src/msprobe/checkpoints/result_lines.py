# SPDX-License-Identifier: Apache-2.0
"""A comparison of checkpoints for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from rich.text import Text

from msprobe.checkpoints.changes import Change
from msprobe.checkpoints.comparing import CheckpointComparison, Finding, ParameterDifference
from msprobe.checkpoints.key_paths import KeyPath, path_name
from msprobe.checkpoints.layers import WITH_ERROR, layer_map, layers, shade
from msprobe.checkpoints.optimizers import (
    StatePlace,
    find_optimizers,
    names_parameters,
    state_place,
)
from msprobe.checkpoints.parameters import Checkpoint, Parameter
from msprobe.checkpoints.result_json import cosine, max_abs_index, nonfinite_index
from msprobe.checkpoints.values import ValueDifference, value_texts
from msprobe.numerics.element_metrics import ElementMetrics
from msprobe.plain_text import count_text, plain, size_text
from msprobe.report.value_text import number_text

Item = TypeVar("Item")

_LISTED: Final = 20
_MOST_KINDS: Final = 16
_MOST_LAYERS: Final = 100
_TITLES: Final = {
    Change.REMOVED: "only in the reference",
    Change.ADDED: "only in the target",
    Change.RENAMED: "renamed: equal values under another name",
    Change.TRANSPOSED: "transposed, equal values",
    Change.JOINED: "joined: several of the reference in one, equal values",
    Change.SPLIT: "split: one of the reference in several, equal values",
    Change.TIED: "tied: equal to another parameter, which one side has once",
    Change.SHAPE: "other shape",
    Change.ROUNDED: "rounded alike: one side is exactly the other one, rounded",
    Change.DTYPE: "other type, equal values",
}

_VALUE_TITLES: Final = {
    Change.CHANGED: "other value",
    Change.DTYPE: "other type, equal value",
    Change.REMOVED: "values only in the reference",
    Change.ADDED: "values only in the target",
}


def comparison_lines(found: CheckpointComparison, *, limit: int = _LISTED) -> Iterator[Text]:
    """Yield the lines of a comparison; at most `limit` parameters a section, 0 for all."""
    yield _checkpoint_line("target", found.target)
    yield _checkpoint_line("reference", found.reference)
    yield Text()
    yield _verdict(found)
    ranked = found.ranked()
    if len(ranked) > 1:
        yield Text.assemble(("first: ", "dim"), (plain(ranked[0][1]), "bold"), f"  {ranked[0][0]}")
    optimizers = find_optimizers(
        value for side in (found.target, found.reference) for value in side.values.values()
    )
    title = "copies that should be alike, and are not"
    yield from _finding_lines(title, found.contradictions, limit)
    changed = [
        each
        for each in found.worst()
        if each.change is Change.NONFINITE or state_place(each.parameter.path, optimizers) is None
    ]
    if changed:
        yield Text()
        first = "NaN and Inf first, then " if changed[0].nonfinite else ""
        yield Text(f"  changed, {first}the largest relative difference first", "bold")
        yield Text("   rel. l2    max abs       unequal     cosine  where, parameter", "dim")
        yield from _limited(changed, _changed_line, limit)
    model = [
        each for each in found.differences if state_place(each.parameter.path, optimizers) is None
    ]
    yield from _layer_lines(model)
    yield from _optimizer_lines(found, optimizers)
    states, lists = _renamed_with_parameters(found, optimizers) if limit else (set(), set())
    for change, title in _TITLES.items():
        items = [each for each in found.differences if each.change is change]
        items = [each for each in items if each.name not in states]
        if items:
            yield Text()
            yield Text(f"  {title}", "bold")
            yield from _limited(items, _plain_line, limit)
        if change is Change.RENAMED and states:
            what = count_text(len(states), "state")
            what += f" and {count_text(len(lists), 'list')} of parameters" if lists else ""
            yield Text(f"    with them {what} of optimizers", "dim")
    yield from _value_lines([each for each in found.values if each.name not in lists], limit)
    yield from _finding_lines("not compared", found.uncompared, limit)
    for note in found.notes[: limit or None]:
        yield Text(f"  note: {plain(note)}", "yellow")
    if limit and len(found.notes) > limit:
        yield Text(f"  … {count_text(len(found.notes) - limit, 'further note')}", "dim")


def _layer_lines(differences: Sequence[ParameterDifference]) -> Iterator[Text]:
    """Yield a picture of the relative error by layer and kind, where several layers have any."""
    if not any(each.change in WITH_ERROR for each in differences):
        return
    picture = layer_map(differences)
    kinds = [
        kind
        for kind in picture.kinds
        if any(picture.errors.get((kind, number)) for number in picture.numbers)
    ][:_MOST_KINDS]
    if len(picture.numbers) < 2 or not kinds:
        return
    numbers = picture.numbers[:_MOST_LAYERS]
    yield Text()
    title = f"  relative l2 by layer, {numbers[0]} to {numbers[-1]}"
    yield Text.assemble((title, "bold"), ("   · equal, ▁ 1e-7 … █ 1, ! NaN or Inf", "dim"))
    for kind in kinds:
        shades = "".join(shade(picture.errors.get((kind, number))) for number in numbers)
        yield Text.assemble(f"    {shades}  ", (plain(kind), "dim"))
    changed = [layer for layer in layers(differences) if layer.changed]
    worst = max(changed, key=lambda layer: layer.relative_error)
    place = "outside the layers" if worst.number is None else f"in layer {worst.number}"
    text = f"{count_text(len(changed), 'layer')} changed, most {place}"
    yield Text(f"    {text}: {number_text(worst.relative_error)}", "dim")


def _optimizer_lines(found: CheckpointComparison, optimizers: list[KeyPath]) -> Iterator[Text]:
    """Yield a line for each kind of state that changed, with the parameter that changed most."""
    states: dict[tuple[KeyPath, str], list[tuple[StatePlace, ParameterDifference]]] = {}
    for each in found.differences:
        place = state_place(each.parameter.path, optimizers)
        if place is not None:
            states.setdefault((place.optimizer, place.key), []).append((place, each))
    lines = [
        _state_line(key, items)
        for key, items in states.items()
        if any(each.change is Change.CHANGED for _, each in items)
    ]
    if lines:
        yield Text()
        yield Text("  states of the optimizer", "bold")
        yield from lines


def _state_line(
    key: tuple[KeyPath, str], items: list[tuple[StatePlace, ParameterDifference]]
) -> Text:
    changed = [(place, each) for place, each in items if each.change is Change.CHANGED]
    place, worst = max(changed, key=lambda item: item[1].relative_error)
    text = f"{len(changed):,} of {len(items):,} changed"
    metrics = worst.metrics
    if metrics is not None and metrics.count == 1:
        text += f", {metrics.max_abs_reference:g} → {metrics.max_abs_target:g}"
    elif metrics is not None:
        text += f", relative l2 up to {number_text(metrics.relative_l2)}"
    name = path_name((*key[0], key[1]))
    return Text.assemble(f"    {plain(name)}  {text}", (f"  {plain(place.parameter)}", "dim"))


def _renamed_with_parameters(
    found: CheckpointComparison, optimizers: list[KeyPath]
) -> tuple[set[str], set[str]]:
    """Return the states, and the lists of names, that have the new names of renamed parameters."""
    renamed: dict[str, str] = {}
    states: dict[str, tuple[str, str]] = {}
    for each in found.differences:
        one, other = each.pair.reference, each.pair.target
        if each.change is not Change.RENAMED or one is None or other is None:
            continue
        places = (state_place(one.path, optimizers), state_place(other.path, optimizers))
        if places[0] is not None and places[1] is not None:
            states[each.name] = places[0].parameter, places[1].parameter
        renamed |= {path_name(one.path[cut:]): path_name(other.path[cut:]) for cut in (0, 1)}
    lists = set()
    for value in found.values:
        if value.change is Change.CHANGED and names_parameters(value.value.path):
            texts = [one.content for one in (value.reference, value.target) if one is not None]
            if all(isinstance(text, tuple) for text in texts):
                old, new = ([str(name) for name in text] for text in texts)
                if sorted(renamed.get(name, name) for name in old) == sorted(new):
                    lists.add(value.name)
    return {name for name, (old, new) in states.items() if renamed.get(old) == new}, lists


def _value_lines(values: Sequence[ValueDifference], limit: int) -> Iterator[Text]:
    for change, title in _VALUE_TITLES.items():
        items = [each for each in values if each.change is change]
        if items:
            yield Text()
            yield Text(f"  {title}", "bold")
            yield from _limited(items, _value_line, limit)


def _value_line(each: ValueDifference) -> Text:
    target, reference = value_texts(each)
    text = f"{reference} → {target}"
    if each.change in (Change.ADDED, Change.REMOVED):
        text = target if each.reference is None else reference
    return Text.assemble(f"    {plain(each.name)}", (f"  {plain(text)}", "dim"))


def _finding_lines(title: str, findings: Sequence[Finding], limit: int) -> Iterator[Text]:
    if findings:
        yield Text()
        yield Text(f"  {title}", "bold")
        yield from _limited(findings, _finding_line, limit)


def _finding_line(each: Finding) -> Text:
    problem = f"  {each.side}: {plain(each.problem)}"
    return Text.assemble(f"    {plain(each.name)}", (problem, "dim"))


def _checkpoint_line(label: str, checkpoint: Checkpoint) -> Text:
    items = checkpoint.parameters.values()
    size = size_text(sum(item.size_bytes for item in items))
    text = f"{plain(checkpoint.kind)}, {count_text(len(items), 'parameter')}, {size}"
    if checkpoint.values:
        text += f", {count_text(len(checkpoint.values), 'value')}"
    return Text.assemble(
        (f"{label}".ljust(11), "dim"), plain(str(checkpoint.path)), (f"  {text}", "dim")
    )


def _verdict(found: CheckpointComparison) -> Text:
    counts = ", ".join(_counted(found.counts)) or "no parameters"
    values = ", ".join(_counted(found.value_counts))
    if values:
        counts += f"; other values: {values}"
    if found.contradictions:
        counts += f"; {len(found.contradictions):,} contradictory"
    if found.uncompared:
        counts += f"; {sum(each.count for each in found.uncompared):,} not compared"
    word, style = "different", "bold red"
    if not found.is_different:
        word, style = "equal", "bold green"
        if found.uncompared:
            word, style = "no difference in what was compared", "bold yellow"
    return Text.assemble((word, style), f": {counts}")


def _counted(counts: dict[Change, int]) -> Iterator[str]:
    return (f"{count:,} {change.value}" for change, count in counts.items() if count)


def _limited(items: Sequence[Item], line: Callable[[Item], Text], limit: int) -> Iterator[Text]:
    """Yield the lines of the first items, and how many there are more."""
    yield from map(line, items[: limit or None])
    if limit and len(items) > limit:
        yield Text(f"    … {len(items) - limit:,} more", "dim")


def _changed_line(each: ParameterDifference) -> Text:
    metrics = each.metrics
    if metrics is None:
        return Text(f"  {plain(each.name)}  {each.problem}")
    largest = metrics.max_abs_err
    place = max_abs_index(each)
    numbers = (
        number_text(metrics.relative_l2).rjust(10),
        number_text(largest).rjust(11),
        f"{metrics.unequal:,}".rjust(14),
        _cosine_text(metrics).rjust(11),
    )
    if each.change is Change.NONFINITE:
        return _nonfinite_line(each, metrics)
    return Text.assemble(
        "".join(numbers),
        f"  {place if place is not None else ''} ",
        (plain(each.name), "bold"),
        (f"  {_types(each)}{_relation(each)}", "dim"),
    )


def _relation(each: ParameterDifference) -> str:
    """Return the reference's name and how it was found, where it was not found by its name."""
    reference = each.pair.reference
    if reference is None or not each.pair.is_renamed:
        return ""
    return f", was {plain(reference.name)} ({each.pair.relation.value})"


def _nonfinite_line(each: ParameterDifference, metrics: ElementMetrics) -> Text:
    infinities = (
        metrics.target_pos_inf + metrics.target_neg_inf,
        metrics.reference_pos_inf + metrics.reference_neg_inf,
    )
    counts = [
        f"{target:,} {word} ({reference:,} in the reference)"
        for word, target, reference in (
            ("NaN", metrics.target_nan, metrics.reference_nan),
            ("Inf", *infinities),
        )
        if target or reference
    ]
    return Text.assemble(
        ("  " + ", ".join(counts), "bold red"),
        f"  first at {nonfinite_index(each)} ",
        (plain(each.name), "bold"),
        (f"  {_types(each)}", "dim"),
    )


def _cosine_text(metrics: ElementMetrics) -> str:
    value = cosine(metrics)
    return "-" if value is None else f"{value:.6f}"


def _plain_line(each: ParameterDifference) -> Text:
    target, reference = each.pair.target, each.pair.reference
    renamed = ""
    if target is not None and reference is not None and target.name != reference.name:
        renamed = f"{plain(reference.name)} → "
    return Text.assemble(f"    {renamed}{plain(each.name)}", (f"  {_types(each)}", "dim"))


def _types(each: ParameterDifference) -> str:
    texts = [_type(item) for item in (each.pair.reference, each.pair.target) if item is not None]
    rounded = f", rounded to {each.rounded_to}" if each.rounded_to else ""
    return " → ".join(dict.fromkeys(texts)) + rounded


def _type(item: Parameter) -> str:
    return plain(f"{item.dtype}[{','.join(map(str, item.shape))}]")
