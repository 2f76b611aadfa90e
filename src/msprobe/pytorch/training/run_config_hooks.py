# SPDX-License-Identifier: Apache-2.0
"""Hooks of `msprobe.config_check` in PyTorch: calls of a model, and of random functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import PurePath
from typing import Any, Final

import torch

from msprobe.dump.records import JsonTree
from msprobe.pytorch.interception.guard import unnoticed
from msprobe.pytorch.interception.tracing import is_tracing
from msprobe.pytorch.training.torch_settings import generator_states, torch_settings
from msprobe.pytorch.values.checksum import crc32_hex
from msprobe.pytorch.values.statistics import summarise
from msprobe.run_config.model_watch import leaf_of
from msprobe.run_config.observing import RunObserver, launched_as, parts_in
from msprobe.run_config.random_recording import RandomFunctions, RandomRecorder

# Not dropout: `torch.jit.script` compiles it with the functions that use it, and would refuse ours.
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

    def generator_states(self) -> Iterator[tuple[str, str]]:
        return generator_states()

    def is_tracing(self) -> bool:
        return is_tracing()

    def unnoticed(self) -> AbstractContextManager[object]:
        return unnoticed()
