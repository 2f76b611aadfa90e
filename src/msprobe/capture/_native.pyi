# SPDX-License-Identifier: Apache-2.0
"""Types of the C extension; what the functions do stands at the top of ``_native.c``."""

from collections.abc import Callable
from types import FrameType
from typing import Final, Literal

KINDS: Final[dict[str, int]]

_Number = float | int | bool | None
_Raw = tuple[
    _Number,
    _Number,
    _Number,
    _Number,
    tuple[int, int, int, float | None, float | None] | None,
    tuple[float, float] | None,
]

def stats(kind: int, address: int, count: int, /) -> _Raw: ...
def stats_strided(
    kind: int,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    size_bytes: int,
    /,
) -> _Raw: ...
def difference(
    kind: int, address: int, other: int, count: int, /
) -> tuple[float, float, float]: ...
def products(
    kind: int, address: int, count: int, factors: int, period: int, target: int, /
) -> None: ...
def memory(address: int, size_bytes: int, /) -> memoryview: ...
def deliver_to(
    target: Callable[[int, tuple[int, ...]], object] | Literal[True] | None, /
) -> None: ...
def take_delivered() -> list[tuple[int, float, list[_Raw]]]: ...
def stack_key(frame: FrameType, /) -> int: ...
def use_threads(number: int, /) -> None: ...
def use_isa(name: str | None, /) -> list[str]: ...
