# SPDX-License-Identifier: Apache-2.0
"""The registries that scripts for mindstudio-probe import."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from msprobe.pytorch.function_factory import (  # noqa: E402
    npu_custom_functions,
    npu_custom_grad_functions,
)
from msprobe.replay import references  # noqa: E402

pytestmark = pytest.mark.torch

OPERATORS = (
    "npu_fast_gelu npu_swiglu npu_rms_norm npu_rotary_mul npu_scaled_masked_softmax npu_linear "
    "npu_confusion_transpose npu_layer_norm_eval npu_group_norm_silu npu_mish npu_sort_v2 "
    "npu_moe_gating_top_k_softmax npu_apply_adam npu_apply_adam_w npu_fusion_attention fast_gelu"
)
BACKWARD = (
    "npu_confusion_transpose npu_fast_gelu npu_linear npu_rotary_mul npu_scaled_masked_softmax "
    "npu_swiglu npu_rms_norm matmul"
)


def test_the_documented_names_are_there():
    assert set(OPERATORS.split()) <= set(npu_custom_functions)
    assert {f"{name}_backward" for name in BACKWARD.split()} <= set(npu_custom_grad_functions)
    assert not set(npu_custom_functions) & set(npu_custom_grad_functions)
    assert len(npu_custom_functions) == len(list(npu_custom_functions))
    x = torch.ones(2)
    assert torch.equal(npu_custom_functions["npu_linear"](x, torch.eye(2)), x)


def test_functions_are_added_one_by_one_or_as_a_list(monkeypatch):
    monkeypatch.setattr(references, "REGISTERED", {})

    @npu_custom_functions.register
    def npu_mine(x):
        return x

    def npu_mine_backward(grad, x):
        return grad

    npu_custom_grad_functions([npu_mine_backward])
    assert npu_custom_functions["npu_mine"] is npu_mine
    assert npu_custom_grad_functions["npu_mine_backward"] is npu_mine_backward
    assert references.find(["NPU.npu_mine", "npu_mine"]).function is npu_mine


def test_every_reference_is_documented():
    page = Path(__file__).parents[3] / "docs" / "reference" / "goldens.md"
    text = page.read_text(encoding="utf-8")
    builtin = [one for one in references.all_goldens() if "references" in one.function.__module__]
    assert len(builtin) > 100
    assert [one.name for one in builtin if f"`{one.name}`" not in text] == []
