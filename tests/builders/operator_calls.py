# SPDX-License-Identifier: Apache-2.0
"""Recordings of PyTorch's own operator samples, which nobody here chose, and other kernels."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from builders.recordings import Setting, observed, recording


def operator_database() -> list[Any]:
    """PyTorch's table of operators with sample inputs; it needs the package expecttest."""
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def record_samples(
    folder: Path, operators: Iterable[Any], dtype: torch.dtype, most: int = 4
) -> Path:
    """Record calls of operators on their samples, forward and backward, with tensors.

    Random states are recorded as well, so that random functions can be judged.

    Args:
        folder: gets the dump.
        operators: entries of `operator_database`.
        dtype: of the samples; operators that do not support it are left out.
        most: samples of each operator.
    """
    calls = [call for one in operators for call in islice(_calls(one, dtype), most)]
    with (
        recording(folder, "L1", "tensor", record_rng=True) as run,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        run.debugger.start()
        for operator, sample, gradients in calls:
            _run(operator, sample, gradients)
        run.debugger.stop()
        run.debugger.step()
    return folder


def module_database() -> list[Any]:
    """PyTorch's table of modules with sample inputs; it needs the package expecttest."""
    from torch.testing._internal.common_modules import module_db

    return list(module_db)


def record_modules(
    folder: Path, entries: Iterable[Any], dtype: torch.dtype, level: str, most: int = 3
) -> Path:
    """Record calls of modules on their samples, forward and backward, with tensors.

    Args:
        folder: gets the dump.
        entries: entries of `module_database`.
        dtype: of parameters and samples; samples that cannot be run in it are left out.
        level: ``L0`` or ``L1``.
        most: samples of each module.
    """
    calls = [call for one in entries for call in islice(_module_calls(one, dtype), most)]
    model = torch.nn.ModuleList([module for module, _, _ in calls])
    with observed(folder, Setting(level, "tensor")) as run, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.debugger.start(model)
        for module, sample, gradients in calls:
            roots = _roots(module(*_apart(sample.args), **_apart(sample.kwargs)))
            if roots:
                torch.autograd.backward(roots, gradients)
        run.debugger.stop()
        run.debugger.step()
    return folder


def _module_calls(
    entry: Any, dtype: torch.dtype
) -> Iterator[tuple[torch.nn.Module, Any, list[torch.Tensor]]]:
    """Yield modules and samples that they accept, with gradients for their results."""
    torch.manual_seed(0)
    try:
        inputs = entry.module_inputs_func(
            entry, device="cpu", dtype=dtype, requires_grad=True, training=True
        )
    except Exception:  # noqa: BLE001 - samples that this build cannot make
        return
    for one in inputs:
        given, sample = one.constructor_input, one.forward_input
        if sample is None:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                module = entry.module_cls(*given.args, **given.kwargs).to(dtype)
                trial = copy.deepcopy(module)
                roots = _roots(trial(*_apart(sample.args), **_apart(sample.kwargs)))
                gradients = [torch.randn_like(root) for root in roots]
                if roots:
                    torch.autograd.backward(roots, gradients)
            except Exception:  # noqa: BLE001 - a type that it does not support
                continue
        yield module, sample, gradients


def _apart(arguments: Any) -> Any:
    """Return arguments of which no tensor depends on another one."""

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    return torch.utils._pytree.tree_map(leaf, arguments)


def _calls(operator: Any, dtype: torch.dtype) -> Iterator[tuple[Any, Any, list[torch.Tensor]]]:
    """Yield samples that the operator accepts, with gradients for its results."""
    if dtype not in operator.supported_dtypes("cpu"):
        return
    torch.manual_seed(0)
    has_gradient = operator.supports_autograd and dtype in operator.supported_backward_dtypes("cpu")
    try:
        samples = list(islice(operator.sample_inputs("cpu", dtype, requires_grad=has_gradient), 40))
    except Exception:  # noqa: BLE001 - a sample that this build cannot make
        return
    for sample in samples[:: max(1, len(samples) // 8)]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                roots = _roots(_call(operator, sample))
                gradients = [torch.randn_like(root) for root in roots]
                if roots:
                    torch.autograd.grad(roots, _leaves(sample), gradients, allow_unused=True)
            except Exception:  # noqa: BLE001 - samples of errors are among them
                continue
        yield operator, sample, gradients


def _run(operator: Any, sample: Any, gradients: list[torch.Tensor]) -> None:
    roots = _roots(_call(operator, sample))
    if len(roots) == len(gradients) and roots:
        torch.autograd.backward(roots, gradients)


def _call(operator: Any, sample: Any) -> Any:
    return operator.op(sample.input, *sample.args, **sample.kwargs)


def _roots(result: Any) -> list[torch.Tensor]:
    flat = torch.utils._pytree.tree_leaves(result)
    return [one for one in flat if isinstance(one, torch.Tensor) and one.requires_grad]


def _leaves(sample: Any) -> list[torch.Tensor]:
    flat = torch.utils._pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return [one for one in flat if isinstance(one, torch.Tensor) and one.requires_grad]


@contextmanager
def replaced_kernel(operator: str, kernel: Callable[..., Any]) -> Iterator[None]:
    """Replace the kernel of an operator on the CPU."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it replaces one
        library.impl(operator, kernel, "CPU")
    try:
        yield
    finally:
        library._destroy()
