# SPDX-License-Identifier: Apache-2.0
"""`repair_dump`: make the JSON files of a dump whose process was killed.

msprobe's own reader needs no repair: it reads a left-over journal by itself.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from msprobe.dump import layout
from msprobe.dump.journal import JournalContents, read_journal
from msprobe.dump.json_files import build_from_journal
from msprobe.dump.lines import encode_text
from msprobe.dump.locking import is_claimed
from msprobe.dump.lost_tensors import (
    missing_tensor_files,
    unfinished_records,
    unrecorded_tensor_files,
)
from msprobe.dump.rank_records import read_journal_records
from msprobe.dump.reader import find_rank_folders
from msprobe.dump.record_index import (
    RecordIndex,
    read_bytes,
    read_cut_records,
    read_json_object,
    read_record_index,
)
from msprobe.dump.records import JsonTree, encode
from msprobe.errors import DumpFormatError, DumpWriteError, MsprobeError
from msprobe.files import TEMPORARY_PREFIX, replacing, write_whole

logger = logging.getLogger(__name__)

CUT_NOTE: Final = "repaired from the records before the cut"
REPAIRED_NOTE: Final = "the process ended while capturing; repaired from its journal"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedRank:
    """Result of a repair, or of its dry run, for one rank folder.

    Attributes:
        directory: the rank folder.
        records: records taken from the journal; None where there was no journal.
        unfinished: records made of the tensor files of calls that had not ended.
        kept: whole records of a file that was cut short; None where there was no such file.
        damaged_lines: lines of the journal that could not be used.
        is_torn: whether the journal's last line was cut off.
        missing_tensors: tensor files that records name and that were never written.
        temporaries: left-over temporary files that were removed.
        problem: why nothing was changed here; None when all went well.
    """

    directory: Path
    records: int | None = None
    unfinished: int = 0
    kept: int | None = None
    damaged_lines: int = 0
    is_torn: bool = False
    missing_tensors: tuple[str, ...] = ()
    temporaries: tuple[Path, ...] = ()
    problem: str | None = None


def repair_dump(path: str | Path, *, dry_run: bool = False) -> list[RepairedRank]:
    """Build the JSON files from left-over journals, and remove left-over temporary files.

    The journal goes only once the JSON files are on disk and readable. Folders that a living
    process writes to are left alone. One folder that cannot be repaired does not stop the others.

    Args:
        path: a dump path, a step folder or a rank folder.
        dry_run: change nothing, only return what would be done.

    Returns:
        One entry for each rank folder that needed something.

    Raises:
        DumpFormatError: there is no rank folder at that path.
    """
    folders = find_rank_folders(Path(path))
    if not folders or Path(path).is_file():
        raise DumpFormatError(path, "holds no dump to repair; name the folder of one")
    done = (_repair_rank(found.directory, dry_run=dry_run) for found in folders)
    return [rank for rank in done if rank is not None]


def _repair_rank(directory: Path, *, dry_run: bool) -> RepairedRank | None:
    journal = directory / layout.JOURNAL
    temporaries = _temporaries(directory)
    cut = None if journal.is_file() else _cut_file(directory)
    if not journal.is_file() and not temporaries and cut is None:
        return None
    if is_claimed(directory):
        return RepairedRank(directory=directory, problem="a running process still writes here")
    try:
        contents = read_journal(journal) if journal.is_file() else None
        tensors = _Tensors() if contents is None else _tensors_of(contents, directory)
        if not dry_run:
            if contents is not None:
                _replace_journal(contents, directory, tensors)
            if cut is not None:
                _replace_cut_file(cut)
            for temporary in temporaries:
                temporary.unlink(missing_ok=True)
    except (OSError, TypeError, ValueError, MsprobeError) as exc:
        return RepairedRank(directory=directory, problem=str(exc))
    return RepairedRank(
        directory=directory,
        records=None if contents is None else len(contents.index.records),
        damaged_lines=0 if contents is None else contents.damaged_lines,
        is_torn=contents is not None and contents.is_torn,
        missing_tensors=tensors.missing,
        unfinished=len(tensors.unfinished),
        kept=None if cut is None else len(cut),
        temporaries=tuple(temporaries),
    )


class _Tensors(NamedTuple):
    """Tensor files and records of a folder that a killed process left.

    Attributes:
        missing: files that records name and that are not there.
        unfinished: records made of files that none names, by name.
    """

    missing: tuple[str, ...] = ()
    unfinished: Mapping[str, JsonTree] = {}


def _tensors_of(contents: JournalContents, directory: Path) -> _Tensors:
    records = read_journal_records(contents)
    folder = directory / layout.TENSOR_FOLDER
    return _Tensors(
        missing=tuple(missing_tensor_files(records.values(), folder)),
        unfinished=unfinished_records(
            unrecorded_tensor_files(records.values(), folder),
            folder,
            framework=contents.index.head.framework,
            known=records,
        ),
    )


def _replace_journal(contents: JournalContents, directory: Path, tensors: _Tensors) -> None:
    build_from_journal(contents, directory, tensors.unfinished)
    count = len(contents.index.records) + len(tensors.unfinished)
    records = directory / layout.records_file(contents.index.head.level)
    if len(read_record_index(records)) != count:
        raise DumpWriteError(records, "does not hold all records of the journal, which stays")
    _mark_repaired(directory, count, len(tensors.missing))
    contents.path.unlink()


def _cut_file(directory: Path) -> RecordIndex | None:
    """Return the whole records of a file of records that ends too early; None for others."""
    for name in (layout.DUMP_JSON, layout.DEBUG_JSON):
        path = directory / name
        if path.is_file():
            try:
                read_record_index(path)
            except DumpFormatError:
                return read_cut_records(path, read_bytes(path))
    return None


def _replace_cut_file(cut: RecordIndex) -> None:
    """Write a file of the whole records, and keep the old one beside it."""
    head = json.dumps(dict(cut.head), separators=(",", ":")).encode()[:-1] + b',"data":{\n'
    records = (b"%b: %b" % (encode_text(name), encode(cut[name], nonfinite=True)) for name in cut)
    text = head + b",\n".join(records) + b"\n}}"
    with replacing(cut.path.with_name(f"{cut.path.name}.cut")) as temporary:
        shutil.copyfile(cut.path, temporary)
    write_whole(cut.path, [text])
    _mark_repaired(cut.path.parent, len(cut), 0, f"{cut.path.name} was cut short; {CUT_NOTE}")


def _mark_repaired(
    directory: Path, records: int, missing_tensors: int, note: str = REPAIRED_NOTE
) -> None:
    """Mark the account as incomplete: the journal, which showed it, is gone."""
    path = directory / layout.ACCOUNT_JSON
    try:
        account = read_json_object(path) if path.exists() else {"records": records}
    except DumpFormatError as exc:
        logger.warning("%s; written anew", exc)
        account = {"records": records}
    notes = account.get("notes")
    kept = notes if isinstance(notes, list) else []
    said = [note]
    if missing_tensors:
        said.append(f"tensor files that records name but were never written: {missing_tensors}")
    account |= {"complete": False, "notes": [*kept, *said]}
    write_whole(path, [json.dumps(account, indent=1).encode()])


def _temporaries(directory: Path) -> list[Path]:
    folders = [directory, directory / layout.TENSOR_FOLDER]
    return [
        path
        for folder in folders
        if folder.is_dir() and not folder.is_symlink()
        for path in sorted(folder.iterdir())
        if path.name.startswith(TEMPORARY_PREFIX) and not path.is_dir()
    ]
