# SPDX-License-Identifier: Apache-2.0
"""Every flag that mindstudio-probe documents for its checks, in its spellings, and its effect."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from msprobe.cli import main

torch = pytest.importorskip("torch")
from builders.recordings import recording  # noqa: E402 - needs torch

pytestmark = pytest.mark.torch

ONE = ("acc_check", "-f pytorch run_ut")
MANY = ("multi_acc_check", "-f pytorch multi_run_ut")
CHECKS = (*ONE, *MANY)
CALLS = {"Functional.gelu.0", "Functional.gelu.1", "Torch.exp.0"}


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump.json of two equal calls and a third one, whose result float16 cannot hold."""
    folder = tmp_path_factory.mktemp("dump")
    torch.manual_seed(0)
    x, large = torch.randn(3, 4), torch.tensor([1.0, 100.0], dtype=torch.float16)
    with recording(folder, "L1", "tensor") as made, made.step_of():
        torch.nn.functional.gelu(x)
        torch.nn.functional.gelu(x)
        torch.exp(large)
    return folder / "step0" / "rank" / "dump.json"


def checked(folder: Path) -> set[str]:
    (path,) = folder.glob("accuracy_checking_result_*.csv")
    with path.open(encoding="utf-8-sig", newline="") as file:
        return {row[0] for row in list(csv.reader(file))[1:]}


def run(command: str, *words: object) -> int:
    try:
        return main([*command.split(), *map(str, words)])
    except SystemExit as end:  # by argparse
        return int(end.code or 0)


def check(command: str, dump: Path, folder: Path, *words: object) -> set[str]:
    """Run a check in this process on the CPU; return the calls that it has rows for."""
    options = ["-api_info", dump, "-o", folder, "-n", 0, *words]
    if not {"-d", "--device"} & {*map(str, words)}:
        options += ["-d", "cpu"]
    assert run(command, *options) in (0, 1)
    return checked(folder)


@pytest.mark.parametrize("command", CHECKS)
@pytest.mark.parametrize(
    ("dump_flag", "out_flag"), [("-api_info", "-o"), ("--api_info_file", "--out_path")]
)
def test_the_recording_and_the_folder(command, dump_flag, out_flag, dump, tmp_path) -> None:
    folder = tmp_path / "made" / "here"
    assert run(command, dump_flag, dump, out_flag, folder, "-n", 0, "-d", "cpu") in (0, 1)
    assert checked(folder) == CALLS


@pytest.mark.parametrize("command", CHECKS)
@pytest.mark.parametrize("flag", ["-f", "--filter_api"])
def test_equal_calls_are_left_out(command, flag, dump, tmp_path) -> None:
    assert check(command, dump, tmp_path, flag) == CALLS - {"Functional.gelu.1"}


@pytest.mark.parametrize("command", CHECKS)
@pytest.mark.parametrize("flag", ["-config", "--config_path"])
def test_lists_of_a_configuration(command, flag, dump, tmp_path) -> None:
    section = "run_ut" if "ut" in command else "acc_check"
    lists = {"white_list": ["gelu"], "black_list": [], "error_data_path": "./"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"task": section, section: lists}))
    found = check(command, dump, tmp_path, flag, path)
    assert found == {"Functional.gelu.0", "Functional.gelu.1"}


@pytest.mark.parametrize("command", CHECKS)
@pytest.mark.parametrize("flag", ["-csv_path", "--result_csv_path"])
def test_a_result_file_is_continued(command, flag, dump, tmp_path, caplog) -> None:
    check(command, dump, tmp_path)
    (path,) = tmp_path.glob("accuracy_checking_result_*.csv")
    lines = path.read_text(encoding="utf-8-sig").splitlines(keepends=True)
    path.write_text("".join(lines[:-1]), encoding="utf-8-sig")
    assert checked(tmp_path) < CALLS
    assert check(command, dump, tmp_path, flag, path) == CALLS
    assert "is replaced" not in caplog.text  # of files that it wrote itself


@pytest.mark.parametrize("command", CHECKS)
@pytest.mark.parametrize("flag", ["-save_error_data", "--save_error_data"])
def test_tensors_of_failing_calls_are_saved(command, flag, dump, tmp_path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"acc_check": {"error_data_path": str(tmp_path)}}))
    check(command, dump, tmp_path, "-config", config, flag)
    saved = {one.name.partition(".forward")[0] for one in tmp_path.rglob("*.pt")}
    assert saved == {"Torch.exp.0"}


@pytest.mark.parametrize("command", CHECKS)
@pytest.mark.parametrize("flags", ["-j -d cpu", "--jit_compile --device cpu"])
def test_device_and_compilation(command, flags, dump, tmp_path) -> None:
    assert check(command, dump, tmp_path, *flags.split()) == CALLS


@pytest.mark.parametrize("command", CHECKS)
def test_numbers_of_devices(command, dump, tmp_path, capsys) -> None:
    options = ["-api_info", dump, "-o", tmp_path, "-n", 0, "-d", 0, 0]
    assert run(command, *options) == 2
    assert "0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [*CHECKS, "-f pytorch run_overflow_check"])
def test_a_number_that_no_device_has_is_refused(command, dump, capsys) -> None:
    assert run(command, "-api_info", dump, "-d", 99999) == 2
    assert "-d 99999: devices have numbers from 0 to 4095" in capsys.readouterr().err


@pytest.mark.skipif(torch.accelerator.is_available(), reason="numbers name its devices")
@pytest.mark.parametrize("command", ["acc_check", "run_overflow_check"])
def test_a_number_without_an_accelerator_is_said(command, dump, tmp_path, capsys) -> None:
    place = [] if "overflow" in command else ["-o", tmp_path]
    assert run(command, "-api_info", dump, *place, "-n", 0, "-d", 7) in (0, 1)
    assert "-d 7: no accelerator was found, so calls run on the CPU" in capsys.readouterr().err


@pytest.mark.parametrize("command", MANY)
@pytest.mark.parametrize("flag", ["-n", "--num_splits"])
def test_too_many_processes_are_refused(command, flag, dump, tmp_path, capsys) -> None:
    assert run(command, "-api_info", dump, "-o", tmp_path, flag, 65, "-d", "cpu") == 2
    assert "65 is not a number from 0 to 64" in capsys.readouterr().err


def test_processes_share_the_calls(dump, tmp_path) -> None:
    words = ["-api_info", dump, "-o", tmp_path, "--num_splits", 2, "-d", "cpu", "-f"]
    assert run("-f pytorch multi_run_ut", *words) in (0, 1)
    assert checked(tmp_path) == CALLS - {"Functional.gelu.1"}


@pytest.mark.parametrize("prefix", ["", "-f pytorch "])
@pytest.mark.parametrize(
    "flags", ["-npu {0} -gpu {0} -o {1}", "--npu_csv_path {0} --gpu_csv_path {0} --out_path {1}"]
)
def test_the_comparison_of_two_machines(prefix, flags, dump, tmp_path) -> None:
    check("acc_check", dump, tmp_path)
    (path,) = tmp_path.glob("accuracy_checking_details_*.csv")
    words = flags.format(path, tmp_path / "out").split()
    assert run(f"{prefix}api_precision_compare", *words) == 0
    names = sorted(one.name[:30] for one in (tmp_path / "out").iterdir())
    assert names == ["api_precision_compare_details_", "api_precision_compare_result_2"]


@pytest.mark.parametrize("flags", ["-api_info {} -j -d cpu", "--api_info_file {} --device cpu"])
def test_the_overflow_check(flags, dump, capsys) -> None:
    assert run("-f pytorch run_overflow_check", *flags.format(dump).split(), "-n", 0) == 0
    assert capsys.readouterr().out
