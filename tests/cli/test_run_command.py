# SPDX-License-Identifier: Apache-2.0
"""`msprobe run`: scripts that nobody edited are recorded, and notice nothing of it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from builders.warm_python import run_warm
from msprobe import open_dump
from msprobe.cli import main
from msprobe.dump.facts import Ending, OptimizerStep, Scaler, Schedule
from msprobe.dump.rank_view import RankView
from msprobe.launch.launching import after_import

LOOP = """
    import sys
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(net.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    criterion = nn.CrossEntropyLoss()

    def evaluate():
        net.eval()
        with torch.no_grad():
            loss = criterion(net(torch.ones(3, 4)), torch.tensor([0, 1, 1])).item()
        net.train()
        return loss

    print(sys.argv, __name__, __file__, sys.path[0], sys.stdin.read(), evaluate())
    for step in range(3):
        for micro in range(2):
            loss = criterion(net(torch.randn(5, 4)), torch.randint(0, 2, (5,)))
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        print(step, loss.item(), evaluate())
    print([p.detach().tolist() for p in net.parameters()], torch.rand(1))
"""


def write(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text))
    return path


def start(folder: Path, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        input="from stdin",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def record(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return start(folder, "-m", "msprobe", "run", "--out", "dump", *words)


def record_warm(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Record a program for which it is all the same when PyTorch is imported."""
    return run_warm("-m", "msprobe", "run", "--out", "dump", *words, cwd=folder)


def trace_of(script: Path, ended: subprocess.CompletedProcess[str]) -> str:
    """Return what Python prints of an exception that ends a script which was started alone."""
    frames = ended.stderr[ended.stderr.index(f'  File "{script}"') :]
    return f"Traceback (most recent call last):\n{frames}"


def view(folder: Path, step: int) -> RankView:
    return open_dump(folder / "dump").step(step).rank()


def steps_of(folder: Path) -> list[int]:
    return list(open_dump(folder / "dump").steps)


def modules_of(folder: Path, step: int = 0) -> list[str]:
    names = (name for name, _ in view(folder, step).records.items())
    return [name for name in names if name.startswith("Module.") and ".forward." in name]


def test_a_script_prints_and_computes_the_same(tmp_path: Path) -> None:
    write(tmp_path, LOOP)
    alone = start(tmp_path, "train.py", "--epochs", "1", "--level")
    recorded = record(tmp_path, "--step", "all", "train.py", "--epochs", "1", "--level")
    assert (recorded.returncode, recorded.stdout) == (0, alone.stdout), recorded.stderr
    assert steps_of(tmp_path) == [0, 1, 2]
    for step in range(3):
        facts = view(tmp_path, step).facts
        assert facts is not None
        assert facts.ended is not None
        assert facts.ended.how is Ending.WHOLE
        assert [entry.micro for entry in facts.data] == [0, 1]
        assert [type(event) for event in facts.events] == [OptimizerStep, Schedule]
    # Two micro batches, and nothing of the evaluation.
    assert modules_of(tmp_path) == [
        f"Module.{name}.forward.{micro}"
        for micro in range(2)
        for name in ("0.Linear", "1.GELU", "2.Dropout", "3.Linear", "Sequential")
    ]


def test_a_program_may_look_for_a_module_before_it_imports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # transformers looks for torch in this way before it imports it
    name = "msprobe_looked_for"
    write(tmp_path, "value = 1", f"{name}.py")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[tuple[int, ...]] = []
    finders = list(sys.meta_path)
    after_import(name, lambda module: seen.append((module.value,)))
    try:
        assert importlib.util.find_spec(name) is not None
        assert seen == []
        importlib.import_module(name)
        importlib.reload(sys.modules[name])
    finally:
        del sys.modules[name]
    assert seen == [(1,)]
    assert sys.meta_path == finders


def test_the_default_records_two_steps_at_mix(tmp_path: Path) -> None:
    write(tmp_path, LOOP)
    ended = run_warm("-m", "msprobe", "run", "train.py", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    dump = open_dump(tmp_path / "msprobe_dump")
    assert list(dump.steps) == [0, 1]
    assert dump.step(0).rank().head.level == "mix"


def test_records_are_those_of_an_edited_script(tmp_path: Path) -> None:
    write(tmp_path, LOOP)
    construct = """
    from msprobe.pytorch import PrecisionDebugger
    debugger = PrecisionDebugger(dump_path="by_hand", level="L0")
    """
    edited = (
        LOOP.replace("\n    torch.manual_seed(0)", f"{construct}\n    torch.manual_seed(0)")
        .replace("for micro in range(2):", "debugger.start(net)\n        for micro in range(2):")
        .replace("optimizer.step()", "optimizer.step()\n        debugger.stop()")
        .replace("print(step,", "debugger.step()\n        print(step,")
    )
    write(tmp_path, edited, "edited.py")
    assert run_warm("edited.py", cwd=tmp_path, text="from stdin").returncode == 0
    assert record_warm(tmp_path, "--level", "L0", "--step", "all", "train.py").returncode == 0
    for step in range(3):
        pair = [open_dump(tmp_path / name).step(step).rank() for name in ("dump", "by_hand")]
        found, expected = (one.records for one in pair)
        assert list(found) == list(expected)
        for name in found:
            assert found[name].data == expected[name].data


@pytest.mark.parametrize(
    ("ending", "code", "how"),
    [
        ("raise SystemExit(7)", 7, Ending.WHOLE),
        ("raise ValueError('the batch is odd')", 1, Ending.INTERRUPTED),
        ("signal.raise_signal(signal.SIGINT)", -2, Ending.INTERRUPTED),
    ],
)
def test_a_script_ends_as_it_ends(tmp_path: Path, ending: str, code: int, how: Ending) -> None:
    script = write(
        tmp_path,
        f"""
        import signal
        import torch
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests
        net = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters())
        net(torch.ones(1, 2)).sum().backward()
        print("so far")
        {ending}
        """,
    )
    alone = run_warm(script, cwd=tmp_path)
    recorded = record_warm(tmp_path, script)
    assert alone.returncode == recorded.returncode == code
    assert recorded.stdout == alone.stdout
    if alone.stderr:
        assert trace_of(script, alone) in recorded.stderr
    assert recorded.stderr.count("Traceback") == alone.stderr.count("Traceback")
    facts = view(tmp_path, 0).facts
    assert facts is not None
    assert facts.ended is not None
    assert facts.ended.how is how


def test_a_script_behind_a_link_finds_the_modules_beside_it(tmp_path: Path) -> None:
    text = """
        import sys
        import beside
        print(beside.NAME, sys.argv, sys.path[0], __file__, type(__loader__).__name__)
    """
    script = write(tmp_path, text, "code/train.py")
    write(tmp_path, "NAME = 'beside'", "code/beside.py")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/train").symlink_to(script)
    plain = start(tmp_path, "bin/train", "x")
    assert plain.returncode == 0
    recorded = start(tmp_path, "-m", "msprobe", "run", "bin/train", "x")
    assert (recorded.returncode, recorded.stdout) == (0, plain.stdout)


@pytest.mark.parametrize(
    "call",
    [
        *("torch.mm(x, torch.ones(3, 3))", "x.item()", "x + torch.ones(7)", "softmax(x, dim=7)"),
        "Breaks.apply(x).sum().backward()",
    ],
)
def test_the_traceback_of_a_call_that_fails_has_its_line_and_no_frames_of_msprobe(
    call: str, tmp_path: Path
) -> None:
    text = f"""
        import torch
        from torch.nn.functional import softmax

        class Breaks(torch.autograd.Function):
            @staticmethod
            def forward(context, x):
                return x * 1

            @staticmethod
            def backward(context, gradient):
                raise RuntimeError("in backward")

        def fails(x):
            return {call}

        fails(torch.nn.Linear(2, 2)(torch.ones(2, 2)))
    """
    script = write(tmp_path, text)
    plain, recorded = run_warm(script, cwd=tmp_path), record_warm(tmp_path, script)
    assert plain.returncode == recorded.returncode == 1
    assert f"return {call}" in plain.stderr
    assert trace_of(script, plain) in recorded.stderr


def test_a_step_that_begins_inside_vmap_has_its_random_states(tmp_path: Path) -> None:
    text = """
        import torch
        from torch.func import functional_call, grad, vmap

        net = torch.nn.Linear(2, 1)
        loss = lambda weights, x: functional_call(net, weights, (x,)).sum()
        vmap(grad(loss), in_dims=(None, 0))(dict(net.named_parameters()), torch.ones(3, 2))
    """
    write(tmp_path, text)
    assert "FAILED" not in record_warm(tmp_path, "train.py").stderr
    facts = open_dump(tmp_path / "dump").step(0).rank().facts
    assert facts is not None
    assert "cpu" in facts.random


def test_a_syntax_error_is_shown_as_python_shows_it(tmp_path: Path) -> None:
    write(tmp_path, "import torch\nx = = 2\n")
    alone, recorded = start(tmp_path, "train.py"), record(tmp_path, "train.py")
    assert recorded.stderr == alone.stderr
    assert recorded.returncode == alone.returncode == 1


def test_a_module_runs_as_with_python_m(tmp_path: Path) -> None:
    write(tmp_path, "", "package/__init__.py")
    write(tmp_path, "value = 3", "package/part.py")
    write(
        tmp_path,
        """
        import sys, torch
        from .part import value
        from package.part import value
        net = torch.nn.Linear(2, value)
        print(__name__, __package__, __spec__.name, sys.argv, sys.path[0])
        print(net(torch.ones(1, 2)).shape)
        """,
        "package/__main__.py",
    )
    alone = run_warm("-m", "package", "-m", "x", cwd=tmp_path)
    recorded = record_warm(tmp_path, "-m", "package", "-m", "x")
    assert recorded.stdout == alone.stdout, recorded.stderr
    assert recorded.returncode == 0
    assert modules_of(tmp_path) == ["Module.Linear.forward.0"]


@pytest.mark.parametrize("word", ["--local_rank=1", "--local-rank=0"])
def test_the_local_rank_of_a_launcher_is_the_scripts(tmp_path: Path, word: str) -> None:
    # as `deepspeed --module msprobe run train.py --epochs 1` starts it
    write(tmp_path, "import sys\nprint(sys.argv)")
    ended = start(tmp_path, "-m", "msprobe", word, "run", "train.py", "--epochs", "1")
    assert (ended.returncode, ended.stdout) == (0, f"['train.py', '{word}', '--epochs', '1']\n")
    refused = start(tmp_path, "-m", "msprobe", word, "show", "dump")
    assert refused.returncode == 2
    assert f"there is no option {word} in front of the command" in refused.stderr


def test_two_models_keep_their_names_from_step_to_step(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        import torch
        from torch import nn
        torch.manual_seed(0)
        make, judge = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        of_make = torch.optim.Adam(make.parameters())
        of_judge = torch.optim.SGD(judge.parameters(), lr=0.1)
        for i in range(2):
            with torch.no_grad():
                made = make(torch.randn(4, 2))
            (judge(made).mean() - judge(torch.randn(4, 3)).mean()).backward()
            of_judge.step()
            of_judge.zero_grad()
            (-judge(make(torch.randn(4, 2))).mean()).backward()
            of_make.step()
            of_make.zero_grad()
        """,
    )
    assert record_warm(tmp_path, "--step", "all", "train.py").returncode == 0
    judging = [f"Module.1.{name}.forward" for name in ("0.Linear", "1.Linear", "Sequential")]
    first = [f"{name}.{call}" for call in range(2) for name in judging]
    for step in (0, 2):
        assert modules_of(tmp_path, step) == ["Module.Linear.forward.0", *first]
    for step in (1, 3):
        assert modules_of(tmp_path, step) == ["Module.Linear.forward.0", *first[:3]]


def test_models_found_later_have_names_facts_and_settings_of_their_own(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        import torch
        from torch import nn
        first = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 2))
        second, third = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.25)), nn.LayerNorm(4)
        models = nn.ModuleList([first, second, third])
        optimizer = torch.optim.SGD(models.parameters(), lr=0.1)
        for i in range(2):
            third(second(first(torch.ones(1, 2)))).sum().backward()
            optimizer.step()
        """,
    )
    assert record_warm(tmp_path, "--level", "L0", "train.py").returncode == 0
    assert len(set(modules_of(tmp_path))) == 3 + 1 + 2 + 1 + 1
    facts = view(tmp_path, 0).facts
    assert facts is not None
    weights = [f"{name}.{kind}" for name in "0123" for kind in ("weight", "bias")]
    # The first has parts named 1 and 2, so the others are 3 and 4.
    assert facts.parameters.name == [
        *weights[:6],
        *("3.0.weight", "3.0.bias"),
        *("4.weight", "4.bias"),
    ]
    assert all(facts.parameters.checksum)
    assert "p=0.25" in facts.settings["module.3.1"]
    assert set(facts.modes.training) == {"", "3", "4"}


def test_parameters_are_those_of_the_start_when_a_model_is_found_after_an_update(
    tmp_path: Path,
) -> None:
    script = """
        import torch
        from torch import nn
        torch.manual_seed(0)
        critic, actor = nn.Linear(2, 1), nn.Linear(2, 2)
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (critic, actor)]
        def train_step(order):
            for index in order:
                (critic, actor)[index](torch.ones(1, 2)).sum().backward()
                optimizers[index].step()
        before = critic.weight.detach().norm().item()
        train_step((0, 1))
        print(before, critic.weight.detach().norm().item())
    """
    write(tmp_path, script)
    ended = record_warm(tmp_path, "--step-function", "__main__:train_step", "train.py")
    assert ended.returncode == 0, ended.stderr
    before, after = map(float, ended.stdout.split())
    facts = view(tmp_path, 0).facts
    assert facts is not None
    assert facts.parameters.name == ["weight", "bias", "1.weight", "1.bias"]
    assert facts.parameters.norm[0] == pytest.approx(before, rel=1e-6)
    assert after != pytest.approx(before, rel=1e-3)


def test_a_step_function_that_its_module_lacks(tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text("import torch")
    (tmp_path / "train.py").write_text("import training")
    ended = record_warm(tmp_path, "--step-function", "training:Trainer.fit", "train.py")
    assert ended.returncode == 2
    assert "--step-function: there is no function Trainer.fit in training" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_step_function_of_a_module_that_is_never_imported(tmp_path: Path) -> None:
    write(tmp_path, "import torch; torch.nn.Linear(2, 1)(torch.ones(1, 2))")
    ended = record_warm(tmp_path, "--step-function", "nowhere:train", "train.py")
    assert ended.returncode == 0
    assert "--step-function nowhere:train: the program never imported nowhere" in ended.stderr


def test_a_closure_belongs_to_the_step_of_its_optimizer(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        import torch
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)
        def closure():
            optimizer.zero_grad()
            loss = net(torch.ones(2, 3)).square().mean()
            loss.backward()
            return loss
        for _ in range(2):
            optimizer.step(closure)
        """,
    )
    assert record_warm(tmp_path, "train.py").returncode == 0
    assert steps_of(tmp_path) == [0, 1]
    facts = view(tmp_path, 1).facts
    assert facts is not None
    assert [type(event) for event in facts.events] == [OptimizerStep]


def test_a_scaler_that_skips_the_optimizer_ends_the_step(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        import torch
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
        for _ in range(3):
            scaler.scale(net(torch.full((4, 3), 3.0)).sum() * 4).backward()
            scaler.step(optimizer)
            scaler.update()
        """,
    )
    assert record_warm(tmp_path, "--step", "all", "train.py").returncode == 0
    assert steps_of(tmp_path) == [0, 1, 2]
    facts = view(tmp_path, 0).facts
    assert facts is not None
    [event] = facts.events
    assert isinstance(event, Scaler)
    assert event.skipped


def test_without_an_optimizer_each_call_is_a_step(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        import torch
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()).eval()
        with torch.inference_mode():
            for _ in range(3):
                print(net(torch.ones(1, 3)).argmax().item())
        """,
    )
    assert record_warm(tmp_path, "--step", "all", "train.py").returncode == 0
    assert steps_of(tmp_path) == [0, 1, 2]
    assert len(modules_of(tmp_path, 1)) == 3


STEPS = """
    import torch
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    class Trainer:
        def train_step(self, batch):
            '''Two optimizer steps.'''
            for _ in range(2):
                net(batch).sum().backward()
                optimizer.step()
            return batch

    if __name__ == "__main__":
        trainer = Trainer()
        print(Trainer.train_step.__doc__)
        for _ in range(2):
            trainer.train_step(torch.ones(2, 3))
"""


def test_a_named_function_is_the_step(tmp_path: Path) -> None:
    write(tmp_path, STEPS)
    done = record_warm(
        tmp_path, "--step", "all", "--step-function", "Trainer.train_step", "train.py"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Two optimizer steps.\n"
    assert steps_of(tmp_path) == [0, 1]
    assert len(modules_of(tmp_path)) == 2


def test_a_function_of_a_module_is_the_step(tmp_path: Path) -> None:
    write(tmp_path, STEPS, "training.py")
    write(
        tmp_path,
        """
        import torch
        from training import Trainer
        for _ in range(2):
            Trainer().train_step(torch.ones(2, 3))
        """,
    )
    done = record_warm(tmp_path, "--step-function", "training:Trainer.train_step", "train.py")
    assert done.returncode == 0, done.stderr
    assert steps_of(tmp_path) == [0, 1]


def test_a_script_with_the_three_lines_keeps_the_steps_of_the_command(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        import torch
        from msprobe.pytorch import PrecisionDebugger
        debugger = PrecisionDebugger(dump_path="other")
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            debugger.start(net)
            net(torch.ones(2, 3)).sum().backward()
            debugger.stop()
            optimizer.step()
            debugger.step()
        """,
    )
    done = record_warm(tmp_path, "train.py")
    assert done.returncode == 0
    assert "start() is skipped" in done.stderr
    assert steps_of(tmp_path) == [0, 1]
    assert not (tmp_path / "other").exists()


def test_a_file_is_read_and_options_win(tmp_path: Path) -> None:
    write(tmp_path, LOOP)
    config = {"task": "tensor", "level": "L1", "step": [2], "dump_path": "of_file", "tensor": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = run_warm(
        "-m", "msprobe", "run", "--config", "config.json", "--task", "statistics",
        "--list", "gelu,linear", "--scope",
        "Functional.gelu.0.forward", "Functional.linear.1.forward", "train.py", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    dump = open_dump(tmp_path / "of_file")
    assert list(dump.steps) == [2]
    names = [name for name in dump.step(2).rank().records if name.endswith("forward")]
    assert names == ["Functional.gelu.0.forward", "Functional.linear.1.forward"]


def test_a_file_without_a_folder_records_into_the_usual_one(tmp_path: Path) -> None:
    write(tmp_path, LOOP)
    (tmp_path / "config.json").write_text(json.dumps({"level": "L0", "step": [1]}))
    done = run_warm("-m", "msprobe", "run", "--config", "config.json", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(open_dump(tmp_path / "msprobe_dump").steps) == [1]


def test_nothing_to_record_is_said(tmp_path: Path) -> None:
    write(tmp_path, "print('no torch')")
    done = record(tmp_path, "train.py")
    assert (done.returncode, done.stdout) == (0, "no torch\n")
    assert "imported neither torch nor mindspore" in done.stderr
    write(tmp_path, "import torch\nprint(torch.ones(1))")
    assert "nothing was recorded" in record_warm(tmp_path, "train.py").stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name the script to run"),
        (["nowhere.py"], "nowhere.py"),
        (["-m", "no.such.module"], "no.such.module"),
        (["torchrun", "train.py"], "torchrun … -m msprobe run"),
        (["deepspeed", "train.py"], "deepspeed … --module msprobe run"),
        (["msrun", "train.py"], "msrun … python -m msprobe run"),
        (["--level", "L7", "train.py"], "level"),
        (["--step-function", "3x", "train.py"], "--step-function"),
        (["--step-function", "missing", "train.py"], "defines no function missing"),
    ],
)
def test_what_cannot_run_is_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path, "print('ran')")
    monkeypatch.chdir(tmp_path)
    assert main(["run", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1
