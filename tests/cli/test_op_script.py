# SPDX-License-Identifier: Apache-2.0
"""`msprobe op_script`: scripts that need PyTorch alone say whether a recorded call is right."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from builders.recordings import recording  # noqa: E402
from builders.warm_python import run_warm  # noqa: E402
from msprobe.cli import main  # noqa: E402
from msprobe.replay import references  # noqa: E402

pytestmark = pytest.mark.torch

# Runs each script as a program of its own would run, and prints its exit code and its output.
DRIVER = """
import contextlib, io, runpy, sys, warnings
warnings.simplefilter("error")
assert "msprobe" not in sys.modules
first, *scripts = sys.argv[1:]
for path in scripts:
    sys.argv = [path, *([first] if first != "-" else [])]
    text, code = io.StringIO(), None
    with contextlib.redirect_stdout(text):
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            code = int(end.code)
    print(code, "|", " / ".join(text.getvalue().splitlines()))
assert "msprobe" not in sys.modules
"""


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(24)


def record(program, folder, task="tensor"):
    with recording(folder, "L1", task) as run, run.step_of():
        program()
    return folder


def script(dump, call, path, *options):
    assert main(["op_script", str(dump), call, "-o", str(path), *options]) == 0
    return path


def run_scripts(*paths, device="-"):
    """Return exit code and output of each script, which imports nothing of msprobe."""
    done = run_warm("-c", DRIVER, device, *paths)
    assert done.returncode == 0, done.stderr
    lines = [line.partition(" | ") for line in done.stdout.splitlines()]
    return [(code, text) for code, _, text in lines]


def damage(dump, name, change):
    path = dump / "step0" / "rank" / "dump_tensor_data" / f"{name}.pt"
    tensor = torch.load(path)
    change(tensor)
    torch.save(tensor, path)


def linear():
    x = torch.randn(3, 4, requires_grad=True)
    weight = torch.randn(5, 4, requires_grad=True)
    functional.linear(x, weight, torch.randn(5, requires_grad=True)).square().sum().backward()


def test_a_right_call_and_a_wrong_one(tmp_path, capsys):
    dump = record(linear, tmp_path / "dump")
    right = script(dump, "Functional.linear.0", tmp_path / "right.py")
    damage(dump, "Functional.linear.0.forward.output.0", lambda one: one[1, 2].mul_(1.0001))
    damage(dump, "Functional.linear.0.backward.output.1", lambda one: one.mul_(0.5))
    wrong = script(dump, "Functional.linear.0.forward", tmp_path / "wrong.py")
    back = script(dump, "Functional.linear.0", tmp_path / "back.py", "--backward")
    assert capsys.readouterr().out.splitlines() == [str(right), str(wrong), str(back)]
    found = run_scripts(right, wrong, back)
    assert found[0][0] == "0"
    assert found[0][1].startswith("output: right, element ")
    assert found[1][0] == "1"
    assert "output: wrong, element 7 is" in found[1][1]
    assert found[2][0] == "1"
    assert "gradient of input: right" in found[2][1]
    assert "gradient of weight: wrong" in found[2][1]
    assert "off by the factor 0.5" in " ".join(back.read_text().split())
    # On this machine the call is right.
    assert [code for code, _ in run_scripts(wrong, back, device="cpu")] == ["0", "0"]


def test_scripts_are_short_and_name_the_line(tmp_path):
    dump = record(linear, tmp_path / "dump")
    for options in ((), ("--backward",)):
        text = script(dump, "Functional.linear.0", tmp_path / "a.py", *options).read_text()
        assert len(text.splitlines()) < 60, text
        assert "called at test_op_script.py:" in text
        assert max(len(line) for line in text.splitlines() if "tensor([" not in line) <= 100
    assert list(tmp_path.glob("*.pt")) == []


def test_large_tensors_lie_beside_the_script(tmp_path):
    def program():
        functional.linear(torch.randn(20, 30), torch.randn(10, 30))

    dump = record(program, tmp_path / "dump")
    path = script(dump, "Functional.linear.0", tmp_path / "out" / "large.py")
    assert sorted(one.name for one in path.parent.iterdir()) == ["large.pt", "large.py"]
    assert len(path.read_text().splitlines()) < 60
    assert run_scripts(path)[0][0] == "0"


def test_three_large_arguments_make_no_long_script(tmp_path):
    def program():
        parts = [torch.randn(1, 2, 8, 8, requires_grad=True) for _ in range(3)]
        functional.scaled_dot_product_attention(*parts, is_causal=True).square().sum().backward()

    dump = record(program, tmp_path / "dump")
    name = "Functional.scaled_dot_product_attention.0"
    path = script(dump, name, tmp_path / "a.py", "--backward")
    assert len(path.read_text().splitlines()) < 60
    assert [code for code, _ in run_scripts(path)] == ["0"]


def various():
    x = torch.randn(4, 6)
    odd = torch.tensor([1.0, -0.0, float("inf"), float("nan")])
    odd * 2
    torch.topk(x, 2, dim=1)
    torch.max(x, dim=0)
    x[1:3, ::2]
    x[torch.tensor([0, 2])]
    torch.cat([x, x * 3], dim=1)
    torch._foreach_add([x, x], 1.5)
    functional.softmax(x.bfloat16(), dim=-1, dtype=torch.float32)
    x.to(torch.float64)
    torch.where(x > 0, x, 0.0)
    torch.fft.fft(x)
    torch.view_as_complex(x.reshape(4, 3, 2)).abs()
    x.add_(1)
    torch._foreach_mul_([x, torch.ones(2)], 2.0)
    torch.ones(3, device=torch.device("cpu"), dtype=torch.float16)
    functional.layer_norm(x, (6,))
    functional.interpolate(x[None, None], scale_factor=2.0, mode="bilinear")
    torch.randint(0, 5, (4,)).sum()


def test_calls_of_all_kinds(tmp_path, capsys):
    dump = record(various, tmp_path / "dump")
    names = [
        name.stem for name in (dump / "step0/rank/dump_tensor_data").glob("*.forward.output.*")
    ]
    calls = sorted({name.partition(".forward")[0] for name in names})
    paths, refused = [], []
    for call in calls:
        path = tmp_path / f"{call}.py"
        (paths if main(["op_script", str(dump), call, "-o", str(path)]) == 0 else refused).append(
            path
        )
    messages = capsys.readouterr().err
    assert all("random numbers" in line for line in messages.splitlines()), messages
    assert len(paths) >= 18
    for path, (code, text) in zip(paths, run_scripts(*paths), strict=True):
        assert code == "0", (path.name, text)
        assert "right" in text
        assert len(path.read_text().splitlines()) < 60


def test_a_call_without_tensors_is_made_of_a_seed(tmp_path):
    def program():
        x = torch.randn(40, 30, requires_grad=True)
        functional.cross_entropy(x, torch.randint(0, 30, (40,))).backward()

    dump = record(program, tmp_path / "dump", task="statistics")
    forward = script(dump, "Functional.cross_entropy.0", tmp_path / "a.py")
    back = script(dump, "Functional.cross_entropy.0", tmp_path / "b.py", "--backward")
    assert "torch.randn((40, 30), generator=seeded(" in forward.read_text()
    assert "torch.randint(0, 30, (40,), generator=seeded(" in forward.read_text()
    assert list(tmp_path.glob("*.pt")) == []
    found = run_scripts(forward, back)
    assert [code for code, _ in found] == ["0", "0"], found


@torch.library.custom_op("op_script_tests::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    """A kernel that computes large numbers wrongly."""
    return torch.where(x > 4, x * factor * 1.01, x * factor)


def test_an_operator_of_ones_own_is_judged_by_values_of_its_reference(tmp_path):
    golden = tmp_path / "goldens.py"
    golden.write_text(
        "import msprobe\n\n@msprobe.golden('torch.ops.op_script_tests.scale')\n"
        "def scale(x, factor):\n    return x * factor\n"
    )
    x = torch.randn(6, 8)
    x[4, 3] = 7.0
    dump = record(lambda: scale(x, 3.0), tmp_path / "dump")
    call = "op_script_tests.scale.0"
    path = script(dump, call, tmp_path / "a.py", "--import", str(golden))
    small = script(dump, call, tmp_path / "b.py", "--import", str(golden), "--shrink")
    references.REGISTERED.pop("op_script_tests.scale")
    text = small.read_text()
    assert "torch.ops.op_script_tests.scale(input0, 3.0)" in text
    assert '"input0": torch.tensor([7.0], dtype=torch.float32).reshape((1, 1))' in text
    ((code, text),) = run_scripts(path)  # the smaller one needs the operator, which it runs
    assert code == "1"
    assert "element 35 is 21.2" in text


def test_a_recording_of_another_machine_shrinks_where_its_results_are_independent(tmp_path):
    def program():
        x = torch.randn(16, 12, requires_grad=True)
        functional.layer_norm(x, (12,), torch.randn(12)).sum().backward()

    dump = record(program, tmp_path / "dump")
    damage(dump, "Functional.layer_norm.0.forward.output.0", lambda one: one[5, 7].add_(0.1))
    path = script(dump, "Functional.layer_norm.0", tmp_path / "a.py", "--shrink", "20")
    # Rows do not depend on each other; a row is normalised as a whole.
    assert ".reshape((1, 12))" in path.read_text()
    found = run_scripts(path)
    assert found[0][0] == "1"
    assert "element 7 is" in found[0][1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("Functional.linaer.0", "no call Functional.linaer.0; did you mean Functional.linear.0"),
        ("Torch.randn.0", "random numbers that were not recorded"),
        ("Torch.zeros.0 --backward", "no backward pass of it was recorded"),
    ],
)
def test_refusals(call, message, tmp_path, capsys):
    def program():
        linear()
        torch.zeros(3)

    dump = record(program, tmp_path / "dump")
    assert main(["op_script", str(dump), *call.split()]) == 2
    assert message in capsys.readouterr().err
    assert not Path(f"{call}.forward.py").exists()


@pytest.mark.parametrize(
    ("found", "planted"),
    [
        ('"dim":', '"dim=open(1)":'),
        ("Functional.softmax.0", "Functional.softmax(open(1)).0"),
    ],
)
def test_names_of_a_hostile_dump_are_not_written_into_code(found, planted, tmp_path, capsys):
    def program():
        functional.softmax(torch.randn(3), dim=0)

    dump = record(program, tmp_path / "dump")
    path = dump / "step0" / "rank" / "dump.json"
    path.write_text(path.read_text().replace(found, planted))
    call = "Functional.softmax.0" if "dim" in planted else "Functional.softmax(open(1)).0"
    assert main(["op_script", str(dump), call, "-o", str(tmp_path / "a.py")]) == 2
    assert not (tmp_path / "a.py").exists()
    capsys.readouterr()


def test_a_source_line_cannot_end_the_docstring(tmp_path):
    dump = record(linear, tmp_path / "dump")
    path = dump / "step0" / "rank" / "stack.json"
    path.write_text(path.read_text().replace("test_op_script.py", 'a\\"\\"\\"; open(1); b.py'))
    text = script(dump, "Functional.linear.0", tmp_path / "a.py").read_text()
    assert text.count('"""') == 2
    assert run_scripts(tmp_path / "a.py")[0][0] == "0"


def test_verify_writes_scripts_of_the_worst_calls(tmp_path, capsys):
    dump = record(linear, tmp_path / "dump")
    damage(dump, "Functional.linear.0.forward.output.0", lambda one: one.mul_(1.1))
    out = tmp_path / "out"
    assert main(["verify", str(dump), "-o", str(out), "-n", "0", "--scripts", "2"]) == 0
    written = sorted(out.glob("scripts/*.py"))
    assert 1 <= len(written) <= 2
    assert "step0.rank.Functional.linear.0.forward.py" in [path.name for path in written]
    assert "script:" in capsys.readouterr().out
    assert {code for code, _ in run_scripts(*written)} == {"1"}
