# SPDX-License-Identifier: Apache-2.0
"""`repair_dump`: turn what a killed process left behind into the files that other programs read.

msprobe's own reader needs no repair: it reads a left-over journal by itself.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msprobe.dump import layout
from msprobe.dump.journal import JournalContents, read_journal
from msprobe.dump.json_files import build_from_journal
from msprobe.dump.locking import is_claimed
from msprobe.dump.missing_tensors import missing_tensor_files
from msprobe.dump.rank_view import read_journal_records
from msprobe.dump.reader import find_rank_folders
from msprobe.dump.record_index import read_json_object, read_record_index
from msprobe.errors import DumpFormatError, DumpWriteError, MsprobeError
from msprobe.files import TEMPORARY_PREFIX, write_whole

logger = logging.getLogger(__name__)

REPAIRED_NOTE: Final = "the process ended while capturing; repaired from its journal"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedRank:
    """What was done, or would be done, for one rank folder.

    Attributes:
        directory: the rank folder.
        records: records taken from the journal; None where there was no journal.
        damaged_lines: lines of the journal that could not be used.
        is_torn: whether the journal's last line was cut off.
        missing_tensors: tensor files that records name and that were never written.
        temporaries: left-over temporary files that were removed.
        problem: why nothing was changed here; None when all went well.
    """

    directory: Path
    records: int | None = None
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
        dry_run: only say what would be done.

    Returns:
        One entry for each rank folder that needed something.

    Raises:
        DumpFormatError: there is no rank folder at that path.
    """
    folders = find_rank_folders(Path(path))
    if not folders:
        raise DumpFormatError(path, "holds no dump to repair")
    done = (_repair_rank(found.directory, dry_run=dry_run) for found in folders)
    return [rank for rank in done if rank is not None]


def _repair_rank(directory: Path, *, dry_run: bool) -> RepairedRank | None:
    journal = directory / layout.JOURNAL
    temporaries = _temporaries(directory)
    if not journal.is_file() and not temporaries:
        return None
    if is_claimed(directory):
        return RepairedRank(directory=directory, problem="a running process still writes here")
    try:
        contents = read_journal(journal) if journal.is_file() else None
        missing = [] if contents is None else _missing_tensors(contents, directory)
        if not dry_run:
            if contents is not None:
                _replace_journal(contents, directory, missing_tensors=len(missing))
            for temporary in temporaries:
                temporary.unlink(missing_ok=True)
    except (OSError, TypeError, ValueError, MsprobeError) as exc:
        return RepairedRank(directory=directory, problem=str(exc))
    return RepairedRank(
        directory=directory,
        records=None if contents is None else len(contents.index.records),
        damaged_lines=0 if contents is None else contents.damaged_lines,
        is_torn=contents is not None and contents.is_torn,
        missing_tensors=tuple(missing),
        temporaries=tuple(temporaries),
    )


def _missing_tensors(contents: JournalContents, directory: Path) -> list[str]:
    records = read_journal_records(contents)
    return missing_tensor_files(records.values(), directory / layout.TENSOR_FOLDER)


def _replace_journal(contents: JournalContents, directory: Path, *, missing_tensors: int) -> None:
    build_from_journal(contents, directory)
    records = directory / layout.records_file(contents.index.head.level)
    if len(read_record_index(records)) != len(contents.index.records):
        raise DumpWriteError(records, "does not hold all records of the journal, which stays")
    _mark_repaired(directory, len(contents.index.records), missing_tensors)
    contents.path.unlink()


def _mark_repaired(directory: Path, records: int, missing_tensors: int) -> None:
    """Let the account say that the dump is not complete: the journal can no longer tell."""
    path = directory / layout.ACCOUNT_JSON
    try:
        account = read_json_object(path) if path.exists() else {"records": records}
    except DumpFormatError as exc:
        logger.warning("%s; written anew", exc)
        account = {"records": records}
    notes = account.get("notes")
    kept = notes if isinstance(notes, list) else []
    said = [REPAIRED_NOTE]
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
