# SPDX-License-Identifier: Apache-2.0
"""`record_random`: every draw of random numbers is written down, and two runs can be compared."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from msprobe.cli import main
from msprobe.pytorch.reproducibility import record_random

pytestmark = pytest.mark.torch


def draws() -> torch.Tensor:
    x = torch.ones(4).relu() + torch.rand(4)
    x = functional.dropout(x, 0.5)
    return x + torch.randn(4, generator=torch.Generator().manual_seed(5))


def record(folder: Path, program: Callable[[], object], **choices: object) -> Path:
    with record_random(folder, seed=1, **choices) as path:
        program()
    return path


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_each_draw_has_a_row_with_its_line_and_the_numbers_stay_the_same(tmp_path: Path) -> None:
    torch.manual_seed(1)
    expected = draws()
    results: list[torch.Tensor] = []
    path = record(tmp_path, lambda: results.append(draws()))
    assert torch.equal(results[0], expected)
    assert path.name.startswith("random_proc")
    found = rows(path)
    assert [row["api_name"] for row in found] == ["rand", "nn.functional.dropout", "randn"]
    assert [row["number"] for row in found] == ["0", "1", "2"]
    assert found[1]["before"] == found[0]["after"]
    assert all(row["line"].startswith("test_reproducibility.py:") for row in found)
    assert "draws" in found[0]["stack"]


def test_equal_runs_have_equal_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(record(tmp_path / name, draws)) for name in "ab"]
    assert main(["compare", *paths, "--exit-code"]) == 0
    assert "3 draws of random numbers are equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "number", "words"),
    [
        (lambda: (torch.rand(4), torch.bernoulli(torch.ones(2) / 2)), 1, "bernoulli at test_"),
        (lambda: torch.rand(9999), 0, "more or fewer numbers"),
        (lambda: torch.manual_seed(7) and draws(), 0, "another state of the generator cpu"),
        (lambda: torch.rand(4), 1, "only the reference goes on to draw: nn.functional.dropout"),
    ],
)
def test_the_first_draw_that_differs_is_named(
    program: Callable[[], object],
    number: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = [str(record(tmp_path / "a", program)), str(record(tmp_path / "b", draws))]
    assert main(["compare", *paths, "--exit-code", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["first"]
    assert found["number"] == number
    assert words in found["words"]


def test_isolated_calls_do_not_shift_later_numbers(tmp_path: Path) -> None:
    def program(times: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        return [functional.dropout(torch.ones(64)) for _ in range(times)], torch.rand(4)

    results: list[tuple[list[torch.Tensor], torch.Tensor]] = []
    for times in (2, 3):
        record(tmp_path, lambda n=times: results.append(program(n)), isolate=("dropout",))
    assert torch.equal(results[0][1], results[1][1])
    assert torch.equal(results[0][0][1], results[1][0][1])
    assert not torch.equal(results[0][0][0], results[0][0][1])


def test_another_csv_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "random_0.csv").write_text("a,b\n1,2\n")
    path = str(tmp_path / "random_0.csv")
    assert main(["compare", path, path]) == 2
    assert "is no record of random calls" in capsys.readouterr().err
