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


def module_dump(
    module: nn.Module, module_name: str | None = None, *, dump_name: str | None = None
) -> None:
    """Record one module alone until `module_dump_end`.

    Its inputs, outputs, parameters and their gradients are recorded, at level L1 too. No other call
    made meanwhile is, nor are gradients of parameters whose modules run only meanwhile. Gradients
    of calls made before are recorded as ever. Nothing is recorded outside of `start` and `stop`.

    Args:
        module: any module; it need not belong to the model given to `start`.
        module_name: path of the module in the names of its records,
            ``Module.{module_name}.{Class}.forward.{number}``.
        dump_name: another word for `module_name`.

    Raises:
        ConfigError: `module` is no module, or one that was scripted; the name is no text.
        UsageError: no debugger was constructed, another `module_dump` has not ended yet, or both
            names were given.
    """
    _check(module)
    name = _name(module_name, dump_name)
    with lock:
        observer = running().observer
        if observer.dumps_one_module:
            raise UsageError("module_dump(): the previous module is open; call module_dump_end()")
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


def _check(module: Any) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        rule = "a module that was not scripted: TorchScript runs without Python, unobserved"
        raise ConfigError("module", type(module).__name__, rule, source=_SOURCE)
    if not isinstance(module, nn.Module):
        raise ConfigError("module", module, "a torch.nn.Module", source=_SOURCE)


def _name(module_name: Any, dump_name: Any) -> str:
    if module_name is not None and dump_name is not None:
        raise UsageError("module_dump(): module_name and dump_name are the same; give one of them")
    name = module_name if dump_name is None else dump_name
    if not isinstance(name, str) or not name:
        raise ConfigError("module_name", name, "a text, such as block.0", source=_SOURCE)
    return name
