# SPDX-License-Identifier: Apache-2.0
"""Hooks of `msprobe.config_check` in PyTorch: calls of a model, and of random functions."""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import PurePath
from typing import Any, Final

import torch

from msprobe.dump.records import JsonTree
from msprobe.pytorch.interception.guard import guard
from msprobe.pytorch.interception.tracing import is_tracing
from msprobe.pytorch.training.model_contents import ModelContents, numbered
from msprobe.pytorch.training.start_state import modes_of
from msprobe.pytorch.training.torch_settings import generator_states, torch_settings
from msprobe.pytorch.training.training_settings import (
    kind_of_training_object,
    training_settings,
)
from msprobe.pytorch.values.checksum import crc32_hex
from msprobe.pytorch.values.statistics import summarise
from msprobe.run_config.live_objects import live_objects, setting_text
from msprobe.run_config.model_watch import RunSettings, flat_modes, leaf_of
from msprobe.run_config.observing import RunObserver, launched_as, parts_in
from msprobe.run_config.program_arguments import kind_of_arguments, program_arguments
from msprobe.run_config.random_recording import RandomFunctions, RandomRecorder

# Not dropout: `torch.jit.script` compiles it with the functions that use it, and refuses others.
_FUNCTIONS: Final = (
    RandomFunctions(
        "torch",
        torch,
        (
            *("manual_seed", "seed", "set_rng_state", "rand", "rand_like", "randn", "randn_like"),
            *("randint", "randint_like", "randperm", "normal", "poisson", "bernoulli"),
            "multinomial",
        ),
    ),
    RandomFunctions(
        "torch.cuda",
        torch.cuda,
        ("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state"),
    ),
    RandomFunctions(
        "torch.Tensor",
        torch.Tensor,
        (
            *("bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_"),
            *("random_", "uniform_", "bernoulli", "multinomial"),
        ),
    ),
)


# Of smaller tensors, as labels, many rows are equal by chance.
_ROW_DIMENSIONS: Final = 2
_MAX_ROWS: Final = 256


def _keeps_out() -> bool:
    # In this order: the compiler knows the answer to the first question.
    return torch.compiler.is_compiling() or is_tracing()


def _introduce_to_jit(noted: Any, original: Any) -> Callable[[], None]:
    """Let `torch.jit.script` take `noted` for the function it replaces; return the undo."""
    jit: Any = torch.jit._builtins  # without types
    table = jit._get_builtin_table()
    operator = table.get(id(original))
    if operator is not None:
        table[id(noted)] = operator

    def forget() -> None:
        table.pop(id(noted), None)

    return forget


def make_observer() -> RunObserver:
    """Return the observer of this process; nothing is replaced yet."""
    recorder = RandomRecorder(
        _FUNCTIONS,
        library_path=str(PurePath(torch.__file__).parent),
        keeps_out=_keeps_out,
        introduce=_introduce_to_jit,
    )
    return RunObserver(_Torch(), recorder)


def _noted(
    original: Callable[..., Any], note: Callable[[dict[str, str]], None]
) -> Callable[..., Any]:
    """Return a function that hands the settings of its calls to `note`, and calls the original."""
    names = inspect.signature(original)

    @functools.wraps(original)
    def noted(*args: Any, **kwargs: Any) -> Any:
        if not _keeps_out():
            with suppress(TypeError):  # the original says what is wrong
                bound = names.bind(*args, **kwargs)
                bound.apply_defaults()
                given = ((key, setting_text(value)) for key, value in bound.arguments.items())
                name = original.__name__
                note({f"{name}.{key}": text for key, text in given if text is not None})
        return original(*args, **kwargs)

    return noted


def _put_back(owner: Any, name: str, noted: object, original: object) -> None:
    if vars(owner).get(name) is noted:  # another library may have replaced it since
        setattr(owner, name, original)


class _Torch:
    """Torch as `RunObserver` sees it."""

    def rank_and_world_size(self) -> tuple[int, int]:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return launched_as("RANK", "WORLD_SIZE")

    def facts(self) -> dict[str, str]:
        return torch_settings()

    def parts_of(self, model: Any) -> Sequence[torch.nn.Module]:
        return parts_in(model, torch.nn.Module, "torch.nn.Module")

    def parameters_of(self, part: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        return part.named_parameters()

    def buffers_of(self, part: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        return part.named_buffers()

    def leaf(self, value: Any) -> dict[str, JsonTree] | None:
        if not isinstance(value, torch.Tensor):
            return None
        return leaf_of(value.shape, str(value.dtype), summarise(value), crc32_hex(value))

    def rows(self, value: torch.Tensor) -> list[str]:
        is_plain = value.layout is torch.strided and not value.is_nested
        if not is_plain or value.dim() < _ROW_DIMENSIONS or len(value) > _MAX_ROWS:
            return []
        return [crc32_hex(row) or "" for row in value.detach().cpu()]

    def generator_states(self) -> Iterator[tuple[str, str]]:
        return generator_states()

    def settings(self, parts: Sequence[torch.nn.Module], with_grad: bool) -> RunSettings:
        gc.collect()  # what a program has dropped is none of its settings
        objects = live_objects(kind_of_arguments, kind_of_training_object)
        found = training_settings(numbered(parts), objects)
        if parts:
            found["modes"] = flat_modes(modes_of(ModelContents.of(numbered(parts)), with_grad))
        return RunSettings(arguments=program_arguments(objects), parts=found)

    def with_grad(self) -> bool:
        return torch.is_grad_enabled()

    def watch_clipping(self, note: Callable[[dict[str, str]], None]) -> Callable[[], None]:
        undo = ExitStack()
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            original = getattr(torch.nn.utils, name)
            noted = _noted(original, note)
            for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
                if vars(owner).get(name) is original:
                    setattr(owner, name, noted)
                    undo.callback(_put_back, owner, name, noted, original)
        return undo.close

    def is_tracing(self) -> bool:
        return is_tracing()

    def guard(self) -> AbstractContextManager[object]:
        return guard()
