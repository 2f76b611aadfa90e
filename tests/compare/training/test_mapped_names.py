# SPDX-License-Identifier: Apache-2.0
"""Facts of two runs whose modules have other names, by a file that says which."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from builders.recordings import recording
from msprobe import compare_dumps

pytestmark = pytest.mark.torch


class Net(nn.Module):
    """A layer and what follows it, under any names."""

    def __init__(self, layer: str, head: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.add_module(layer, nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
        self.add_module(head, nn.Linear(3, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.children():
            x = part(x)
        return x


def record(folder: Path, model: nn.Module) -> Path:
    with recording(folder) as run, run.step_of(model):
        model(torch.ones(2, 3)).square().mean().backward()
    return folder


@pytest.mark.parametrize("changed", [False, True])
def test_parameters_are_known_by_a_layer_mapping(tmp_path: Path, changed: bool) -> None:
    ours, theirs = Net("block", "head"), Net("layer", "out")
    if changed:
        with torch.no_grad():
            theirs.get_submodule("layer.0").bias.add_(1)
    mapping = tmp_path / "names.yaml"
    mapping.write_text("TopLayer:\n  block: layer\n  head: out\n")
    target, reference = record(tmp_path / "a", ours), record(tmp_path / "b", theirs)

    verdict = compare_dumps(target, reference, layer_mapping=mapping).summary["verdict"]

    if changed:
        assert verdict["class"] == "parameters"
        assert "layer.0.bias differs" in verdict["sentence"]
    else:
        assert verdict["class"] == "equal"
        assert "only" not in verdict["sentence"]


def test_settings_of_modules_are_known_by_a_layer_mapping(tmp_path: Path) -> None:
    ours, theirs = Net("block", "head"), Net("layer", "out")
    theirs.get_submodule("layer.0").eps = 0.5
    ours.get_submodule("block.0").eps = 0.25
    mapping = tmp_path / "names.yaml"
    mapping.write_text("TopLayer:\n  block: layer\n  head: out\n")
    target, reference = record(tmp_path / "a", ours), record(tmp_path / "b", theirs)

    verdict = compare_dumps(target, reference, layer_mapping=mapping).summary["verdict"]

    named = re.findall(r"module\..* in the reference", " ".join(verdict["evidence"]))
    assert named == ["module.layer.0.eps is 0.25 in the target, 0.5 in the reference"]
