# SPDX-License-Identifier: Apache-2.0
"""Made-up comparisons of a small transformer: what the reports are given, with fixed numbers."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import polars as pl

DIFFERENT = ("differs", "shape", "dtype", "missing", "added", "nonfinite")
STATUSES = ("equal", "close", "unread", *DIFFERENT)

_TEXT = pl.String
_TENSOR_STATISTICS = ("max", "min", "mean", "norm")
SCHEMA: dict[str, Any] = {
    "step": pl.Int64,
    "rank": _TEXT,
    "order": pl.Int64,
    **dict.fromkeys(("name", "target_name", "reference_name", "operation", "kind", "role"), _TEXT),
    **dict.fromkeys(("slot", "module", "api", "status", "origin"), _TEXT),
    "error": pl.Float64,
    "cause": _TEXT,
    "reason": _TEXT,
    "match": _TEXT,
    "confidence": pl.Float64,
    **dict.fromkeys(("target_dtype", "reference_dtype", "target_shape"), _TEXT),
    **dict.fromkeys(("reference_shape", "target_value", "reference_value"), _TEXT),
    "target_requires_grad": pl.Boolean,
    "reference_requires_grad": pl.Boolean,
    **{f"target_{name}": pl.Float64 for name in _TENSOR_STATISTICS},
    **{f"reference_{name}": pl.Float64 for name in _TENSOR_STATISTICS},
    **dict.fromkeys(("target_nan", "target_inf", "reference_nan", "reference_inf"), pl.Int64),
    **dict.fromkeys(("mismatches", "unequal", "count"), pl.Int64),
    "max_abs_err": pl.Float64,
    "max_abs_index": _TEXT,
    "max_abs_target": pl.Float64,
    "max_abs_reference": pl.Float64,
    "max_rel_err": pl.Float64,
    "max_rel_index": _TEXT,
    "max_rel_target": pl.Float64,
    "max_rel_reference": pl.Float64,
    **dict.fromkeys(("mean_abs_err", "p999_abs_err", "rmse", "relative_l2", "cosine"), pl.Float64),
    "max_ulp": pl.Int64,
    "sign_flips": pl.Int64,
    **dict.fromkeys(("ratio_1e3", "ratio_5e3"), pl.Float64),
    **dict.fromkeys(("first_nonfinite", "target_md5", "reference_md5"), _TEXT),
    **dict.fromkeys(("target_file", "reference_file", "source"), _TEXT),
}


@dataclass
class Sample:
    """Rows as they come; `frame` and `summary` are what the reports read."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    order: int = -1
    step: int = 0
    rank: str = "0"

    def call(self, operation: str, module: str, values: list[dict[str, Any]], **more: Any) -> None:
        """Add an operation with its values; `more` holds for all of them."""
        self.order += 1
        for value in values:
            self.rows.append(self._row(operation, module, {**more, **value}))

    def _row(self, operation: str, module: str, value: dict[str, Any]) -> dict[str, Any]:
        row = dict.fromkeys(SCHEMA)
        name = f"{operation}.{value['slot']}"
        backward = ".backward" in operation
        row |= {
            "step": self.step,
            "rank": self.rank,
            "order": self.order,
            "name": name,
            "target_name": name,
            "reference_name": name,
            "operation": operation,
            "kind": "backward" if backward else "forward",
            "role": value["slot"].split(".")[0].replace("parameters", "parameter"),
            "module": module,
            "api": operation.split(".")[1],
            "status": "equal",
            "cause": None,
            "reason": "",
            "match": "exact",
            "confidence": 1.0,
        }
        row |= value
        if "parameter_grad" in row["kind"]:
            row["role"] = "parameter_grad"
        if row["target_shape"] and row["status"] not in ("missing", "added"):
            row = {**_compared(row), **value}
        for side, status in (("reference", "added"), ("target", "missing")):
            if row["status"] == status:
                row[f"{side}_name"] = None
                row |= {key: None for key in row if key.startswith(f"{side}_")}
        return row

    @property
    def frame(self) -> pl.DataFrame:
        return pl.DataFrame(self.rows, schema=SCHEMA, orient="row")


def tensor(slot: str, error: float | None = 0.0, **more: Any) -> dict[str, Any]:
    """Return a value with that relative error; its status follows unless given."""
    shape, dtype = more.pop("shape", "[4, 128, 256]"), more.pop("dtype", "float32")
    status = "equal" if not error else "close" if error < 1e-5 else "differs"
    value = {
        "slot": slot,
        "error": error,
        "status": status,
        "target_shape": shape,
        "reference_shape": shape,
        "target_dtype": dtype,
        "reference_dtype": dtype,
    }
    if status == "differs":
        value["origin"] = "inherited"
    return value | more


def number(slot: str, value: str) -> dict[str, Any]:
    return {"slot": slot, "target_value": value, "reference_value": value}


def _compared(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with metrics that fit its error."""
    error = min(row["error"] or 0.0, 1e9)
    count = math.prod(int(size) for size in row["target_shape"].strip("[]").split(",") if size)
    statistics = {"max": 3.25, "min": -3.5, "mean": 0.01, "norm": 362.04}
    row |= {f"reference_{key}": value for key, value in statistics.items()}
    row |= {f"target_{key}": value * (1 + error) for key, value in statistics.items()}
    differs = row["status"] in DIFFERENT
    return row | {
        "count": count,
        "target_nan": 0,
        "target_inf": 0,
        "reference_nan": 0,
        "reference_inf": 0,
        "mismatches": int(count * 0.83) if differs else 0,
        "unequal": int(count * 0.99) if error else 0,
        "max_abs_err": error * 3.5,
        "max_abs_index": "[1, 17, 203]" if error else None,
        "max_abs_target": -3.5 * (1 + error),
        "max_abs_reference": -3.5,
        "max_rel_err": error * 40,
        "max_rel_index": "[3, 96, 5]" if error else None,
        "max_rel_target": 0.011 * (1 + error * 40),
        "max_rel_reference": 0.011,
        "mean_abs_err": error * 0.61,
        "p999_abs_err": error * 3.1,
        "rmse": error * 0.77,
        "relative_l2": error,
        "cosine": 1 - error**2 / 2,
        "max_ulp": int(error * 2**23 * 40),
        "sign_flips": int(error * 1000),
        "ratio_1e3": 1.0 if error < 1e-5 else 0.12,
        "ratio_5e3": 1.0 if error < 1e-5 else 0.41,
        "target_file": f"{row['name']}.npy",
        "reference_file": f"{row['name']}.npy",
    }


NOISE = 3.1e-7


def transformer(layers: int = 4, step: int = 0, rank: str = "0") -> Sample:
    """Return a comparison in which layer 1 has lost the scale of its attention.

    The weight of the last layer's `fc2` differs as well, one gradient holds NaN, and some calls
    have no partner or were aligned.
    """
    sample = Sample(step=step, rank=rank)
    sample.call("Module.Gpt.forward.0", "", [tensor("input.0", dtype="int64", shape="[4, 128]")])
    sample.call(
        "Functional.embedding.0.forward",
        "embed",
        [tensor("input.0", dtype="int64", shape="[4, 128]"), tensor("output.0", NOISE)],
        source="model.py:21",
    )
    error = NOISE
    for layer in range(layers):
        error = _forward_layer(sample, layer, error, is_last=layer == layers - 1)
    sample.call(
        "Functional.cross_entropy.0.forward",
        "",
        [
            tensor("input.0", error, shape="[512, 1000]"),
            number("kwargs.label_smoothing", "0.0"),
            tensor("output.0", error, shape="[]", max_abs_index=None),
        ],
        source="train.py:63",
    )
    for layer in reversed(range(layers)):
        error = _backward_layer(sample, layer, error)
    return sample


def _forward_layer(sample: Sample, layer: int, error: float, *, is_last: bool) -> float:
    path = f"layers.{layer}"
    lost_scale = layer == 1
    sample.call(
        f"Module.{path}.Block.forward.0",
        path,
        [
            tensor("input.0", error),
            tensor("output.0", 0.0371 if lost_scale else error * 1.1 if layer else error),
        ],
        source="model.py:58",
    )
    sample.call(
        f"Functional.linear.{4 * layer}.forward",
        f"{path}.attn.qkv",
        [
            tensor("input.0", error),
            tensor("input.1", shape="[768, 256]"),
            tensor("output.0", error, shape="[4, 128, 768]"),
        ],
        source="model.py:33",
    )
    after = 0.0421 if lost_scale else error * 1.07
    reason = "the inputs agree; without scale=0.125 the softmax is sharper"
    found = {"origin": "introduced", "reason": reason} if lost_scale else {}
    sample.call(
        f"Functional.scaled_dot_product_attention.{layer}.forward",
        f"{path}.attn",
        [
            *(tensor(f"input.{n}", error, shape="[4, 8, 128, 32]") for n in range(3)),
            tensor("output.0", after, shape="[4, 8, 128, 32]", **found),
        ],
        source="model.py:36",
    )
    error = max(error, after * 0.9)
    sample.call(
        f"Tensor.add.{2 * layer}.forward",
        path,
        [tensor("input.0", error), tensor("input.1", error), tensor("output.0", error)],
        match="alias",
        confidence=0.95,
        source="model.py:59",
    )
    sample.call(
        f"Module.{path}.mlp.fc2.Linear.forward.0",
        f"{path}.mlp.fc2",
        [
            tensor("input.0", error, shape="[4, 128, 1024]"),
            _weight(is_last),
            tensor("output.0", 0.18 if is_last else error * 1.05),
        ],
        source="model.py:47",
        **({"match": "aligned", "confidence": 0.71} if layer == 2 else {}),
    )
    if layer == 2:
        sample.call(
            "Tensor.clone.0.forward",
            f"{path}.mlp",
            [tensor(f"{slot}.0", None, status="added") for slot in ("input", "output")],
            match="unmatched",
            confidence=0.0,
            source="model.py:49",
        )
        sample.call(
            "Functional.dropout.2.forward",
            f"{path}.mlp",
            [tensor(f"{slot}.0", None, status="missing") for slot in ("input", "output")],
            match="unmatched",
            confidence=0.0,
        )
    return 0.18 if is_last else min(error * 1.05, 3.0)


def _weight(differs: bool) -> dict[str, Any]:
    found = {"origin": "introduced", "reason": "the weight itself differs"} if differs else {}
    shape = "[256, 1024]"
    error = 0.25 if differs else 0.0
    return tensor("parameters.weight", error, kind="parameter", shape=shape, **found)


def _backward_layer(sample: Sample, layer: int, error: float) -> float:
    path = f"layers.{layer}"
    nan = layer == 0
    name = f"Functional.scaled_dot_product_attention.{layer}.backward"
    broken = {
        "status": "nonfinite",
        "origin": "introduced",
        "reason": "3 NaN where the reference has none",
        "target_nan": 3,
        "target_max": math.nan,
        "target_norm": math.nan,
        "first_nonfinite": "[0, 2, 11, 4]",
    }
    sample.call(
        name,
        f"{path}.attn",
        [
            tensor("input.0", error, shape="[4, 8, 128, 32]"),
            tensor(
                "output.0",
                None if nan else error,
                shape="[4, 8, 128, 32]",
                **(broken if nan else {}),
            ),
        ],
        source="model.py:36",
    )
    dtype = {"target_dtype": "bfloat16", "status": "dtype", "origin": None}
    sample.call(
        f"Module.{path}.mlp.fc2.Linear.parameters_grad",
        f"{path}.mlp.fc2",
        [tensor("weight", error, shape="[256, 1024]", **(dtype if layer == 2 else {}))],
        kind="parameter_grad",
    )
    return min(error * 1.2, 8.0)


def equal_run(rows: int = 12, step: int = 0) -> Sample:
    """Return a comparison without a difference."""
    sample = Sample(step=step)
    for n in range(rows):
        values = [tensor("input.0"), tensor("output.0", NOISE if n % 3 == 0 else 0.0)]
        sample.call(f"Functional.relu.{n}.forward", f"layers.{n % 4}", values)
    return sample


def unread_run(step: int = 0) -> Sample:
    """Return a comparison where one value could not be read and all others agree."""
    sample = equal_run(step=step)
    values = [tensor("output.0", status="unread", reason="target: b.pt is missing")]
    sample.call("Functional.gelu.0.forward", "layers.9", [tensor("input.0"), *values])
    return sample


def joined(*samples: Sample) -> pl.DataFrame:
    return pl.concat([sample.frame for sample in samples])


def summary_of(frame: pl.DataFrame, **more: Any) -> dict[str, Any]:
    """Return a summary as the comparison makes it."""
    rows = frame.to_dicts()
    counts = Counter(row["status"] for row in rows)
    different = [row for row in rows if row["status"] in DIFFERENT]
    introduced = [row for row in rows if row["origin"] == "introduced"]
    introduced.sort(key=lambda row: (row["kind"] == "backward", row["kind"] != "parameter"))
    unmatched = {
        word: sorted({row["operation"] for row in rows if row["status"] == word})
        for word in ("added", "missing")
    }
    tree = {
        "schema_version": 1,
        "msprobe_version": "1.0.0",
        "mode": "tensor",
        "target": "runs/new/step0",
        "reference": "runs/good/step0",
        "equal": not different and not counts["unread"],
        "counts": {status: counts[status] for status in STATUSES},
        "origins": dict(Counter(row["origin"] for row in rows if row["origin"])),
        "rows": len(rows),
        "operations": len({(row["step"], row["rank"], row["order"]) for row in rows}),
        "first_difference": _first(different),
        "introduced": [_culprit(row) for row in introduced[:100]],
        "introduced_total": len(introduced),
        "unmatched": {
            "target": len(unmatched["added"]),
            "reference": len(unmatched["missing"]),
            "operations": unmatched,
        },
        "comparisons": _comparisons(rows),
        "next_steps": _next_steps(introduced),
        "notes": [],
        "elapsed_s": 2.4312,
        "bytes_read": 4_290_000_000,
    }
    return tree | more


def _next_steps(introduced: list[dict[str, Any]]) -> list[str]:
    if not introduced:
        return []
    first = introduced[0]
    return [
        f"look at {first['operation']} in {first['source']}: its inputs agree, its result does not",
        f"msprobe show runs/new/step0 {first['operation']}",
    ]


def _first(different: list[dict[str, Any]]) -> dict[str, Any] | None:
    # A module stands before what runs inside it, where a difference of its result was made.
    inner = (row for row in different if not row["operation"].startswith("Module.layers.1.Block"))
    return next((_place(row) for row in inner), None)


def _place(row: dict[str, Any]) -> dict[str, Any]:
    keys = ("name", "status", "origin", "step", "rank", "order", "module", "kind", "error")
    return {key: row[key] for key in (*keys, "reason", "source")}


def _culprit(row: dict[str, Any]) -> dict[str, Any]:
    keys = ("kind", "module", "status", "error", "source", "step", "rank", "order", "reason")
    stack = [f"{row['source']} in forward", "train.py:63 in step", "train.py:90 in <module>"]
    return {
        "name": row["operation"],
        "row": row["name"],
        "stack": stack if row["source"] else [],
        **{key: row[key] for key in keys},
    }


def _comparisons(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["step"], row["rank"]), []).append(row)
    found = []
    for (step, rank), members in groups.items():
        counts = Counter(row["status"] for row in members)
        different = [row for row in members if row["status"] in DIFFERENT]
        found.append(
            {
                "step": step,
                "rank": rank,
                "counts": {status: counts[status] for status in STATUSES},
                "first_difference": _first(different),
            }
        )
    return found
