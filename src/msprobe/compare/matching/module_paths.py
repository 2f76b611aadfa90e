# SPDX-License-Identifier: Apache-2.0
"""One spelling for the paths of modules, independent of wrappers around the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

# Attributes under which wrappers hold the wrapped module.
_WRAPPERS: Final = frozenset(
    (
        *("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"),
        *("_fpw_module", "_backbone"),  # the last of MindSpore's mixed precision and losses
    )
)
# Paths further in than this were never the prefix of a whole model.
_MAX_PREFIX_PARTS: Final = 4


def shared_paths(
    target: Collection[str], reference: Collection[str]
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return, for each side, module path → the path by which both sides know the module.

    Segments that only wrappers bring (``module`` of DistributedDataParallel, ``_orig_mod`` of a
    compiled module …) are left out, as is the index of a list with a single model, or any other
    prefix of all paths of one side only. A path that this would confuse with another one of its
    side keeps its own name.

    Args:
        target: paths of the target's modules; "" is the model itself.
        reference: paths of the reference's modules.
    """
    if set(target) == set(reference):
        same = {path: path for path in target}
        return same, same
    short_target = _without_wrappers(target)
    short_reference = _without_wrappers(reference)
    in_target, in_reference = set(short_target.values()), set(short_reference.values())
    prefix = _extra_prefix(in_target, in_reference)
    if prefix:
        return _without_prefix(short_target, prefix), short_reference
    prefix = _extra_prefix(in_reference, in_target)
    if prefix:
        return short_target, _without_prefix(short_reference, prefix)
    return short_target, short_reference


def _without_wrappers(paths: Collection[str]) -> dict[str, str]:
    short = {path: ".".join(p for p in path.split(".") if p not in _WRAPPERS) for path in paths}
    return _unconfused(short)


def _unconfused(short: Mapping[str, str]) -> dict[str, str]:
    """Give a shared short path to the innermost of those that want it: wrappers are outside."""
    by_short: defaultdict[str, list[str]] = defaultdict(list)
    for path, name in short.items():
        by_short[name].append(path)
    found = {}
    for name, paths in by_short.items():
        innermost = max(paths, key=lambda path: (path.count("."), len(path)))
        for path in paths:
            found[path] = name if path == innermost else f"{path} (wrapper)"
    return found


def _extra_prefix(paths: set[str], others: set[str]) -> str:
    """Return the prefix of all paths of one side only; "" if there is none."""
    common = len(paths & others)
    best = ""
    for prefix in _prefixes(paths):
        cut = {path.removeprefix(prefix) for path in paths if path.startswith(prefix)}
        shared = len(cut & others)
        # The paths themselves must be strangers, or "layers.0" would become some other "0".
        if shared > 2 * common and shared > 1:
            common, best = shared, prefix
    return best


def _prefixes(paths: set[str]) -> list[str]:
    longest = max(paths, key=lambda path: path.count("."), default="")
    parts = longest.split(".")[:-1][:_MAX_PREFIX_PARTS]
    return [".".join(parts[: n + 1]) + "." for n in range(len(parts))]


def _without_prefix(short: Mapping[str, str], prefix: str) -> dict[str, str]:
    cut = {}
    for path, name in short.items():
        if name.startswith(prefix):
            cut[path] = name.removeprefix(prefix)
        elif f"{name}." == prefix:
            cut[path] = ""
        else:
            cut[path] = name
    return _unconfused_again(short, cut)


def _unconfused_again(short: Mapping[str, str], cut: Mapping[str, str]) -> dict[str, str]:
    users: defaultdict[str, int] = defaultdict(int)
    for name in cut.values():
        users[name] += 1
    return {
        path: name if users[name] == 1 or name != short[path] else f"{name} (wrapper)"
        for path, name in cut.items()
    }
