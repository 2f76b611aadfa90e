# SPDX-License-Identifier: Apache-2.0
"""Types of the C extension; what it does stands at the top of ``_elementwise.c``."""

from typing import Any, Final

from numpy.typing import NDArray

KINDS: Final[dict[str, int]]

class Accumulator:
    def __new__(
        cls,
        target_kind: int,
        reference_kind: int,
        target_table: bytes | None,
        reference_table: bytes | None,
        rtol: float,
        atol: float,
        shift: float,
        fraction_bits: int,
        min_exponent: int,
        keep: int,
        /,
    ) -> Accumulator: ...
    def update(self, target: NDArray[Any], reference: NDArray[Any], /) -> None: ...
    # As `raw_metrics.RawMetrics`, with plain tuples for `Scaled` and `Extreme`.
    def finish(self) -> tuple[Any, ...]: ...

def use_isa(name: str | None, /) -> list[str]: ...
