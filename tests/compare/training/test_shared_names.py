# SPDX-License-Identifier: Apache-2.0
"""Facts of a wrapped model get the names that the model itself has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from builders.facts import adamw, arrays, optimizer_step, start_state  # noqa: E402
from builders.facts import facts as made_facts  # noqa: E402
from builders.recordings import recording  # noqa: E402
from msprobe.compare.training.shared_names import with_shared_names  # noqa: E402
from msprobe.dump.facts import Facts  # noqa: E402
from msprobe.dump.reader import open_dump  # noqa: E402

pytestmark = pytest.mark.torch


class Holder(nn.Module):
    """Holds a module under a name of its own, as wrappers do."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__()
        self.add_module(name, module)
        self.held = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.get_submodule(self.held)(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.back = nn.Linear(4, 4, bias=False)
        self.back.weight = self.front[0].weight
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.back(self.front(x)))


def facts_of(folder: Path, wrap: Callable[[nn.Module], nn.Module]) -> tuple[Facts, Net]:
    """Record a step of a wrapped model with a frozen bias, and one module in eval mode."""
    torch.manual_seed(0)
    net = Net()
    net.head.bias.requires_grad_(False)
    net.front[2].eval()
    model = wrap(net)
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    with recording(folder, "L0") as recorded, recorded.step_of(model):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    facts = open_dump(folder).step().rank().facts
    assert facts is not None
    return facts, net


def replicated(net: nn.Module) -> nn.Module:
    return Holder("module", net)


def replicated_and_compiled(net: nn.Module) -> nn.Module:
    return Holder("module", Holder("_orig_mod", net))


def inner_checkpointed(net: nn.Module) -> nn.Module:
    net.front = Holder("_checkpoint_wrapped_module", net.front)
    return net


def mixed_as_mindspore_does(net: nn.Module) -> nn.Module:
    net.front = Holder("_backbone", net.front)
    return net


def in_a_task(net: nn.Module) -> nn.Module:
    return Holder("model", net)


@pytest.mark.parametrize(
    "wrap",
    [replicated, replicated_and_compiled, inner_checkpointed, mixed_as_mindspore_does, in_a_task],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("swapped", [False, True], ids=["wrapped target", "wrapped reference"])
def test_both_sides_know_what_the_model_itself_has(
    tmp_path: Path, wrap: Callable[[nn.Module], nn.Module], swapped: bool
) -> None:
    plain, net = facts_of(tmp_path / "plain", lambda model: model)
    wrapped, _ = facts_of(tmp_path / "wrapped", wrap)
    sides = (wrapped, plain)[:: -1 if swapped else 1]
    names = [name for name, _ in net.named_parameters(remove_duplicate=False)]
    trained = [name for name, p in net.named_parameters() if p.requires_grad]

    assert wrapped.parameters is not None
    assert not set(names) <= set(wrapped.parameters.name)
    for facts in with_shared_names(*sides):
        assert facts.parameters is not None
        assert facts.modes is not None
        assert sorted(facts.parameters.name) == sorted(
            [*names, *(name for name, _ in net.named_buffers())]
        )
        tied = dict(zip(facts.parameters.name, facts.parameters.same_as, strict=True))
        assert tied["back.weight"] == "front.0.weight"
        assert facts.modes.requires_grad_false == ["head.bias"]
        assert facts.modes.training[""] is True
        assert facts.modes.training["front.2"] is False
        (step,) = facts.optimizer_steps()
        assert step.parameters.name == trained


def test_names_that_wrappers_do_not_explain_stay(tmp_path: Path) -> None:
    plain, _ = facts_of(tmp_path / "plain", lambda model: model)
    torch.manual_seed(0)
    other = nn.ModuleDict({"body": nn.Linear(4, 4), "module": nn.Linear(4, 4)})
    with recording(tmp_path / "other", "L0") as recorded, recorded.step_of(other):
        other["module"](other["body"](torch.ones(1, 4))).sum().backward()
    facts = open_dump(tmp_path / "other").step().rank().facts
    assert facts is not None

    found, same = with_shared_names(facts, plain)

    # Without "module" the weight would have the name "weight", which nothing else disputes.
    assert found.parameters is not None
    assert len(set(found.parameters.name)) == 4
    assert {"body.weight", "body.bias"} < set(found.parameters.name)
    assert same == plain


def test_facts_with_the_same_names_are_returned_as_they_are(tmp_path: Path) -> None:
    plain, _ = facts_of(tmp_path / "plain", lambda model: model)
    assert with_shared_names(plain, plain) == (plain, plain)
    assert with_shared_names(Facts(), plain) == (Facts(), plain)


def test_an_optimizer_of_the_same_parameters_has_the_same_number() -> None:
    """A program that has trained before, or makes the optimizer anew, numbers it otherwise."""
    gradient = arrays(1)
    update = arrays(), gradient, adamw(arrays(), gradient)
    target, reference = (
        made_facts(parameters=start_state(arrays()), events=[optimizer_step(*update, number=n)])
        for n in (1, 0)
    )

    assert with_shared_names(target, reference) == (reference, reference)
    assert with_shared_names(reference, target) == (target, target)
