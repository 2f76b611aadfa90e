# SPDX-License-Identifier: Apache-2.0
"""Installed packages: all of them, and how much a difference of versions matters."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from msprobe.run_config.levels import Difference, Item, ItemResult, Level, listed

_COLUMNS: Final = ("package", "bench version", "cmp version", "level")
# The folder that an installer makes.
_FOLDER: Final = re.compile(r"([^-]+)-([^-]+)\.dist-info")
# Their versions change the computation.
_DECIDING: Final = re.compile(
    r"torch|torch-npu|torchvision|torchaudio|mindspore.*|mindspeed.*|mindformers|transformers|"
    r"deepspeed|megatron.*|numpy|datasets|peft|trl|verl|vllm.*|accelerate|apex|"
    r"transformer-engine.*|flash-attn.*|triton.*|xformers|bitsandbytes|nvidia-(cublas|cudnn|nccl).*"
)
# Their versions may matter.
_RELATED: Final = re.compile(
    r"torch.*|nvidia-.*|tokenizers|safetensors|sentencepiece|tiktoken|scipy|pandas|pyarrow|einops|"
    r"pillow|opencv.*|librosa|lightning.*|pytorch-lightning|diffusers|timm|optree|jax.*|onnx.*"
)


def collect_packages() -> dict[str, str]:
    """Return the version of every installed distribution, by normalised name.

    One that was installed from a repository has its commit behind its version.
    """
    changed_ns = {}
    for folder in sys.path:
        with contextlib.suppress(OSError):
            changed_ns[folder] = Path(folder).stat().st_mtime_ns
    return dict(_packages_in(tuple(changed_ns.items())))


@functools.lru_cache(1)
def _packages_in(_folders: tuple[tuple[str, int], ...]) -> dict[str, str]:
    """Return the packages; they are looked for again when a folder of ``sys.path`` has changed."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name, version = _name_and_version(distribution)
        if name:  # a broken installation has none
            # The first on the path is the one that is imported.
            found.setdefault(normal_name(name), version + _commit(distribution))
    return dict(sorted(found.items()))


def normal_name(name: str) -> str:
    """Return the normalised name of a package, as in package indexes."""
    return re.sub(r"[-_.]+", "-", name).lower()


def package_level(name: str) -> Level:
    """Return how much a different version of a package (by its normalised name) matters."""
    if _DECIDING.fullmatch(name):
        return Level.ERROR
    return Level.WARNING if _RELATED.fullmatch(name) else Level.INFO


def compare_packages(bench: Mapping[str, str], cmp: Mapping[str, str]) -> ItemResult:
    """Compare the versions of all packages; the most important differences come first."""
    one = {normal_name(name): version for name, version in bench.items()}
    other = {normal_name(name): version for name, version in cmp.items()}
    names = sorted({*one, *other}, key=lambda name: (-package_level(name).weight, name))
    differences = [
        Difference(
            item=Item.PACKAGES,
            name=name,
            bench=one.get(name),
            cmp=other.get(name),
            level=package_level(name),
        )
        for name in names
        if one.get(name) != other.get(name)
    ]
    return listed(Item.PACKAGES, _COLUMNS, differences, compared=len(names))


def _name_and_version(distribution: metadata.Distribution) -> tuple[str, str]:
    """Return both from the name of the folder, which is ten times as fast as its metadata."""
    folder = getattr(getattr(distribution, "_path", None), "name", "")
    match = _FOLDER.fullmatch(folder)
    if match is not None:
        return match[1], match[2]
    name: str | None = distribution.metadata["Name"]
    return name or "", distribution.version if name else ""


def _commit(distribution: metadata.Distribution) -> str:
    text = distribution.read_text("direct_url.json")
    try:
        origin = json.loads(text) if text else {}
    except ValueError:
        return ""
    version_control = origin.get("vcs_info") if isinstance(origin, dict) else None
    commit = version_control.get("commit_id") if isinstance(version_control, dict) else None
    return f" @ {commit[:12]}" if isinstance(commit, str) else ""
