# SPDX-License-Identifier: Apache-2.0
"""Memory that a call overwrites, or that nothing has filled yet, is no input of the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from builders.recordings import Json, recording

pytestmark = pytest.mark.torch

NUMBERS = torch.arange(1.0, 9.0)


@pytest.fixture(autouse=True)
def _undefined_memory_is_nan() -> Iterator[None]:
    """Have torch fill what `torch.empty` returns with NaN: then reading it shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def fresh(*sizes: int) -> Tensor:
    return torch.empty(sizes or 8)


FILLS: dict[str, Callable[[], object]] = {
    "bernoulli_": lambda: fresh().bernoulli_(0.5),
    "normal_": lambda: fresh().normal_(),
    "uniform_": lambda: fresh().uniform_(),
    "random_": lambda: fresh().random_(5),
    "exponential_": lambda: fresh().exponential_(),
    "cauchy_": lambda: fresh().cauchy_(),
    "geometric_": lambda: fresh().geometric_(0.5),
    "log_normal_": lambda: fresh().log_normal_(),
    "zero_": lambda: fresh().zero_(),
    "fill_": lambda: fresh().fill_(2),
    "torch.fill_": lambda: torch.fill_(fresh(), 2),
    "copy_": lambda: fresh().copy_(NUMBERS),
    "x[:] =": lambda: fresh().__setitem__(slice(None), 1.0),
    "x[..., :] =": lambda: fresh(2, 4).__setitem__((..., slice(None)), 1.0),
    "init.normal_": lambda: nn.init.normal_(fresh()),
    "init.kaiming_uniform_": lambda: nn.init.kaiming_uniform_(fresh(2, 4)),
    "init.trunc_normal_": lambda: nn.init.trunc_normal_(fresh()),
    "_foreach_copy_": lambda: torch._foreach_copy_([fresh()], [NUMBERS]),
    "cumsum(out=)": lambda: torch.cumsum(NUMBERS, 0, out=fresh()),
    "add(out=)": lambda: torch.add(NUMBERS, 1, out=fresh()),
    "randn(out=)": lambda: torch.randn(8, out=fresh()),
    "sort(out=)": lambda: torch.sort(NUMBERS, out=(fresh(), torch.empty(8, dtype=torch.int64))),
}


def leaves(tree: Any) -> Iterator[Json]:
    """Every tensor of a record."""
    if isinstance(tree, dict) and "shape" in tree:
        yield tree
    elif isinstance(tree, dict | list):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(item)


def records_of(folder: Path, work: Callable[[], object], level: str = "L1", **more: Any) -> Json:
    with recording(folder, level, **more) as run:
        with run.step_of(nn.Identity()):  # a model for the levels that want one
            work()
        account = run.account()
        assert (account["errors"], account["complete"]) == ({}, True)
        return run.records()


@pytest.mark.parametrize("level", ["L1", "L2"])
@pytest.mark.parametrize("name", FILLS)
def test_what_a_call_overwrites_is_recorded_without_values(
    name: str, level: str, tmp_path: Path
) -> None:
    records = records_of(tmp_path, FILLS[name], level, task="tensor")
    written = 0
    for record in records.values():
        for leaf in leaves([record["input_args"], record["input_kwargs"]]):
            assert leaf["Max"] is not None or "data_name" not in leaf
            assert "nan_count" not in leaf
            written += leaf.get("written", False)
        for leaf in leaves(record["output"]):
            assert "nan_count" not in leaf
            assert leaf["Max"] is not None or leaf["undefined"] is True
    assert written > 0
    *_, last = records.values()
    assert all(leaf["Max"] is not None for leaf in leaves(last["output"]))


def fill_in_parts() -> Tensor:
    out = NUMBERS.new_empty(9)
    out[0] = 0
    torch.cumsum(NUMBERS, 0, out=out[1:])
    return out[:4] * 2


@pytest.mark.parametrize("level", ["L1", "L2"])
def test_memory_filled_in_parts_is_read_where_something_is_computed_from_it(
    level: str, tmp_path: Path
) -> None:
    records = records_of(tmp_path, fill_in_parts, level)
    assert not any("nan_count" in leaf for leaf in leaves(list(records.values())))
    (product,) = (
        record for name, record in records.items() if ".mul." in name or "__mul__" in name
    )
    assert product["input_args"][0]["Max"] == 6.0
    assert product["output"][0]["Max"] == 12.0
    (total,) = (record for name, record in records.items() if "cumsum" in name)
    assert total["output"][0]["Max"] == 36.0


def test_memory_that_only_parts_of_are_written_has_no_values(tmp_path: Path) -> None:
    def work() -> None:
        cache = torch.empty(2, 4)
        for index in range(2):
            cache[:, index] = float(index)
            torch.sum(cache[:, : index + 1])
        cache.index_copy_(1, torch.tensor([3]), torch.ones(2, 1))
        cache.unsqueeze(0).transpose(0, 1)

    records = records_of(tmp_path, work)
    assert not any("nan_count" in leaf for leaf in leaves(list(records.values())))
    assert records["Torch.sum.1.forward"]["input_args"][0]["Max"] == 1.0
    assert records["Tensor.__setitem__.1.forward"]["output"][0]["undefined"] is True
    assert records["Tensor.index_copy_.0.forward"]["input_args"][3]["Max"] == 1.0


def test_a_part_written_into_known_values_shows_them_before_and_after(tmp_path: Path) -> None:
    def work() -> None:
        x = torch.full((4,), 3.0)
        x[0] = 5.0
        y = torch.empty(4).fill_(2.0)
        y[0] = 7.0

    records = records_of(tmp_path, work)
    for number, before, after in ((0, 3.0, 5.0), (1, 2.0, 7.0)):
        record = records[f"Tensor.__setitem__.{number}.forward"]
        assert record["input_args"][0]["Max"] == before
        assert (record["output"][0]["Max"], record["output"][0]["Min"]) == (after, before)


def test_a_program_that_computes_with_undefined_memory_is_seen(tmp_path: Path) -> None:
    records = records_of(tmp_path, lambda: torch.empty(4) * 2)
    assert records["Tensor.__mul__.0.forward"]["input_args"][0]["nan_count"] == 4


def test_an_operator_of_the_users_fills_what_its_schema_says_it_writes(tmp_path: Path) -> None:
    library = torch.library.Library("unread_memory", "FRAGMENT")
    library.define("twice(Tensor x, *, Tensor(a!) into) -> ()")

    def twice(x: Tensor, into: Tensor) -> None:
        into.copy_(x * 2)  # nothing tells whether it reads what was there

    library.impl("twice", twice, "CPU")

    def work() -> None:
        into = torch.empty(8)
        torch.ops.unread_memory.twice(NUMBERS, into=into)
        into.view(2, 4)
        torch.ops.unread_memory.twice(NUMBERS, into=into)

    records = records_of(tmp_path, work)
    first, second = (records[f"unread_memory.twice.{number}.forward"] for number in (0, 1))
    assert first["input_kwargs"]["into"]["written"] is True
    assert second["input_kwargs"]["into"]["Max"] == 16.0
    assert records["Tensor.view.0.forward"]["output"][0]["Max"] == 16.0


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_gradients_pass_through_memory_that_was_overwritten(level: str, tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)

    def work() -> None:
        y = torch.empty(3).copy_(x * 2)
        y.sum().backward()

    backward = records_of(tmp_path, work, level)["Tensor.copy_.0.backward"]
    assert backward["input"][0]["Max"] == 1.0
    assert backward["output"][1]["Max"] == 1.0


def test_dropped_calls_do_not_leave_memory_undefined(tmp_path: Path) -> None:
    def work() -> None:
        torch.empty(4).copy_(torch.ones(4)).view(2, 2)

    section = {"black_list": ["copy_"]}
    records = records_of(tmp_path, work, section=section)
    assert records["Tensor.view.0.forward"]["output"][0]["Max"] == 1.0
