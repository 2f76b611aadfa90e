# SPDX-License-Identifier: Apache-2.0
"""What `msprobe.config_check` watches in PyTorch: the calls of a model, and of random functions."""

from __future__ import annotations

import logging
import os
import random
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np
import torch

from msprobe.dump.records import JsonTree
from msprobe.errors import ConfigError, MsprobeError
from msprobe.pytorch.checksum import crc32_hex
from msprobe.pytorch.quiet import unnoticed
from msprobe.pytorch.random_call_notes import RandomCallNotes
from msprobe.pytorch.statistics import summarise
from msprobe.pytorch.tracing import is_tracing
from msprobe.run_config.arguments import flat_arguments
from msprobe.run_config.pack import DYNAMIC, PackWriter
from msprobe.run_config.value_tables import CHECKSUM

logger = logging.getLogger(__name__)

_MEGATRON_MODULES: Final = ("megatron.training.global_vars", "megatron.training", "megatron")
_UNDO: Final[list[Callable[[], None]]] = []
"""How to put back what was replaced in this process, and take hooks away."""
_NOTES: Final = RandomCallNotes()
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
    _UNDO.extend(_NOTES.watch())


def stop_watching() -> None:
    """Put every function back, remove every hook, forget the calls."""
    while _UNDO:
        _UNDO.pop()()
    _NOTES.clear()


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
    watch = _ModelWatch(parts, writer, rank, max_steps)
    watch.handle = parts[0].register_forward_pre_hook(watch.before_call, with_kwargs=True)
    _UNDO.append(watch.handle.remove)


class _ModelWatch:
    """The hook of one model."""

    def __init__(
        self,
        parts: list[torch.nn.Module],
        writer: PackWriter,
        rank: int,
        max_steps: int | None,
    ) -> None:
        self.handle: torch.utils.hooks.RemovableHandle | None = None
        self._parts = parts
        self._writer = writer
        self._rank = rank
        self._max_steps = max_steps
        self._step = 0

    def before_call(self, _: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Write what this micro step starts with. An error ends the watching, not the training."""
        if is_tracing():
            return
        try:
            with unnoticed():
                self._collect(args, kwargs)
        except (MsprobeError, RuntimeError, ValueError, TypeError, OSError) as exc:
            logger.warning("config_check stops watching the model: %s", exc, exc_info=True)
            self._stop()
            return
        self._step += 1
        if self._max_steps is not None and self._step >= self._max_steps:
            self._stop()

    def _collect(self, args: Any, kwargs: Any) -> None:
        place = f"step{self._step}/rank{self._rank}"
        if self._step == 0:
            self._writer.put_json(f"random/rank{self._rank}.json", _NOTES.as_json())
            states = {"step0": dict(_generator_states())}
            self._writer.put_json(f"random/generators_rank{self._rank}.json", states)
            arguments = megatron_arguments()
            if arguments:
                self._writer.put_json(DYNAMIC, arguments)
        dataset = {"args": _described(list(args)), "kwargs": _described(kwargs)}
        self._writer.put_json(f"dataset/{place}/dataset.json", dataset)
        weights = {name: _leaf(parameter) for name, parameter in self._parameters()}
        self._writer.put_json(f"weights/{place}/weight.json", weights)

    def _parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for number, part in enumerate(self._parts):
            begin = f"{number}." if len(self._parts) > 1 else ""
            for name, parameter in part.named_parameters():
                yield begin + name, parameter

    def _stop(self) -> None:
        if self.handle is not None:
            self.handle.remove()


def megatron_arguments() -> dict[str, JsonTree]:
    """Return the arguments of Megatron-LM, if it is loaded and has parsed them."""
    for name in _MEGATRON_MODULES:
        get_args = getattr(sys.modules.get(name), "get_args", None)
        if callable(get_args):
            # It asserts that arguments were parsed.
            with suppress(AssertionError, AttributeError, RuntimeError):
                return flat_arguments(vars(get_args()))
    return {}


def _described(value: Any, depth: int = 0) -> JsonTree:
    """Return a tree like `value`, of the tensors in it; everything else is left out."""
    if isinstance(value, torch.Tensor):
        return _leaf(value)
    if isinstance(value, Mapping):
        items: list[tuple[str, Any]] = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(str(number), item) for number, item in enumerate(value)]
    else:
        items = [(str(key), item) for key, item in getattr(value, "__dict__", {}).items()]
    if depth > 20:
        return {}
    found = {key: _described(item, depth + 1) for key, item in items}
    return {key: tree for key, tree in found.items() if tree}


def _leaf(tensor: torch.Tensor) -> dict[str, JsonTree]:
    summary = summarise(tensor)
    leaf: dict[str, JsonTree] = {
        "max": summary.max,
        "min": summary.min,
        "mean": summary.mean,
        "norm": summary.norm,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype),
    }
    checksum = crc32_hex(tensor)
    return leaf if checksum is None else leaf | {CHECKSUM: checksum}


def _generator_states() -> Iterator[tuple[str, str]]:
    """Yield each generator with a checksum of its state. Reading a state draws nothing."""
    yield "python", _crc(repr(random.getstate()).encode())
    legacy: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - what users' scripts share
    state = legacy["state"]
    yield "numpy", _crc(np.asarray(state["key"]).tobytes() + repr(state.get("pos")).encode())
    yield "cpu", _crc(torch.get_rng_state().numpy().tobytes())
    if _cuda_is_up():
        for number in range(torch.cuda.device_count()):
            yield f"cuda:{number}", _crc(torch.cuda.get_rng_state(number).numpy().tobytes())


def _crc(content: bytes) -> str:
    return f"{zlib.crc32(content):08x}"
