# SPDX-License-Identifier: Apache-2.0
"""Fixing every source of chance, so that two runs can be compared."""

from __future__ import annotations

import logging
import os
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as nn_functional

from msprobe.capture.seeding import check_arguments, seed_python_and_numpy
from msprobe.errors import UnsupportedError
from msprobe.log import ensure_handler

logger = logging.getLogger(__name__)

_NPU_ENVIRONMENT: Final = {
    "LCCL_DETERMINISTIC": "1",
    "CLOSE_MATMUL_K_SHIFT": "1",
    "ATB_LLM_LCOC_ENABLE": "0",
}


def seed_all(
    seed: int = 1234, mode: bool = False, rm_dropout: bool = True, is_enhanced: bool = False
) -> None:
    """Seed Python, numpy and torch (all devices), remove dropout, ask for reproducible kernels.

    Call it once at the start of the script, before data loaders and models are made. It has an
    effect of its own whether or not anything is captured. On an NVIDIA GPU convolutions and
    recurrent networks get slower, because cuDNN is switched off;
    ``torch.backends.cudnn.enabled = True`` after the call brings it back.

    Args:
        seed: 0 to 2**32 - 1.
        mode: allow deterministic kernels only. They may be slower, and torch raises an error where
            it has none.
        rm_dropout: let dropout pass its input through, in existing models and new ones.
        is_enhanced: must be False. Putting the generators back before each random call would give
            every call the same numbers, and never end loops that draw until they find a new one.

    Raises:
        ConfigError: an argument has a wrong type or range.
        UnsupportedError: `is_enhanced` is asked for.
    """
    check_arguments(seed, mode=mode, rm_dropout=rm_dropout, is_enhanced=is_enhanced)
    if is_enhanced:
        raise UnsupportedError(
            "seed_all(): is_enhanced=True is not supported; use the seed alone, and "
            '"record_rng": true in config.json to replay single random calls'
        )
    seed_python_and_numpy(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(mode)
    os.environ["HCCL_DETERMINISTIC"] = "True"
    _make_cuda_reproducible()
    _make_npu_reproducible(seed)
    if rm_dropout:
        remove_dropout()
        ensure_handler()
        logger.info("seed_all(): dropout passes its input through; rm_dropout=False keeps it")


def fix_chance(seed: int | None, *, deterministic: bool) -> None:
    """Seed Python, NumPy and torch, and prefer deterministic kernels; either only if asked for.

    Args:
        seed: 0 to 2**32 - 1; None seeds nothing.
        deterministic: torch warns where it has no deterministic kernel.

    Raises:
        ConfigError: the seed is out of range.
    """
    if seed is not None:
        check_arguments(seed)
        seed_python_and_numpy(seed)
        torch.manual_seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
        _make_cuda_reproducible()


def remove_dropout() -> None:
    """Let dropout pass its input through, in existing models and new ones.

    The functions of `torch.nn.functional` are replaced by ones with a probability of zero: every
    dropout and ``scaled_dot_product_attention``. They draw no random numbers. Not reached: dropout
    inside fused RNNs, ``torch.dropout``, and names that a script imported before the call.
    """
    for name, (_, replacement) in _dropouts().items():
        setattr(nn_functional, name, replacement)


def restore_dropout() -> None:
    """Undo `remove_dropout`; functions that other code has replaced since are left alone."""
    for name, (original, replacement) in _dropouts().items():
        if getattr(nn_functional, name) is replacement:
            setattr(nn_functional, name, original)


def _make_cuda_reproducible() -> None:
    torch.backends.cudnn.enabled = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    if torch.version.cuda:
        # cuBLAS needs a fixed workspace to be reproducible (CUDA 10.2 and later).
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"


def _make_npu_reproducible(seed: int) -> None:
    npu = getattr(torch, "npu", None)
    if npu is None or not npu.is_available():
        return
    npu.manual_seed_all(seed)
    os.environ.update(_NPU_ENVIRONMENT)


# The replacements are plain functions with torch's own signatures, so that `torch.jit.script` and
# `torch.compile` accept them.

_dropout = nn_functional.dropout
_dropout1d = nn_functional.dropout1d
_dropout2d = nn_functional.dropout2d
_dropout3d = nn_functional.dropout3d
_alpha_dropout = nn_functional.alpha_dropout
_feature_alpha_dropout = nn_functional.feature_alpha_dropout
_attention = nn_functional.scaled_dot_product_attention


def _check_probability(p: float) -> None:
    if p < 0.0 or p > 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def _no_dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    _check_probability(p)
    return _dropout(input, 0.0, training, inplace)


def _no_dropout1d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    _check_probability(p)
    return _dropout1d(input, 0.0, training, inplace)


def _no_dropout2d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    _check_probability(p)
    return _dropout2d(input, 0.0, training, inplace)


def _no_dropout3d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    _check_probability(p)
    return _dropout3d(input, 0.0, training, inplace)


def _no_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    _check_probability(p)
    return _alpha_dropout(input, 0.0, training, inplace)


def _no_feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    _check_probability(p)
    return _feature_alpha_dropout(input, 0.0, training, inplace)


def _attention_without_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    _check_probability(dropout_p)
    return _attention(
        query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _dropouts() -> dict[str, tuple[Any, Any]]:
    """Return name -> (torch's function, its replacement)."""
    pairs: dict[str, tuple[Any, Any]] = {
        "dropout": (_dropout, _no_dropout),
        "dropout1d": (_dropout1d, _no_dropout1d),
        "dropout2d": (_dropout2d, _no_dropout2d),
        "dropout3d": (_dropout3d, _no_dropout3d),
        "alpha_dropout": (_alpha_dropout, _no_alpha_dropout),
        "feature_alpha_dropout": (_feature_alpha_dropout, _no_feature_alpha_dropout),
    }
    if "enable_gqa" in (_attention.__doc__ or ""):  # torch 2.5
        pairs["scaled_dot_product_attention"] = (_attention, _attention_without_dropout)
    return pairs


def _take_names() -> None:
    """Give the replacements torch's names: torch announces them to function modes as its own."""
    for name, (original, replacement) in _dropouts().items():
        replacement.__name__ = replacement.__qualname__ = name
        replacement.__module__ = nn_functional.__name__
        replacement.__doc__ = original.__doc__


_take_names()
