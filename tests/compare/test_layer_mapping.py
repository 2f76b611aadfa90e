# SPDX-License-Identifier: Apache-2.0
"""Layer mappings between two transformers: what one calls ``attention.core`` is the other's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pairing import names_of, write_side

from builders.records import backward, forward, tensor
from msprobe.compare.matching import pair_operations
from msprobe.compare.model import Match, OperationPair
from msprobe.compare.options import CompareOptions
from msprobe.compare.sides import Side


class Program:
    """Records of a model, written call by call.

    Args:
        kind: ``Cell`` or ``Module``.
        unrecorded: classes whose modules make no record, but stand around others.
    """

    def __init__(self, kind: str, unrecorded: tuple[str, ...] = ()) -> None:
        self.records: dict[str, Any] = {}
        self.parents: dict[str, str | None] = {}
        self._kind = kind
        self._unrecorded = unrecorded
        self._counts: Counter[str] = Counter()

    def module(self, path: str, class_name: str, *inner: Any, parent: str | None = None) -> None:
        """Add a module and what runs in it: functions by name, modules as (path, class, …)."""
        name = f"{self._kind}.{path}.{class_name}.forward.0"
        for each in inner:
            if isinstance(each, str):
                self.call(each, name)
            else:
                self.module(f"{path}.{each[0]}", *each[1:], parent=name)
        if class_name not in self._unrecorded:
            self.records[name] = forward([tensor()], [tensor()])
        self.parents[name] = parent

    def call(self, base: str, parent: str | None = None) -> None:
        """Add a call of a function, forward and backward."""
        name = f"{base}.{self._counts[base]}"
        self._counts[base] += 1
        self.records[f"{name}.forward"] = forward([tensor()], [tensor()])
        self.parents[f"{name}.forward"] = parent
        self.records[f"{name}.backward"] = backward([tensor()], [tensor()])

    def write(self, folder: Path, source: str) -> Side:
        framework = "mindspore" if self._kind == "Cell" else "pytorch"
        return write_side(
            folder, self.records, source=source, parents=self.parents, framework=framework
        )


def of_mindspore(
    folder: Path, *, first: int = 0, extra: int = 0, unrecorded: tuple[str, ...] = ()
) -> Side:
    """Write a model whose layers are counted from `first`, after further calls of `matmul`."""
    program = Program("Cell", unrecorded)
    for _ in range(extra):
        program.call("Mint.matmul")
    layers = [
        (
            f"layers.{first + number}",
            "ParallelTransformerLayer",
            ("input_norm", "FusedRMSNorm", "Primitive.norm.RmsNorm"),
            (
                "attention",
                "ParallelAttention",
                ("qkv_proj", "ColumnParallelLinear", "Mint.matmul"),
                ("core", "FlashAttention", "Primitive.flash.FlashAttentionScore"),
                ("out_proj", "RowParallelLinear", "Mint.matmul"),
            ),
            "Mint.add",
        )
        for number in (0, 1)
    ]
    program.module("network.decoder", "ParallelTransformer", *layers)
    return program.write(folder, "target")


def of_pytorch(folder: Path) -> Side:
    """Write its twin, which makes some calls one module further in or out, in another order."""
    program = Program("Module")
    layers = [
        (
            f"layers.{number}",
            "TransformerLayer",
            ("input_layernorm", "RMSNorm", "NPU.npu_rms_norm"),
            (
                "self_attention",
                "SelfAttention",
                ("linear_proj", "RowParallelLinear", "Torch.matmul"),
                ("linear_qkv", "ColumnParallelLinear", "Torch.matmul"),
                ("core_attention", "DotProductAttention"),
                "NPU.npu_fusion_attention",
            ),
            ("residual", "Residual", "Tensor.__add__"),
        )
        for number in (0, 1)
    ]
    program.module("module.decoder", "TransformerBlock", *layers)
    return program.write(folder, "reference")


MAPPING = """
TopLayer:
  network: module
ParallelTransformerLayer:
  input_norm: input_layernorm
  attention: self_attention
  add: residual.__add__
ParallelAttention:
  qkv_proj: linear_qkv
  core.FlashAttentionScore: npu_fusion_attention
  core: core_attention
  out_proj: linear_proj(RowParallelLinear)
"""
# Of a primitive that a cell holds, the last part says enough.
NORMS = [
    "FusedRMSNorm:\n  RmsNorm: npu_rms_norm\n",
    "FusedRMSNorm:\n  norm.RmsNorm: npu_rms_norm\n",
]


def paired(folder: Path, target: Side, reference: Side, text: str) -> list[OperationPair]:
    path = folder / "mapping.yaml"
    path.write_text(text)
    return pair_operations(target, reference, CompareOptions(layer_mapping=path))


def partners(layer: int) -> dict[str, str]:
    """Return the forward calls of one layer of both, by what they should pair."""
    return {
        f"Primitive.norm.RmsNorm.{layer}": f"NPU.npu_rms_norm.{layer}",
        f"Mint.matmul.{2 * layer}": f"Torch.matmul.{2 * layer + 1}",
        f"Mint.matmul.{2 * layer + 1}": f"Torch.matmul.{2 * layer}",
        f"Primitive.flash.FlashAttentionScore.{layer}": f"NPU.npu_fusion_attention.{layer}",
        f"Mint.add.{layer}": f"Tensor.__add__.{layer}",
    }


@pytest.mark.parametrize("norms", NORMS)
def test_layers_and_calls_below_them(tmp_path: Path, norms: str) -> None:
    pairs = paired(tmp_path, of_mindspore(tmp_path), of_pytorch(tmp_path), MAPPING + norms)
    found = dict(names_of(pairs))
    for layer in (0, 1):
        for name, partner in partners(layer).items():
            assert found[f"{name}.forward"] == f"{partner}.forward"
            assert found[f"{name}.backward"] == f"{partner}.backward"
    assert [pair.name for pair in pairs if not pair.is_matched] == [
        f"Module.module.decoder.layers.{layer}.residual.Residual.forward.0" for layer in (0, 1)
    ]
    assert {pair.match for pair in pairs if pair.is_matched} == {Match.MAPPED}


def test_calls_are_counted_inside_their_layer(tmp_path: Path) -> None:
    """Calls outside, and layers of other stages of a pipeline, shift all numbers."""
    target = of_mindspore(tmp_path, first=6, extra=3)
    found = dict(names_of(paired(tmp_path, target, of_pytorch(tmp_path), MAPPING + NORMS[0])))
    for number in range(3):
        assert found[f"Mint.matmul.{number}.forward"] is None
    assert found["Mint.matmul.3.forward"] == "Torch.matmul.1.forward"
    assert found["Mint.matmul.6.forward"] == "Torch.matmul.2.forward"
    layer = "Cell.network.decoder.layers.7.attention.qkv_proj.ColumnParallelLinear.forward.0"
    assert found[layer].startswith("Module.module.decoder.layers.1.self_attention.linear_qkv")


def test_classes_of_layers_that_made_no_record(tmp_path: Path) -> None:
    """What runs inside a layer names it as its parent."""
    unrecorded = ("ParallelTransformer", "ParallelTransformerLayer", "ParallelAttention")
    target = of_mindspore(tmp_path, first=4, unrecorded=unrecorded)
    found = dict(names_of(paired(tmp_path, target, of_pytorch(tmp_path), MAPPING + NORMS[0])))
    for layer in (0, 1):
        for name, partner in partners(layer).items():
            assert found[f"{name}.forward"] == f"{partner}.forward"


@pytest.mark.parametrize("lines", range(2, MAPPING.count("\n") + 1))
def test_each_further_line_pairs_no_less(tmp_path: Path, lines: int) -> None:
    """No mapping is worse than none, and no longer one worse than a shorter one."""
    target, reference = of_mindspore(tmp_path), of_pytorch(tmp_path)

    def matched(pairs: list[OperationPair]) -> int:
        return sum(pair.is_matched for pair in pairs)

    text = "\n".join(MAPPING.splitlines()[: lines + 1]).rstrip()
    if text.endswith(":"):
        return  # a class without children
    without = matched(pair_operations(target, reference, CompareOptions()))
    assert matched(paired(tmp_path, target, reference, text + "\n")) >= without


def test_primitives_that_cells_hold_pair_without_a_mapping(tmp_path: Path) -> None:
    """``Primitive.norm.RmsNorm`` is the function of its class, whatever the attribute is called."""
    target, reference = Program("Cell"), Program("Module")
    for name in ("Primitive.norm.RmsNorm", "Primitive.act.ReLU", "Primitive.reduce.ReduceSum"):
        target.call(name)
    for name in ("NPU.npu_rms_norm", "Functional.relu", "Torch.sum"):
        reference.call(name)
    pairs = pair_operations(
        target.write(tmp_path, "target"), reference.write(tmp_path, "reference"), CompareOptions()
    )
    assert all(pair.is_matched for pair in pairs)
    assert {pair.match for pair in pairs} == {Match.ALIAS}
