# SPDX-License-Identifier: Apache-2.0
"""`find_device`: the device that a word of the user's names."""

from __future__ import annotations

from typing import Final

import torch

from msprobe.errors import UsageError

# Modules of `torch` for accelerators, in the order in which they are looked for.
_ACCELERATORS: Final = ("npu", "cuda", "xpu", "mps", "hpu", "mlu")


def find_device(word: str, *, jit_compile: bool = False) -> str:
    """Return a device's name as PyTorch spells it.

    Args:
        word: ``cpu``, ``cuda:1``; a number for one of the accelerator's devices; empty for the best
            there is. Where there is no accelerator, a number means the CPU.
        jit_compile: whether an NPU may compile operators, and use formats of its own.

    Raises:
        UsageError: there is no such device.
    """
    name = word if word and not word.isdigit() else _best(int(word or 0))
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, AttributeError, NotImplementedError) as exc:
        problem = (str(exc).splitlines() or [type(exc).__name__])[0]
        raise UsageError(f"device {name!r} cannot be used: {problem}") from exc
    if name.startswith("npu"):
        torch.npu.set_compile_mode(jit_compile=jit_compile)  # type: ignore[attr-defined]
        torch.npu.config.allow_internal_format = jit_compile  # type: ignore[attr-defined]
    return name


def _best(number: int) -> str:
    for name in _ACCELERATORS:
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            return f"{name}:{number}"
    return "cpu"
