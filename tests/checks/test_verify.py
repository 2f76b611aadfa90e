# SPDX-License-Identifier: Apache-2.0
"""`msprobe verify`: what it says of sound and of damaged recordings."""

from __future__ import annotations

import importlib
import json
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from builders.recordings import recording
from msprobe import open_dump
from msprobe.checks.judging import Verdict
from msprobe.checks.verify_dump import Selection, VerifiedCall, VerifiedDump, verify_dump
from msprobe.cli import main
from msprobe.errors import UsageError
from msprobe.replay.generated import generate
from msprobe.replay.recorded_calls import recorded_call
from msprobe.replay.runner import Reason
from msprobe.replay.workers import Limits

pytestmark = pytest.mark.torch


def recorded(
    folder: Path,
    program: Callable[[], object],
    task: str = "tensor",
    level: str = "L1",
    *,
    model: torch.nn.Module | None = None,
    **common: object,
) -> Path:
    torch.manual_seed(0)
    with recording(folder, level, task, **common) as run:
        run.debugger.start(model)
        program()
        run.debugger.stop()
        run.debugger.step()
    return folder


def verified(folder: Path) -> VerifiedDump:
    return verify_dump(open_dump(folder), workers=0)


def call_of(found: VerifiedDump, name: str) -> VerifiedCall:
    return next(call for call in found.calls if call.report.name == name)


def damage(folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    path = folder / "step0" / "rank" / "dump_tensor_data" / f"{name}.pt"
    value = change(torch.load(path))
    path.unlink()  # other records may share the file
    torch.save(value, path)


def network() -> None:
    x = torch.randn(6, 16, requires_grad=True)
    weight = torch.randn(8, 16, requires_grad=True)
    y = F.layer_norm(F.gelu(F.linear(x, weight)), [8], weight=torch.ones(8, requires_grad=True))
    z = torch.cat([y, F.dropout(y, 0.3)], dim=1).softmax(dim=-1)
    parts = z.chunk(2, dim=1)
    loss = (parts[0] * parts[1][:, :8]).sum() + z.max(dim=1).values.mean()
    loss.backward()


def test_a_sound_recording_has_no_fault(tmp_path: Path) -> None:
    found = verified(recorded(tmp_path, network))

    assert [call.report.name for call in found.calls if call.is_fault] == []
    assert found.not_judged == {Reason.RANDOM: 2}  # randn
    linear = call_of(found, "Functional.linear.0.forward")
    assert [row.record.split(".")[-1] for row in linear.report.rows] == [
        "forward",
        "backward",
        "backward",
    ]
    assert linear.source is not None
    assert "test_verify.py" in linear.source


def test_one_wrong_element_is_found_with_its_place(tmp_path: Path) -> None:
    folder = recorded(tmp_path, network)

    def change(value: torch.Tensor) -> torch.Tensor:
        value[2, 3] *= 1 + 1e-4
        return value

    damage(folder, "Functional.layer_norm.0.forward.output.0", change)

    found = verified(folder)
    faults = [call.worst for call in found.calls if call.is_fault]
    assert [fault.record for fault in faults if fault] == ["Functional.layer_norm.0.forward"]
    assert faults[0] is not None
    assert faults[0].judgement is not None
    assert faults[0].judgement.verdict is Verdict.WRONG
    assert faults[0].judgement.index == 2 * 8 + 3


def test_a_gradient_off_by_a_factor_is_named_as_that(tmp_path: Path) -> None:
    folder = recorded(tmp_path, network)
    damage(folder, "Functional.linear.0.backward.output.1", lambda value: value / 2)

    call = call_of(verified(folder), "Functional.linear.0.forward")

    assert call.worst is not None
    assert call.worst.judgement is not None
    assert call.worst.judgement.factor == 0.5
    assert "factor 0.5" in call.worst.judgement.remark


def test_a_dropout_with_a_wrong_scale_or_share_is_wrong(tmp_path: Path) -> None:
    def program() -> None:
        x = F.relu(torch.linspace(-1, 1, 1000)).requires_grad_()  # half of it is zero
        F.dropout(x, 0.25).backward(torch.ones(1000))

    folder = recorded(tmp_path, program)
    assert call_of(verified(folder), "Functional.dropout.0.forward").report.verdict in (
        Verdict.EXACT,
        Verdict.ROUNDING,
    )
    damage(folder, "Functional.dropout.0.forward.output.0", lambda value: value * 0.75)
    assert call_of(verified(folder), "Functional.dropout.0.forward").is_fault
    x = F.relu(torch.linspace(-1, 1, 1000))
    damage(folder, "Functional.dropout.0.forward.output.0", lambda _: x / 0.75)
    assert call_of(verified(folder), "Functional.dropout.0.forward").is_fault


def test_statistics_are_judged_on_generated_data(tmp_path: Path) -> None:
    def program() -> None:
        network()
        torch.equal(torch.arange(3), torch.tensor([5, 6, 7]))

    found = verified(recorded(tmp_path, program, task="statistics"))

    linear = call_of(found, "Functional.linear.0.forward")
    assert linear.report.generated
    assert linear.report.is_judged
    assert not any(call.is_fault for call in found.calls)


def test_an_exp_inside_of_a_loss_may_overflow(tmp_path: Path) -> None:
    def loss() -> None:
        x = torch.tensor([2.0, 12.0], dtype=torch.float16, requires_grad=True)
        F.soft_margin_loss(x, -torch.ones(2, dtype=torch.float16)).backward()

    call = call_of(verified(recorded(tmp_path, loss)), "Functional.soft_margin_loss.0.forward")

    assert [row.judgement.verdict for row in call.report.rows if row.judgement] == [
        Verdict.OVERFLOW,
        Verdict.OVERFLOW,
    ]


def test_a_call_without_arguments_is_not_judged_as_recorded(tmp_path: Path) -> None:
    found = verified(recorded(tmp_path, lambda: torch.arange(5), "statistics"))

    assert [call.report.generated for call in found.calls] == [True]


@pytest.mark.parametrize(
    ("function", "edge"), [(torch.acos, 1.0), (torch.asin, -1.0), (torch.acosh, 1.0)]
)
def test_a_wrong_value_at_the_edge_of_a_domain_is_found(
    function: Callable[[torch.Tensor], torch.Tensor], edge: float, tmp_path: Path
) -> None:
    folder = recorded(tmp_path, lambda: function(torch.tensor([edge, edge])))
    name = f"Torch.{function.__name__}.0.forward"
    assert not call_of(verified(folder), name).is_fault

    damage(folder, f"{name}.output.0", lambda value: value + torch.tensor([0.0, 0.5]))

    assert call_of(verified(folder), name).report.verdict is Verdict.WRONG


def test_an_empty_argument_hides_no_wrong_result(tmp_path: Path) -> None:
    folder = recorded(tmp_path, lambda: torch.cat([torch.ones(0, 4), torch.ones(2, 4)]))
    damage(folder, "Torch.cat.0.forward.output.0", lambda value: value * 2)

    call = call_of(verified(folder), "Torch.cat.0.forward")

    assert call.report.verdict is Verdict.WRONG
    assert not call.report.generated


def test_damaged_records_cost_their_own_rows(tmp_path: Path, capsys) -> None:
    x = torch.ones(2, 3)
    folder = recorded(tmp_path, lambda: (torch.exp(x), torch.sin(x), torch.cos(x)))
    path = folder / "step0" / "rank" / "dump.json"
    tree = json.loads(path.read_text())
    deep: list[Any] = []
    for _ in range(900):
        deep = [deep]
    tree["data"]["Torch.exp.0.forward"]["input_args"] = deep
    tree["data"]["Torch.sin.0.forward"]["input_args"][0]["shape"] = [-1, 10**18]
    path.write_text(json.dumps(tree))

    found = verified(folder)
    assert found.not_judged == {Reason.DAMAGED: 2}
    details = [call.report.detail for call in found.calls if not call.report.is_judged]
    assert "Torch.exp.0.forward: nested deeper than 100 levels" in details[0]
    assert 'input.0: "shape" is a list with -1, not a list of sizes' in details[1]
    for words in (["acc_check", "-d", "cpu", "-f", "-o", str(tmp_path)], ["run_overflow_check"]):
        assert main([*words, "-api_info", str(path), "-n", "0"]) == 0
    assert "2 not run" in capsys.readouterr().out


def test_gradients_without_their_call_are_counted(tmp_path: Path) -> None:
    def program() -> None:
        F.relu(torch.ones(3, requires_grad=True)).sum().backward()

    folder = recorded(tmp_path, program)
    path = folder / "step0" / "rank" / "dump.json"
    tree = json.loads(path.read_text())
    del tree["data"]["Functional.relu.0.forward"]
    path.write_text(json.dumps(tree))

    assert "1 records of gradients are not judged" in "".join(verified(folder).notes)


def test_a_selection_of_nothing_is_refused(tmp_path: Path) -> None:
    folder = recorded(tmp_path, lambda: F.relu(torch.ones(3)))
    for selection in (Selection(steps=[7]), Selection(names=["gelu"]), Selection(scope=("a", "b"))):
        with pytest.raises(UsageError, match="no call is selected; it has steps 0"):
            verify_dump(open_dump(folder), selection=selection, workers=0)


def test_calls_that_cannot_be_replayed_are_listed_with_their_reason(tmp_path: Path) -> None:
    folder = recorded(tmp_path, lambda: F.relu(torch.ones(3)))
    (folder / "step0/rank/dump_tensor_data/Functional.relu.0.forward.input.0.pt").unlink()

    relu = call_of(verified(folder), "Functional.relu.0.forward")

    assert relu.report.reason is Reason.MISSING


def test_a_call_that_returns_nothing_has_nothing_to_judge(tmp_path: Path) -> None:
    found = verified(recorded(tmp_path, lambda: torch._assert(True, "")))
    assert call_of(found, "Torch._assert.0.forward").report.reason is Reason.NO_OUTPUT


def test_the_command_names_the_first_wrong_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recorded(tmp_path / "dump", lambda: F.relu(torch.ones(3)))
    damage(folder, "Functional.relu.0.forward.output.0", lambda value: value + 1)

    options = ["-o", str(tmp_path / "out"), "-n", "1", "--exit-code", "--format", "csv"]
    code = main(["verify", str(folder), *options])

    output = capsys.readouterr().out
    assert code == 1
    assert output.startswith("1 of 2 calls is wrong; first: `Functional.relu.0.forward`")
    assert "2 of 2 calls judged" in output
    result = json.loads((tmp_path / "out" / "verify.json").read_text())
    assert result["verdicts"]["wrong"] == 1
    assert [row["slot"] for row in result["results"][1]["rows"]] == ["output.0"]
    table = (tmp_path / "out" / "verify.csv").read_text(encoding="utf-8-sig").splitlines()
    assert table[0].startswith("step,rank,position,record,slot,verdict,ratio")
    assert table[2].split(",")[3:6] == ["Functional.relu.0.forward", "output.0", "wrong"]


def test_the_command_lists_a_wrong_result_beside_a_worse_gradient(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.ones(3, requires_grad=True)
    folder = recorded(tmp_path / "dump", lambda: F.silu(x).sum().backward())
    damage(folder, "Functional.silu.0.forward.output.0", lambda value: value * 1.001)
    damage(folder, "Functional.silu.0.backward.output.0", lambda value: value * 2)

    main(["verify", str(folder), "-o", str(tmp_path / "out")])

    output = capsys.readouterr().out
    listed = [line.split()[4] for line in output.splitlines() if line.startswith("  wrong")]
    assert listed == ["Functional.silu.0.forward", "Functional.silu.0.backward"]


def test_custom_functions_and_operators_are_run_again(tmp_path: Path) -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0] * 2

    library = torch.library.Library("verify_test", "FRAGMENT")
    library.define("tripled(Tensor x) -> Tensor")
    library.impl("tripled", lambda x: x * 3, "CompositeImplicitAutograd")

    def program() -> None:
        x = torch.ones(3, requires_grad=True)
        torch.ops.verify_test.tripled(Doubled.apply(x)).sum().backward()

    found = verified(recorded(tmp_path, program))

    names = [call.report.name for call in found.calls if len(call.report.rows) == 2]
    assert "Autograd.Doubled.0.forward" in names
    assert "verify_test.tripled.0.forward" in names
    assert found.judged == len(found.calls)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("os.mkdir", ["{folder}"]),
        ("Torch.save", ["text", "{folder}"]),
        ("Aten.save", ["text", "{folder}"]),
        ("Torch.from_file", ["{folder}", True, 8]),
        ("Aten.from_file", ["{folder}", True, 8]),
        ("VF.from_file", ["{folder}", True, 8]),
    ],
)
def test_a_foreign_dump_runs_no_function_but_those_of_tensors(
    name: str, arguments: list[Any], tmp_path: Path
) -> None:
    folder = recorded(tmp_path / "dump", lambda: F.relu(torch.ones(3)))
    made = tmp_path / "made"
    path = folder / "step0" / "rank" / "dump.json"
    tree = json.loads(path.read_text())
    record = tree["data"].pop("Functional.relu.0.forward")
    record["input_kwargs"] = {}
    record["input_args"] = [
        {"type": type(one).__name__, "value": str(made) if one == "{folder}" else one}
        for one in arguments
    ]
    tree["data"] = {f"{name}.0.forward": record}
    path.write_text(json.dumps(tree))

    (call,) = verified(folder).calls

    assert call.report.reason is Reason.UNKNOWN
    assert not made.exists()


def test_no_function_hides_in_a_type(tmp_path: Path) -> None:
    folder = recorded(tmp_path, lambda: torch.ones(3).to(torch.float64))
    path = folder / "step0" / "rank" / "dump.json"
    text = re.sub(
        r'(?<="torch.dtype",)(\s*"value":\s*)"torch.float64"', r'\1"torch.load"', path.read_text()
    )
    path.write_text(text)

    (call,) = (call for call in verified(folder).calls if call.report.name.startswith("Tensor.to"))

    assert call.report.reason is Reason.ARGUMENT


def test_functions_of_a_module_are_run_where_the_user_names_it(tmp_path: Path) -> None:
    (tmp_path / "named_library.py").write_text("def doubled(x):\n    return x * 2\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        library = importlib.import_module("named_library")
        with recording(tmp_path / "dump", "L1", "tensor") as run:
            run.debugger.register_custom_api(library, "doubled")
            with run.step_of(None):
                library.doubled(torch.ones(3))
        dump = open_dump(tmp_path / "dump")
        before = verify_dump(dump, workers=0)
        after = verify_dump(dump, workers=0, imports=["named_library"])

    assert call_of(before, "named_library.doubled.0.forward").report.reason is Reason.UNKNOWN
    assert call_of(after, "named_library.doubled.0.forward").report.verdict is Verdict.EXACT


def test_of_two_functions_with_one_name_the_recorded_one_is_run(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.arange(1.0, 5.0)
        torch.vander(x)
        torch.linalg.vander(x)

    found = verified(recorded(tmp_path, program))

    assert [call.report.name for call in found.calls if call.is_fault] == []


def test_an_operator_that_crashes_or_takes_too_much_memory_costs_one_row(tmp_path: Path) -> None:
    (tmp_path / "crashing_operator.py").write_text(
        "import os, torch\n"
        "library = torch.library.Library('verify_crash', 'FRAGMENT')\n"
        "library.define('dies(Tensor x) -> Tensor')\n"
        "library.define('grows(Tensor x) -> Tensor')\n"
        "library.impl('dies', lambda x: os.abort(), 'CompositeImplicitAutograd')\n"
        "library.impl('grows', lambda x: torch.ones(1 << 33)[:3], 'CompositeImplicitAutograd')\n"
    )
    library = torch.library.Library("verify_crash", "FRAGMENT")
    for name in ("dies", "grows"):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, lambda x: x.clone(), "CompositeImplicitAutograd")
    own = torch.ops.verify_crash
    folder = recorded(tmp_path / "dump", lambda: F.relu(own.grows(own.dies(torch.ones(3)))))

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        limits = Limits(memory_bytes=4_000_000_000)
        found = verify_dump(
            open_dump(folder), workers=1, imports=["crashing_operator"], limits=limits
        )

    assert call_of(found, "verify_crash.dies.0.forward").report.reason is Reason.CRASHED
    assert call_of(found, "verify_crash.grows.0.forward").report.reason is Reason.OUT_OF_MEMORY
    assert call_of(found, "Functional.relu.0.forward").report.verdict is Verdict.EXACT


def test_recorded_random_states_are_drawn_from_again(tmp_path: Path) -> None:
    def program() -> None:
        torch.randn(3)  # the first state differs from that of the seed
        x = torch.randn(40, 8).bfloat16().requires_grad_()
        (F.dropout(x, 0.3) * torch.rand(8)).sum().backward()
        torch.softmax(x, -1).multinomial(2)

    folder = recorded(tmp_path, program, record_rng=True)

    found = verified(folder)
    names = ("Torch.randn.1", "Functional.dropout.0", "Torch.rand.0", "Tensor.multinomial.0")
    for name in names:
        expected = (
            Verdict.ROUNDING if "dropout" in name else Verdict.EXACT
        )  # bfloat16, times 1 / 0.7
        assert call_of(found, f"{name}.forward").report.verdict is expected, name
    assert found.not_judged == {}
    damage(folder, "Torch.rand.0.forward.output.0", lambda x: x.flip(0))
    assert call_of(verified(folder), "Torch.rand.0.forward").report.verdict is Verdict.WRONG


class GELU(torch.nn.Module):
    """Another function under the name of a class of `torch.nn`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(1.702 * x)


def test_modules_are_made_again_from_their_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nn = torch.nn
    model = nn.Sequential(
        nn.Embedding(9, 8),
        nn.BatchNorm1d(4),
        nn.Conv1d(4, 6, 3, padding=1, groups=2, bias=False),
        nn.LayerNorm(8, eps=1e-3),
        nn.Linear(8, 4),
        nn.ReLU(inplace=True),
        nn.Dropout(0.25),
        GELU(),
        nn.LSTM(4, 3, batch_first=True),
    )

    def program() -> None:
        model(torch.arange(8).reshape(2, 4))[0].square().sum().backward()

    folder = recorded(tmp_path / "dump", program, level="L0", model=model)

    found = verified(folder)
    assert [call.report.name for call in found.calls if call.is_fault] == []
    assert found.not_judged == {Reason.MODULE: 2}  # GELU, the whole
    reports = {call.report.name.split(".")[2]: call.report for call in found.calls}
    assert reports["GELU"].detail == "GELU"
    for name in ("BatchNorm1d", "Conv1d", "LayerNorm", "Linear", "Dropout", "LSTM"):
        assert {row.record.split(".")[3] for row in reports[name].rows} == {"forward", "backward"}
    damage(folder, "Module.3.LayerNorm.forward.0.output.0", lambda x: x * 1.001)
    assert call_of(verified(folder), "Module.3.LayerNorm.forward.0").report.verdict is Verdict.WRONG
    script = tmp_path / "script.py"
    words = ["op_script", str(folder), "Module.3.LayerNorm.forward.0", "-o", str(script)]
    assert main(words) == 0
    text = script.read_text(encoding="utf-8")
    assert "torch.nn.LayerNorm(normalized_shape=(8,), eps=0.001" in text
    for arguments, code in (([], True), (["cpu"], False)):
        monkeypatch.setattr(sys, "argv", [str(script), *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script))
        assert ended.value.code is code


def test_recurrent_modules_are_made_again_with_their_kind_of_cell(tmp_path: Path) -> None:
    nn = torch.nn
    model = nn.ModuleList(
        [
            nn.RNNCell(4, 3, nonlinearity="relu"),
            nn.RNN(4, 3, nonlinearity="relu"),
            nn.GRU(4, 3, bidirectional=True),
            nn.LSTM(4, 3, num_layers=2),
        ]
    )

    def program() -> None:
        x = torch.randn(5, 4)
        cell, *networks = model
        total = cell(x).sum()
        for one in networks:
            # Gradients arrive at the states, too, which are nested in the results.
            for part in torch.utils._pytree.tree_leaves(one(x.clone().requires_grad_())):
                total = total + (part * torch.randn_like(part)).sum()
        total.backward()

    found = verified(recorded(tmp_path, program, level="L0", model=model))
    judged = [call for call in found.calls if call.report.is_judged]
    assert [call.report.name.split(".")[2] for call in judged] == ["RNNCell", "RNN", "GRU", "LSTM"]
    assert [call.report.name for call in judged if call.is_fault] == []
    for call in judged[1:]:
        assert any("backward" in row.record and row.judgement for row in call.report.rows)


def test_a_recurrent_module_is_judged_on_packed_sequences(tmp_path: Path) -> None:
    model = torch.nn.GRU(4, 3, batch_first=True)

    def program() -> None:
        x = torch.randn(3, 5, 4, requires_grad=True)
        pack = torch.nn.utils.rnn.pack_padded_sequence
        result, _ = model(pack(x, [2, 5, 3], batch_first=True, enforce_sorted=False))
        result.data.square().sum().backward()

    folder = recorded(tmp_path / "dump", program, level="L0", model=model)
    (call,) = verified(folder).calls
    assert (call.report.reason, call.is_fault) == (None, False)
    assert {row.record.split(".")[-2] for row in call.report.rows if row.judgement} == {
        "forward",
        "backward",
    }
    damage(folder, "Module.GRU.forward.0.output.0.data", lambda value: value * 1.001)
    (call,) = verified(folder).calls
    assert call.report.verdict is Verdict.WRONG


class Parts(torch.nn.Module):
    """Modules of `torch.nn` that hold others."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        relu = nn.ReLU()
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8))
        self.frozen = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True).eval()
        self.heads = nn.MultiheadAttention(8, 2, bias=False, add_bias_kv=True, batch_first=True)
        self.plain = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8), nn.BatchNorm1d(5))
        self.shared = nn.Sequential(relu, nn.Linear(8, 8), relu)
        self.drawn = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
        self.own = nn.TransformerEncoderLayer(8, 2, 16, 0.0, torch.sigmoid)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.frozen(self.encoder(x))
        x, _ = self.heads(x, x, x)
        return self.own(self.drawn(self.shared(self.plain(x * 2))))


def test_modules_that_hold_others_are_put_together(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Parts()

    def program() -> None:
        model(torch.randn(2, 5, 8, requires_grad=True)).square().sum().backward()

    folder = recorded(tmp_path / "dump", program, level="L0", model=model)

    found = verified(folder)
    assert [call.report.name for call in found.calls if call.is_fault] == []
    names = ("encoder", "frozen", "heads", "plain", "shared", "drawn", "own")
    told = {call.report.name.split(".")[1]: call.report for call in found.calls}  # the outermost
    passes = {name: {row.record.split(".")[3] for row in told[name].rows} for name in names[:4]}
    assert all(one == {"forward", "backward"} for one in passes.values())
    # A module in two places, a drop-out that drew, a function whose name tells nothing.
    reasons = [told[name].reason for name in names[4:]]
    assert reasons == [Reason.MODULE, Reason.RANDOM, Reason.MODULE]
    for name in ("encoder.TransformerEncoder", "heads.MultiheadAttention"):
        damage(folder, f"Module.{name}.forward.0.output.0", lambda x: x * 1.001)
        report = call_of(verified(folder), f"Module.{name}.forward.0").report
        assert report.verdict is Verdict.WRONG


class Layers(torch.nn.Module):
    """Layers: called once, called twice, with a penalty, with a hook."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("once", "twice", "penalty", "hooked"):
            setattr(self, name, torch.nn.Linear(6, 6))
        self.hooked.weight.register_hook(lambda gradient: gradient / 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.hooked(self.penalty(self.twice(self.twice(self.once(x)).relu())))
        return x.square().sum() + self.penalty.weight.square().sum()


@pytest.mark.parametrize("type_", ["float32", "bfloat16", "autocast"])
def test_a_parameters_gradient_of_one_call_is_judged_at_l0(tmp_path: Path, type_: str) -> None:
    model = Layers().to(torch.bfloat16 if type_ == "bfloat16" else torch.float32)
    x = torch.randn(5, 6, dtype=next(model.parameters()).dtype)

    def program() -> None:
        for _ in range(2):  # the second gradient of a parameter holds the first
            with torch.autocast("cpu", torch.bfloat16, enabled=type_ == "autocast"):
                loss = model(x)
            loss.backward()

    folder = recorded(tmp_path / "dump", program, level="L0", model=model)
    found = verified(folder)
    assert [call.report.name for call in found.calls if call.is_fault] == []
    judged = {
        (row.record, row.slot.partition(".")[2])
        for call in found.calls
        for row in call.report.rows
        if row.slot.startswith("output_kwargs") and row.judgement is not None
    }
    assert judged == {
        ("Module.once.Linear.backward.0", "weight"),
        ("Module.once.Linear.backward.0", "bias"),
        ("Module.penalty.Linear.backward.0", "bias"),
        ("Module.hooked.Linear.backward.0", "bias"),
    }
    damage(folder, "Module.once.Linear.parameters_grad.weight", lambda gradient: gradient * 2)
    worst = call_of(verified(folder), "Module.once.Linear.forward.0").worst
    assert worst is not None
    assert (worst.slot, worst.judgement and worst.judgement.verdict) == (
        "output_kwargs.weight",
        Verdict.WRONG,
    )


@pytest.mark.parametrize("zeroed", [False, True])
def test_a_parameters_gradient_that_was_there_before_is_not_judged(
    tmp_path: Path, zeroed: bool
) -> None:
    model = torch.nn.Linear(4, 4)

    def program() -> None:
        model.weight.grad = torch.ones(4, 4) - int(zeroed)
        model(torch.ones(2, 4)).sum().backward()

    folder = recorded(tmp_path, program, level="L0", model=model)
    (call,) = verified(folder).calls
    slots = [row.slot for row in call.report.rows if row.record.endswith("backward.0")]
    assert (slots, call.is_fault) == (["output_kwargs.bias"], False)


def test_older_recordings_lack_what_attention_reads_of_its_parts(tmp_path: Path, capsys) -> None:
    heads = torch.nn.MultiheadAttention(8, 2)

    def program() -> None:
        heads(*[torch.ones(3, 2, 8)] * 3)[0].sum().backward()

    new = recorded(tmp_path / "new", program, level="L0", model=heads)
    old = shutil.copytree(new, tmp_path / "old")
    path = old / "step0" / "rank" / "dump.json"
    tree = json.loads(path.read_text())
    inner = tree["data"]["Module.MultiheadAttention.forward.0"].pop("inner_parameters")
    assert inner.keys() == {"out_proj.weight", "out_proj.bias"}
    path.write_text(json.dumps(tree))
    assert call_of(verified(new), "Module.MultiheadAttention.forward.0").report.is_judged
    assert verified(old).not_judged == {Reason.MODULE: 1}
    for pair in ((old, new), (new, old)):
        assert main(["compare", *map(str, pair), "-o", str(tmp_path / "out")]) == 0
        assert "EQUAL" in capsys.readouterr().out


def test_the_gradient_of_a_gate_that_is_nearly_open_is_a_difference(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.cat([torch.ones(3, 2), torch.full((3, 2), 12.0)], dim=1).requires_grad_()
        F.glu(x).sum().backward()

    folder = recorded(tmp_path, program)
    assert not any(call.is_fault for call in verified(folder).calls)
    damage(folder, "Functional.glu.0.backward.output.0", lambda value: value * 1.01)
    assert call_of(verified(folder), "Functional.glu.0.forward").is_fault


def test_gradients_of_gradients_are_judged(tmp_path: Path) -> None:
    def program() -> None:
        weight = torch.randn(8, 4, requires_grad=True)
        x = torch.randn(5, 4, requires_grad=True)
        result = torch.tanh(F.gelu(F.linear(x, weight)))
        (slope,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        (((slope.norm(2, dim=1) - 1) ** 2).mean() + result.mean()).backward()

    folder = recorded(tmp_path, program)
    found = verified(folder)
    assert found.judged == len(found.calls) - 2  # randn
    assert not any(call.is_fault for call in found.calls)
    name = "Functional.gelu.0.backward.pass1"  # of the second backward pass
    damage(folder, f"{name}.output.0", lambda value: value * 1.01)
    call = call_of(verified(folder), "Functional.gelu.0.forward")
    assert [row.record for row in call.report.rows if row.judgement.ratio > 1] == [name]


def test_calls_under_autocast_run_again_in_its_type(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.randn(8, 16, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = F.linear(x, torch.randn(4, 16, requires_grad=True))
            F.layer_norm(hidden, [4]).sum().backward()

    dump = open_dump(recorded(tmp_path, program, task="statistics"))

    found = verify_dump(dump, workers=0)
    linear = call_of(found, "Functional.linear.0.forward").report
    assert {row.dtype for row in linear.rows if row.record.endswith("forward")} == {"bfloat16"}
    assert {row.dtype for row in linear.rows if "backward" in row.record} == {"float32"}
    assert linear.verdict in (Verdict.EXACT, Verdict.ROUNDING)
    assert linear.rows[0].judgement.error > 1e-4  # float32 would be nearer
    assert [call.report.name for call in found.calls if call.is_fault] == []


@pytest.mark.parametrize("ignored", [-100, -7])
def test_generated_targets_are_classes_or_the_ignored_one(tmp_path: Path, ignored: int) -> None:
    def program() -> None:
        target = torch.arange(40) % 10
        target[::4] = ignored
        F.cross_entropy(torch.randn(40, 10, requires_grad=True), target, None, None, ignored)
        F.nll_loss(torch.randn(40, 10).log_softmax(1), target=target, ignore_index=ignored)

    dump = open_dump(recorded(tmp_path, program, task="statistics"))
    view = dump.step(0).rank(None)
    first, second = (
        recorded_call(view, f"Functional.{name}.0.forward")
        for name in ("cross_entropy", "nll_loss")
    )
    for form in (first.args[1], second.args[1]):
        made = generate(form, 1).array
        assert (made.min(), made.max()) == (ignored, 9)
        assert not ((made < 0) & (made != ignored)).any()
        assert 4 <= (made == ignored).sum() <= 16
    found = verify_dump(dump, workers=0)
    assert {call_of(found, call.name).report.verdict for call in (first, second)} <= {
        Verdict.EXACT,
        Verdict.ROUNDING,
    }


def test_a_wrong_gradient_of_a_loss_in_bfloat16_is_found(tmp_path: Path) -> None:
    def program() -> None:
        logits = (torch.randn(64, 10) * 5).bfloat16().requires_grad_()
        F.cross_entropy(logits, torch.arange(64) % 10).backward()

    folder = recorded(tmp_path, program)
    assert not any(call.is_fault for call in verified(folder).calls)

    damage(folder, "Functional.cross_entropy.0.backward.output.0", lambda value: value / 2)

    call = call_of(verified(folder), "Functional.cross_entropy.0.forward")
    assert call.worst is not None
    assert call.worst.judgement is not None
    assert call.worst.judgement.factor == pytest.approx(0.5, rel=1e-2)


def test_one_tensor_passed_twice_has_one_gradient_and_a_detached_one_none(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.randn(3, requires_grad=True) * 1
        results = (x * x, x * x.detach(), x * x.view_as(x), torch.cat([x, x, x.detach()]))
        sum(result.sum() for result in results).backward()

    found = verified(recorded(tmp_path, program))

    assert [call.report.name for call in found.calls if call.is_fault] == []
    assert [call.report.reason for call in found.calls if not call.report.is_judged] == [
        Reason.RANDOM
    ]
