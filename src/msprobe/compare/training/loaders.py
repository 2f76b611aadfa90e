# SPDX-License-Identifier: Apache-2.0
"""Differences of the data loaders of two runs: which samples they choose, and how many at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from msprobe.compare.training.facts_pair import FactsPair
from msprobe.dump.facts import Data, Facts
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.dump.values import Value

_BATCH_SIZE: Final = "batch_size"
# How a loader works, not which samples it gives; a batch sampler repeats what the loader says.
_WORKINGS: Final = frozenset(
    {
        "class",
        "in_order",
        "num_workers",
        "persistent_workers",
        "pin_memory",
        "pin_memory_device",
        "prefetch_factor",
        "timeout",
        "batch_sampler.batch_size",
        "batch_sampler.drop_last",
    }
)
_DATA_SET: Final = ".dataset."
# How the setting of a tensor is written: its class, type, shape and checksum.
_TENSOR: Final = re.compile(r"\w+ (?P<dtype>\S+) (?P<shape>\(.*\)) \S+")
_MOST: Final = 2
_LONGEST: Final = 24  # a text that is shown

_Loader = dict[str, str]


@dataclass(frozen=True, slots=True)
class LoaderChange:
    """How the loaders of two runs differ.

    Attributes:
        words: the settings that differ; empty if none does.
        batch_sizes: samples of a batch in the target and in the reference, where they differ.
    """

    words: str = ""
    batch_sizes: tuple[int, int] | None = None

    def explains(self, target: Data, reference: Data) -> bool:
        """Return whether two inputs of a model hold samples as the sizes of the batches tell."""
        if self.batch_sizes is None or not (target.shape and reference.shape):
            return False
        counts = target.shape[0], reference.shape[0]
        return counts[0] * self.batch_sizes[1] == counts[1] * self.batch_sizes[0]


def loader_change(pair: FactsPair) -> LoaderChange:
    """Return how the loaders of two runs differ, if each has its partner."""
    own, other = (_loaders(facts.settings) for facts in pair.sides)
    if len(own) != len(other):
        return LoaderChange()
    apart = [one for one in own if one not in other], [one for one in other if one not in own]
    words: list[str] = []
    sizes = None
    for one, partner in zip(*apart, strict=False):
        names = [name for name in one.keys() | partner if one.get(name) != partner.get(name)]
        for name in sorted(names):
            values = [side.get(name, "not set") for side in (one, partner)]
            words.append(
                f"{name} of a data loader is {values[0]} instead of {values[1]}"
                if max(map(len, values)) <= _LONGEST
                else f"{name} of a data loader differs"
            )
            if name == _BATCH_SIZE and all(map(str.isdecimal, values)):
                sizes = int(values[0]), int(values[1])
    return LoaderChange("; ".join(words[:_MOST]), sizes)


def holds_otherwise(target: Facts | None, reference: Facts | None, value: Value) -> bool:
    """Return whether data sets hold other tensors of a value's type and shape."""
    sides = [{} if facts is None else _samples(facts.settings) for facts in (target, reference)]
    shape = str(tuple(value.shape or ()))
    return any(
        (held := _TENSOR.fullmatch(text)) is not None
        and normal_dtype(held["dtype"]) == normal_dtype(value.dtype)
        and held["shape"] == shape
        and sides[1].get(name, text) != text
        for name, text in sides[0].items()
    )


def _samples(settings: Mapping[str, str]) -> _Loader:
    return {k: v for k, v in settings.items() if k.startswith("loader.") and _DATA_SET in k}


def _loaders(settings: Mapping[str, str]) -> list[_Loader]:
    """Return the settings of each loader that tell which samples it gives."""
    found: dict[str, _Loader] = {}
    for name, text in settings.items():
        kind, _, rest = name.partition(".")
        number, _, option = rest.partition(".")
        if kind == "loader" and option not in _WORKINGS:
            found.setdefault(number, {})[option] = text
    return list(found.values())
