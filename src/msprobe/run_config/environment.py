# SPDX-License-Identifier: Apache-2.0
"""Environment variables: collected all, secrets hidden, each with a class and a weight."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

from msprobe.run_config.levels import Difference, Item, ItemResult, Level
from msprobe.run_config.secrets import hide_secrets

_COLUMNS: Final = (
    "bench_env_name",
    "cmp_env_name",
    "bench_value",
    "cmp_value",
    "level",
    "category",
)
# Defaults of variables that are not set.
_DEFAULTS: Final = {
    "HCCL_DETERMINISTIC": "false",
    "LCCL_DETERMINISTIC": "0",
    "NCCL_DETERMINISTIC": "false",
    "HCCL_INTRA_ROCE_ENABLE": "0",
    "HCCL_INTRA_PCIE_ENABLE": "1",
    "ASCEND_LAUNCH_BLOCKING": "0",
    "CUDA_LAUNCH_BLOCKING": "0",
}


class EnvironmentClass(NamedTuple):
    """Class of an environment variable, and the level of a difference."""

    category: str
    level: Level


# The first that fits decides.
_CLASSES: Final = tuple(
    (re.compile(pattern), EnvironmentClass(category, level))
    for category, level, pattern in (
        ("caches", Level.INFO, r".*_CACHE(_DIR|_PATH)?"),
        ("determinism", Level.ERROR, r".*DETERMINIS.*|CUBLAS_WORKSPACE_CONFIG|.*_SEED"),
        ("determinism", Level.ERROR, r"PYTHONHASHSEED|CLOSE_MATMUL_K_SHIFT|MKL_CBWR"),
        ("precision", Level.ERROR, r".*TF32.*|INF_NAN_MODE.*|.*PRECISION.*|.*_FP8.*|NVTE_.*"),
        ("precision", Level.ERROR, r"ATB_LLM_LCOC_ENABLE|ATEN_CPU_CAPABILITY|ONEDNN_.*"),
        ("communication", Level.ERROR, r"(NCCL|HCCL|RCCL)_(ALGO|PROTO|INTRA_.*)"),
        ("communication", Level.WARNING, r"(TORCH_)?(NCCL|HCCL|RCCL|LCCL|GLOO|UCX)_.*"),
        ("device", Level.ERROR, r"(ASCEND_RT|CUDA|HIP|ROCR|NPU)_VISIBLE_DEVICES"),
        ("device", Level.ERROR, r".*_LAUNCH_BLOCKING"),
        ("threads", Level.WARNING, r"(OMP|MKL|KMP|OPENBLAS|NUMEXPR|VECLIB|GOMP)_.*"),
        ("libraries", Level.WARNING, r"LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PYTHONHOME"),
        ("job", Level.WARNING, r"WORLD_SIZE|LOCAL_WORLD_SIZE|NNODES|NPROC_PER_NODE"),
        ("job", Level.INFO, r"(LOCAL_|GROUP_)?RANK|(ROLE|MASTER|TORCHELASTIC|SLURM)_.*"),
        ("framework", Level.WARNING, r"(TORCH|PYTORCH|TORCHINDUCTOR|TRITON|XLA)_.*"),
        ("framework", Level.WARNING, r"(CUDA|CUDNN|CUBLAS|NVIDIA|ROCM|HIP)_.*"),
        ("framework", Level.WARNING, r"(ASCEND|NPU|ACL|MS|MINDSPORE|GE|TE|TASK_QUEUE)_.*"),
        ("framework", Level.WARNING, r"(MEGATRON|DS|DEEPSPEED|ACCELERATE|FSDP|HF)_.*"),
        ("framework", Level.WARNING, r"(TRANSFORMERS|TOKENIZERS|FLASH_ATTENTION|VLLM)_.*"),
    )
)
_OTHER: Final = EnvironmentClass("other", Level.INFO)
# What a program may read as a setting.
_PLAIN: Final = re.compile(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?|true|false|yes|no|on|off", re.IGNORECASE)
# Variables of shells, sessions, accounts and loggers.
_HARMLESS: Final = re.compile(
    r"(.*_)?(PATH|HOME|DIR|ROOT|CACHE|TMP|TEMP|LOG|LOGS?_?LEVEL|NAME|PROJECT|ENTITY|ID|PID|PORT|"
    r"HOST|ADDR|IP|URL|URI|TOKEN|KEY|PASSWORD|SECRET|USER|TAGS?|VERBOSE|TIME|DATE)|"
    r"(WANDB|MLFLOW|COMET|CLEARML|SWANLAB|SSH|XDG|LC|GIT|AWS|HIST|KUBERNETES|TMUX|LESS|GPG|DBUS)_.*|"
    r"PYTHON(UNBUFFERED|DONTWRITEBYTECODE|WARNINGS|IOENCODING|FAULTHANDLER)|TMPDIR|LANG|LANGUAGE|"
    r"TERM|EDITOR|PAGER|SHELL|SHLVL|DISPLAY|LOGNAME|HOSTNAME|PS\d|COLUMNS|LINES|PWD|OLDPWD|_"
)


def collect_environment() -> dict[str, str]:
    """Return all variables in the order of their names, secrets hidden."""
    return {name: hide_secrets(name, os.environ[name]) for name in sorted(os.environ)}


@cache
def classify_variable(name: str) -> EnvironmentClass:
    """Return the class of an environment variable."""
    return next((kind for pattern, kind in _CLASSES if pattern.fullmatch(name)), _OTHER)


def may_matter(name: str) -> bool:
    """Return whether a variable that a script sets may change what a training computes."""
    kind = classify_variable(name)
    return kind.level is not Level.INFO or (kind is _OTHER and not _HARMLESS.fullmatch(name))


def compare_environments(bench: Mapping[str, str], cmp: Mapping[str, str]) -> ItemResult:
    """Compare two environments; a variable that is not set has its default, where it has one."""
    names = sorted({*bench, *cmp}, key=lambda name: (-classify_variable(name).level.weight, name))
    differences: list[Difference] = []
    rows: list[tuple[str, ...]] = []
    for name in names:
        one, other = bench.get(name), cmp.get(name)
        if _meaning(name, one) == _meaning(name, other):
            continue
        kind = classify_variable(name)
        is_number = all(_PLAIN.fullmatch(text.strip()) for text in (one, other) if text is not None)
        level = Level.WARNING if is_number and may_matter(name) else Level.INFO
        level = kind.level if kind is not _OTHER else level
        differences.append(
            Difference(
                item=Item.ENV, name=name, bench=one, cmp=other, level=level, note=kind.category
            )
        )
        texts = ["None" if value is None else value for value in (one, other)]
        rows.append((name, name, *texts, level.value, kind.category))
    return ItemResult(
        item=Item.ENV,
        columns=_COLUMNS,
        rows=list(rows),
        differences=differences,
        compared=len(names),
    )


def _meaning(name: str, value: str | None) -> str | None:
    if name not in _DEFAULTS:
        return value
    text = (_DEFAULTS[name] if value is None else value).strip().lower()
    return {"true": "1", "false": "0"}.get(text, text)
