# SPDX-License-Identifier: Apache-2.0
"""Everything in a checkpoint is compared: every key path, and values that are no tensors."""

from __future__ import annotations

import copy
import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from msprobe.checkpoints.comparing import compare_checkpoints  # noqa: E402
from msprobe.checkpoints.opening import open_checkpoint  # noqa: E402
from msprobe.checkpoints.result_json import comparison_json  # noqa: E402
from msprobe.cli import main  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def compare(tmp_path: Path):
    def run(target: Any, reference: Any, **options):
        torch.save(target, tmp_path / "t.pt")
        torch.save(reference, tmp_path / "r.pt")
        return compare_checkpoints(tmp_path / "t.pt", tmp_path / "r.pt", **options)

    return run


@pytest.mark.parametrize(
    ("changed", "base", "name"),
    [
        (
            {"a.b": torch.full((3,), 7.0), "a": {"b": torch.zeros(3)}},
            {"a.b": torch.ones(3), "a": {"b": torch.zeros(3)}},
            '["a.b"]',
        ),
        (
            {1: torch.full((3,), 9.0), "1": torch.zeros(3)},
            {1: torch.ones(3), "1": torch.zeros(3)},
            "[1]",
        ),
    ],
    ids=["joined", "number and text"],
)
def test_keys_that_are_equal_when_joined_stay_apart(compare, changed, base, name: str) -> None:
    found = compare(changed, base)
    assert {each.name: each.change.value for each in found.differences} == {
        name: "changed",
        name.strip('[]"'): "equal",
    }
    assert set(comparison_json(found)["parameters"]) == {each.name for each in found.differences}
    assert compare(base, base).is_equal


def test_a_flat_and_a_nested_checkpoint_with_the_same_joined_keys_are_equal(compare) -> None:
    assert compare({"a.b": torch.ones(3)}, {"a": {"b": torch.ones(3)}}).is_equal


def test_an_added_key_does_not_take_the_place_of_the_one_it_looks_like(compare) -> None:
    found = compare(
        {"a": {"b": torch.zeros(3)}}, {"a.b": torch.ones(3), "a": {"b": torch.zeros(3)}}
    )
    assert sorted(each.change.value for each in found.differences) == ["equal", "removed"]
    assert len(comparison_json(found)["parameters"]) == 2


def test_names_are_those_of_the_file_where_no_two_paths_look_alike(tmp_path: Path) -> None:
    torch.save({"a": {"b.c": torch.ones(1), 0: [torch.ones(1)]}}, tmp_path / "x.pt")
    assert set(open_checkpoint(tmp_path / "x.pt").parameters) == {"a.b.c", "a.0.0"}


def test_entries_of_one_path_are_all_kept(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    np.savez(tmp_path / "x" / "a.npz", w=np.ones(2), **{"a.w": np.zeros(2)})
    np.savez(tmp_path / "x" / "b.npz", w=np.ones(3))
    found = open_checkpoint(tmp_path / "x").parameters
    assert len(found) == 3
    assert {item.shape for item in found.values()} == {(2,), (3,)}


def trained_optimizer(lr: float = 1e-3) -> dict[str, Any]:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


def values(found) -> dict[str, str]:
    return {each.name: each.change.value for each in found.values if each.change.is_difference}


@dataclass
class Holder:
    weight: torch.Tensor
    step: int


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("table", torch.ones(2), persistent=False)
        self.extra = torch.arange(3.0)
        self.eps = 1e-5


def test_numbers_and_text_are_compared_exactly(compare) -> None:
    state = {"w": torch.ones(2), "epoch": 3, "lr": 1e-3, "name": "run", "best": None}
    found = compare(state | {"epoch": 4, "lr": 2e-3, "name": "run 2", "best": 0.5}, state)
    assert values(found) == dict.fromkeys(("epoch", "lr", "name", "best"), "changed")
    assert not found.is_equal
    assert compare(state, state).is_equal


def test_settings_of_an_optimizer_are_compared(compare) -> None:
    base = trained_optimizer()
    changed = copy.deepcopy(base)
    changed["param_groups"][0] |= {"lr": 5e-3, "betas": (0.9, 0.95)}
    found = compare({"optimizer": changed}, {"optimizer": base})
    assert values(found) == {
        "optimizer.param_groups.0.lr": "changed",
        "optimizer.param_groups.0.betas": "changed",
    }


def test_a_value_on_one_side_is_a_difference(compare) -> None:
    found = compare({"w": torch.ones(2), "epoch": 3}, {"w": torch.ones(2), "lr": 0.1})
    assert values(found) == {"epoch": "added", "lr": "removed"}
    assert not found.is_equal


def test_a_count_in_a_tensor_equals_the_count_in_a_number(compare) -> None:
    found = compare({"step": torch.tensor(5.0)}, {"step": 5})
    assert values(found) == {"step": "dtype"}
    assert values(compare({"step": torch.tensor(5)}, {"step": 6})) == {"step": "changed"}


def quantised(tensor: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


# How a special tensor is made of a plain one, and the name of the part that holds its values.
SPECIAL = {
    "dataclass": (lambda tensor: Holder(tensor, 1), "x.weight"),
    "sparse": (lambda tensor: torch.diag(tensor).to_sparse(), "x.values"),
    "csr": (lambda tensor: torch.diag(tensor).to_sparse_csr(), "x.values"),
    "numpy": (lambda tensor: tensor.numpy(), "x"),
    "columns": (lambda tensor: np.asfortranarray(np.outer(tensor, [1, 2])), "x"),
    "in list": (lambda tensor: [tensor.numpy(), "text"], "x.0"),
    "conjugate": (lambda tensor: (tensor + 1j).conj(), "x"),
    "negative": (lambda tensor: (1j * tensor).conj().imag, "x"),
    "storage": (lambda tensor: tensor.clone().untyped_storage(), "x"),
    "quantised": (quantised, "x.0"),
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.filterwarnings("ignore")
def test_tensors_of_every_kind_are_compared(compare, kind: str) -> None:
    make, name = SPECIAL[kind]
    target, reference = make(torch.ones(3)), make(torch.full((3,), 2.0))
    found = compare({"w": torch.ones(1), "x": target}, {"w": torch.ones(1), "x": reference})
    assert [each.name for each in found.differences if each.change.is_difference] == [name]
    assert not found.uncompared
    assert compare({"x": target}, {"x": target}).is_equal


@pytest.mark.parametrize(
    ("target", "reference"),
    [
        (Holder(torch.ones(3), 2), Holder(torch.ones(3), 1)),
        (torch.nn.GELU(), torch.nn.ReLU()),
        (np.float64(2.5), np.float64(2.0)),
        (np.array(["a", "b"]), np.array(["a", "c"])),
        (np.array([1, {"a": 2}], dtype=object), np.array([1, {"a": 3}], dtype=object)),
        ({1, 2, 3}, {1, 2, 4}),
        (torch.float32, torch.float16),
        (datetime.date(2026, 1, 2), datetime.date(2026, 1, 3)),
        ((3, tuple(range(625)), None), (3, (*range(624), 7), None)),
        (complex(1, 2), complex(1, 3)),
        (10**400, 10**400 + 1),
        (b"ab", b"ac"),
        ({}, []),
    ],
    ids=str,
)
def test_objects_of_every_kind_are_compared(compare, target, reference) -> None:
    found = compare({"w": torch.ones(1), "x": target}, {"w": torch.ones(1), "x": reference})
    assert not found.is_equal
    assert not found.uncompared
    assert found.is_different
    assert all(name.startswith("x") for name in values(found))
    assert compare({"x": target}, {"x": copy.deepcopy(target)}).is_equal


def test_attributes_and_buffers_of_a_module_are_compared(compare) -> None:
    base, changed = Net(), Net()
    changed.load_state_dict(base.state_dict())
    assert compare(changed, base).is_equal
    changed.eps = 1e-6
    changed.extra = torch.zeros(3)
    changed.table.zero_()
    found = compare(changed, base)
    names = [each.name for each in found.differences if each.change.is_difference]
    assert sorted(names) == ["extra", "table"]
    assert values(found) == {"eps": "changed"}


def test_arrays_of_objects_in_numpy_files_are_compared(tmp_path: Path) -> None:
    for name, last in (("a", 2), ("b", 3)):
        objects = np.array([1, {"a": last}], dtype=object)
        np.savez(tmp_path / f"{name}.npz", w=np.ones(3), o=objects, t=np.array(["x", "y"]))
    found = compare_checkpoints(tmp_path / "a.npz", tmp_path / "b.npz")
    assert values(found) == {"o.items.1.a": "changed"}
    assert compare_checkpoints(tmp_path / "a.npz", tmp_path / "a.npz").is_equal


def test_what_cannot_be_compared_is_listed_and_never_equal(tmp_path: Path, capsys) -> None:
    records = np.zeros(2, dtype=[("a", "f4"), ("b", "i4")])
    np.savez(tmp_path / "x.npz", w=np.ones(3), r=records)
    path = tmp_path / "x.npz"
    found = compare_checkpoints(path, path)
    assert [(each.side, each.name) for each in found.uncompared] == [
        ("target", "r"),
        ("reference", "r"),
    ]
    assert (found.is_different, found.is_equal) == (False, False)
    assert main(["compare-ckpt", str(path), str(path), "--exit-code"]) == 1
    text = capsys.readouterr().out
    assert "no difference in what was compared: 1 equal; 2 not compared" in text
    assert main(["compare-ckpt", str(path), str(path), "--exit-code", "-q", "--only", "w"]) == 0


def test_a_container_inside_itself_is_compared_once(compare) -> None:
    tree: dict[str, Any] = {"w": torch.ones(2)}
    tree["self"] = tree
    found = compare(tree, tree)
    assert found.is_equal
    assert len(found.values) == 1
