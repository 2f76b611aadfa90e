# SPDX-License-Identifier: Apache-2.0
"""The verdict on two recordings: its class, its sentence, and what it says beside them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from builders.recordings import recording  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402

pytestmark = pytest.mark.torch

Summary = dict[str, Any]
Change = Callable[["Net"], object]


class Net(nn.Module):
    """A residual network; tests replace its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.second = nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)

    def inner(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(x))

    def residual(self, x: Tensor) -> Tensor:
        return x + self.inner(self.norm(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.residual(self.first(x)))


class Other(nn.Module):
    """Another program."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3)
        self.pool = nn.MaxPool1d(2)
        self.mix = nn.Bilinear(4, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool(torch.relu(self.conv(x.unsqueeze(1))))
        return self.mix(y.mean(-1), y.amax(-1)).softmax(-1)


def record(
    folder: Path,
    change: Change = lambda net: None,
    *,
    level: str = "mix",
    task: str = "statistics",
    steps: int = 1,
    seed: int = 2,
    lr: float = 0.1,
    model: type[nn.Module] = Net,
    **common: Any,
) -> Path:
    torch.manual_seed(1)
    net = model()
    change(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    torch.manual_seed(seed)
    with recording(folder, level, task, **common) as debugged:
        for _ in range(steps):
            with debugged.step_of(net):
                net(torch.randn(4, 6)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    return folder


def summary_of(target: Path, reference: Path) -> Summary:
    summary = dict(run_comparison(target, reference, CompareOptions()).summary)
    json.loads(json.dumps(summary, allow_nan=False))
    assert summary["next_steps"] == summary["verdict"]["next"]
    return summary


def other_eps(net: Net) -> None:
    net.norm.eps = 0.5


def no_residual(net: Net) -> None:
    net.residual = lambda x: net.inner(net.norm(x))  # type: ignore[method-assign]


def wrong_operand(net: Net) -> None:
    def residual(x: Tensor) -> Tensor:
        normed = net.norm(x)
        return normed + net.inner(normed)

    net.residual = residual  # type: ignore[method-assign]


def in_bfloat16(net: Net) -> None:
    def inner(x: Tensor) -> Tensor:
        weight, bias = net.second.weight.bfloat16(), net.second.bias.bfloat16()
        return torch.tanh(nn.functional.linear(x.bfloat16(), weight, bias).float())

    net.inner = inner  # type: ignore[method-assign]


def detached(net: Net) -> None:
    inner = net.inner
    net.inner = lambda x: inner(x.detach())  # type: ignore[method-assign]


def other_weight(net: Net) -> None:
    with torch.no_grad():
        net.second.weight[0, 0] += 0.5


@pytest.mark.parametrize(
    ("change", "wanted", "words", "phase"),
    [
        (
            other_eps,
            "argument",
            r"layer_norm.*test_verdict\.py.*0\.5 instead of 1e-05|eps",
            "forward",
        ),
        (no_residual, "call", "only the reference calls Tensor.__add__", "forward"),
        (wrong_operand, "argument", "__add__", "forward"),
        (in_bfloat16, "precision", r"only the target calls Tensor\.(?:float|bfloat16)", "forward"),
        (
            detached,
            "gradient",
            "linear.1.backward .*None where the reference has a tensor",
            "backward",
        ),
        (other_weight, "parameters", "second.weight differs when step 0 starts", "start"),
    ],
)
def test_a_culprit_among_the_calls(
    tmp_path: Path, change: Change, wanted: str, words: str, phase: str
) -> None:
    summary = summary_of(record(tmp_path / "t", change), record(tmp_path / "r"))
    verdict = summary["verdict"]

    assert verdict["class"] == wanted, verdict["sentence"]
    assert re.search(words, verdict["sentence"])
    assert verdict["where"]["phase"] == phase
    assert verdict["where"]["step"] == 0
    assert verdict["next"]
    assert summary["equal"] is False


def test_equal_recordings(tmp_path: Path) -> None:
    verdict = summary_of(record(tmp_path / "t"), record(tmp_path / "r"))["verdict"]

    assert verdict["class"] == "equal"
    assert verdict["confidence"] == "proved"
    assert re.match(r"equal: \d+ values agree", verdict["sentence"])
    assert verdict["where"] is None
    assert verdict["next"] == []


def test_tensors_against_statistics_of_the_same_program_are_equal(tmp_path: Path) -> None:
    summary = summary_of(record(tmp_path / "t", task="tensor"), record(tmp_path / "r"))

    assert summary["verdict"]["class"] == "equal", summary["verdict"]["sentence"]
    assert summary["verdict"]["sentence"].startswith("task tensor against statistics: equal: ")
    assert summary["equal"] is True


def test_another_level_is_said_first(tmp_path: Path) -> None:
    summary = summary_of(record(tmp_path / "t", level="L0"), record(tmp_path / "r", other_eps))

    assert summary["verdict"]["sentence"].startswith("level L0 against mix: ")


def test_different_programs(tmp_path: Path) -> None:
    verdict = summary_of(record(tmp_path / "t", model=Other), record(tmp_path / "r"))["verdict"]

    assert verdict["class"] == "different_programs", verdict["sentence"]
    assert re.search(r"only \d+ of \d+ calls have a partner", verdict["sentence"])


class Deep(nn.Module):
    """A model of many layers, some of them as in `Net`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(6, 6) for _ in range(9)))
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.last(x)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_models_that_share_next_to_nothing(tmp_path: Path, level: str) -> None:
    """A small model's calls may all have partners among those of a large one."""
    sides = record(tmp_path / "t", level=level), record(tmp_path / "r", level=level, model=Deep)

    verdict = summary_of(*sides)["verdict"]

    assert verdict["class"] == "different_programs", verdict["sentence"]
    words = "of 8 parameters of the target and 20 of the reference the models share 1; only"
    assert words in verdict["sentence"]


def test_parts_that_one_model_has_besides_are_no_other_program(tmp_path: Path) -> None:
    class More(Net):
        def __init__(self) -> None:
            super().__init__()
            self.adapters = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))

        def inner(self, x: Tensor) -> Tensor:
            for adapter in self.adapters:
                x = x + adapter(x)
            return super().inner(x)

    verdict = summary_of(record(tmp_path / "t", model=More), record(tmp_path / "r"))["verdict"]

    assert verdict["class"] in ("call", "parameters"), verdict["sentence"]


def test_a_cast_changes_no_result_that_agrees_to_the_bit(tmp_path: Path) -> None:
    """Where a program computes in two types, a cast to the one that a tensor has does nothing."""

    def inner(net: Net) -> None:
        net.inner = lambda x: torch.tanh(net.second(x).double()).float()  # type: ignore[method-assign]

    def more(net: Net) -> None:
        def cast(x: Tensor) -> Tensor:
            made = net.second(x.type(torch.float32).view(2, 2, 8)).view(4, 8)
            return torch.tanh(made.double()).float()

        net.inner = cast  # type: ignore[method-assign]

    sides = record(tmp_path / "t", more, level="L0"), record(tmp_path / "r", inner, level="L0")

    verdict = summary_of(*sides)["verdict"]

    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved"), verdict["sentence"]


def test_the_first_value_of_another_type_is_told_though_it_is_equal(tmp_path: Path) -> None:
    def inner(net: Net, dtype: torch.dtype) -> None:
        def changed(x: Tensor) -> Tensor:
            floor = torch.full((8,), -0.25, dtype=dtype)
            return torch.maximum(net.second(x), floor).exp().float()

        net.inner = changed  # type: ignore[method-assign]

    target = record(tmp_path / "t", lambda net: inner(net, torch.float64))
    verdict = summary_of(target, record(tmp_path / "r", lambda net: inner(net, torch.float32)))[
        "verdict"
    ]

    assert verdict["class"] == "precision", verdict["sentence"]
    assert "first in Torch.full.0.forward" in verdict["sentence"]


def test_a_step_against_another_step(tmp_path: Path) -> None:
    record(tmp_path / "r", steps=2)

    verdict = summary_of(tmp_path / "r" / "step0", tmp_path / "r" / "step1")["verdict"]

    assert verdict["sentence"].startswith("step 0 against step 1 of the reference: parameters: ")


def test_an_optimizer_setting_makes_runs_unequal_whose_calls_agree(tmp_path: Path) -> None:
    summary = summary_of(record(tmp_path / "t", lr=0.2), record(tmp_path / "r"))

    assert summary["counts"]["differs"] == 0
    assert summary["equal"] is False
    assert summary["verdict"]["sentence"] == (
        "optimizer setting: SGD lr is 0.2 in the target, 0.1 in the reference (step 0, all 8 "
        "parameters)"
    )
    assert summary["verdict"]["confidence"] == "proved"


def test_the_environment_alone_is_no_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = record(tmp_path / "r")
    monkeypatch.setenv("SOME_SETTING_OF_A_RUN", "1")

    summary = summary_of(record(tmp_path / "t"), reference)

    assert summary["equal"] is True
    assert summary["verdict"]["class"] == "equal"
    assert any("SOME_SETTING_OF_A_RUN" in each for each in summary["verdict"]["evidence"])


def test_a_setting_outranks_the_calls_that_follow_from_it(tmp_path: Path) -> None:
    target = record(tmp_path / "t", lr=0.2, steps=3)
    summary = summary_of(target, record(tmp_path / "r", steps=3))

    assert summary["verdict"]["class"] == "optimizer_setting"
    assert summary["introduced"] == []
    assert summary["culprit_groups"] == []


def test_a_call_that_comes_before_a_setting_outranks_it(tmp_path: Path) -> None:
    target = record(tmp_path / "t", other_eps, lr=0.2, steps=2)
    verdict = summary_of(target, record(tmp_path / "r", steps=2))["verdict"]

    assert verdict["class"] == "argument"


def test_data_outrank_seeds_and_calls(tmp_path: Path) -> None:
    target = record(tmp_path / "t", other_eps, seed=3)
    verdict = summary_of(target, record(tmp_path / "r"))["verdict"]

    assert re.match(r"data: the batch of step 0 differs: \w+ of input.0 is", verdict["sentence"])
    assert verdict["where"]["record"].startswith("Module.Net.forward")


def test_recordings_without_facts_are_judged_by_their_calls(tmp_path: Path) -> None:
    bare = record(tmp_path / "r", facts=False)
    weight = summary_of(record(tmp_path / "t", other_weight, facts=False), bare)
    data = summary_of(record(tmp_path / "d", seed=3, facts=False), bare)

    assert weight["verdict"]["class"] == "parameters"
    assert data["verdict"]["class"] in ("data", "random")  # the batch is drawn in the step


def test_facts_of_one_side_only_are_noted(tmp_path: Path) -> None:
    summary = summary_of(record(tmp_path / "t"), record(tmp_path / "r", facts=False))

    assert summary["verdict"]["class"] == "equal"
    assert any("the reference holds no facts" in note for note in summary["notes"])


def test_culprits_are_grouped_by_line_and_reason(tmp_path: Path) -> None:
    def three_norms(net: Net) -> None:
        net.residual = lambda x: torch.stack([net.norm(x) for _ in range(3)]).sum(0)  # type: ignore[method-assign]

    def coarse(net: Net) -> None:
        three_norms(net)
        other_eps(net)

    summary = summary_of(record(tmp_path / "t", coarse), record(tmp_path / "r", three_norms))
    groups = summary["culprit_groups"]

    assert [(group["count"], group["cause"]) for group in groups] == [(3, "argument")]
    assert groups[0]["first"] == summary["introduced"][0]
    assert groups[0]["source"].startswith("test_verdict.py:")
    assert {"count", "kind", "cause", "reason", "source", "first"} <= set(groups[0])


def test_a_module_of_another_class_is_another_call(tmp_path: Path) -> None:
    class Rectified(Net):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.ReLU()

        def inner(self, x: Tensor) -> Tensor:
            return self.act(self.second(x))

    class Squashed(Rectified):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.Tanh()

    target = record(tmp_path / "t", level="L0", model=Rectified)
    verdict = summary_of(target, record(tmp_path / "r", level="L0", model=Squashed))["verdict"]

    assert verdict["class"] == "call", verdict["sentence"]
    assert re.search(r"the target calls Module\.act\.ReLU.*Module\.act\.Tanh", verdict["sentence"])


def test_a_parameter_changed_within_a_step_is_told_from_its_optimizer(tmp_path: Path) -> None:
    def decayed(net: Net) -> None:
        def shrink(parameter: Tensor) -> None:
            parameter.data.numpy()[...] *= 0.99

        net.first.weight.register_post_accumulate_grad_hook(shrink)

    target = record(tmp_path / "t", decayed, level="L0", steps=2)
    verdict = summary_of(target, record(tmp_path / "r", level="L0", steps=2))["verdict"]

    assert verdict["class"] == "update", verdict["sentence"]
    assert "first.weight was changed after step 0 began" in verdict["sentence"]


@pytest.mark.parametrize("rounded", [True, False])
def test_what_both_sides_write_within_a_step_may_be_rounded_otherwise(
    tmp_path: Path, *, rounded: bool
) -> None:
    def written(factor: float) -> Change:
        def write(parameter: Tensor) -> None:
            parameter.data.numpy()[...] *= factor

        return lambda net: net.first.weight.register_post_accumulate_grad_hook(write)

    target, reference = (
        record(tmp_path / str(factor), written(factor), level="L0")
        for factor in (0.99, 0.99 * (1 + 2.5e-6) if rounded else 0.98)
    )
    verdict = summary_of(target, reference)["verdict"]

    assert verdict["class"] == ("equal" if rounded else "update"), verdict["sentence"]


# Code that changes gradients between the calls and the optimizer


def scaled_in_a_hook(net: Net) -> None:
    net.first.weight.register_hook(lambda gradient: gradient * 1.01)


def test_a_call_in_a_hook_leads_to_the_changed_gradient(tmp_path: Path) -> None:
    reference = record(tmp_path / "reference", level="L1")
    target = record(tmp_path / "target", scaled_in_a_hook, level="L1")

    verdict = summary_of(target, reference)["verdict"]

    assert verdict["class"] == "gradient"
    assert verdict["sentence"].count("first.weight") == 1
    assert "only the target calls Tensor.__mul__.0.forward" in verdict["sentence"]
    assert verdict["next"][0].startswith("look at test_verdict.py:")


def test_equal_is_not_proved_where_an_unseen_call_may_change_a_gradient(tmp_path: Path) -> None:
    for name, change in (("target", scaled_in_a_hook), ("reference", lambda net: None)):
        torch.manual_seed(1)
        net = Net()
        change(net)
        with recording(tmp_path / name, "L1") as debugged, debugged.step_of(net):
            net(torch.randn(4, 6)).square().mean().backward()

    verdict = summary_of(tmp_path / "target", tmp_path / "reference")["verdict"]

    assert verdict["class"] == "equal"
    assert verdict["confidence"] == "possible"
    assert "was not recorded" in verdict["evidence"][0]
    assert verdict["next"][0].startswith("look at test_verdict.py:")


def test_equal_is_proved_where_calls_behind_backward_only_read(tmp_path: Path) -> None:
    """Without an optimizer's step, too: what is logged of results and weights changes nothing."""
    for name, logs in (("target", True), ("reference", False)):
        torch.manual_seed(1)
        net = Net()
        with recording(tmp_path / name, "L1") as debugged, debugged.step_of(net):
            result = net(torch.randn(4, 6))
            result.square().mean().backward()
            if logs:
                sum(parameter.norm().item() for parameter in net.parameters())
                (result.argmax(1) == torch.tensor([0, 1, 0, 1])).float().mean().item()

    verdict = summary_of(tmp_path / "target", tmp_path / "reference")["verdict"]

    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved"), verdict["sentence"]


def test_a_call_after_backward_without_effect_leaves_equal_proved(tmp_path: Path) -> None:
    norms: list[Tensor] = []

    def log(gradient: Tensor) -> None:
        norms.append(gradient.norm())

    def logged(net: Net) -> None:
        net.first.weight.register_hook(log)

    reference = record(tmp_path / "reference", level="L1")
    target = record(tmp_path / "target", logged, level="L1")

    verdict = summary_of(target, reference)["verdict"]

    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved")


def test_what_the_calls_exclude_is_no_next_step(tmp_path: Path) -> None:
    def noisy(net: Net) -> None:
        generator = torch.Generator().manual_seed(3)
        net.first.weight.register_hook(
            lambda gradient: gradient + 1e-3 * torch.randn(gradient.shape, generator=generator)
        )

    verdict = summary_of(record(tmp_path / "target", noisy), record(tmp_path / "reference"))[
        "verdict"
    ]

    assert verdict["class"] == "gradient"
    assert any("between loss.backward() and optimizer.step()" in each for each in verdict["next"])
    assert not any("task tensor" in each for each in verdict["next"])


def test_precision_names_the_first_value_of_another_type(tmp_path: Path) -> None:
    def in_bfloat16(net: Net) -> None:
        forward = net.second.forward
        net.second.forward = lambda x: forward_in_bfloat16(forward, x)

    def forward_in_bfloat16(forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return forward(x)

    target = record(tmp_path / "target", in_bfloat16)
    verdict = summary_of(target, record(tmp_path / "reference"))["verdict"]

    assert verdict["class"] == "precision"
    assert "first in Functional.linear.1.forward (test_verdict.py:" in verdict["sentence"]
    assert verdict["where"]["module"] == "second"


def test_a_model_under_autocast_beside_a_teacher_that_is_not_is_no_single_call(
    tmp_path: Path,
) -> None:
    def distil(folder: Path, *, is_lower: bool) -> Path:
        torch.manual_seed(3)
        student = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 4))
        teacher = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 4))
        x = torch.randn(8, 6)
        with recording(folder, "L1") as debugged, debugged.step_of(student):
            with torch.autocast("cpu", torch.bfloat16, enabled=is_lower):
                found = student(x)
            found = found.float() if is_lower else found
            with torch.no_grad():
                aim = teacher(x)
            nn.functional.mse_loss(found, aim).backward()
        return folder

    target = distil(tmp_path / "target", is_lower=True)
    summary = summary_of(target, distil(tmp_path / "reference", is_lower=False))

    assert summary["introduced"] == []
    assert summary["verdict"]["class"] == "precision"
