# SPDX-License-Identifier: Apache-2.0
"""Reference functions are found by the names of records; users' ones come first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import msprobe
from msprobe.errors import ConfigError, ConfigFileError, UsageError
from msprobe.replay import references


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    monkeypatch.setattr(references, "REGISTERED", {})


def found(*names: str) -> object:
    golden = references.find(names)
    return None if golden is None else golden.function


def test_an_operator_has_one_reference_under_all_its_names():
    @msprobe.golden("torch.ops.my_ops.scale", "npu_scale", "torch.ops.aten.scale")
    def scale(x, factor):
        """Return x·factor."""
        return x * factor

    assert found("my_ops.scale", "scale") is scale
    assert found("torch.ops.my_ops.scale") is scale
    assert found("my_ops::scale") is scale
    assert found("NPU.npu_scale", "npu_scale") is scale
    assert found("Aten.scale", "scale") is scale
    assert found("Functional.scale", "scale") is None
    assert scale(2, 3) == 6
    described = {one.name: one.description for one in references.all_goldens()}
    assert described["npu_scale"] == "Return x·factor."


def test_the_last_one_is_taken_and_a_users_before_those_of_msprobe():
    references.builtin_golden("npu_scale")(min)
    assert found("NPU.npu_scale", "npu_scale") is min
    msprobe.golden("npu_scale")(max)
    assert found("npu_scale") is max
    msprobe.golden("npu_scale")(sum)
    assert found("npu_scale") is sum


@pytest.mark.torch
def test_classes_of_torch():
    torch = pytest.importorskip("torch")

    class Twice(torch.autograd.Function):
        pass

    class Norm(torch.nn.LayerNorm):
        pass

    msprobe.golden(Twice)(min)
    msprobe.golden(Norm)(max)
    assert found("Autograd.Twice") is min
    assert found("Module.layers.0.norm", "Norm") is max


@pytest.mark.parametrize("target", [3, int, min])
def test_other_things_are_no_operators(target):
    with pytest.raises(UsageError, match="golden"):
        msprobe.golden(target)(min)


def test_a_decorator_without_a_name_is_refused():
    with pytest.raises(UsageError, match="name of an operator"):
        msprobe.golden()


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


SCALE = """
import msprobe

@msprobe.golden("my_ops.scale")
def scale(x, factor):
    return x * factor

def shift(x, by):
    return x + by
"""


def test_files_of_references(tmp_path):
    references.load_goldens(write(tmp_path / "scaling.py", SCALE))
    assert found("my_ops.scale")(2, 3) == 6


def test_a_yaml_names_files_and_functions(tmp_path):
    write(tmp_path / "scaling.py", SCALE)
    listed = "files: [scaling.py]\noperators:\n  torch.ops.my_ops.shift:\n    file: scaling.py\n"
    listed += "    forward: shift\n    description: x + by\n"
    references.load_goldens(write(tmp_path / "goldens.yaml", listed))
    assert found("my_ops.scale")(2, 3) == 6
    assert found("my_ops.shift")(2, 3) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file: [a.py]", 'line 1: "the file" is "file"; use one of files, operators'),
        ("files: [missing.py]", "missing.py: there is no Python file here"),
        ("files: [broken.py]", "broken.py: ZeroDivisionError: division by zero"),
        ("operators: {a: {file: empty.py}}", "file and forward"),
        ("operators: {a: {file: empty.py, forward: f}}", "the name of a function of that file"),
        ("operators: {a: {file: empty.py, forward: f, backward: g}}", "file, forward, description"),
    ],
)
def test_faulty_files_say_what_is_wrong(tmp_path, text, message):
    write(tmp_path / "broken.py", "1 / 0")
    write(tmp_path / "empty.py", "")
    with pytest.raises((ConfigError, ConfigFileError)) as caught:
        references.load_goldens(write(tmp_path / "goldens.yaml", text))
    assert message in str(caught.value)


def test_registering_imports_no_framework():
    program = (
        "import sys, msprobe\n"
        "msprobe.golden('my_ops.scale')(min)\n"
        "print(sorted({'torch', 'mindspore', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
