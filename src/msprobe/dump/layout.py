# SPDX-License-Identifier: Apache-2.0
"""Names of the files and folders of a dump.

    {dump_path}/step{n}/{rank folder}/
        dump.json | debug.json    records (debug.json at level debug)
        stack.json                call stacks
        construct.json            which call ran inside which
        facts.json                the training around the calls: settings, data, optimizer steps
        account.json              records kept and skipped, bytes, time
        dump_error_info.log       only if msprobe itself failed
        dump_tensor_data/         one file a tensor
        journal.jsonl             only while capturing, or after the process was killed

The rank folder is ``rank{r}``, ``rank`` without a process group, or ``proc{pid}`` where another
process already writes under the wanted name.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path, PurePath
from typing import Final

INNER_PARAMETERS: Final = "inner_parameters"
"""Part of a module's record with the parameters of modules in it that it reads, not calls."""
DUMP_JSON: Final = "dump.json"
DEBUG_JSON: Final = "debug.json"
STACK_JSON: Final = "stack.json"
CONSTRUCT_JSON: Final = "construct.json"
FACTS_JSON: Final = "facts.json"
ACCOUNT_JSON: Final = "account.json"
ERROR_LOG: Final = "dump_error_info.log"
RANDOM_LOGS: Final = "random_logs"
JOURNAL: Final = "journal.jsonl"
TENSOR_FOLDER: Final = "dump_tensor_data"
TENSOR_SUFFIXES: Final = (".pt", ".npy")

STEP_FOLDER: Final = re.compile(r"step(\d+)")
RANK_FOLDER: Final = re.compile(r"rank(\d*)|proc(\d+)")

# All common file systems allow 255 bytes a name.
MAX_NAME_BYTES: Final = 255

# Separators, control characters, and lone surrogates, which cannot be encoded.
_UNSAFE: Final = re.compile("[/\\\\\x00-\x1f\x7f\ud800-\udfff]")
# On Windows a colon names a drive or another stream of a file, and some names are devices.
_UNSAFE_ON_WINDOWS: Final = re.compile('[/\\\\\x00-\x1f\x7f\ud800-\udfff<>:"|?*]')
_DEVICE: Final = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)
_IS_WINDOWS: Final = os.name == "nt"
_HASH_DIGITS: Final = 12
_MAX_SUFFIX_BYTES: Final = 16


def step_folder(step: int) -> str:
    """Return the folder name of a step."""
    return f"step{step}"


def rank_folder(rank: int | None) -> str:
    """Return the folder name of a rank; None means a run without a process group."""
    return "rank" if rank is None else f"rank{rank}"


def rank_directory(dump_path: Path, step: int, rank_name: str) -> Path:
    """Return the folder that holds the dump of one step and rank."""
    return dump_path / step_folder(step) / rank_name


def records_file(level: str) -> str:
    """Return the name of the file that holds the records at this level."""
    return DEBUG_JSON if level == "debug" else DUMP_JSON


def is_bare_name(name: str) -> bool:
    """Return whether a file name has no part of a path in it, by the rules of any system."""
    return "/" not in name and "\\" not in name and ":" not in name


def safe_file_name(wanted: str, *, windows: bool = _IS_WINDOWS) -> str:
    """Return the file name of a tensor, safe for the file system; ``data_name`` is the same.

    A harmless name stays as it is, so the function may be applied twice. Path separators, control
    characters, ``..`` and leading dots become ``_``, and a name over 255 bytes is cut; a hash of
    the wanted name then keeps different names different. The extension is kept.

    Args:
        wanted: the name.
        windows: whether the rules of Windows hold: no ``<>:"|?*``, and no name of a device.
    """
    name = (_UNSAFE_ON_WINDOWS if windows else _UNSAFE).sub("_", wanted).replace("..", "__")
    if windows and _DEVICE.match(name):
        name = "_" + name
    if name.startswith("."):
        name = "_" + name[1:]
    if name and name == wanted and (len(name) * 4 <= MAX_NAME_BYTES or _fits(name)):
        return name
    return marked_file_name(wanted, name)


def marked_file_name(wanted: str, name: str) -> str:
    """Return a file name with a hash of the wanted one, of at most 255 bytes."""
    digest = hashlib.sha256(wanted.encode(errors="surrogatepass")).hexdigest()[:_HASH_DIGITS]
    suffix = PurePath(name).suffix
    if len(suffix.encode()) > _MAX_SUFFIX_BYTES:
        suffix = ""
    stem = name[: len(name) - len(suffix)]
    room = MAX_NAME_BYTES - len(suffix.encode()) - _HASH_DIGITS - 1
    return f"{stem.encode()[:room].decode(errors='ignore')}~{digest}{suffix}"


def unmarked_file_name(name: str) -> str:
    """Return a file name without its hash, if that was all that `marked_file_name` changed."""
    stem, dot, suffix = name.rpartition(".")
    wanted = f"{stem[: -_HASH_DIGITS - 1]}{dot}{suffix}"
    return wanted if "~" in name and marked_file_name(wanted, wanted) == name else name


def _fits(name: str) -> bool:
    return len(name.encode()) <= MAX_NAME_BYTES
