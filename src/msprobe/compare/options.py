# SPDX-License-Identifier: Apache-2.0
"""Options of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """Options of a comparison.

    Attributes:
        steps: only these steps of the target; None for all that both sides have.
        ranks: only these ranks; None for all that both sides have.
        align: whether records whose names find no partner are aligned by order and similarity:
            always, never, or (auto) when call counts differ.
        data_mapping: file or mapping of target row names to reference row names.
        cell_mapping: file; True for the rule without a file (``Cell`` is ``Module``).
        api_mapping: file; True for the built-in table alone.
        layer_mapping: file of child renames by layer class.
        call_pairs: file of calls that are the same, with what is inside of them.
        tolerances: YAML file that overrides tolerances by glob.
        processing: YAML file of matrices to multiply tensors with before they are compared.
        workers: threads or tasks at once; None for one per core.
        scheduler: address of a dask scheduler, None to compute here.
        verify: whether calls that differ without a reason are computed again in float64, to
            see which side errs.
        noise: recordings of the reference program with task ``noise_floor``.
        show_progress: whether to draw a progress bar on stderr.
    """

    steps: tuple[int, ...] | None = None
    ranks: tuple[int, ...] | None = None
    align: Literal["auto", "always", "never"] = "auto"
    data_mapping: Path | Mapping[str, str] | None = None
    cell_mapping: Path | Literal[True] | None = None
    api_mapping: Path | Literal[True] | None = None
    layer_mapping: Path | None = None
    call_pairs: Path | None = None
    tolerances: Path | None = None
    processing: Path | None = None
    workers: int | None = None
    scheduler: str | None = None
    verify: bool = True
    noise: tuple[Path, ...] = ()
    show_progress: bool = False

    @property
    def has_mapping_files(self) -> bool:
        """Whether the user gave a mapping, as a file or in Python."""
        return any(isinstance(each, (Path, Mapping)) for each in self.mappings)

    @property
    def mappings(self) -> tuple[object, ...]:
        """The mappings of each kind; None where there is none."""
        return (
            self.data_mapping,
            self.cell_mapping,
            self.api_mapping,
            self.layer_mapping,
            self.call_pairs,
        )
