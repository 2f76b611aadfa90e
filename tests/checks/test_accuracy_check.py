# SPDX-License-Identifier: Apache-2.0
"""`msprobe acc_check` on recordings of small programs, and the verdicts that it gives."""

from __future__ import annotations

import contextlib
import json
import math
import time
from pathlib import Path

import numpy as np
import pytest

from builders.csv_files import csv_rows
from msprobe.checks.accuracy_call import own_words
from msprobe.checks.accuracy_check import CheckSettings
from msprobe.checks.accuracy_follow import Arrived, Follower
from msprobe.checks.budgets import Budget, unit_of
from msprobe.checks.judging import Verdict, judge
from msprobe.checks.overflow_replay import OverflowKind, overflow_of
from msprobe.checks.random_calls import dropout_reference
from msprobe.cli import main
from msprobe.dump.tensor_files import StoredTensor, read_tensor
from msprobe.replay.generated import narrow
from msprobe.replay.references import load_goldens

torch = pytest.importorskip("torch")
from builders.recordings import recording  # noqa: E402 - needs torch

pytestmark = pytest.mark.torch
F = torch.nn.functional


def program() -> None:
    torch.manual_seed(0)
    weight = torch.randn(4, 8, requires_grad=True)
    hidden = F.linear(torch.randn(3, 8), weight)
    hidden = F.gelu(hidden) + torch.sort(hidden.detach()).values
    hidden.softmax(-1).sum().backward()


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("dump"), program)


def record(folder: Path, do, task: str = "tensor") -> Path:
    with recording(folder, "L1", task) as made, made.step_of():
        do()
    return folder


def check(*arguments: object) -> int:
    return main(["acc_check", "-n", "0", "-d", "cpu", *map(str, arguments)])


def rows(folder: Path, kind: str) -> list[dict[str, str]]:
    (path,) = folder.glob(f"accuracy_checking_{kind}_*.csv")
    return csv_rows(path, "utf-8-sig")


def details(folder: Path) -> dict[str, dict[str, str]]:
    return {row["API Name"]: row for row in rows(folder, "details")}


def stored(values, dtype: str) -> StoredTensor:
    return StoredTensor(array=narrow(np.asarray(values, np.float64), dtype), dtype=dtype)


def verdict(values, reference, dtype: str) -> Verdict:
    """The verdict of elements that one rounding separates from exact ones."""
    unit = unit_of(dtype)
    budget = Budget(dtype=dtype, unit=unit, accumulation=unit, length=0, steps=0.0)
    exact = StoredTensor(array=np.asarray(reference, np.float64), dtype="float64")
    return judge(stored(values, dtype), exact, budget, lambda _: ()).verdict


DTYPES = ("float32", "float16", "bfloat16")


def test_a_kernel_with_a_reference_is_run_itself(tmp_path: Path, monkeypatch) -> None:
    """The reference says what is right; in question is the kernel of this machine."""

    x, name = torch.randn(1, 2, 8, 16), "scaled_dot_product_attention"
    sound = getattr(F, name)
    dump = record(tmp_path / "dump", lambda: getattr(F, name)(x, x, x), "statistics")

    assert check(dump, "-o", tmp_path / "sound") == 0
    monkeypatch.setattr(F, name, lambda *args, **kwargs: sound(*args, **kwargs) * 1.1)
    assert check(dump, "-o", tmp_path / "wrong") == 1
    monkeypatch.delattr(F, name)
    monkeypatch.delattr(torch._C._nn, name)
    assert check(dump, "-o", tmp_path / "absent") == 2
    (row,) = rows(tmp_path / "absent", "result")
    assert "function not found" in row["Message"]


def test_a_custom_operator_is_imported_with_its_reference(tmp_path: Path, capsys) -> None:
    defining = tmp_path / "defining.py"
    defining.write_text(
        "import msprobe, torch\n"
        "library = torch.library.Library('checked_ops', 'DEF')\n"
        "library.define('scale(Tensor x, float by) -> Tensor')\n"
        "library.impl('scale', lambda x, by: x * by * 1.1, 'CompositeImplicitAutograd')\n"
        "msprobe.golden('torch.ops.checked_ops.scale')(lambda x, by: x * by)\n"
    )
    load_goldens(defining)
    x = torch.ones(3)
    dump = record(tmp_path / "dump", lambda: torch.ops.checked_ops.scale(x, 2.0))

    assert check(dump, "-o", tmp_path, "--import", defining) == 1
    said = capsys.readouterr().out
    assert "off by the factor 1.1" in said
    (script,) = (tmp_path / "scripts").glob("*checked_ops.scale.0.forward.py")
    assert f"script: python {script} cpu" in said


# What the documented standard gets wrong, each with the right verdict.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [1.1, 3.0])
@pytest.mark.parametrize("scale", [1e-6, 1e-5, 1e-4, 1e-3, 1.0])
def test_results_that_are_too_large_are_wrong_at_any_size(dtype, factor, scale) -> None:
    reference = np.random.default_rng(0).uniform(0.5, 1, 1000) * scale
    found = verdict(reference * factor, reference, dtype)
    # Of numbers around 1e-6 those of float16 are 6 % apart.
    coarse = (dtype, factor, scale) == ("float16", 1.1, 1e-6)
    assert found is (Verdict.SUSPICIOUS if coarse else Verdict.WRONG)


def test_a_wrong_scalar_is_wrong() -> None:
    assert verdict([1e-4], [6e-4], "float32") is Verdict.WRONG


@pytest.mark.parametrize("count", [100, 10_000, 100_000])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_element_that_is_not_finite_is_wrong(count: int, dtype: str, bad: float) -> None:
    reference = narrow(np.random.default_rng(0).standard_normal(count), "float16")
    values = reference.astype(np.float64)
    values[count // 2] = bad
    exact = reference.astype(np.float64)
    if dtype == "bfloat16":
        exact = stored(exact, dtype).values().astype(np.float64)
    assert verdict(values, exact, dtype) is Verdict.WRONG


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_same_nan_or_infinity_agrees(value: float) -> None:
    values = [1.0, value, 2.0]
    assert verdict(values, values, "float32") is Verdict.EXACT


def test_an_overflow_of_the_type_is_no_fault() -> None:
    assert verdict([math.inf, 1.0], [1e5, 1.0], "float16") is Verdict.OVERFLOW


def test_a_rounded_bfloat16_result_is_exact() -> None:
    reference = np.random.default_rng(0).standard_normal(1000) * 100
    assert verdict(reference, reference, "bfloat16") is Verdict.EXACT


def test_a_dropout_of_wrong_scale_is_wrong() -> None:
    source = np.ones(1000)
    kept = np.random.default_rng(0).random(1000) < 0.5
    result = stored(np.where(kept, 99.0, 0.0), "float32")
    reference, _ = dropout_reference(stored(source, "float32"), kept, 0.5)
    unit = unit_of("float32")
    budget = Budget(dtype="float32", unit=unit, accumulation=unit)
    assert judge(result, reference, budget, lambda _: ()).verdict is Verdict.WRONG


def test_a_gradient_of_zero_and_complex_and_double_results_are_judged(tmp_path: Path) -> None:
    def do() -> None:
        torch.manual_seed(0)
        values = torch.randn(6, 16, requires_grad=True)
        # The gradient of a sum over a normalised dimension is zero but for rounding.
        F.layer_norm(values, (16,)).sum().backward()
        torch.fft.fft(torch.randn(8)) * torch.randn(8, dtype=torch.complex64)
        torch.exp(torch.randn(5, dtype=torch.float64))

    record(tmp_path / "dump", do)
    assert check(tmp_path / "dump", "-o", tmp_path) == 0
    found = details(tmp_path)
    assert found["Functional.layer_norm.0.backward.output.0"]["Status"] == "pass"
    product = next(row for name, row in found.items() if "mul" in name)
    assert (product["DEVICE Dtype"], product["Status"]) == ("torch.complex64", "pass")
    assert float(product["最大绝对误差"]) < 1e-6
    double = found["Torch.exp.0.forward.output.0"]
    assert (double["DEVICE Dtype"], double["Status"]) == ("torch.float64", "pass")
    assert float(double["均方根误差"]) < 1e-12


# The command.


def test_a_recording_passes_on_the_cpu(dump: Path, tmp_path: Path, capsys) -> None:
    assert check(dump, "-o", tmp_path) == 0
    assert "0 errors" in capsys.readouterr().out
    results = rows(tmp_path, "result")
    assert [row["API name"] for row in results if "gelu" in row["API name"]] == [
        "Functional.gelu.0"
    ]
    assert {row["Forward Test Success"] for row in results} <= {"pass", "SKIP"}
    gelu = details(tmp_path)["Functional.gelu.0.forward.output.0"]
    assert gelu["Bench Dtype"] == "torch.float64"
    assert gelu["Shape"] == "(3, 4)"
    assert float(gelu["余弦相似度"]) == pytest.approx(1)
    assert "Functional.gelu.0.backward.output.0" in details(tmp_path)


def test_judgements_for_programs_and_as_a_page(dump: Path, tmp_path: Path, capsys) -> None:
    assert check(dump, "-o", tmp_path, "--json", "--html") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sentence"].startswith("no call is wrong")
    gelu = next(one for one in found["results"] if one["name"] == "Functional.gelu.0.forward")
    assert [row["record"].rpartition(".")[2] for row in gelu["rows"]] == ["forward", "backward"]
    assert gelu["source"].startswith("test_accuracy_check.py:")
    (page,) = tmp_path.glob("accuracy_checking_report_*.html")
    assert "Functional.gelu.0.forward" in page.read_text()


def test_the_documented_spelling_uses_the_documented_standards(dump: Path, tmp_path: Path) -> None:
    words = ["run_ut", "-api_info", dump / "step0" / "rank" / "dump.json", "-o", tmp_path, "-n", 0]
    assert main(["-f", "pytorch", *map(str, words), "-d", "cpu"]) == 0
    linear = details(tmp_path)["Functional.linear.0.forward.output.0"]
    assert float(linear["ULP误差平均值"]) < 32
    assert linear["均方根误差"] == " "
    add = details(tmp_path)["Tensor.__add__.0.forward.output.0"]
    assert float(add["相对误差错误率"]) == 0


def test_generated_inputs_are_said(tmp_path: Path) -> None:
    record(tmp_path / "dump", program, "statistics")
    assert check(tmp_path / "dump", "-o", tmp_path) in (0, 1)
    assert len(details(tmp_path)) > 4


def test_lists_of_the_configuration(dump: Path, tmp_path: Path, capsys) -> None:
    config = tmp_path / "config.json"
    section = {"white_list": ["linear", "gelu"], "black_list": ["gelu"], "precision": 3}
    config.write_text(json.dumps({"task": "run_ut", "run_ut": section}))
    assert check(dump, "-o", tmp_path, "-config", config) == 0
    assert [row["API name"] for row in rows(tmp_path, "result")] == ["Functional.linear.0"]
    assert details(tmp_path)["Functional.linear.0.forward.output.0"]["余弦相似度"] == "1.000"
    config.write_text(json.dumps({"acc_check": {"white_list": ["linaer"]}}))
    assert check(dump, "-o", tmp_path, "-config", config) == 2
    assert 'did you mean "linear"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"white_lst": []}, "did you mean"),
        ({"white_list": "conv1d"}, "bare names"),
        ({"error_data_path": "/nowhere/at/all"}, "a folder that exists"),
        ({"precision": 99}, "from 0 to 20"),
    ],
)
def test_faulty_configurations_are_refused(dump: Path, tmp_path: Path, capsys, section, said):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"acc_check": section}))
    assert check(dump, "-o", tmp_path, "-config", config) == 2
    assert said in capsys.readouterr().err


def test_one_output_runs_backward_on_demand(tmp_path: Path) -> None:
    def do() -> None:
        x = torch.randn(4, 6, requires_grad=True)
        first, second = torch.chunk(x, 2, dim=1)
        (first.sum() + 2 * second.sum()).backward()

    record(tmp_path / "dump", do)
    found = {}
    for index in (1, 5):  # there is no sixth output
        (tmp_path / "torch_ut_setting.json").write_text(f'{{"chunk": {{"grad_index": {index}}}}}')
        folder = tmp_path / str(index)
        assert check(tmp_path / "dump", "-o", folder, "--standards", tmp_path) == 0
        (found[index],) = [r for r in rows(folder, "result") if "chunk" in r["API name"]]
    assert [found[index]["Backward Test Success"] for index in (1, 5)] == ["pass", "SKIP"]


def test_repeated_calls_are_left_out_on_demand(tmp_path: Path) -> None:
    def do() -> None:
        for size in (3, 3, 4):
            torch.exp(torch.randn(size))

    record(tmp_path / "dump", do)
    assert check(tmp_path / "dump", "-o", tmp_path, "--filter_api") == 0
    names = [row["API name"] for row in rows(tmp_path, "result") if "exp" in row["API name"]]
    assert names == ["Torch.exp.0", "Torch.exp.2"]


def test_an_interrupted_check_is_finished(dump: Path, tmp_path: Path, capsys) -> None:
    assert check(dump, "-o", tmp_path) == 0
    whole, results = details(tmp_path), rows(tmp_path, "result")
    (path,) = tmp_path.glob("accuracy_checking_result_*.csv")
    lines = path.read_text(encoding="utf-8-sig").splitlines(keepends=True)
    path.write_text("".join(lines[:3]) + lines[3][:9], encoding="utf-8-sig", newline="")
    capsys.readouterr()
    assert check(dump, "-csv_path", path, "--json") == 0
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert note.startswith("2 calls of an earlier check")
    assert details(tmp_path) == whole
    assert rows(tmp_path, "result") == results


def test_results_of_another_recording_are_not_continued(dump: Path, tmp_path: Path, capsys) -> None:
    record(tmp_path / "other", lambda: torch.exp(torch.randn(3)))
    assert check(tmp_path / "other", "-o", tmp_path) == 0
    (path,) = tmp_path.glob("accuracy_checking_result_*.csv")
    before = path.read_bytes()
    capsys.readouterr()
    assert check(dump, "-csv_path", path) == 2
    said = f"{path}: is of another recording: it has Torch.exp.0, which this one has not"
    assert said in capsys.readouterr().err
    assert path.read_bytes() == before


def test_results_of_other_shapes_are_not_continued(tmp_path: Path, capsys) -> None:
    for name, size in (("one", 3), ("other", 4)):
        record(tmp_path / name, lambda size=size: torch.exp(torch.ones(size)))
    assert check(tmp_path / "one", "-o", tmp_path) == 0
    (path,) = tmp_path.glob("accuracy_checking_result_*.csv")
    capsys.readouterr()
    assert check(tmp_path / "other", "-csv_path", path) == 2
    said = "is of another recording: Torch.ones.0.forward.output.0 has the shape (3,) there, (4,)"
    assert said in capsys.readouterr().err


def test_results_of_other_values_are_not_continued(tmp_path: Path, capsys) -> None:
    for name, value in (("one", 1.0), ("other", 2.0)):
        record(tmp_path / name, lambda value=value: torch.exp(torch.full((3,), value)))
    assert check(tmp_path / "one", "-o", tmp_path) == 0
    (path,) = tmp_path.glob("accuracy_checking_result_*.csv")
    capsys.readouterr()
    assert check(tmp_path / "other", "-csv_path", path) == 2
    assert "is of another recording: the records of " in capsys.readouterr().err
    assert check(tmp_path / "one", "-csv_path", path) == 0


def test_calls_run_in_another_type_on_demand(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.randn(4, 8, requires_grad=True)
        (
            F.linear(x, torch.randn(6, 8)).square().sum() + torch.log1p(x.abs() * 1e-6).sum()
        ).backward()

    record(tmp_path / "dump", program)
    check(tmp_path / "dump", "-o", tmp_path, "--dtype", "bfloat16", "--reference", "float32")
    found = details(tmp_path)
    linear = found["Functional.linear.0.forward.output.0"]
    assert (linear["DEVICE Dtype"], linear["Bench Dtype"]) == ("torch.bfloat16", "torch.float32")
    assert linear["Status"] == "pass"
    # float32 itself is exact to 1e-7: these are errors of bfloat16.
    assert (
        float(linear["max_rel_err"] if "max_rel_err" in linear else linear["相对误差最大值"]) > 1e-4
    )


def test_tensors_of_calls_that_fail_are_saved(tmp_path: Path, capsys) -> None:
    def do() -> None:
        torch.exp(torch.tensor([1.0, 100.0], dtype=torch.float16))

    record(tmp_path / "dump", do)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"run_ut": {"error_data_path": str(tmp_path)}}))
    words = ("-o", tmp_path, "-config", config, "-save_error_data")
    assert check(tmp_path / "dump", *words) == 1
    assert "overflow: 1 elements are beyond the range of float16" in capsys.readouterr().out
    (folder,) = tmp_path.glob("ut_error_data*")
    assert sorted(path.name for path in folder.iterdir()) == [
        "Torch.exp.0.forward.input.0.pt",
        "Torch.exp.0.forward.output.bench.0.pt",
        "Torch.exp.0.forward.output.device.0.pt",
    ]
    reference = torch.load(folder / "Torch.exp.0.forward.output.bench.0.pt")
    assert reference[1].item() == pytest.approx(math.exp(100))
    assert read_tensor(folder, "Torch.exp.0.forward.input.0.pt").dtype == "float16"


def test_disagreement_with_the_documented_standard_is_explained(tmp_path: Path) -> None:
    record(tmp_path / "dump", lambda: F.gelu(torch.randn(1000).bfloat16() * 10))
    assert check(tmp_path / "dump", "-o", tmp_path) == 0
    row = details(tmp_path)["Functional.gelu.0.forward.output.0"]
    assert row["Status"] == "pass"
    assert "documented standard: warning (only" in row["Message"]


def test_what_cannot_be_checked_is_refused(dump: Path, tmp_path: Path, capsys) -> None:
    assert check(tmp_path) == 2
    assert "holds no dump" in capsys.readouterr().err
    assert check(dump, "-o", tmp_path, "--step", 7) == 2
    assert "no such step" in capsys.readouterr().err
    assert main(["acc_check", str(dump), "-n", "0", "-d", "0", "0"]) == 2
    assert "name each device once" in capsys.readouterr().err
    assert check(dump, "--json", "--follow", "1") == 2
    assert "leave it out with --follow" in capsys.readouterr().err
    words = ["acc_check", str(dump), "-n", "0", "-d", "nodevice", "-o", str(tmp_path)]
    assert main(words) == 2
    assert "'nodevice' cannot be used" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_words_of_a_wrong_result() -> None:
    unit = unit_of("float32")
    budget = Budget(dtype="float32", unit=unit, accumulation=unit)
    values = np.linspace(1, 2, 50)
    exact = StoredTensor(array=values, dtype="float64")
    found = judge(stored(values * 0.5, "float32"), exact, budget, lambda _: ())
    words = own_words(found, "float32")
    assert words.startswith("wrong: ")
    assert "times the allowed error, off by the factor 0.5" in words


def test_a_recording_is_checked_while_it_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    follower = Follower(folder, CheckSettings(), patience_s=2)
    arrived: list[Arrived] = []

    def follow(_: float) -> None:
        raise InterruptedError

    def look() -> None:
        with contextlib.suppress(InterruptedError):
            arrived.extend(follower.arrivals(follow))

    look()
    assert arrived == []
    with recording(folder, "L1", "tensor") as made, made.step_of():
        values = torch.randn(3, requires_grad=True)
        torch.exp(values).sum().backward()
        torch.cos(values)
        deadline = time.monotonic() + 20
        while not arrived and time.monotonic() < deadline:  # the journal is flushed now and then
            time.sleep(0.1)
            look()
        # Only calls whose gradients came are complete.
        assert not arrived[-1].has_ended
        assert "Torch.exp.0.forward" in arrived[-1].names
        assert "Torch.cos.0.forward" not in arrived[-1].names
    look()
    assert arrived[-1].has_ended
    assert "Torch.cos.0.forward" in arrived[-1].names
    count = len(arrived)
    look()
    assert len(arrived) == count


def test_follow_writes_files_for_each_step(tmp_path: Path, capsys) -> None:
    with recording(tmp_path / "dump", "L1", "tensor") as made:
        for _ in range(2):
            with made.step_of():
                torch.exp(torch.ones(3))
    assert check(tmp_path / "dump", "-o", tmp_path, "--follow", 0.5) == 0
    assert "step1_rank: 2 calls: 2 pass" in capsys.readouterr().out
    for step in ("step0", "step1"):
        assert len(list((tmp_path / step).glob("accuracy_checking_result_*_rank0.csv"))) == 1
        assert len(list((tmp_path / step).glob("accuracy_checking_details_*_rank0.csv"))) == 1
    assert check(tmp_path / "nowhere", "-o", tmp_path, "--follow", 0.5) == 2


@pytest.mark.slow
def test_several_processes_make_the_same_files(dump: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert check(dump, "-o", one) == 0
    words = ["multi_acc_check", str(dump), "-n", "2", "-d", "cpu", "-o", str(two)]
    assert main(words) == 0
    assert details(one) == details(two)
    assert rows(one, "result") == rows(two, "result")


def test_overflows_are_normal_or_not(tmp_path: Path, capsys) -> None:
    def do() -> None:
        torch.exp(torch.tensor([1.0, 100.0], dtype=torch.float16))
        torch.log(torch.tensor([0.0, 1.0]))
        torch.sin(torch.ones(3))

    record(tmp_path / "dump", do)
    words = ["-api_info", str(tmp_path / "dump" / "step0" / "rank" / "dump.json"), "-n", "0"]
    assert main(["-f", "pytorch", "run_overflow_check", *words]) == 0
    said = capsys.readouterr().out
    assert "normal overflow: Torch.exp.0: 1 of 2 elements are beyond float16" in said
    assert "which would have to hold 2.68812e+43" in said
    assert "normal overflow: Torch.log.0: 1 of 2 elements, the same in float64" in said
    assert "Torch.sin" not in said


@pytest.mark.parametrize(
    ("found", "reference", "kind"),
    [
        ([1.0, 2.0], [1.0, 2.0], OverflowKind.NONE),
        ([math.inf, 2.0], [1e6, 2.0], OverflowKind.NORMAL),
        ([math.inf, 2.0], [-1e6, 2.0], OverflowKind.ABNORMAL),
        ([math.nan, 2.0], [math.nan, 2.0], OverflowKind.NORMAL),
        ([math.nan, 2.0], [1.0, 2.0], OverflowKind.ABNORMAL),
        ([1.0, 2.0], [math.inf, 2.0], OverflowKind.ABNORMAL),
    ],
)
def test_kind_of_an_overflow(found, reference, kind) -> None:
    exact = StoredTensor(array=np.asarray(reference), dtype="float64")
    assert overflow_of(stored(found, "float16"), exact).kind is kind
