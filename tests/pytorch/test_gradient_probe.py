# SPDX-License-Identifier: Apache-2.0
"""The task `grad_probe`: its files at each level, and the comparison of two runs."""

from __future__ import annotations

import csv
import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from builders.csv_files import csv_rows
from msprobe import GradComparator
from msprobe.capture.session import reset_session
from msprobe.cli import main
from msprobe.errors import ConfigError, DumpFormatError
from msprobe.pytorch import PrecisionDebugger

Spoil = Callable[[int, nn.Module], None]


@contextmanager
def probing(folder: Path, **section: Any) -> Iterator[PrecisionDebugger]:
    folder.mkdir(exist_ok=True)
    path = folder / "config.json"
    keys = {"task": "grad_probe", "dump_path": str(folder / "dump"), "grad_probe": section}
    path.write_text(json.dumps({**keys, **section.pop("top", {})}))
    try:
        yield PrecisionDebugger(str(path))
    finally:
        reset_session()


def model_of() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


def train(
    debugger: PrecisionDebugger | None, steps: int = 3, spoil: Spoil | None = None
) -> tuple[list[dict[str, torch.Tensor]], torch.Tensor]:
    """Return the gradients of each step, and the loss at the end."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if debugger is not None:
        debugger.monitor(model)
    seen = []
    for step in range(steps):
        optimizer.zero_grad()
        batch = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        loss = model(batch).square().mean()
        loss.backward()
        if spoil is not None:
            spoil(step, model)
        seen.append({name: p.grad.clone() for name, p in model.named_parameters()})
        optimizer.step()
    return seen, loss.detach()


def record(folder: Path, spoil: Spoil | None = None, steps: int = 3, **section: Any) -> Path:
    with probing(folder, **section) as debugger:
        train(debugger, steps, spoil)
    return folder / "dump"


HEADERS = {
    "L0": "param_name,MD5,max,min,norm,shape",
    "L1": "param_name,max,min,norm,shape",
    "L2": 'param_name,"(-inf, -1]","(-1, 0]","(0, 1]","(1, inf)",=0,max,min,norm,shape',
}


@pytest.mark.parametrize("level", HEADERS)
def test_files_of_each_level(level: str, tmp_path: Path) -> None:
    with probing(tmp_path, grad_level=level) as debugger:
        seen, _ = train(debugger)
    folder = tmp_path / "dump" / "rank0"
    names = {f"grad_summary_{step}.csv" for step in range(3)}
    names |= set() if level == "L0" else {f"step{step}" for step in range(3)}
    assert {one.name for one in folder.iterdir()} == names
    text = (folder / "grad_summary_1.csv").read_text()
    assert text.splitlines()[0] == HEADERS[level]
    found = csv_rows(folder / "grad_summary_1.csv")
    assert [row["param_name"] for row in found] == list(seen[1])
    for row in found:
        gradient = seen[1][row["param_name"]]
        assert float(row["max"]) == gradient.max()
        assert float(row["min"]) == gradient.min()
        assert float(row["norm"]) == pytest.approx(gradient.double().norm().item(), rel=1e-12)
        assert json.loads(row["shape"]) == list(gradient.shape)
        if level == "L0":
            assert row["MD5"] == f"{zlib.crc32(gradient.numpy().tobytes()):08x}"
        if level == "L2":
            share = ((gradient > -1) & (gradient <= 0)).double().mean().item()
            assert float(row["(-1, 0]"]) == pytest.approx(share)
            intervals = ("(-inf, -1]", "(-1, 0]", "(0, 1]", "(1, inf)")
            assert sum(float(row[one]) for one in intervals) == pytest.approx(1)


def test_signs_are_packed_with_three_states(tmp_path: Path) -> None:
    def spoil(step: int, model: nn.Module) -> None:
        model[0].weight.grad[0] = 0
        model[0].weight.grad[1, 0] = float("nan")

    with probing(tmp_path) as debugger:
        seen, _ = train(debugger, 1, spoil)
    folder = tmp_path / "dump" / "rank0" / "step0"
    assert [one.name for one in folder.iterdir()] == ["gradients.npz"]
    gradient = seen[0]["0.weight"].numpy().reshape(-1)
    with np.load(folder / "gradients.npz", allow_pickle=False) as arrays:
        positive = np.unpackbits(arrays["0.weight/positive"], count=gradient.size)
        zero = np.unpackbits(arrays["0.weight/zero"], count=gradient.size)
        facts = json.loads(bytes(arrays["0.weight/facts"]))
    np.testing.assert_array_equal(positive, gradient > 0)
    np.testing.assert_array_equal(zero, gradient == 0)
    assert (facts["nan"], facts["shape"], facts["shard"]) == (1, [5, 6], "")
    assert len(facts["blake2b"]) == 32


def test_documented_sign_files_on_request(tmp_path: Path) -> None:
    with probing(tmp_path, sign_format="npy", param_list=["0.*"]) as debugger:
        seen, _ = train(debugger)
    folder = tmp_path / "dump" / "rank0" / "step2"
    assert sorted(one.name for one in folder.glob("*.npy")) == ["0.bias.npy", "0.weight.npy"]
    saved = np.load(folder / "0.weight.npy")
    assert (saved.dtype, saved.shape) == (np.bool_, (5, 6))
    np.testing.assert_array_equal(saved, (seen[2]["0.weight"] > 0).numpy())


def test_training_is_bit_identical_and_the_hook_goes(tmp_path: Path) -> None:
    plain, loss = train(None)
    with probing(tmp_path, grad_level="L2") as debugger:
        watched, watched_loss = train(debugger)
        debugger.stop()
        train(None)
    assert torch.equal(loss, watched_loss)
    for one, other in zip(plain, watched, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert not (tmp_path / "dump" / "rank0" / "step3").exists()


def test_steps_are_selected_and_optimizers_count_alone(tmp_path: Path) -> None:
    with probing(tmp_path, top={"step": [1]}) as debugger:
        model = model_of()
        first = torch.optim.SGD(model[0].parameters(), lr=0.1)
        second = torch.optim.Adam(model[2].parameters())
        debugger.monitor(model)
        for _ in range(3):
            model(torch.ones(2, 6)).sum().backward()
            first.step()
            second.step()
    folder = tmp_path / "dump" / "rank0"
    assert sorted(one.name for one in folder.iterdir()) == ["grad_summary_1.csv", "step1"]
    assert len(csv_rows(folder / "grad_summary_1.csv")) == 4
    with np.load(folder / "step1" / "gradients.npz") as arrays:
        assert len(arrays.files) == 16


def test_main_gradients_come_first(tmp_path: Path) -> None:
    with probing(tmp_path) as debugger:
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        debugger.monitor(model)
        model(torch.ones(2, 6)).sum().backward()
        model[0].weight.main_grad = torch.full((5, 6), 7.0)
        optimizer.step()
    found = csv_rows(tmp_path / "dump" / "rank0" / "grad_summary_0.csv")
    assert {row["param_name"]: row["max"] for row in found}["0.weight"] == "7.0"


def test_optimizers_of_other_parameters_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with probing(tmp_path) as debugger:
        debugger.monitor(model_of())
        other = nn.Linear(2, 1)
        other(torch.ones(1, 2)).sum().backward()
        torch.optim.SGD(other.parameters(), lr=0.1).step()
        debugger.stop()
    assert "grad_probe wrote nothing: 1 step" in caplog.text
    assert not (tmp_path / "dump" / "rank0").exists()


def flip(step: int, model: nn.Module) -> None:
    if step >= 2:
        model[2].weight.grad[:, :2] *= -1


def test_comparison_finds_the_step_and_parameter(tmp_path: Path, capsys: Any) -> None:
    target = record(tmp_path / "a", flip, 4)
    reference = record(tmp_path / "b", steps=4)
    out = tmp_path / "out"
    words = ["grad_compare", str(target), str(reference), "-o", str(out), "--exit-code"]
    assert main(words) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("rank0: ")
    assert "  2.weight: step 2: similarity falls by 0.4" in "\n".join(lines)
    table = list(csv.reader((out / "rank0" / "similarities.csv").read_text().splitlines()))
    assert table[0] == ["step", "0", "1", "2", "3"]
    assert [row[0] for row in table[1:]] == ["0.weight", "0.bias", "2.weight", "2.bias", "summary"]
    assert table[3][1:3] == ["1.0", "1.0"]
    assert float(table[3][3]) == pytest.approx(0.6)
    assert float(table[5][3]) == pytest.approx(1 - 4 / 47)
    verdicts = {row["parameter"]: row for row in csv_rows(out / "rank0" / "verdict.csv")}
    assert verdicts["2.weight"]["verdict"] == "suspicious"
    assert verdicts["2.bias"]["verdict"] == "pass"
    assert (out / "rank0" / "similarities.html").stat().st_size > 50_000


def negate(step: int, model: nn.Module) -> None:
    model[0].bias.grad = -model[0].bias.grad.abs() - 1


def zero(step: int, model: nn.Module) -> None:
    negate(step, model)
    if step == 1:
        model[0].bias.grad *= 0


def spoil_with_nan(step: int, model: nn.Module) -> None:
    negate(step, model)
    if step == 1:
        model[0].bias.grad *= torch.nan


@pytest.mark.parametrize(
    ("spoil", "words"), [(zero, "with zero as a sign falls by 1"), (spoil_with_nan, "5 elements")]
)
def test_gradients_that_are_positive_nowhere_are_told_apart(
    spoil: Spoil, words: str, tmp_path: Path
) -> None:
    target, reference = (record(tmp_path / one.__name__, one, 2) for one in (spoil, negate))
    (found,) = GradComparator.compare_distributed(target, reference, tmp_path / "out")
    (one,) = found.suspicious
    assert one.name == "0.bias"
    assert one.suspicion.step == 1
    assert words in one.suspicion.reason


def test_a_rank_of_one_run_and_a_cut_file_are_said(tmp_path: Path) -> None:
    both = [record(tmp_path / name) for name in "ab"]
    shutil.copytree(both[0] / "rank0", both[0] / "rank1")
    cut = both[0] / "rank0" / "step1" / "gradients.npz"
    cut.write_bytes(cut.read_bytes()[:-40])
    (found,) = GradComparator.compare_distributed(*both, tmp_path / "out")
    assert found.missing[0] == "rank 1: in one run only"
    assert str(cut) in found.missing[1]


def test_equal_runs_pass(tmp_path: Path, capsys: Any) -> None:
    both = [record(tmp_path / name) for name in "ab"]
    out = tmp_path / "out"
    assert main(["grad_compare", *map(str, both), "-o", str(out), "--exit-code"]) == 0
    assert capsys.readouterr().out.startswith("rank0: pass; 4 parameters, 3 steps\n")
    found = csv_rows(out / "rank0" / "verdict.csv")
    assert {row["cosine"] for row in found[:-1]} == {"1.0"}


def test_gradients_of_an_earlier_run_in_the_folder_are_not_kept(tmp_path: Path) -> None:
    record(tmp_path, sign_format="npy")
    record(tmp_path, sign_format="npy", param_list=["0.bias"])
    folder = tmp_path / "dump" / "rank0" / "step1"
    assert sorted(one.name for one in folder.iterdir()) == ["0.bias.npy", "gradients.npz"]
    with np.load(folder / "gradients.npz") as arrays:
        assert {name.rpartition("/")[0] for name in arrays.files} == {"0.bias"}


@pytest.mark.parametrize("damage", [b"\x8b\xff\x00", b"", b"hello\n"])
def test_a_damaged_summary_is_said(damage: bytes, tmp_path: Path, capsys: Any) -> None:
    both = [record(tmp_path / name) for name in "ab"]
    cut = both[0] / "rank0" / "grad_summary_0.csv"
    cut.write_bytes(damage)
    words = ["grad-compare", *map(str, both), "-o", str(tmp_path / "out")]
    assert main([*words, "--exit-code"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("rank0: incomplete; 4 parameters, 3 steps\n")
    assert f"not compared: {cut}: " in text


def test_runs_without_signs_are_not_compared(tmp_path: Path, capsys: Any) -> None:
    both = [record(tmp_path / name, grad_level="L0") for name in "ab"]
    words = ["grad-compare", *map(str, both), "-o", str(tmp_path / "out")]
    assert main([*words, "--exit-code"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("rank0: nothing compared;")
    assert "step0: holds no signs; level L0 records none" in text


def test_intervals_between_fractions(tmp_path: Path) -> None:
    with probing(tmp_path, grad_level="L2", bounds=[-0.01, 0, 1e-2]) as debugger:
        seen, _ = train(debugger, 1)
    (row, *_) = csv_rows(tmp_path / "dump" / "rank0" / "grad_summary_0.csv")
    assert [*row][1:6] == ["(-inf, -0.01]", "(-0.01, 0]", "(0, 0.01]", "(0.01, inf)", "=0"]
    share = (seen[0]["0.weight"] > 0.01).double().mean().item()
    assert float(row["(0.01, inf)"]) == pytest.approx(share)


def test_documented_files_are_compared_and_missing_ones_said(tmp_path: Path) -> None:
    """Folders of mindstudio-probe hold boolean arrays only."""
    both = [record(tmp_path / name, sign_format="npy") for name in "ab"]
    for folder in both:
        for packed in folder.rglob("gradients.npz"):
            packed.unlink()
    (both[0] / "rank0" / "step1" / "0.bias.npy").unlink()
    (both[1] / "rank0" / "step2" / "2.bias.npy").write_bytes(b"no array")
    for number, folder in enumerate(both):  # on a CPU ranks are named after their processes
        (folder / "rank0").rename(folder / f"rank{4000 + number}")
    (found,) = GradComparator.compare_distributed(*both, tmp_path / "out")
    by_name = {one.name: one for one in found.parameters}
    assert by_name["0.weight"].similarity == {0: 1.0, 1: 1.0, 2: 1.0}
    assert sorted(by_name["0.bias"].similarity) == [0, 2]
    assert any("step 1: 0.bias is in one run only" in one for one in found.missing)
    assert any("2.bias.npy" in one for one in found.missing)


def test_cosine_and_length_are_estimated(tmp_path: Path) -> None:
    def nudge(step: int, model: nn.Module) -> None:
        noise = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            size = parameter.grad.norm() / parameter.numel() ** 0.5
            parameter.grad += 0.1 * size * torch.randn(parameter.shape, generator=noise)
            parameter.grad *= 2

    target, reference = record(tmp_path / "a", nudge, 1), record(tmp_path / "b", steps=1)
    (found,) = GradComparator.compare_distributed(target, reference, tmp_path / "out")
    weight = found.parameters[0]
    assert weight.length_ratios[0] == pytest.approx(2, rel=0.05)
    assert weight.cosines[0] == pytest.approx(0.995, abs=0.2)


def test_nothing_in_common_is_an_error(tmp_path: Path) -> None:
    target = record(tmp_path / "a")
    with pytest.raises(DumpFormatError, match="holds no rank folder of the task grad_probe"):
        GradComparator.compare_distributed(target, tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"grad_level": "L3"}, "grad_probe.grad_level"),
        ({"bounds": [1, 0]}, "ascending"),
        ({"bounds": "1"}, "use a list of numbers"),
        ({"bounds": [0, 2**64]}, "bounds"),
        ({"sign_format": "png"}, "sign_format"),
    ],
)
def test_settings_are_checked(section: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words), probing(tmp_path, **section):
        pass


def test_what_is_watched_is_checked(tmp_path: Path) -> None:
    with probing(tmp_path) as debugger:
        for watched in (None, 3, "model"):
            with pytest.raises(ConfigError, match="model"):
                debugger.monitor(watched)
