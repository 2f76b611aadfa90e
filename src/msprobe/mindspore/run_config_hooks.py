# SPDX-License-Identifier: Apache-2.0
"""What `msprobe.config_check` watches in MindSpore: the calls of a net, seeds, and random calls.

Operators that draw random numbers are not replaced: MindSpore compiles a function from its source,
and would not understand ours. The states of the generators tell what they drew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import PurePath
from typing import Any, Final

from mindspore.communication import get_group_size

import mindspore
from mindspore import Tensor, nn
from msprobe.capture.array_statistics import summarise_array
from msprobe.dump.records import JsonTree
from msprobe.errors import ConfigError, UnsupportedError
from msprobe.mindspore.adapter import values_of
from msprobe.mindspore.communication import current_rank
from msprobe.mindspore.describing import dtype_name
from msprobe.mindspore.tensor_payload import crc32_hex
from msprobe.run_config.model_watch import ModelWatch
from msprobe.run_config.pack import PackWriter
from msprobe.run_config.random_recording import (
    PYTHON_AND_NUMPY,
    RandomFunctions,
    RandomRecorder,
    python_and_numpy_states,
    state_checksum,
)
from msprobe.run_config.value_tables import CHECKSUM

_SEEDING: Final = RandomFunctions(
    "mindspore", mindspore, ("set_seed", "manual_seed", "seed", "set_rng_state")
)
_RECORDER: Final = RandomRecorder(
    (*PYTHON_AND_NUMPY, _SEEDING),
    library_paths=(str(PurePath(__file__).parents[1]), str(PurePath(mindspore.__file__).parent)),
)
_UNDO: Final[list[Callable[[], None]]] = []
"""How to put back what was replaced in this process, and take hooks away."""


def rank_and_world_size() -> tuple[int, int]:
    """Return this process's rank and the number of ranks.

    Before ``communication.init()`` they are those that the launcher has set; (0, 1) without one.
    """
    rank = current_rank()
    if rank is not None:
        return rank, int(get_group_size())
    texts = [os.environ.get(name, "") for name in ("RANK_ID", "RANK_SIZE")]
    if not all(text.isascii() and text.isdigit() and len(text) < 10 for text in texts):
        return 0, 1
    return int(texts[0]), int(texts[1])


def framework_facts() -> dict[str, str]:
    """Return the settings of MindSpore that decide how numbers are computed."""
    names = ("mode", "device_target", "deterministic")
    return {
        "mindspore.version": str(mindspore.__version__),
        **{f"mindspore.{name}": str(mindspore.get_context(name)) for name in names},
    }


def watch_random_calls() -> None:
    """Note calls of random functions from now on; a second call changes nothing."""
    _UNDO.extend(_RECORDER.watch())


def stop_watching() -> None:
    """Put every function back, remove every hook, forget the calls."""
    while _UNDO:
        _UNDO.pop()()
    _RECORDER.clear()


def watch_model(model: Any, writer: PackWriter, *, rank: int, max_steps: int | None) -> None:
    """Summarise inputs and parameters before each call of a net.

    Args:
        model: a cell, or a list of cells whose first is called once a micro step.
        writer: where to.
        rank: this process's rank.
        max_steps: calls to look at; None for all.

    Raises:
        ConfigError: the model is no cell.
        UnsupportedError: MindSpore runs in graph mode, where hooks are compiled.
    """
    parts = list(model) if isinstance(model, (list, tuple, nn.CellList)) else [model]
    if not parts or not all(isinstance(part, nn.Cell) for part in parts):
        rule = "a mindspore.nn.Cell, or a list of them"
        raise ConfigError("model", type(model).__name__, rule, source="ConfigChecker()")
    if mindspore.get_context("mode") != mindspore.PYNATIVE_MODE:
        raise UnsupportedError(
            "ConfigChecker: MindSpore runs in graph mode, where calls of the net cannot be "
            "watched; use set_context(mode=PYNATIVE_MODE), or give no model"
        )
    watch = ModelWatch(_Net(parts), writer, rank=rank, max_steps=max_steps)

    def before_call(_: nn.Cell, args: Any, kwargs: Any) -> None:
        if not watch.before_call(args, kwargs):
            handle.remove()

    handle = parts[0].register_forward_pre_hook(before_call, with_kwargs=True)
    _UNDO.append(handle.remove)


class _Net:
    """A net as `ModelWatch` sees it."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts

    def leaf(self, value: Any) -> dict[str, JsonTree] | None:
        if not isinstance(value, Tensor):
            return None
        values = values_of(value)
        leaf: dict[str, JsonTree] = {"shape": list(value.shape), "dtype": dtype_name(value)}
        if values is None:  # a parameter that is not initialised yet
            return {"max": None, "min": None, "mean": None, "norm": None, **leaf}
        summary = summarise_array(values)
        return {
            "max": summary.max,
            "min": summary.min,
            "mean": summary.mean,
            "norm": summary.norm,
            **leaf,
            CHECKSUM: crc32_hex(values),
        }

    def parameters(self) -> Iterator[tuple[str, Any]]:
        for number, part in enumerate(self._parts):
            begin = f"{number}." if len(self._parts) > 1 else ""
            for name, parameter in part.parameters_and_names():
                yield begin + name, parameter

    def generator_states(self) -> Iterator[tuple[str, str]]:
        yield from python_and_numpy_states()
        yield "seed", str(mindspore.get_seed())
        yield "default", state_checksum(mindspore.get_rng_state().asnumpy().tobytes())

    def random_calls(self) -> dict[str, JsonTree]:
        return _RECORDER.as_json()

    def unnoticed(self) -> AbstractContextManager[object]:
        return nullcontext()  # reading a tensor shows nowhere
