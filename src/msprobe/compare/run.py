# SPDX-License-Identifier: Apache-2.0
"""`compare_dumps`: two dumps in, one `CompareResult` out.

Steps and ranks are paired first (`ranks`). Then, one rank after another: operations are paired,
then their values, elements are measured where both sides kept them, every pair of values gets a
verdict, and differences an origin.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from msprobe.compare.model import Mode
from msprobe.compare.options import CompareOptions
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.ranks import ViewPair, pair_views
from msprobe.compare.recorders import LeftOut, have_two_recorders, leave_out_unrecorded
from msprobe.compare.sides import NOISE, REFERENCE, Side
from msprobe.dump.dump_steps import Dump, DumpStep, RankKey
from msprobe.errors import UsageError
from msprobe.garbage import collector_paused

if TYPE_CHECKING:
    from msprobe.compare.noise.floor import NoiseFloor
    from msprobe.compare.replicas import ReplicaCheck
    from msprobe.compare.result import CompareResult, TableFormat
    from msprobe.compare.set_aside import SetAside
    from msprobe.compare.tensors.tensor_rows import TensorWork
    from msprobe.dump.rank_records import ParsedNames

PathLike = str | os.PathLike[str]


def compare_dumps(
    target: PathLike,
    reference: PathLike,
    *,
    output: PathLike | None = None,
    table: TableFormat | None = None,
    html: bool = False,
    steps: Sequence[int] | None = None,
    ranks: Sequence[int] | None = None,
    align: Literal["auto", "always", "never"] = "auto",
    data_mapping: PathLike | Mapping[str, str] | None = None,
    cell_mapping: PathLike | Literal[True] | None = None,
    api_mapping: PathLike | Literal[True] | None = None,
    layer_mapping: PathLike | None = None,
    call_pairs: PathLike | None = None,
    tolerances: PathLike | None = None,
    processing: PathLike | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    verify: bool = True,
    noise: Sequence[PathLike] = (),
    show_progress: bool = False,
) -> CompareResult:
    """Compare two dumps: do they differ, where first, and which call began it.

    Either path may be a dump path, a step folder, a rank folder, a ``dump.json`` or
    ``debug.json``, or a folder of MindSpore's kernel dumps. Steps and ranks pair by number.

    Args:
        target: the dump under test.
        reference: the trusted one.
        output: folder to write the tables and ``summary.json`` to; None writes nothing.
        table: format of the table: ``xlsx``, ``csv`` or ``parquet``; None for xlsx, or parquet if
            there are more than 200,000 rows, or more than 100 tables.
        html: whether to write a report to click through, too.
        steps: only these steps of the target; None for all that both have.
        ranks: only these ranks; None for all that both have.
        align: whether calls whose names find no partner are aligned by order and similarity:
            where their counts differ (``auto``), always, or never.
        data_mapping: names of target rows → names of reference rows, or a YAML file of these.
        cell_mapping: YAML file of renamed modules; True takes ``Cell`` for ``Module``.
        api_mapping: YAML file of API pairs; True for the built-in table of MindSpore and PyTorch.
        layer_mapping: YAML file of renamed children by class of layer.
        call_pairs: file of pairs of calls, as the page of `msprobe graph` saves it.
        tolerances: YAML file that changes tolerances by type or by name.
        processing: YAML file of matrices to multiply tensors with before they are compared.
        workers: threads; None for one per core.
        scheduler: address of a dask cluster that does the work, ``tcp://host:port``.
        verify: whether calls whose results differ without a reason are computed again in
            float64, in a process of their own, to see which side errs; only of tensors.
        noise: two or more recordings of the reference program with task ``noise_floor``: they
            measure the rounding that is otherwise estimated.
        show_progress: whether to draw a progress bar on stderr.

    Returns:
        The result: a table, a summary, and ways to write them.

    Raises:
        DumpFormatError: there is no dump at a path, or it is damaged.
        UsageError: the two cannot be compared, or hold no common step or rank.
        ConfigError: a mapping or tolerance file has a fault; it names the line.
        DumpWriteError: `output` cannot be written.
    """
    options = CompareOptions(
        steps=None if steps is None else tuple(steps),
        ranks=None if ranks is None else tuple(ranks),
        align=align,
        data_mapping=data_mapping if isinstance(data_mapping, Mapping) else _path(data_mapping),
        cell_mapping=True if cell_mapping is True else _path(cell_mapping),
        api_mapping=True if api_mapping is True else _path(api_mapping),
        layer_mapping=_path(layer_mapping),
        call_pairs=_path(call_pairs),
        tolerances=_path(tolerances),
        processing=_path(processing),
        workers=workers,
        scheduler=scheduler,
        verify=verify,
        noise=tuple(map(Path, noise)),
        show_progress=show_progress,
    )
    from msprobe.compare.set_aside import SetAside

    folder = _path(output)
    may_set_aside = folder is not None and table in (None, "parquet") and layer_mapping is None
    result = run_comparison(
        Path(target),
        Path(reference),
        options,
        output=folder,
        set_aside=SetAside(folder) if folder is not None and may_set_aside else None,
    )
    if output is not None:
        result.write(output, table=table, html=html)
    return result


def _path(path: PathLike | None) -> Path | None:
    return None if path is None else Path(path)


def run_comparison(
    target: Path,
    reference: Path,
    options: CompareOptions,
    *,
    output: Path | None = None,
    notes: Sequence[str] = (),
    framework: str | None = None,
    set_aside: SetAside | None = None,
) -> CompareResult:
    """Compare two dumps and write no result; see `compare_dumps`.

    Args:
        target: path of the dump under test.
        reference: path of the trusted one.
        options: how to compare.
        output: folder for the outcomes of an interrupted comparison.
        notes: further notes for the summary.
        framework: the target's framework according to the user; only checked.
        set_aside: where the rows of large comparisons go; None keeps them.
    """
    from msprobe.compare.result import CompareResult
    from msprobe.compare.result_files import check_writable
    from msprobe.dump.reader import open_dump

    began = time.perf_counter()
    if output is not None:
        check_writable(output)
    dumps = open_dump(target), open_dump(reference)
    pairing = pair_views(*dumps, steps=options.steps, ranks=options.ranks)
    if options.has_mapping_files:
        from msprobe.compare.matching.mapping_check import check_mappings

        check_mappings(options, [_sides_of(pair) for pair in pairing.pairs])
    with collector_paused(), _Comparer(options, output) as comparer:
        comparer.use_noise(dumps[1])
        comparer.notes += [*notes, *pairing.notes]
        comparisons: list[RankComparison] = []
        left = [*pairing.pairs]
        for _, of_step in groupby(pairing.pairs, key=lambda pair: pair.step):
            pairs = [*of_step]
            left = left[len(pairs) :]
            comparisons += comparer.compare_step(pairs, left)
            if set_aside is not None:
                set_aside.look_at(comparisons)
        if framework is not None:
            comparer.check_framework(comparisons, framework)
        comparer.check_tensor_options(comparisons)
        comparer.summary.add_scope(pairing.steps_alone, *map(_world_size, dumps))
        summary = comparer.summary.finish(
            target=str(target),
            reference=str(reference),
            notes=[*comparer.notes, *comparer.unused_globs(), *comparer.left_out.notes()],
            bytes_read=comparer.bytes_read,
            verify=options.verify,
        )
    summary["elapsed_s"] = round(time.perf_counter() - began, 3)
    if comparer.replicas is not None:
        summary["replicas"] = comparer.replicas
    return CompareResult(
        comparisons=comparisons,
        summary=summary,
        has_layer_mapping=options.layer_mapping is not None,
        changes_tensors=options.processing is not None,
        set_aside=set_aside,
    )


def measure_noise(target: Dump, reference: Dump, options: CompareOptions) -> list[RankComparison]:
    """Return the values of two recordings with noise, paired and measured; no origins."""
    pairs = pair_views(target, reference, steps=options.steps, ranks=options.ranks).pairs
    with collector_paused(), _Comparer(options, None) as comparer:
        return [
            comparer.judged(
                pair, Side(pair.target, source=NOISE), Side(pair.reference, source=NOISE), []
            )
            for pair in pairs
        ]


class _Comparer:
    """Compares pairs of ranks, and gathers the notes on all of them.

    Attributes:
        notes: notes for the user.
        left_out: operations left out because only one recorder records them.
        summary: summary of the compared steps.
        replicas: disagreements of data-parallel ranks of the target; None if it has none.
    """

    def __init__(self, options: CompareOptions, output: Path | None) -> None:
        from msprobe.compare.verdicts.next_steps import UnusedGlobs
        from msprobe.compare.verdicts.summary import Summary
        from msprobe.numerics.tolerances import Tolerances

        self._options = options
        self._output = output
        self._tolerances = Tolerances.load(options.tolerances)
        self._stack = ExitStack()
        self._work: TensorWork | None = None
        self.notes: list[str] = []
        self.left_out = LeftOut()
        self.summary = Summary()
        self.replicas: list[dict[str, Any]] | None = None
        self._replica_check: ReplicaCheck | None = None
        path = options.tolerances
        self._globs = None if path is None else UnusedGlobs(path, self._tolerances)
        self._noise: NoiseFloor | None = None
        self._names: ParsedNames | None = None
        # Names of the target's modules → the reference's, as the first step of a rank tells.
        self._renamed: dict[RankKey, Mapping[str, str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.__exit__(*exc)

    @property
    def bytes_read(self) -> int:
        """Bytes of tensors that were read."""
        return 0 if self._work is None else self._work.bytes_read

    def use_noise(self, reference: Dump) -> None:
        """Judge rounding by the recordings with noise, where the user gave some.

        Raises:
            UsageError: they are not what they should be.
        """
        if not self._options.noise:
            return
        from msprobe.compare.noise.floor import NoiseFloor
        from msprobe.dump.reader import open_dump

        dumps = [open_dump(path) for path in self._options.noise]
        self._noise = NoiseFloor(dumps, reference, self._measured)

    def _measured(self, pair: ViewPair) -> RankComparison:
        noisy, reference = Side(pair.target, source=NOISE), Side(pair.reference, source=REFERENCE)
        return self.judged(pair, noisy, reference, [])

    def compare_step(
        self, pairs: Sequence[ViewPair], later: Sequence[ViewPair]
    ) -> list[RankComparison]:
        """Compare all ranks of one step; of later ones facts alone may be looked at."""
        # Replicas are compared by the texts of their records, once all ranks have been.
        comparisons = [self._compare(pair, is_read_again=len(pairs) > 1) for pair in pairs]
        for comparison in comparisons:
            comparison.later = [pair for pair in later if pair.rank == comparison.rank]
        self.summary.add(comparisons)
        if self._globs is not None:
            for comparison in comparisons:
                self._globs.look_at(comparison)
        if len(pairs) > 1:
            self._check_replicas(pairs)
        return comparisons

    def _compare(self, pair: ViewPair, *, is_read_again: bool) -> RankComparison:
        from msprobe.compare.verdicts.origin import find_origins
        from msprobe.compare.verdicts.status import mark_unread

        target, reference = _sides_of(pair)
        self.notes += _notes_of(target, reference)
        comparison = self.judged(pair, target, reference, self.notes, is_read_again=is_read_again)
        if self._noise is not None:
            note = self._noise.judge(comparison)
            self.notes += [note] if note is not None else []
        if have_two_recorders(target, reference):
            leave_out_unrecorded(comparison, self.left_out)
        find_origins(comparison)
        mark_unread(comparison)
        return comparison

    def judged(
        self,
        pair: ViewPair,
        target: Side,
        reference: Side,
        notes: list[str],
        *,
        is_read_again: bool = False,
    ) -> RankComparison:
        """Return two sides with their values paired, measured and judged."""
        from msprobe.compare.levels import recorded_by_both
        from msprobe.compare.matching import join_decompositions, pair_operations
        from msprobe.compare.matching.renamed_modules import renamed_modules
        from msprobe.compare.value_pairs import pair_values
        from msprobe.compare.verdicts.status import judge_rows

        for side in (target, reference):
            self._names = side.share_names(self._names)
        if target.names != reference.names:
            if pair.rank not in self._renamed:
                facts = pair.target.facts, pair.reference.facts
                self._renamed[pair.rank] = renamed_modules(*facts)
            target.renamed_modules = self._renamed[pair.rank]
        mode = common_mode(target, reference, notes)
        joined = join_decompositions(target, reference, self._options)
        notes += [note for note in joined if note not in notes]
        found = pair_operations(target, reference, self._options)
        pairs, note = recorded_by_both(found, target, reference)
        notes += [note] if note and note not in notes else []
        for view in (pair.target, pair.reference):
            if is_read_again:
                view.records.keep_values()
            else:  # as large as a fourth of the rows
                view.release_text()
        comparison = RankComparison(
            step=pair.step,
            rank=pair.rank,
            target=target,
            reference=reference,
            mode=mode,
            pairs=pairs,
            rows=[row for each in pairs for row in pair_values(target, reference, each)],
        )
        if mode is Mode.TENSOR:
            self._tensor_work().measure(comparison, self._tolerances)
        judge_rows(comparison, self._tolerances)
        return comparison

    def _tensor_work(self) -> TensorWork:
        # Made when first needed: it brings NumPy along, which statistics do without.
        if self._work is None:
            from msprobe.compare.tensors.tensor_rows import TensorWork

            self._work = self._stack.enter_context(TensorWork(self._options, self._output))
        return self._work

    def _check_replicas(self, pairs: Sequence[ViewPair]) -> None:
        if self._replica_check is None:
            from msprobe.compare.replicas import ReplicaCheck

            self._replica_check = ReplicaCheck(self._tolerances)
        step = pairs[0].step
        target = DumpStep(step, {pair.rank: pair.target for pair in pairs})
        reference = DumpStep(step, {pair.rank: pair.reference for pair in pairs})
        found = [*self._replica_check.findings(target, reference)]
        if self._replica_check.has_replicas:
            self.replicas = [*(self.replicas or ()), *found]

    def check_tensor_options(self, comparisons: Sequence[RankComparison]) -> None:
        """Add notes if there were no tensors to multiply, or to send to a cluster."""
        if any(each.mode is Mode.TENSOR for each in comparisons):
            return
        path = self._options.processing
        if path is not None:
            from msprobe.compare.tensors.processing import read_processing

            read_processing(path)  # its faults are reported anyway
        given = [path, None if self._options.scheduler is None else "--scheduler"]
        self.notes += [
            f"{each} has no effect: it is about tensors, and none were compared"
            for each in given
            if each is not None
        ]

    def unused_globs(self) -> list[str]:
        """Return a note on globs of the user's file of tolerances that match no row."""
        return [] if self._globs is None else self._globs.notes()

    def check_framework(self, comparisons: Sequence[RankComparison], framework: str) -> None:
        """Add a note if the target was not made with the framework that the user names."""
        found = {comparison.target.framework for comparison in comparisons} - {framework, ""}
        if found:
            self.notes.append(f"-f {framework} was given, but the target is of {min(found)}")


def _world_size(dump: Dump) -> int:
    # What ran in compiled code is the other half of a rank.
    return max(len({view.name for view in step.ranks.values()}) for step in dump.steps.values())


def _sides_of(pair: ViewPair) -> tuple[Side, Side]:
    return Side(pair.target, source="target"), Side(pair.reference, source=REFERENCE)


def common_mode(target: Side, reference: Side, notes: list[str]) -> Mode:
    """Return the mode in which values of both sides can be judged.

    Raises:
        UsageError: one side holds checksums only, the other none.
    """
    modes = {target.mode, reference.mode}
    if modes == {Mode.MD5} and _changes_bits(target, reference):
        notes.append(
            "only statistics were compared: checksums of two recorders differ, because one of them "
            "changes the last bits of gradients at levels with modules"
        )
        return Mode.STATISTICS
    if len(modes) == 1:
        return target.mode
    if Mode.MD5 in modes:
        with_sums, other = (target, reference) if target.mode is Mode.MD5 else (reference, target)
        if not _has_statistics(with_sums):
            raise UsageError(
                f"{with_sums.view.records_path} holds checksums alone (summary_mode md5) and "
                f"{other.view.records_path} none, so no value of one can be compared with the "
                f"other; capture both in one mode: task statistics with summary_mode statistics "
                f"or md5, or task tensor"
            )
        notes.append(
            f"only statistics were compared: the {other.source} kept no checksums "
            f"({other.view.records_path})"
        )
        return Mode.STATISTICS
    lacking = target if target.mode is Mode.STATISTICS else reference
    notes.append(
        f"only statistics were compared: the {lacking.source} kept no tensors "
        f"({lacking.view.records_path})"
    )
    return Mode.STATISTICS


def _changes_bits(target: Side, reference: Side) -> bool:
    """Return whether checksums cannot agree, because two recorders made them."""
    sides = target, reference
    return (
        have_two_recorders(*sides)
        and all(side.view.head.level != "L1" for side in sides)
        and all(map(_has_statistics, sides))
    )


def _has_statistics(side: Side) -> bool:
    """Return whether there are statistics beside checksums, as most programs write them."""
    return any(
        value.is_tensor and value.mean is not None
        for name in side.names
        for value in side.values(name)
    )


def _notes_of(target: Side, reference: Side) -> list[str]:
    notes = []
    for side in (target, reference):
        notes += side.damages
        reason = side.view.incomplete_reason
        if reason is not None:
            notes.append(f"the {side.source} {side.view.directory} may lack records: {reason}")
        if not side.names:
            notes.append(f"the {side.source} {side.view.records_path} holds no records")
    return notes
