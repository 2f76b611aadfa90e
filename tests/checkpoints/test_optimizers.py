# SPDX-License-Identifier: Apache-2.0
"""States of optimizers are compared by the names of the parameters."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from builders.checkpoints import write_safetensors  # noqa: E402
from msprobe.checkpoints.comparing import compare_checkpoints  # noqa: E402
from msprobe.checkpoints.opening import open_checkpoint  # noqa: E402
from msprobe.checkpoints.result_lines import comparison_lines  # noqa: E402

pytestmark = pytest.mark.torch


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.out = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.embed(x)))


def trained(groups: Any, kind: Any = torch.optim.AdamW) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Net()
    optimizer = kind(groups(model))
    model(torch.arange(5)).square().sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def all_parameters(model: torch.nn.Module) -> list:
    return list(model.parameters())


def with_and_without_decay(model: torch.nn.Module) -> list:
    parameters = list(model.parameters())
    return [
        {"params": [each for each in parameters if each.ndim > 1], "weight_decay": 0.1},
        {"params": [each for each in parameters if each.ndim < 2], "weight_decay": 0.0},
    ]


def names(checkpoint: Any, key: str) -> list[str]:
    begin, end = "optimizer.state.", f".{key}"
    return [
        name.removeprefix(begin).removesuffix(end)
        for name in checkpoint.parameters
        if name.startswith(begin) and name.endswith(end)
    ]


@pytest.mark.parametrize("groups", [all_parameters, with_and_without_decay])
def test_states_have_the_names_of_their_parameters(tmp_path: Path, groups) -> None:
    tree = trained(groups)
    torch.save(tree, tmp_path / "x.pt")
    found = names(open_checkpoint(tmp_path / "x.pt"), "exp_avg")
    assert sorted(found) == sorted(dict(Net().named_parameters()))
    for name in found:
        number = list(dict(Net().named_parameters())).index(name)
        if groups is all_parameters:
            expected = tree["optimizer"]["state"][number]["exp_avg"].numpy().tobytes()
            state = open_checkpoint(tmp_path / "x.pt").parameters[f"optimizer.state.{name}.exp_avg"]
            assert state.array().tobytes() == expected


def test_names_that_the_optimizer_saved_are_used(tmp_path: Path) -> None:
    tree = trained(lambda model: list(model.named_parameters()))
    torch.save({"optimizer": tree["optimizer"]}, tmp_path / "x.pt")
    assert "out.bias" in names(open_checkpoint(tmp_path / "x.pt"), "exp_avg_sq")


def test_numbers_stay_where_names_are_not_certain(tmp_path: Path) -> None:
    tree = trained(lambda model: [*model.out.parameters(), *model.embed.parameters()])
    torch.save(tree, tmp_path / "x.pt")
    assert names(open_checkpoint(tmp_path / "x.pt"), "exp_avg") == ["0", "1", "2"]


def save_apart(folder: Path, width: int) -> set[str]:
    """Save a model and its optimizer as trainers do; return the names of the parameters."""
    model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", model.state_dict())
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    return {f"optimizer.state.{name}.exp_avg" for name, _ in model.named_parameters()}


def test_the_model_may_be_in_another_file_of_the_folder(tmp_path: Path) -> None:
    expected = save_apart(tmp_path / "x", 6)
    assert expected < set(open_checkpoint(tmp_path / "x").parameters)


def test_a_file_in_another_order_than_the_model_gives_no_names(tmp_path: Path) -> None:
    save_apart(tmp_path / "x", 4)
    assert "optimizer.state.0.exp_avg" in open_checkpoint(tmp_path / "x").parameters


def test_changes_are_said_in_the_words_of_the_optimizer(tmp_path: Path) -> None:
    base = trained(all_parameters)
    changed = copy.deepcopy(base)
    for state in changed["optimizer"]["state"].values():
        state["step"] += 100
    changed["optimizer"]["state"][3]["exp_avg"] *= 2
    changed["optimizer"]["param_groups"][0]["lr"] = 5e-3
    torch.save(changed, tmp_path / "t.pt")
    torch.save(base, tmp_path / "r.pt")
    found = compare_checkpoints(tmp_path / "t.pt", tmp_path / "r.pt")
    text = "\n".join(line.plain for line in comparison_lines(found))
    assert "optimizer.step  5 of 5 changed, 1 → 101" in text
    assert "optimizer.exp_avg  1 of 5 changed, relative l2 up to 1" in text
    assert "out.weight" in text
    assert "optimizer.param_groups.0.lr  0.001 → 0.005" in text


def test_an_optimizer_built_in_another_order_is_equal(tmp_path: Path) -> None:
    for name, groups in (("t", all_parameters), ("r", with_and_without_decay)):
        tree = trained(groups)
        torch.save(tree, tmp_path / f"{name}.pt")
    found = compare_checkpoints(tmp_path / "t.pt", tmp_path / "r.pt", only=["*exp_avg*", "*step"])
    assert found.counts["equal"] == len(found.differences) == 15


def test_states_of_a_renamed_parameter_are_told_with_it(tmp_path: Path) -> None:
    paths = [tmp_path / "reference.pt", tmp_path / "target.pt"]
    for path, key in zip(paths, ("out.weight", "out.kernel"), strict=True):
        tree = trained(all_parameters)
        model = tree["model"]
        tree["model"] = {name.replace("out.weight", key): value for name, value in model.items()}
        torch.save(tree, path)
    found = compare_checkpoints(paths[1], paths[0])
    lines = [line.plain.strip() for line in comparison_lines(found)]
    assert "with them 3 states and 1 list of parameters of optimizers" in lines
    assert not any("exp_avg" in line or "param_groups" in line for line in lines)
    everything = "\n".join(line.plain for line in comparison_lines(found, limit=0))
    assert "optimizer.state.out.weight.exp_avg → optimizer.state.out.kernel.exp_avg" in everything
