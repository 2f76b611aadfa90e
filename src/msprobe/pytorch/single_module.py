# SPDX-License-Identifier: Apache-2.0
"""Recording one module alone, for a stretch of the program."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from msprobe.capture.front import lock
from msprobe.errors import ConfigError, UsageError
from msprobe.pytorch.debugger import running
from msprobe.pytorch.interception.module_hooks import ModuleNames

_SOURCE = "module_dump()"


def module_dump(module: nn.Module, name: str) -> None:
    """Record only `module` until `module_dump_end`, as ``Module.{name}.{Class}.forward.{number}``.

    Its inputs, outputs, parameters and their gradients are recorded, at level L1 too; its children
    and the APIs that are called make no records meanwhile. Gradients of calls made before are
    recorded as ever. Nothing is recorded outside of `start` and `stop`.

    Args:
        module: any module; it need not belong to the model given to `start`.
        name: stands for its path in the names of the records.

    Raises:
        ConfigError: `module` is no module, or one that was scripted; `name` is no text.
        UsageError: no debugger was constructed, or another `module_dump` has not ended yet.
    """
    _check(module, name)
    with lock:
        observer = running().observer
        if observer.dumps_one_module:
            raise UsageError("module_dump(): the module before still is; call module_dump_end()")
        observer.begin_only(ModuleNames.of_one(module, name))


def module_dump_end() -> None:
    """Record everything again.

    Raises:
        UsageError: no debugger was constructed, or there was no `module_dump` before.
    """
    with lock:
        observer = running().observer
        if not observer.dumps_one_module:
            raise UsageError("module_dump_end(): there was no module_dump() before")
        observer.end_only()


def _check(module: Any, name: Any) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        rule = "a module that was not scripted: TorchScript runs without Python, unobserved"
        raise ConfigError("module", type(module).__name__, rule, source=_SOURCE)
    if not isinstance(module, nn.Module):
        raise ConfigError("module", module, "a torch.nn.Module", source=_SOURCE)
    if not isinstance(name, str) or not name:
        raise ConfigError("name", name, "a text that stands for the module's path", source=_SOURCE)
