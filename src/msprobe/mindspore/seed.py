# SPDX-License-Identifier: Apache-2.0
"""Fixing every source of chance, so that two runs can be compared."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

import mindspore
from mindspore import mint, nn, ops
from msprobe.capture.seeding import check_arguments, seed_python_and_numpy
from msprobe.log import ensure_handler

logger = logging.getLogger(__name__)

_CELLS: Final = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d")
_FUNCTIONS: Final = ("dropout", "dropout1d", "dropout2d", "dropout3d")


def seed_all(
    seed: int = 1234, mode: bool = False, rm_dropout: bool = True
) -> Callable[[], None] | None:
    """Seed Python, NumPy and MindSpore, remove dropout, ask for reproducible kernels.

    Call it once at the start of the script, before data sets and nets are made: operators that draw
    random numbers keep a state of their own, which starts when they are made.

    Args:
        seed: 0 to 2**32 - 1.
        mode: allow deterministic kernels only (accelerators); they may be slower.
        rm_dropout: let dropout pass its input through, in layers that exist already too.

    Returns:
        With `rm_dropout`, a function that brings dropout back; else None.

    Raises:
        ConfigError: an argument cannot be used.
    """
    check_arguments(seed, mode=mode, rm_dropout=rm_dropout)
    seed_python_and_numpy(seed)
    mindspore.set_seed(seed)
    _choose_kernels(deterministic=mode)
    if not rm_dropout:
        return None
    ensure_handler()
    logger.info("seed_all(): dropout passes its input through; rm_dropout=False keeps it")
    return remove_dropout()


def fix_chance(seed: int | None, *, deterministic: bool) -> None:
    """Seed Python, NumPy and MindSpore, and ask for deterministic kernels; either only if asked.

    Args:
        seed: 0 to 2**32 - 1; None seeds nothing.
        deterministic: allow deterministic kernels only (accelerators).

    Raises:
        ConfigError: the seed is out of range.
    """
    if seed is not None:
        check_arguments(seed)
        seed_python_and_numpy(seed)
        mindspore.set_seed(seed)
    if deterministic:
        _choose_kernels(deterministic=True)


def _choose_kernels(*, deterministic: bool) -> None:
    os.environ["HCCL_DETERMINISTIC"] = "true" if deterministic else "false"
    if mindspore.get_context("device_target") != "CPU":
        mindspore.set_context(deterministic="ON" if deterministic else "OFF")


def remove_dropout() -> Callable[[], None]:
    """Let every dropout pass its input through; return a function that brings dropout back."""
    undo = ExitStack()
    for home in (nn, mint.nn):
        for name in _CELLS:
            cell = getattr(home, name, None)
            if isinstance(cell, type) and "construct" in vars(cell):
                _replace(undo, cell, "construct", _pass_through_cell)
    for module in (ops, ops.function, ops.function.nn_func, mint.nn.functional):
        for name in _FUNCTIONS:
            if callable(getattr(module, name, None)):
                _replace(undo, module, name, _pass_through)
    for name in ("Dropout", "Dropout2D", "Dropout3D"):
        primitive = getattr(ops, name, None)
        if isinstance(primitive, type):
            _replace(undo, primitive, "__call__", _pass_through_with_mask)
    return undo.close


def _replace(undo: ExitStack, owner: Any, attribute: str, stand_in: Any) -> None:
    before = vars(owner).get(attribute)
    setattr(owner, attribute, stand_in)

    def restore() -> None:
        if before is None:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, before)

    undo.callback(restore)


def _pass_through_cell(self: Any, x: Any) -> Any:
    return x


def _pass_through(input: Any, *args: Any, **kwargs: Any) -> Any:
    return input


def _pass_through_with_mask(self: Any, x: Any, *args: Any) -> Any:
    return x, ops.ones_like(x)
