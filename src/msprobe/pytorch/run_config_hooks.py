# SPDX-License-Identifier: Apache-2.0
"""What `msprobe.config_check` watches in PyTorch: the calls of a model, and of random functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import PurePath
from typing import Any, Final

import torch

from msprobe.dump.records import JsonTree
from msprobe.errors import ConfigError
from msprobe.pytorch.checksum import crc32_hex
from msprobe.pytorch.quiet import unnoticed
from msprobe.pytorch.statistics import summarise
from msprobe.pytorch.tracing import is_tracing
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
    """Let `torch.jit.script` take `noted` for the function it stands for; return the undo."""
    jit: Any = torch.jit._builtins  # without types
    table = jit._get_builtin_table()
    operator = table.get(id(original))
    if operator is not None:
        table[id(noted)] = operator

    def forget() -> None:
        table.pop(id(noted), None)

    return forget


_RECORDER: Final = RandomRecorder(
    (*PYTHON_AND_NUMPY, *_FUNCTIONS),
    library_paths=(str(PurePath(__file__).parents[1]), str(PurePath(torch.__file__).parent)),
    keeps_out=_keeps_out,
    introduce=_introduce_to_jit,
)
_UNDO: Final[list[Callable[[], None]]] = []
"""How to put back what was replaced in this process, and take hooks away."""
_cuda_is_up: Final[Callable[[], bool]] = torch.cuda.is_initialized


def rank_and_world_size() -> tuple[int, int]:
    """Return this process's rank and the number of ranks.

    Before there is a process group they are those that the launcher has set; (0, 1) without one.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    texts = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    if not all(text.isascii() and text.isdigit() and len(text) < 10 for text in texts):
        return 0, 1
    return int(texts[0]), int(texts[1])


def framework_facts() -> dict[str, str]:
    """Return the settings of torch that decide how numbers are computed."""
    backends = torch.backends
    cudnn: Any = backends.cudnn  # its functions have no types
    return {
        "torch.version": str(torch.__version__),
        "torch.cuda": str(torch.version.cuda),
        "torch.cudnn": str(cudnn.version() if cudnn.is_available() else None),
        "torch.deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "torch.cudnn_deterministic": str(cudnn.deterministic),
        "torch.cudnn_benchmark": str(cudnn.benchmark),
        "torch.cudnn_allow_tf32": str(cudnn.allow_tf32),
        "torch.float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch.default_dtype": str(torch.get_default_dtype()),
        "torch.cpu_threads": str(torch.get_num_threads()),
        "torch.cpu_capability": backends.cpu.get_cpu_capability(),
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
    """Summarise inputs and parameters before each call of a model.

    Args:
        model: a module, or a list of modules whose first is called once a micro step.
        writer: where to.
        rank: this process's rank.
        max_steps: calls to look at; None for all.

    Raises:
        ConfigError: the model is no module.
    """
    parts = list(model) if isinstance(model, (list, tuple)) else [model]
    if not parts or not all(isinstance(part, torch.nn.Module) for part in parts):
        rule = "a torch.nn.Module, or a list of them"
        raise ConfigError("model", type(model).__name__, rule, source="ConfigChecker()")
    watch = ModelWatch(_Model(parts), writer, rank=rank, max_steps=max_steps)

    def before_call(_: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if not is_tracing() and not watch.before_call(args, kwargs):
            handle.remove()

    handle = parts[0].register_forward_pre_hook(before_call, with_kwargs=True)
    _UNDO.append(handle.remove)


class _Model:
    """A torch model as `ModelWatch` sees it."""

    def __init__(self, parts: list[torch.nn.Module]) -> None:
        self._parts = parts

    def leaf(self, value: Any) -> dict[str, JsonTree] | None:
        if not isinstance(value, torch.Tensor):
            return None
        summary = summarise(value)
        leaf: dict[str, JsonTree] = {
            "max": summary.max,
            "min": summary.min,
            "mean": summary.mean,
            "norm": summary.norm,
            "shape": list(value.shape),
            "dtype": str(value.dtype),
        }
        checksum = crc32_hex(value)
        return leaf if checksum is None else leaf | {CHECKSUM: checksum}

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for number, part in enumerate(self._parts):
            begin = f"{number}." if len(self._parts) > 1 else ""
            for name, parameter in part.named_parameters():
                yield begin + name, parameter

    def generator_states(self) -> Iterator[tuple[str, str]]:
        yield from python_and_numpy_states()
        yield "cpu", state_checksum(torch.get_rng_state().numpy().tobytes())
        if _cuda_is_up():
            for number in range(torch.cuda.device_count()):
                state = torch.cuda.get_rng_state(number)
                yield f"cuda:{number}", state_checksum(state.numpy().tobytes())

    def random_calls(self) -> dict[str, JsonTree]:
        return _RECORDER.as_json()

    def unnoticed(self) -> AbstractContextManager[object]:
        return unnoticed()
