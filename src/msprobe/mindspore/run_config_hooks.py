# SPDX-License-Identifier: Apache-2.0
"""Hooks of `msprobe.config_check` in MindSpore: calls of a net, seeds, and random calls.

Operators that draw random numbers are not replaced: MindSpore compiles a function from its source,
and cannot compile a hook. The states of the generators show the random numbers drawn.
"""

from __future__ import annotations

import gc
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import PurePath
from typing import Any, Final

from mindspore.communication import get_group_size

import mindspore
from mindspore import Tensor, nn
from msprobe.capture.array_statistics import summarise_array
from msprobe.dump.records import JsonTree
from msprobe.errors import UnsupportedError
from msprobe.mindspore.adapter import values_of
from msprobe.mindspore.communication import current_rank
from msprobe.mindspore.compiled.cells import is_static_graph
from msprobe.mindspore.describing import dtype_name
from msprobe.mindspore.tensor_payload import crc32_hex
from msprobe.run_config.live_objects import live_objects, plain_settings
from msprobe.run_config.model_watch import RunSettings, flat_modes, leaf_of
from msprobe.run_config.observing import RunObserver, launched_as, parts_in
from msprobe.run_config.program_arguments import kind_of_arguments, program_arguments
from msprobe.run_config.random_recording import RandomFunctions, RandomRecorder, state_checksum

_SEEDING: Final = RandomFunctions(
    "mindspore", mindspore, ("set_seed", "manual_seed", "seed", "set_rng_state")
)


# Attributes that every cell has, and a counter.
NO_SETTINGS: Final = frozenset(
    (
        *("training", "cell_type", "param_prefix", "auto_parallel_mode", "arguments_key"),
        *("compile_cache", "requires_grad", "is_top_cell", "grad_ops_label", "has_bprop"),
        *("enable_tuple_broaden", "skip_auto_parallel_compile", "global_step"),
    )
)
_OPTIMIZER: Final = "optimizer"
_MAX_NUMBERS: Final = 16
# Of smaller tensors, as labels, many rows are equal by chance.
_ROW_DIMENSIONS: Final = 2
_MAX_ROWS: Final = 256


def make_observer() -> RunObserver:
    """Return the observer of this process; nothing is replaced yet."""
    mindspores_folder = str(PurePath(mindspore.__file__).parent)
    return RunObserver(_MindSpore(), RandomRecorder((_SEEDING,), library_path=mindspores_folder))


def mindspore_settings() -> dict[str, str]:
    """Return the version and the context of MindSpore."""
    names = ("mode", "device_target", "deterministic")
    return {
        "mindspore.version": str(mindspore.__version__),
        **{f"mindspore.{name}": str(mindspore.get_context(name)) for name in names},
    }


def generator_states() -> Iterator[tuple[str, str]]:
    """Yield MindSpore's seed and the checksum of its generator's state; draws nothing."""
    yield "seed", str(mindspore.get_seed())
    yield "default", state_checksum(mindspore.get_rng_state().asnumpy().tobytes())


def _nothing() -> None:
    """Do nothing."""


def _kind_of_optimizer(of_type: type) -> str | None:
    return _OPTIMIZER if issubclass(of_type, nn.Optimizer) else None


def _settings_of(optimizer: nn.Optimizer) -> Iterator[tuple[str, str]]:
    """Yield class and numbers of an optimizer; its numbers are attributes and small tensors."""
    yield "class", f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    yield from plain_settings(optimizer, without=NO_SETTINGS)
    held = vars(optimizer)
    for name, value in {**held, **held.get("_params", {})}.items():
        is_number = isinstance(value, Tensor) and value.size <= _MAX_NUMBERS
        # The others are parameters and their states, by their paths.
        if is_number and "." not in name and not name.startswith("_") and name not in NO_SETTINGS:
            values = values_of(value)
            if values is not None:
                yield name, str(values.tolist())


class _MindSpore:
    """MindSpore as `RunObserver` sees it."""

    def rank_and_world_size(self) -> tuple[int, int]:
        rank = current_rank()
        if rank is None:
            return launched_as("RANK_ID", "RANK_SIZE")
        return rank, int(get_group_size())

    def facts(self) -> dict[str, str]:
        return mindspore_settings()

    def parts_of(self, model: Any) -> Sequence[nn.Cell]:
        holders = (list, tuple, nn.CellList)
        parts = parts_in(model, nn.Cell, "mindspore.nn.Cell", containers=holders)
        if is_static_graph():
            raise UnsupportedError(
                "ConfigChecker: MindSpore runs in graph mode, where calls of the net cannot be "
                "watched; use set_context(mode=PYNATIVE_MODE), or give no model"
            )
        return parts

    def parameters_of(self, part: nn.Cell) -> Iterator[tuple[str, Any]]:
        yield from part.parameters_and_names()

    def buffers_of(self, part: nn.Cell) -> Iterator[tuple[str, Any]]:
        named_buffers = getattr(part, "named_buffers", None)  # not in every version
        return iter(()) if named_buffers is None else iter(named_buffers())

    def leaf(self, value: Any) -> dict[str, JsonTree] | None:
        if not isinstance(value, Tensor):
            return None
        values = values_of(value)
        if values is None:  # a parameter that is not initialised yet
            return leaf_of(value.shape, dtype_name(value), None, None)
        return leaf_of(value.shape, dtype_name(value), summarise_array(values), crc32_hex(values))

    def rows(self, value: Any) -> list[str]:
        values = values_of(value)
        if values is None or values.ndim < _ROW_DIMENSIONS or len(values) > _MAX_ROWS:
            return []
        return [f"{zlib.crc32(row.tobytes()):08x}" for row in values]

    def generator_states(self) -> Iterator[tuple[str, str]]:
        return generator_states()

    def settings(self, parts: Sequence[nn.Cell], with_grad: bool) -> RunSettings:
        # The room of this module reads the nets of recordings.
        from msprobe.mindspore.start_state import cell_settings, modes_of, named_parameters

        gc.collect()  # what a program has dropped is none of its settings
        objects = live_objects(kind_of_arguments, _kind_of_optimizer)
        found = {"modules": cell_settings(parts)}
        parameters = {id(value) for part in parts for value in part.get_parameters()}
        optimizers = [
            one
            for one in objects.get(_OPTIMIZER, ())
            if any(id(value) in parameters for value in getattr(one, "parameters", ()))
        ]
        for number, optimizer in enumerate(optimizers):
            found.setdefault(_OPTIMIZER, {}).update(
                {f"{_OPTIMIZER}.{number}.{key}": text for key, text in _settings_of(optimizer)}
            )
        if parts:
            found["modes"] = flat_modes(modes_of(parts, named_parameters(parts)))
        return RunSettings(arguments=program_arguments(objects), parts=found)

    def with_grad(self) -> bool:
        return True  # MindSpore differentiates functions, not what a program has run

    def watch_clipping(self, note: Callable[[dict[str, str]], None]) -> Callable[[], None]:
        del note  # MindSpore compiles a function from its source, and cannot compile this one
        return _nothing

    def is_tracing(self) -> bool:
        return False  # `parts_of` refuses graph mode

    def guard(self) -> AbstractContextManager[object]:
        return nullcontext()  # reading a tensor has no side effect
