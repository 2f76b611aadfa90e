# SPDX-License-Identifier: Apache-2.0
"""A comparison of checkpoints as plain data for strict JSON."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msprobe.checkpoints.changes import Change
from msprobe.checkpoints.comparing import CheckpointComparison, Finding, ParameterDifference
from msprobe.checkpoints.layers import layers
from msprobe.checkpoints.parameters import Checkpoint
from msprobe.checkpoints.values import value_texts
from msprobe.dump.records import JsonTree
from msprobe.errors import UsageError
from msprobe.files import write_report
from msprobe.json_text import strict_json
from msprobe.numerics.element_metrics import ElementMetrics

SCHEMA_VERSION: Final = 1

_NUMBERS: Final = (
    "unequal",
    "mismatches",
    "max_abs_err",
    "max_abs_target",
    "max_abs_reference",
    "max_rel_err",
    "mean_abs_err",
    "p999_abs_err",
    "rmse",
    "relative_l2",
    "max_ulp",
    "sign_flips",
    "target_nan",
    "target_pos_inf",
    "target_neg_inf",
    "reference_nan",
    "reference_pos_inf",
    "reference_neg_inf",
)


def comparison_json(found: CheckpointComparison) -> dict[str, JsonTree]:
    """Return a comparison as plain data, with its summary and all parameters."""
    return {
        "schema_version": SCHEMA_VERSION,
        "equal": found.is_equal,
        "different": found.is_different,
        "counts": {change.value: count for change, count in found.counts.items()},
        "ranked": [{"change": kind, "name": name} for kind, name in found.ranked()],
        "value_counts": {change.value: count for change, count in found.value_counts.items()},
        "target": _checkpoint_json(found.target),
        "reference": _checkpoint_json(found.reference),
        "notes": list(found.notes),
        "elapsed_s": round(found.elapsed_s, 3),
        "bytes_read": found.bytes_read,
        "uncompared": _findings_json(found.uncompared),
        "contradictions": _findings_json(found.contradictions),
        "layers": [
            {
                "layer": layer.number,
                "parameters": layer.parameters,
                "changed": layer.changed,
                "relative_l2": layer.relative_error,
            }
            for layer in layers(found.differences)
        ],
        "parameters": parameters_json(found),
        "values": _values_json(found),
    }


def parameters_json(found: CheckpointComparison) -> dict[str, JsonTree]:
    """Return one object a parameter, by name.

    ``l2``, ``cos``, ``numel`` and ``shape`` are those of mindstudio-probe: distance and cosine are
    null where the shapes differ or one side is missing, and ``shape`` then lists both shapes.
    """
    trees: dict[str, JsonTree] = {}
    for each in found.differences:
        # The two sides may spell different paths alike.
        name = each.name if each.name not in trees else f"{each.name} ({each.change})"
        trees[name] = _difference_json(each)
    return trees


def _findings_json(findings: Iterable[Finding]) -> list[JsonTree]:
    return [
        {"side": each.side, "name": each.name, "problem": each.problem, "count": each.count}
        for each in findings
    ]


def _values_json(found: CheckpointComparison) -> list[JsonTree]:
    """Return the values that are not equal, one object each."""
    trees: list[JsonTree] = []
    for each in found.values:
        if each.change is not Change.EQUAL:
            target, reference = value_texts(each)
            trees.append(
                {
                    "name": each.name,
                    "change": each.change.value,
                    "target": target,
                    "reference": reference,
                }
            )
    return trees


def write_json(path: Path, tree: JsonTree) -> None:
    """Write a new file.

    Raises:
        UsageError: there is a file of that name.
        ReportWriteError: it cannot be written.
    """
    if path.exists():
        raise UsageError(f"{path} exists already; remove it or name another file")
    write_report(path, strict_json(tree))


def max_abs_index(difference: ParameterDifference) -> list[int] | None:
    """Return the coordinates of the largest error, None if there is none."""
    metrics = difference.metrics
    return None if metrics is None else _coordinates(difference, metrics.max_abs_index)


def nonfinite_index(difference: ParameterDifference) -> list[int] | None:
    """Return the coordinates of the first element where the sides disagree about NaN or Inf."""
    metrics = difference.metrics
    return None if metrics is None else _coordinates(difference, metrics.first_nonfinite_mismatch)


def _coordinates(difference: ParameterDifference, place: int | None) -> list[int] | None:
    if place is None:
        return None
    rest, index = place, list[int]()
    for size in reversed(difference.parameter.shape):
        rest, place = divmod(rest, size)
        index.append(place)
    return index[::-1]


def cosine(metrics: ElementMetrics | None) -> float | None:
    """Return the cosine; 1 where both sides are zero, None where one side is."""
    if metrics is None:
        return None
    if metrics.target_norm == 0.0 == metrics.reference_norm:
        return 1.0
    return metrics.cosine


def _checkpoint_json(checkpoint: Checkpoint) -> dict[str, JsonTree]:
    return {
        "path": str(checkpoint.path),
        "kind": checkpoint.kind,
        "parameters": len(checkpoint.parameters),
        "elements": sum(parameter.count for parameter in checkpoint.parameters.values()),
        "bytes": sum(parameter.size_bytes for parameter in checkpoint.parameters.values()),
    }


def _difference_json(each: ParameterDifference) -> dict[str, JsonTree]:
    target, reference, metrics = each.pair.target, each.pair.reference, each.metrics
    shapes = [list(item.shape) for item in (target, reference) if item is not None]
    dtypes = [item.dtype for item in (target, reference) if item is not None]
    tree: dict[str, JsonTree] = {
        "l2": None if metrics is None else _number(metrics.euclidean),
        "cos": _number(cosine(metrics)),
        "numel": each.parameter.count,
        "shape": shapes[0] if shapes[0] == shapes[-1] else shapes,
        "change": each.change.value,
        "dtype": dtypes[0] if dtypes[0] == dtypes[-1] else dtypes,
    }
    if target is not None and reference is not None and target.name != reference.name:
        tree["reference_name"] = reference.name
    if each.pair.is_renamed:
        tree["relation"] = each.pair.relation.value
    if metrics is not None:
        tree |= {key: _number(getattr(metrics, key)) for key in _NUMBERS}
        tree["max_abs_index"] = max_abs_index(each)
        tree["nonfinite_index"] = nonfinite_index(each)
    if each.rounded_to:
        tree["rounded_to"] = each.rounded_to
    if each.problem:
        tree["problem"] = each.problem
    return tree


def _number(value: float | complex | None) -> JsonTree:
    return [value.real, value.imag] if isinstance(value, complex) else value
