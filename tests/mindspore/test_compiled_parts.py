# SPDX-License-Identifier: Apache-2.0
"""Compiled code computes what it did alone, and its records are what the net sees eagerly."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import eager_oracle
import numpy as np
import pytest
from compiled_nets import COMPILED_CASES, MODES, Training, training
from eager_oracle import INPUT, OUTPUT, Seen

import mindspore as ms
from mindspore import Tensor
from msprobe import open_dump
from msprobe.mindspore import PrecisionDebugger

# Compiling takes seconds, so every net is compiled in one way, and each way has nets of all kinds.
# With MSPROBE_TEST_ALL_MODES=1 every net is compiled in every way.
WAYS = {
    "conv": "cell",
    "transformer": "function",
    "lstm": "cell",
    "embedding": "function",
    "looped": "step",
    "branching": "graph",
    "dropping": "graph",
    "half": "cell",
    "nested": "graph",
    "crossed": "function",
    "edges": "step",
    "jitinside": "cell",
    "uneven": "function",
}
EVERYTHING = bool(os.environ.get("MSPROBE_TEST_ALL_MODES"))
COMPILATIONS = [
    (name, mode) for name in COMPILED_CASES for mode in MODES if EVERYTHING or WAYS[name] == mode
]
RECORDED = [0, 2]
# In eager mode other kernels compute: float32 sums in another order.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-6}
HALF_TOLERANCE = {"rtol": 4e-3, "atol": 1e-4}


@pytest.fixture
def modes() -> Iterator[None]:
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


def begin(name: str, mode: str) -> Training:
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    return training(COMPILED_CASES[name], mode)


class Outcome:
    """What a training did, bit for bit, and its gradients of each step."""

    def __init__(self, trained: Training, debugger: Any = None) -> None:
        self.losses: list[bytes] = []
        self.gradients: list[dict[str, np.ndarray]] = []
        for _ in range(5):
            if debugger is not None:
                debugger.start(trained.model)
            loss, gradients = trained.step()
            if debugger is not None:
                debugger.stop()
                debugger.step()
            self.losses.append(loss.asnumpy().tobytes())
            weights = trained.model.trainable_params()
            self.gradients.append(
                {w.name: one.asnumpy() for w, one in zip(weights, gradients, strict=False)}
            )
        self.parameters = trained.parameters()


class Recorded:
    """The records of a step, of both halves."""

    def __init__(self, folder: Path, step: int) -> None:
        ranks = open_dump(folder).step(step).ranks
        # The compiled half last: what stands in both is read there.
        self.views = [ranks[name] for name in sorted(ranks, key=lambda name: "graph" in str(name))]

    def names(self, kind: str) -> set[str]:
        return {name for view in self.views for name in view.records if f".{kind}" in name}

    def _view(self, name: str) -> Any:
        return next(view for view in reversed(self.views) if name in view.records)

    def parts(self, name: str) -> list[str]:
        return list(self._view(name).records[name].parts)

    def values(self, name: str, part: str) -> dict[tuple[int | str, ...], Any]:
        """Return the values of a part by path; None for what is not known."""
        view, found = self._view(name), {}
        for value in view.records[name].values(part):
            if value.is_null:
                found[value.path[1:]] = None
            elif value.is_tensor and 0 in value.shape:  # there is no file of nothing
                found[value.path[1:]] = np.empty(value.shape, value.dtype)
            elif value.is_tensor:
                found[value.path[1:]] = np.asarray(view.tensor(value).array)
        return found

    def says_unknown(self, cell: str, place: str) -> bool:
        """Return whether the calls of a cell say that a gradient cannot be given to one of them."""
        records = [self._view(n).records[n] for n in self.names("backward") if n.startswith(cell)]
        remarks = [one.notes.get("remarks", {}) for one in records]
        return any("not known" in str(one.get(place)) for one in remarks)

    def parent(self, name: str) -> str | None:
        return self._view(name).parents.get(name)


def same(found: Any, expected: np.ndarray, what: str, tolerance: dict[str, float]) -> None:
    assert found is not None, what
    if found.dtype == np.float16:  # a graph casts before the cell is entered, eager mode after
        expected = expected.astype(np.float16)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), what
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected, err_msg=what)
        return
    # Compared as float64, so that the tolerance is not rounded.
    np.testing.assert_allclose(
        found.astype(np.float64), expected.astype(np.float64), **tolerance, err_msg=what
    )


def check_forward(recorded: Recorded, seen: list[Seen], near: dict[str, float]) -> None:
    names = {f"{name}.forward.{number}" for name, number in (call.name for call in seen)}
    assert recorded.names("forward") == names
    for call in seen:
        name = "{}.forward.{}".format(*call.name)
        arguments = recorded.values(name, "input_args") | recorded.values(name, "input_kwargs")
        # The result is the one element of "output", unless it is a tuple.
        results = list(recorded.values(name, "output").values())
        expected = {path: one for (side, path), one in call.values.items() if side == INPUT}
        assert arguments.keys() == expected.keys(), name
        for path, value in expected.items():
            same(arguments[path], value, f"{name} input {path}", near)
        returned = [one for (side, _), one in call.values.items() if side == OUTPUT]
        for index, (found, value) in enumerate(zip(results, returned, strict=True)):
            same(found, value, f"{name} output {index}", near)
        parameters = recorded.values(name, "parameters")
        assert {path[0] for path in parameters} == call.parameters.keys()
        for (key, *_), found in parameters.items():
            same(found, call.parameters[str(key)], f"{name} {key}", near)
        if call.parent is not None:
            assert recorded.parent(name) == "{}.forward.{}".format(*call.parent)


def check_backward(
    recorded: Recorded,
    seen: list[Seen],
    truth: dict[Any, np.ndarray],
    depends: set[Any],
    near: dict[str, float],
) -> None:
    backward = recorded.names("backward")
    for call in seen:
        name = "{}.backward.{}".format(*call.name)
        if name in backward:
            arrived = [one for _, one in sorted(recorded.values(name, "input").items())]
            left = recorded.values(name, "output") | recorded.values(name, "output_kwargs")
        else:
            arrived, left = [], {}
        slot = 0
        for side, path in call.values:
            place = (*call.name, side, path)
            if side == OUTPUT:
                where = f"input.{slot}"
                found = arrived[slot] if slot < len(arrived) else None
                slot += 1
            else:
                where = ".".join(["output", *map(str, path)])
                found = left.get(path)
            expected = truth.get(place)
            if expected is None:
                assert found is None, place
            elif found is not None:
                same(found, expected, f"gradient {place}", near)
            elif not recorded.says_unknown(call.name[0], where):
                # Only where no weight stands behind the value, or nothing comes back.
                assert place not in depends or not expected.any(), place


def check_parameter_gradients(recorded: Recorded, gradients: dict[str, np.ndarray]) -> None:
    found = {}
    for name in recorded.names("parameters_grad"):
        owner = name.removeprefix("Cell.").removesuffix(".parameters_grad").rpartition(".")[0]
        for part in recorded.parts(name):
            (value,) = recorded.values(name, part).values()
            found[f"{owner}.{part}"] = value
    assert found.keys() == gradients.keys()
    for name, expected in gradients.items():
        np.testing.assert_array_equal(found[name], expected, err_msg=name)


# A value that is used several times inside a cell and again outside: MindSpore adds up the shares
# of its gradient in another order when the cell hands gradients over.
OTHER_ORDER = {"uneven"}


def test_without_gradients_the_order_of_sums_stays(tmp_path: Path) -> None:
    alone = Outcome(begin("uneven", "function"))
    trained = begin("uneven", "function")
    config = tmp_path / "config.json"
    section = {"data_mode": ["forward"]}
    config.write_text(json.dumps({"task": "tensor", "level": "L0", "tensor": section}))
    debugger = PrecisionDebugger(config_path=config, dump_path=tmp_path / "dump")
    outcome = Outcome(trained, debugger)
    assert (outcome.losses, outcome.parameters) == (alone.losses, alone.parameters)


@pytest.mark.parametrize(("name", "mode"), COMPILATIONS)
def test_training_goes_on_and_every_value_is_right(
    name: str, mode: str, tmp_path: Path, modes: None
) -> None:
    alone = Outcome(begin(name, mode))
    trained = begin(name, mode)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", task="tensor", step=RECORDED)
    outcome = Outcome(trained, debugger)
    if name in OTHER_ORDER:
        for one, other in zip(outcome.parameters, alone.parameters, strict=True):
            values = np.frombuffer(one, np.float32)
            np.testing.assert_array_max_ulp(values, np.frombuffer(other, np.float32), 8)
    else:
        assert (outcome.losses, outcome.parameters) == (alone.losses, alone.parameters)
    assert not list(tmp_path.rglob("dump_error_info.log"))
    for step in RECORDED:
        check_parameter_gradients(Recorded(tmp_path, step), outcome.gradients[step])
    if name == "dropping":  # other random numbers
        return
    ms.set_context(mode=ms.PYNATIVE_MODE)
    case = COMPILED_CASES[name]
    near = HALF_TOLERANCE if name == "half" else TOLERANCE
    eager, inputs = training(case, "eager"), [Tensor(array) for array in case.inputs]
    for step in range(3):
        if step in RECORDED:
            recorded = Recorded(tmp_path, step)
            seen = eager_oracle.calls(eager.model, inputs)
            check_forward(recorded, seen, near)
            truth = eager_oracle.gradients(eager.model, inputs, seen)
            depends = eager_oracle.depending(eager.model, inputs, seen)
            check_backward(recorded, seen, truth, depends, near)
        eager.step()


@pytest.mark.parametrize("mode", MODES)
def test_statistics_of_all_steps_change_nothing(mode: str, tmp_path: Path, modes: None) -> None:
    """With batch norm and dropout: neither moving averages nor random numbers are others."""
    alone = Outcome(begin("dropping", mode))
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    outcome = Outcome(begin("dropping", mode), debugger)
    assert (outcome.losses, outcome.parameters) == (alone.losses, alone.parameters)
    dump = open_dump(tmp_path)
    assert list(dump.steps) == [0, 1, 2, 3, 4]
    norms = set()
    for step in dump.steps.values():
        view = step.ranks["rank" if mode == "graph" else "graph/rank"]
        ((_, value),) = view.records["Cell.net.drop.Dropout.forward.0"].tensors("output")
        norms.add(value.norm)
        ((_, value),) = view.records["Cell.net.fc.Dense.backward.0"].tensors("input")
        norms.add(value.norm)
    assert len(norms) == 10  # every step has its own
