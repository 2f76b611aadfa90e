# SPDX-License-Identifier: Apache-2.0
"""Rounding judged by measured noise, and the digits that recordings with noise agree about."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import msprobe  # noqa: E402
from builders.recordings import recording  # noqa: E402
from msprobe.cli import main  # noqa: E402
from msprobe.compare.noise.spread import allowed_multiple, quantile, spread_of  # noqa: E402
from msprobe.errors import UsageError  # noqa: E402

pytestmark = pytest.mark.torch


class Net(nn.Module):
    """A small network; `middle` is what a test changes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.last = nn.Linear(32, 8)
        self.middle: Callable[[Tensor], Tensor] = F.softplus

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


class Recorder:
    """Records the network, each variant once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self.record = cache(self._record)

    def _record(
        self,
        task: str = "statistics",
        middle: Callable[[Tensor], Tensor] = F.softplus,
        dtype: torch.dtype = torch.float32,
        seed: int | None = None,
        keeps_tensors: bool = False,
    ) -> Path:
        self._count += 1
        folder = self._folder / str(self._count)
        torch.manual_seed(0)
        model, batch = Net().to(dtype), torch.randn(8, 16).to(dtype)
        model.middle = middle
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        section: dict[str, object] = {} if seed is None else {"seed": seed}
        if keeps_tensors:
            section["tensor_list"] = [""]
        with recording(folder, "mix", task, section=section) as recorded:
            for _ in range(2):
                with recorded.step_of(model):
                    model(batch).pow(2).mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
        return folder

    def noise(self, count: int = 3, **options: Any) -> list[Path]:
        return [self.record("noise_floor", seed=each, **options) for each in range(count)]


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    return Recorder(tmp_path_factory.mktemp("noise"))


def softplus_by_hand(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, torch.zeros_like(x)) + torch.log1p(torch.exp(-x.abs()))


def a_bit_too_large(x: Tensor) -> Tensor:
    return F.softplus(x) * (1 + 4e-6)  # within the tolerance of float32


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_another_way_to_compute_lies_within_the_noise(recorder, task, dtype):
    target = recorder.record(task, middle=softplus_by_hand, dtype=dtype)
    reference = recorder.record(task, dtype=dtype)
    noise = recorder.noise(dtype=dtype)
    summary = msprobe.compare_dumps(target, reference, noise=noise).summary
    found = summary["noise"]
    assert (found["recordings"], found["beyond"], found["not_measured"]) == (3, 0, 0)
    assert found["within"] > 10
    assert summary["introduced"] == []
    assert summary["verdict"]["class"] in ("equal", "rounding")


def test_a_fault_below_the_tolerance_is_beyond_the_noise(recorder):
    target, reference = recorder.record(middle=a_bit_too_large), recorder.record()
    estimated = msprobe.compare_dumps(target, reference).summary
    assert estimated["verdict"]["class"] in ("equal", "rounding")
    noise = recorder.noise()
    result = msprobe.compare_dumps(target, reference, noise=noise)
    assert result.summary["verdict"]["class"] not in ("equal", "rounding")
    assert result.summary["noise"]["beyond"] > 0
    assert result.summary["first_difference"]["name"].startswith("Tensor.__mul__.0.forward")


def copied(x: Tensor) -> Tensor:
    return F.softplus(x).clone()


def with_one_wrong(x: Tensor) -> Tensor:
    y = F.softplus(x).clone()
    y[3, 5] *= 1 + 1e-9  # the norm of the difference is far below the tolerance of float64
    return y


def test_elements_are_judged_by_noise_where_tensors_were_kept(recorder):
    options = {"dtype": torch.float64}
    target = recorder.record("tensor", middle=with_one_wrong, **options)
    reference = recorder.record("tensor", middle=copied, **options)
    noise = recorder.noise(middle=copied, keeps_tensors=True, **options)
    assert msprobe.compare_dumps(target, reference).summary["introduced"] == []
    summary = msprobe.compare_dumps(target, reference, noise=noise).summary
    assert summary["noise"]["beyond"] > 0
    assert summary["verdict"]["class"] not in ("equal", "rounding")


def test_recordings_that_say_nothing_about_noise_are_refused(recorder, tmp_path):
    plain = recorder.record()
    one, other = recorder.noise(2)
    same = shutil.copytree(one, tmp_path / "same")
    for noise, words in (([one], "two or more"), ([one, plain], "task"), ([one, same], "seed")):
        with pytest.raises(UsageError, match=words):
            msprobe.compare_dumps(plain, plain, noise=noise)
    assert msprobe.compare_dumps(plain, plain, noise=[one, other]).is_equal


def test_noise_of_another_program_is_refused(recorder):
    one, other = nn.Softplus(), nn.Softplus(2)
    reference, noise = recorder.record(middle=one), recorder.noise(2, middle=other)
    words = r"another program than the reference: module\.middle is Softplus\(beta=2.*\), Softplus"
    with pytest.raises(UsageError, match=words):
        msprobe.compare_dumps(reference, reference, noise=noise)


def test_a_step_without_noise_is_judged_by_estimates(recorder, tmp_path):
    target, reference = recorder.record(middle=softplus_by_hand), recorder.record()
    noise = [
        shutil.copytree(path, tmp_path / path.name, ignore=shutil.ignore_patterns("step1"))
        for path in recorder.noise(2)
    ]
    summary = msprobe.compare_dumps(target, reference, noise=noise).summary
    assert summary["noise"]["not_measured"] == 1
    assert any("step 1" in note and "estimated" in note for note in summary["notes"])


def test_multiples_are_those_of_the_distributions():
    student = [31.599, 12.924, 8.610, 6.869]  # two-sided, 0.999, tables of Student's t
    assert [quantile(k, 1, 1e-3) for k in (2, 3, 4, 5)] == pytest.approx(student, rel=1e-4)
    fisher = [61.246, 27.000, 18.494]  # 0.999 of F with 2 and 4, 6, 8 degrees of freedom
    assert [quantile(k, 100, 1e-3) ** 2 for k in (2, 3, 4)] == pytest.approx(fisher, rel=1e-3)
    assert allowed_multiple(3, 100) < allowed_multiple(2, 100) < allowed_multiple(2, 1)
    assert spread_of([3.0, 4.0]) == pytest.approx(12.5**0.5)
    assert spread_of([1e-200, 1e-200]) == pytest.approx(1e-200)


def cancelling(x: Tensor) -> Tensor:
    large = F.softplus(x) + 1e4
    return large - 1e4


def test_the_call_that_cancels_loses_most_digits(recorder, tmp_path, capsys):
    paths = [str(path) for path in recorder.noise(middle=cancelling)]
    assert main(["noise", *paths, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    worst = report["losing"][0]["record"]
    calls = {call["record"]: call for call in report["calls"] if call["step"] == 0}
    assert worst == "Tensor.__sub__.0.forward"
    assert calls[worst]["lost"] == pytest.approx(4, abs=1)
    assert calls[worst]["source"].startswith("test_measured_noise.py:")
    first = calls["Module.first.Linear.forward.0"]
    assert first["digits_in"] == pytest.approx(7.2, abs=0.1)  # the batch: no noise reaches it
    assert 5.5 < first["digits_out"] < 7.2


def shares(x: Tensor) -> Tensor:
    large, small = torch.cat([x.softmax(-1), x.softmax(-1) * 1e-4]).chunk(2)
    return (large + small).flip(0).transpose(0, 0)


def test_a_call_that_only_moves_elements_loses_no_digits(recorder, capsys):
    paths = [str(path) for path in recorder.noise(middle=shares)]
    assert main(["noise", *paths, "--json"]) == 0
    losing = {one["record"] for one in json.loads(capsys.readouterr().out)["losing"]}
    assert losing.isdisjoint({f"Tensor.{name}.0.forward" for name in ("chunk", "flip")})


def test_the_command_prints_a_ranking_and_its_exit_code_depends_on_the_digits(
    recorder, tmp_path, capsys
):
    paths = [str(path) for path in recorder.noise(middle=cancelling)]
    assert main(["noise", *paths, "--exit-code", "-o", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "at least 1 trusted digit" in lines[0]
    assert any("Tensor.__sub__.0.forward" in line for line in lines)
    assert json.loads((tmp_path / "out/noise.json").read_text())["schema_version"] == 1
    assert main(["noise", *paths, "--exit-code", "--least", "5", "-q"]) == 1
    assert "less than 5 trusted digits" in capsys.readouterr().out
    assert main(["compare", *paths[:2], "-o", str(tmp_path)]) == 2
    assert "--noise" in capsys.readouterr().err


def test_the_answer_says_that_the_noise_was_measured(recorder, tmp_path, capsys):
    target, reference = recorder.record(middle=a_bit_too_large), recorder.record()
    noise = [str(path) for path in recorder.noise(2)]
    options = ["-o", str(tmp_path / "out"), "--exit-code", "--noise", *noise]
    assert main(["compare", str(target), str(reference), *options]) == 1
    assert "rounding measured in 2 recordings" in capsys.readouterr().out
    assert main(["compare", str(target), "--replicas", "--noise", *noise]) == 2
    assert "--replicas" in capsys.readouterr().err
