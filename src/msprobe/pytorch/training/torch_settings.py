# SPDX-License-Identifier: Apache-2.0
"""Read the settings of torch that decide how numbers are computed, and its random generators."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch

from msprobe.run_config.random_recording import state_checksum

_cuda: Final[Any] = torch.backends.cuda
_cudnn: Final[Any] = torch.backends.cudnn


def _nccl_version() -> str | None:
    nccl: Any = torch.cuda.nccl  # without types
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return None
    return ".".join(map(str, nccl.version()))


def _device_names() -> str | None:
    device: Any = torch.cuda  # without types
    # To ask earlier would start the device.
    if not torch.cuda.is_available() or not device.is_initialized():
        return None
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return ", ".join(names)


_OF_THE_PROCESS: Final[Mapping[str, Callable[[], object]]] = {
    "torch.version": lambda: torch.__version__,
    "torch.cuda": lambda: torch.version.cuda,
    "torch.cudnn": lambda: _cudnn.version() if _cudnn.is_available() else None,
    "torch.nccl": _nccl_version,
    "torch.device": _device_names,
    "torch.cpu_capability": torch.backends.cpu.get_cpu_capability,
}
_SWITCHES: Final[Mapping[str, Callable[[], object]]] = {
    "torch.deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "torch.deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
    "torch.cudnn_enabled": lambda: _cudnn.enabled,
    "torch.cudnn_deterministic": lambda: _cudnn.deterministic,
    "torch.cudnn_benchmark": lambda: _cudnn.benchmark,
    "torch.cudnn_allow_tf32": lambda: _cudnn.allow_tf32,
    "torch.float32_matmul_precision": torch.get_float32_matmul_precision,
    "torch.reduced_bf16_reduction": lambda: _cuda.matmul.allow_bf16_reduced_precision_reduction,
    "torch.reduced_fp16_reduction": lambda: _cuda.matmul.allow_fp16_reduced_precision_reduction,
    "torch.flash_attention": _cuda.flash_sdp_enabled,
    "torch.efficient_attention": _cuda.mem_efficient_sdp_enabled,
    "torch.math_attention": _cuda.math_sdp_enabled,
    "torch.cudnn_attention": lambda: _cuda.cudnn_sdp_enabled(),  # noqa: PLW0108 (since torch 2.5)
    "torch.fp16_accumulation": lambda: _cuda.matmul.allow_fp16_accumulation,
    # torch does not tell; the unit of the processor that it sets computes Python's numbers, too.
    "torch.flush_denormal": lambda: sys.float_info.min * 0.5 == 0.0,
    "torch.anomaly_detection": torch.is_anomaly_enabled,
    "torch.mkldnn": torch._C._get_mkldnn_enabled,
    "torch.default_dtype": torch.get_default_dtype,
    "torch.cpu_threads": torch.get_num_threads,
}


def torch_settings() -> dict[str, str]:
    """Return versions and switches of torch."""
    return {**_read(_OF_THE_PROCESS), **torch_switches()}


def torch_switches() -> dict[str, str]:
    """Return the settings of torch that a program may change at any time."""
    return _read(_SWITCHES)


def _read(table: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, read in table.items():
        try:
            found[name] = str(read())
        except (RuntimeError, AttributeError):  # another version; old and new switches mixed
            continue
    return found


def generator_states() -> Iterator[tuple[str, str]]:
    """Yield torch's default generators with checksums of their states; draws nothing."""
    yield "cpu", _state(torch.default_generator)
    for kind in ("cuda", "npu", "xpu"):
        device: Any = getattr(torch, kind, None)
        if device is None or not device.is_initialized():
            continue
        for number, generator in enumerate(device.default_generators):
            yield f"{kind}:{number}", _state(generator)


def _state(generator: torch.Generator) -> str:
    if not torch._C._are_functorch_transforms_active():
        return state_checksum(generator.get_state().numpy().tobytes())
    # Inside `vmap` and `grad` even this tensor has no storage of its own.
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    with temporarily_clear_interpreter_stack():
        return state_checksum(generator.get_state().numpy().tobytes())
