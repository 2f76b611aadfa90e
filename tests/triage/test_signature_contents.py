# SPDX-License-Identifier: Apache-2.0
"""Signatures name the parameters that the models have in each step, and tell their numbers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from msprobe.capture.session import reset_session
from msprobe.dump.signature_file import FOLDER, SignatureFile
from msprobe.pytorch import PrecisionDebugger


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    reset_session()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(90, 80)  # so large that it is not read in each step
        self.norm = nn.BatchNorm1d(80)
        self.head = nn.Linear(80, 90, bias=False)
        self.head.weight = self.embedding.weight


def expected(models: list[nn.Module]) -> list[tuple[str, int]]:
    """Return what torch itself finds, each tensor once, with the checksum of its bytes."""
    found: dict[int, tuple[str, Tensor]] = {}
    for number, model in enumerate(models):
        prefix = f"{number}." if len(models) > 1 else ""
        for path, module in model.named_modules():
            own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            for key, tensor in own:
                found.setdefault(id(tensor), (f"{prefix}{path}{'.' if path else ''}{key}", tensor))
    return [
        (name, zlib.crc32(one.detach().contiguous().numpy().tobytes()))
        for name, one in found.values()
    ]


def check(folder: Path, steps: list[Callable[[], list[nn.Module]]]) -> None:
    """Record steps of the models that functions return, and compare with what they have then."""
    probe = PrecisionDebugger(dump_path=folder, task="signature")
    wanted = []
    for models_of in steps:
        models = models_of()
        wanted.append(expected(models))
        probe.start(models)
        probe.stop()
        probe.step()
    reset_session()
    with SignatureFile(folder / FOLDER / "rank.msig") as file:
        for number, rows in enumerate(wanted):
            step = file.step(number)
            assert list(zip(step.names, step.entries["checksum"][0].tolist(), strict=True)) == rows


def nothing(_: Tied) -> None:
    """Change nothing."""


def replace(model: Tied) -> None:
    model.norm.weight = nn.Parameter(torch.full((80,), 2.0))


def rename(model: Tied) -> None:
    model.norm.other = model.norm.weight
    del model.norm.weight
    model.norm.register_parameter("weight", None)


def add_module(model: Tied) -> None:
    model.more = nn.Linear(2, 2)


def untie(model: Tied) -> None:
    model.head.weight = nn.Parameter(model.embedding.weight.detach().clone())


def drop_buffer(model: Tied) -> None:
    model.norm.running_mean = None


def parametrize(model: Tied) -> None:
    nn.utils.parametrizations.weight_norm(model.head)


def load(model: Tied) -> None:
    model.load_state_dict(Tied().state_dict())


def point_elsewhere(model: Tied) -> None:
    model.embedding.weight.data = torch.randn(90, 80)


def write_unseen(model: Tied) -> None:
    model.embedding.weight.data.mul_(1.5)


def keep_otherwise(model: Tied) -> None:
    class Table(dict[str, Tensor | None]):
        """A table of buffers that is no plain dictionary."""

    model.norm.__dict__["_buffers"] = Table(model.norm._buffers)


CHANGES = [
    *(nothing, replace, rename, add_module, untie, drop_buffer, parametrize, load),
    *(point_elsewhere, write_unseen, keep_otherwise),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_a_model_has_is_told_as_it_is_in_each_step(
    tmp_path: Path, change: Callable[[Tied], None]
) -> None:
    model = Tied()

    def same() -> list[nn.Module]:
        return [model]

    def changed() -> list[nn.Module]:
        change(model)
        return [model]

    check(tmp_path, [same, same, changed, same, same])


def test_other_models_and_their_order_are_told(tmp_path: Path) -> None:
    one, two = Tied(), Tied()
    orders: list[list[nn.Module]] = [[one], [one, two], [one, two], [two, one], [two]]
    check(tmp_path, [lambda models=models: models for models in orders])  # type: ignore[misc]
