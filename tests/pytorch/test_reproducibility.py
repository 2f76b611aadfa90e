# SPDX-License-Identifier: Apache-2.0
"""`record_random`: every draw of random numbers is written down, and two runs can be compared."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from builders.csv_files import csv_rows
from msprobe.cli import main
from msprobe.compare.random_logs import compare_random_logs
from msprobe.config_check import ConfigChecker
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


def test_each_draw_has_a_row_with_its_line_and_the_numbers_stay_the_same(tmp_path: Path) -> None:
    torch.manual_seed(1)
    expected = draws()
    results: list[torch.Tensor] = []
    path = record(tmp_path, lambda: results.append(draws()))
    assert torch.equal(results[0], expected)
    assert path.name.startswith("random_proc")
    found = csv_rows(path)
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


def host_draws() -> list[object]:
    data = list(range(20))
    random.shuffle(data)
    early = random.gauss(0.0, 1.0)
    numpy = [*np.random.permutation(5)]  # noqa: NPY002 - the generator that programs share
    return [*data, early, *numpy, float(torch.rand(1)), np.random.rand()]  # noqa: NPY002 - the same


def test_draws_of_python_and_numpy_have_rows_and_stay_the_same(tmp_path: Path) -> None:
    before = dict(vars(random)), dict(vars(np.random))
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the same
    torch.manual_seed(1)
    expected = host_draws()
    results: list[object] = []
    path = record(tmp_path, lambda: results.extend(host_draws()))
    assert results == expected
    assert (vars(random), vars(np.random)) == before
    found = [(row["api_name"], row["generator"]) for row in csv_rows(path)]
    assert found == [
        ("random.shuffle", "python"),
        ("random.gauss", "python"),
        ("numpy.random.permutation", "numpy"),
        ("rand", "cpu"),
        ("numpy.random.rand", "numpy"),
    ]
    assert all(row["line"].startswith("test_reproducibility.py:") for row in csv_rows(path))


def test_a_draw_by_a_name_that_was_imported_before_is_seen_by_the_state(tmp_path: Path) -> None:
    choice = random.choice

    def program() -> None:
        choice([1, 2, 3])
        torch.rand(1)
        np.random.default_rng(3).random()  # a generator of its own

    found = [(row["api_name"], row["generator"]) for row in csv_rows(record(tmp_path, program))]
    assert found == [("unseen call", "python"), ("rand", "cpu")]


def test_a_generator_that_is_made_without_a_seed_counts_when_it_is_used(tmp_path: Path) -> None:
    def program() -> None:
        used, _unused = np.random.default_rng(), np.random.default_rng()
        torch.ones(1) * used.random()

    one, two = (record(tmp_path / name, program) for name in "ab")
    assert [row["api_name"].split(".py:")[0] for row in csv_rows(one)] == [
        "numpy.random.default_rng of test_reproducibility"
    ]
    found, _ = compare_random_logs(one, two)
    assert found is not None
    assert "another state of the generator numpy" in found.words


@pytest.mark.parametrize("module", [random, np.random], ids=["python", "numpy"])
def test_seeding_from_an_unknown_state_is_no_difference(tmp_path: Path, module: Any) -> None:
    def program(seed: int | None) -> None:
        module.seed(seed)
        module.random()

    paths = []
    for name, seed in (("a", 5), ("b", 5), ("c", None)):
        module.seed()
        with record_random(tmp_path / name) as path:
            program(seed)
        paths.append(path)
    assert compare_random_logs(*paths[:2]) == (None, 2)
    found, number = compare_random_logs(*paths[1:])
    assert found is not None
    assert (number, found.words.split(" at ")[0]) == (0, f"{module.__name__}.seed")
    assert "no fixed seed" in found.words


def test_workers_of_a_loader_write_no_rows(tmp_path: Path) -> None:
    data = [1.0, 2.0, 3.0, 4.0]

    def collate(batch: list[float]) -> torch.Tensor:
        return torch.tensor(batch) + random.random()

    def program() -> None:
        for _ in torch.utils.data.DataLoader(
            data, 2, num_workers=1, collate_fn=collate, multiprocessing_context="fork"
        ):
            pass

    found = [row["api_name"] for row in csv_rows(record(tmp_path, program))]
    assert found == ["Tensor.random_"]


def test_an_error_in_a_draw_is_the_programs_own_and_all_is_put_back(tmp_path: Path) -> None:
    shuffle, rand = random.shuffle, np.random.rand
    with pytest.raises(TypeError), record_random(tmp_path):
        random.shuffle(5)  # type: ignore[arg-type]
    assert (random.shuffle, np.random.rand) == (shuffle, rand)


def test_draws_in_other_threads_pass(tmp_path: Path) -> None:
    def program() -> None:
        thread = threading.Thread(target=random.random)
        thread.start()
        thread.join()

    assert [row["api_name"] for row in csv_rows(record(tmp_path, program))] == ["unseen call"]


def test_another_shuffle_of_python_is_the_first_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def other() -> None:
        random.sample(range(20), 4)

    paths = [str(record(tmp_path / "a", other)), str(record(tmp_path / "b", host_draws))]
    assert main(["compare", *paths, "--exit-code"]) == 1
    assert "random.sample" in capsys.readouterr().out


def test_the_short_name_is_the_same_and_imports_no_framework() -> None:
    code = "import sys, msprobe.reproducibility; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    from msprobe.reproducibility import record_random as short

    assert short is record_random


def test_draws_are_recorded_beside_a_configuration_check(tmp_path: Path) -> None:
    """Both replace the functions of `random`."""
    ConfigChecker.apply_patches("pytorch")
    try:
        path = record(tmp_path, lambda: (random.random(), np.random.rand(2)))  # noqa: NPY002
    finally:
        ConfigChecker.remove_patches("pytorch")
    assert [row["api_name"] for row in csv_rows(path)] == ["random.random", "numpy.random.rand"]
