# SPDX-License-Identifier: Apache-2.0
"""What models hold: found in C as in Python."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from msprobe.pytorch.training.model_contents import ModelContents, numbered


class _Around(nn.Module):
    """A module in it holds the one around it; parameters are shared; parts are missing."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.norm = nn.BatchNorm1d(2)
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.missing = None
        self.register_module("nothing", None)
        self.second.owner = self
        self.register_buffer("none", None)
        self.norm.eval()


def _frozen():
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout(), nn.Sequential())
    model[1].eval()
    return model.eval()


def _own_tables():
    model = _Around()
    model.second._parameters = OrderedDict(model.second._parameters)
    return model


MODELS = {
    "empty": list,
    "shared": lambda: [_Around()],
    "twice": lambda: [_Around()] * 2,
    "several": lambda: [_Around(), _frozen(), nn.Linear(1, 1)],
    "own tables": lambda: [nn.Linear(1, 1), _own_tables()],
    "compiled": lambda: [torch.compile(_Around())],
    "part of another": lambda: (lambda one: [one, one.second])(_Around()),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, as it begins to compile
@pytest.mark.parametrize("models", MODELS.values(), ids=MODELS)
def test_contents_are_those_that_python_finds(models):
    models = numbered(models())
    expected = ModelContents()
    for prefix, model in models:
        expected.add(model, prefix)
    found = ModelContents.of(models)
    assert found.names == expected.names
    assert found.same_as == expected.same_as
    assert found.training == expected.training
    assert list(map(id, found.modules)) == list(map(id, expected.modules))
    assert [(name, id(one), kind) for name, one, kind in found.tensors] == [
        (name, id(one), kind) for name, one, kind in expected.tensors
    ]
