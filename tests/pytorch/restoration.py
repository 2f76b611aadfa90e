# SPDX-License-Identifier: Apache-2.0
"""What a tool could leave behind in torch and in the interpreter, and how to see that."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import types
import warnings
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed
import torch.distributed.distributed_c10d
import torch.nn.modules.module as module_room
import torch.utils.checkpoint
import torch.utils.data
from torch import nn

NAMESPACES: tuple[Any, ...] = (
    torch,
    torch.nn,
    torch.nn.functional,
    torch.nn.init,
    torch.Tensor,
    torch._C,
    type(torch._C._VariableFunctions),
    torch._C.TensorBase,
    torch._VF,
    torch.linalg,
    torch.fft,
    torch.special,
    torch.sparse,
    torch.distributed,
    torch.distributed.distributed_c10d,
    torch.distributed.Work,
    torch.autograd,
    torch.autograd.graph,
    torch.autograd.Function,
    torch.autograd.function,
    torch.nn.Module,
    torch.nn.Parameter,
    torch.nn.LSTM,
    torch.nn.GRU,
    module_room,
    torch.overrides,
    torch.utils.checkpoint,
    torch.utils.data,
    torch.utils.data.DataLoader,
    torch.utils._python_dispatch,
    torch.optim.Optimizer,
    torch.optim.AdamW,
    torch.compiler,
    torch.amp,
    torch.random,
    torch.ops.aten,
    nn.utils,
)

MODULE_DICTS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
)

# Python's own notes on a module or class: what was warned about, what copy and pickle looked up.
INTERPRETER_NOTES = frozenset({"__warningregistry__", "__slotnames__"})

Snapshot = dict[str, Any]


def _is_late_import(value: object) -> bool:
    """A submodule that somebody imported meanwhile shows up as an attribute of its package."""
    # by type(): some lazy attributes of torch answer to `__class__` with a warning
    return issubclass(type(value), types.ModuleType)


def _namespaces() -> Snapshot:
    found = {}
    for space in NAMESPACES:
        label = getattr(space, "__name__", str(space))
        for name, value in vars(space).items():
            if name not in INTERPRETER_NOTES and not _is_late_import(value):
                found[f"{label}.{name}"] = value
    return found


def _global_hooks() -> Snapshot:
    """How many hooks are registered for all modules."""
    found: Snapshot = {}
    for name, value in vars(module_room).items():
        if name.startswith("_global_"):
            found[f"number of {name}"] = len(value) if hasattr(value, "__len__") else value
    return found


def _thread_state() -> Snapshot:
    return {
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function overrides": torch._C._is_torch_function_enabled(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "default dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "saved-tensor hooks": torch._C._autograd._saved_tensors_hooks_is_enabled(),
        "top saved-tensor hooks": torch._C._autograd._top_saved_tensors_default_hooks(True),
    }


def _interpreter() -> Snapshot:
    return {
        "trace": sys.gettrace(),
        "profile": sys.getprofile(),
        "switch interval": sys.getswitchinterval(),
        "recursion limit": sys.getrecursionlimit(),
        "exception hook": sys.excepthook,
        "thread exception hook": threading.excepthook,
        "gc thresholds": gc.get_threshold(),
        "gc enabled": gc.isenabled(),
        "gc callbacks": len(gc.callbacks),
        "warning filters": list(warnings.filters),
        "root log handlers": list(logging.root.handlers),
        "root log level": logging.root.level,
        "interrupt handler": signal.getsignal(signal.SIGINT),
        "terminate handler": signal.getsignal(signal.SIGTERM),
        "environment": dict(os.environ),
        "working folder": str(os.getcwd()),  # noqa: PTH109
        "monitoring": [sys.monitoring.get_tool(n) for n in range(6)]
        if hasattr(sys, "monitoring")
        else [],
    }


def _models(models: Iterable[nn.Module]) -> Snapshot:
    """Attributes of every module by identity; its hooks and those of its parameters by content."""
    found: Snapshot = {}
    for index, model in enumerate(models):
        for name, module in model.named_modules():
            label = f"model {index}.{name}"
            found[f"{label} class"] = type(module)
            found[f"{label} attributes"] = sorted(vars(module))
            for hooks in MODULE_DICTS:
                found[f"{label}.{hooks}"] = list(getattr(module, hooks).items())
        for name, parameter in model.named_parameters():
            label = f"model {index}.{name}"
            found[f"{label} attributes"] = sorted(vars(parameter))
            found[f"{label} hooks"] = list((parameter._backward_hooks or {}).items())
            after = getattr(parameter, "_post_accumulate_grad_hooks", None)
            found[f"{label} hooks after accumulation"] = list((after or {}).items())
    return found


def snapshot(*models: nn.Module) -> Snapshot:
    """Everything that must be as it was once a tool has stopped."""
    parts = (_namespaces(), _global_hooks(), _thread_state(), _interpreter(), _models(models))
    return {name: value for part in parts for name, value in part.items()}


def changes(before: Snapshot, after: Snapshot) -> list[str]:
    """Names whose value is not the same object any more (or, for counts and lists, not equal)."""
    found = [name for name in before if name not in after]
    for name, value in after.items():
        if name not in before:
            found.append(f"new: {name}")
        elif value is not before[name] and not _equal(before[name], value):
            found.append(name)
    return found


def _equal(old: object, new: object) -> bool:
    plain = int | float | str | bool | list | dict | tuple | torch.dtype | torch.device
    return type(old) is type(new) and isinstance(new, plain) and old == new
